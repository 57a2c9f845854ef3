"""Runs inside vLLM's workers: `--worker-extension-cls arpo.engines.vllm_extension.WeightLoader`.

vLLM adds the class to its worker, and `/collective_rpc` calls its method. On the CPU, vLLM packs the weights
of linear layers when it starts, and later updates do not reach the packed copies. With this module, these
layers use their plain weights. It runs in vLLM's interpreter, which has few of this package's dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from vllm.config import set_current_vllm_config  # type: ignore[import-not-found]
from vllm.model_executor.layers import utils  # type: ignore[import-not-found]

from arpo.storage.published_weights import read_published


def _use_plain_weights(layer: Any, remove_weight: bool) -> None:
    layer.cpu_linear = nn.functional.linear


utils.dispatch_cpu_unquantized_gemm = _use_plain_weights


class WeightLoader:
    """A method for vLLM's worker, which has the attributes below."""

    model_runner: Any
    vllm_config: Any

    @torch.no_grad()
    def load_published_weights(self, folder: str) -> None:
        """Copy the tensors of a published folder into the model.

        A failure may leave a mixture of two versions. Load weights again before the next request.
        """
        if (published := read_published(Path(folder))) is None:
            raise FileNotFoundError(f"{folder}: is not a complete folder of published weights")
        files = sorted(published.folder.glob("*.safetensors"))
        with set_current_vllm_config(self.vllm_config):
            self.model_runner.get_model().load_weights(_tensors(files))


def _tensors(files: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (not a mapping)
                yield name, tensors.get_tensor(name)
