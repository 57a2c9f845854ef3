"""Runs inside vLLM's workers: `--worker-extension-cls arpo.engines.vllm_extension.WeightLoader`.

vLLM adds the class to its worker, and `/collective_rpc` calls its methods. On the CPU, vLLM packs the weights
of linear layers when it starts, and later updates do not reach the packed copies. With this module, these
layers use their plain weights. It runs in vLLM's interpreter, which has few of this package's dependencies.

After loading, a worker returns checksums of its parameters: for each tensor of the folder the part that it
holds (the region), and the `bit_sum` of this part. Fused layers hold several tensors, and each of several
tensor-parallel workers a part of one; the sums over all regions of a tensor add up to that of the publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from vllm.config import set_current_vllm_config  # type: ignore[import-not-found]
from vllm.lora import worker_manager  # type: ignore[import-not-found]
from vllm.lora.utils import parse_fine_tuned_lora_name  # type: ignore[import-not-found]
from vllm.model_executor.layers import utils  # type: ignore[import-not-found]
from vllm.platforms import current_platform  # type: ignore[import-not-found]

from arpo.models.checksums import bit_sum
from arpo.storage.published_weights import ADAPTER_FILE, read_published

Checksum = list[Any]  # name of the tensor, region, sum
WHOLE = "whole"


def _use_plain_weights(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = _use_plain_weights
if current_platform.is_cpu():
    from arpo.engines import vllm_cpu

    vllm_cpu.install()
_load_adapter = worker_manager.WorkerLoRAManager._load_adapter


def _load_named_adapter(manager: Any, request: Any) -> Any:
    """Workers know adapters by a number only: this adds the folder."""
    adapter = _load_adapter(manager, request)
    adapter.folder = request.lora_path
    return adapter


worker_manager.WorkerLoRAManager._load_adapter = _load_named_adapter


class WeightLoader:
    """Methods for vLLM's worker, which has the attributes below."""

    model_runner: Any
    vllm_config: Any
    rank: int

    @torch.no_grad()
    def load_published_weights(self, folder: str) -> list[Checksum]:
        """Copy the tensors of a published folder into the model. Returns checksums of what is there then.

        A failure may leave a mixture of two versions. Load weights again before the next request.
        """
        if (published := read_published(Path(folder))) is None:
            raise FileNotFoundError(f"{folder}: is not a complete folder of published weights")
        model, copies = self.model_runner.get_model(), _Copies(f"rank {self.rank}")
        with set_current_vllm_config(self.vllm_config), copies:
            model.load_weights(copies.named(_tensors(published.tensor_files)))
        return copies.checksums(model, self.vllm_config.model_config.dtype)

    @torch.no_grad()
    def adapter_checksums(self, folder: str) -> list[Checksum]:
        """Checksums of the adapters of a folder, from the buffers that the layers compute with."""
        manager = self.model_runner.lora_manager._adapter_manager
        found = [one for one in manager.list_adapters().values() if getattr(one, "folder", "") == folder]
        if not found:
            return []
        slot = manager.lora_index_to_id.index(found[-1].id)
        places = {name: (name, [0]) for name in manager.modules} | {
            name: (fused, slices)
            for fused, names in manager.packed_modules.items()
            if fused in manager.modules
            for name, slices in zip(names, _slices(manager.modules[fused], len(names)), strict=True)
        }
        mapper = manager.model.hf_to_vllm_mapper.get_rename_mapper()
        checksums: list[Checksum] = []
        with safe_open(Path(folder) / ADAPTER_FILE, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                module, is_a = parse_fine_tuned_lora_name(name, mapper)
                if module in places:
                    fused, slices = places[module]
                    shape = tensors.get_slice(name).get_shape()
                    checksums += [
                        [name, *_adapter_part(manager.modules[fused], index, slot, is_a, shape)]
                        for index in slices
                    ]
        return checksums


def _slices(layer: Any, count: int) -> list[list[int]]:
    """Slices of a fused layer that each of `count` adapters has: the first one has those left over.

    Example: in_proj_qkv and in_proj_z have [0, 1, 2] and [3] of in_proj_qkvz.
    """
    more = len(layer.lora_b_stacked) - count
    return [[*range(more + 1)], *([more + index] for index in range(1, count))]


def _adapter_part(layer: Any, index: int, slot: int, is_a: bool, shape: Sequence[int]) -> tuple[str, int]:
    """Region and sum of matrix A or B in a slot of the layer. Unused rows and columns are zero."""
    part = (layer.lora_a_stacked if is_a else layer.lora_b_stacked)[index][slot]
    if is_a:
        whole, shard = part.shape[-1] >= shape[1], layer.tp_rank
    else:
        shards = getattr(layer, "output_ids", None)
        whole, shard = part.shape[-2] >= shape[0], shards[index] if shards else layer.tp_rank
    return WHOLE if whole else f"part {index} {shard}", bit_sum(part)


class _Copies(TorchFunctionMode):
    """Records which part of which parameter each tensor is copied to, while it is active.

    `own` is the region of a part that the loader has rearranged.
    """

    def __init__(self, own: str) -> None:
        super().__init__()
        self._own = own
        self._name, self._tensor = "", torch.empty(0)
        self._copied: list[tuple[str, str, Tensor]] = []

    def named(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for self._name, self._tensor in tensors:
            yield self._name, self._tensor

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        if function is Tensor.copy_:
            self._copied.append((self._name, self._region(args[1]), args[0]))
        elif function is Tensor.__setitem__:  # parts of a convolution
            self._copied.append((self._name, self._region(args[2]), args[0][args[1]]))
        return result

    def _region(self, source: Tensor) -> str:
        if source.untyped_storage().data_ptr() != self._tensor.untyped_storage().data_ptr():
            return self._own
        if source.numel() == self._tensor.numel():
            return WHOLE
        return f"{source.storage_offset() - self._tensor.storage_offset()} {tuple(source.shape)}"

    def checksums(self, model: nn.Module, dtype: torch.dtype) -> list[Checksum]:
        """Of the parameters as they are now. Copies to other places do not count."""
        own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
        return [
            [name, region, bit_sum(target.to(dtype))]
            for name, region, target in self._copied
            if target.untyped_storage().data_ptr() in own
        ]


def _tensors(files: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                yield name, tensors.get_tensor(name)
