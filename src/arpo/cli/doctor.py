"""`arpo doctor`: checks the installation and this machine, or plans GPU memory for a recipe.

Each check uses the component itself. An exception in a check is its result: the doctor never crashes.
It changes nothing and downloads nothing.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from arpo.config import Config
from arpo.config.recipe import find_program
from arpo.config.settings import ModelConfig, OSWorldConfig
from arpo.envs.osworld.env import DEFAULT_IMAGE, IMAGE_SOURCE
from arpo.errors import BadSetting, UserError
from arpo.serving.vllm_server import find_vllm

if TYPE_CHECKING:
    from arpo.models.memory_plan import ModelInfo  # it loads torch

REQUIRED = (
    *("torch", "transformers", "tokenizers", "safetensors", "numpy", "Pillow", "rich", "tensorboardX"),
    *("aiohttp", "huggingface_hub"),
)
BOOT_SECONDS = 60.0
OPTIONAL = {"wandb": "metrics on Weights & Biases: pip install 'arpo[wandb]'"}
BFLOAT16_FLAGS = {"bf16", "avx512_bf16", "amx_bf16"}  # aarch64, x86
KVM = Path("/dev/kvm")
QCOW2 = b"QFI\xfb"  # the first bytes of a disk image
DOCKER_SECONDS = 20.0
DOCKER_VERSIONS = ("docker", "version", "--format", "{{.Client.Version}} {{.Server.Version}}")
DOCKER_REMEDY = (
    'only for osworld.provider = "docker": install Docker Engine, start it, and add your user to its group'
)
KVM_REMEDY = (
    "only for virtual machines, which are very slow without it: enable virtualisation (firmware or cloud "
    "instance), and add your user to the group kvm"
)
IMAGE_REMEDY = f'only for osworld.provider = "docker": unpack {IMAGE_SOURCE}, or set osworld.machine'
VLLM_REMEDY = "servers need it (engine.name = vllm); the engine in the process does not"
LIMITS_REMEDY = (
    "needs a cgroup v2 that this user may write to: as root outside containers, or inside your systemd "
    "session: systemd-run --user --scope arpo train …"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check. `needed`: training needs it. `warning`: it works, but badly."""

    name: str
    works: bool
    detail: str
    remedy: str = ""
    needed: bool = True
    warning: bool = False

    def __str__(self) -> str:
        sign = "ok" if self.works else "MISSING" if self.needed else "warning" if self.warning else "-"
        line = f"{sign:>8}  {self.name:<14} {self.detail}"
        return line if self.works or not self.remedy else f"{line}\n{'':>10}{'':<14} -> {self.remedy}"


def check_machine() -> int:
    """Print the result of each check. Returns 0 if training works on this machine, otherwise 1."""
    ready = True
    for finding in findings():
        print(finding, flush=True)
        ready = ready and (finding.works or not finding.needed)
    print(
        "Training works on this machine: arpo train" if ready else "Training needs the MISSING parts above."
    )
    return 0 if ready else 1


def plan_recipe(config: Config, gpu: int | None, gpus: int | None = None) -> int:
    """Print the GPU memory of the recipe, and settings to reduce it if it does not fit.

    Plans for `gpus` GPUs of `gpu` GiB (None: those of this machine). Returns 1 if the recipe does not fit, or
    if a file of the model is missing. If the recipe uses virtual machines on this machine, also prints the
    checks for them.
    """
    import torch

    from arpo.learner.ranks import rank_device
    from arpo.models.memory_advice import describe_fit, describe_parts
    from arpo.models.memory_plan import GIB
    from arpo.serving.memory import run_need

    here, gpu_bytes = gpu is None and gpus is None, None
    if gpu is not None:
        gpu_bytes = gpu * GIB
    elif torch.cuda.is_available():
        gpu_bytes = torch.cuda.get_device_properties(0).total_memory
        gpus = torch.cuda.device_count() if gpus is None else gpus
    info, missing = _plan_model(config.model)
    print(*describe_parts(info, config), *_describe_servers(info, config, gpus, gpu_bytes), sep="\n")
    if gpu_bytes is None:
        print("no GPU found; --gpu 80 checks the plan against a GPU of 80 GiB")
    else:
        print(*describe_fit(info, config, gpu_bytes, partial(run_need, gpus=gpus)), sep="\n")
    for finding in missing:
        print(finding)
    uses_docker = config.env.name == "osworld" and config.osworld.provider == "docker"
    if here and uses_docker and not config.env.hosts:
        print(*machine_findings(config.osworld, warning=True), sep="\n")
    if here and gpu_bytes is not None:
        rank_device(0, config)
    fits = gpu_bytes is None or run_need(info, config, gpus) <= gpu_bytes
    return 0 if fits and not any(one.needed for one in missing) else 1


def explain_gap(folder: Path) -> int:
    """Print why engine and learner of a run disagree. Returns 1 if they do."""
    from arpo.reporting.gap import describe_gap
    from arpo.training.gap import find_gap

    gap = find_gap(folder)
    print(*describe_gap(gap), sep="\n")
    return 1 if gap.disagrees else 0


def _plan_model(model: ModelConfig) -> tuple[ModelInfo, list[Finding]]:
    """The model of the recipe, and what is missing of it. A published model is known by its name alone."""
    from arpo.models.hub import parse_hub_model
    from arpo.models.known_models import known_model
    from arpo.models.loading import check_trainable, check_weights, load_renderer, resolve_model
    from arpo.models.memory_plan import model_info, read_model_info

    on_hub, known = parse_hub_model(model.path) is not None, known_model(model.path)
    if known is not None and (on_hub or not Path(model.path).expanduser().exists()):
        detail = f"{model.path} is not downloaded; the plan is that of the published model with this name"
        remedy = "" if on_hub else f"--model.path {known.hub} downloads it, or name its folder"
        return model_info(known.config, model), [
            Finding(name="model", works=False, detail=detail, remedy=remedy, needed=False)
        ]
    check_trainable(model)  # otherwise the plan would be of a run that `arpo train` refuses
    info = read_model_info(model)
    tried = [_try("tokenizer", partial(load_renderer, model), "")]
    if model.weights == "load" and not on_hub:
        tried.append(_try("weights", partial(check_weights, resolve_model(model.path)), ""))
    return info, [finding for finding in tried if not finding.works]


def _describe_servers(info: ModelInfo, config: Config, gpus: int | None, gpu_bytes: int | None) -> list[str]:
    """Lines about the vLLM servers of the recipe: their memory, or why they cannot be placed."""
    if config.engine.name == "vllm" and not config.engine.replicas:
        return [f"the vLLM servers run elsewhere: {config.engine.endpoints} (engine.endpoints)"]
    from arpo.serving.memory import describe_server, place_run, starts_servers

    try:
        placement = place_run(config, gpus)
    except BadSetting as error:
        if gpu_bytes is None:
            raise
        return [f"these GPUs are too few: {error}"]
    return describe_server(info, config, placement, gpu_bytes) if starts_servers(config) else []


def findings() -> Iterator[Finding]:
    """The result of each check, as soon as it is known."""
    yield _python()
    yield from (_package(name, f"pip install {name}", needed=True) for name in REQUIRED)
    yield from (_package(name, remedy, needed=False) for name, remedy in OPTIONAL.items())
    yield _try("images", _images, "pip install --force-reinstall Pillow")
    yield _try("CPU", _cpu, "pip install torch")
    yield _bfloat16()
    gpu = _try("GPU", _gpu, "not needed for the recipe desk; large models need one", needed=False)
    yield gpu
    yield _try("base model", _base_model, "reinstall this package")
    yield _try("desk", _desk, "reinstall this package")
    vllm = _try("vLLM", _vllm, "", needed=False)  # its error says what to do
    yield vllm
    if gpu.works and vllm.works:
        yield _try("vLLM request", _vllm_request, VLLM_REMEDY, needed=False, warning=True)
    yield from _desktops(Config().osworld)
    yield from machine_findings(Config().osworld)
    yield _try("disk", _disk, "change to a writable folder")


def _desktops(config: OSWorldConfig) -> list[Finding]:
    remedy = "on Debian or Ubuntu: arpo osworld install"
    found = [_try("real desktops", _real_desktops, remedy, needed=False)]
    if find_program(config.python) is not None:
        check = partial(limits, config)
        found.append(_try("limits", check, LIMITS_REMEDY, needed=False, warning=True))
    return found


def machine_findings(config: OSWorldConfig, *, warning: bool = False) -> list[Finding]:
    """Checks for virtual machines. `warning`: the recipe needs them."""
    return [
        _try("Docker", docker, DOCKER_REMEDY, needed=False, warning=warning),
        _try("KVM", kvm, KVM_REMEDY, needed=False, warning=warning),
        _try("OSWorld image", partial(image, config), IMAGE_REMEDY, needed=False, warning=warning),
    ]


def _try(
    name: str, attempt: Callable[[], object], remedy: str, *, needed: bool = True, warning: bool = False
) -> Finding:
    """Run one check. `attempt` returns a detail to print; an exception becomes a failed finding."""
    try:
        return Finding(name=name, works=True, detail=str(attempt()), needed=needed)
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return Finding(name=name, works=False, detail=reason, remedy=remedy, needed=needed, warning=warning)


def _python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Finding(
        name="Python", works=sys.version_info >= (3, 11), detail=detail, remedy="use Python 3.11 or later"
    )


def _package(name: str, remedy: str, *, needed: bool) -> Finding:
    try:
        return Finding(name=name, works=True, detail=version(name), needed=needed)
    except PackageNotFoundError:
        return Finding(name=name, works=False, detail="not installed", remedy=remedy, needed=needed)


def _images() -> str:
    from PIL import features

    if not features.check("webp"):
        raise UserError("this Pillow has no WebP support; large screenshots are stored as WebP")
    return "PNG and WebP"


def _cpu() -> str:
    import torch

    assert float((torch.ones(2, 2) @ torch.ones(2, 2)).sum()) == 8.0
    return f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"


def _bfloat16() -> Finding:
    """A warning if the CPU has no bfloat16 instructions."""

    def check() -> str:
        import torch

        features = {name for name, value in torch.cpu.get_capabilities().items() if value is True}
        if not features & BFLOAT16_FLAGS:
            raise UserError('emulated by this CPU: models with model.dtype = "bfloat16" run very slowly')
        return "supported by this CPU"

    remedy = 'on this CPU, use model.dtype = "float32"'
    return _try("bfloat16", check, remedy, needed=False, warning=True)


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise UserError("torch finds no GPU")
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, {memory:.0f} GiB"


def _base_model() -> str:
    from arpo.models.loading import load_model

    config = Config()
    model = load_model(replace(config.model, device="cpu"), config.run.seed)
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def _desk() -> str:
    from arpo.envs.factory import resolve_env
    from arpo.tasks.lists import load_tasks

    config = Config()
    tasks = load_tasks(config.tasks.train)

    async def screen_size() -> tuple[int, int]:
        env = resolve_env(config)()
        observation = await env.start(tasks[0])
        await env.evaluate()
        await env.close()
        return observation.screenshot.size

    width, height = asyncio.run(screen_size())
    return f"{len(tasks)} tasks in {config.tasks.train}, screens of {width}x{height}"


def _real_desktops() -> str:
    from arpo.envs.osworld.limits import Limits
    from arpo.envs.osworld.sandbox import GUEST_PACKAGES, Sandbox, SandboxSettings

    python = find_program(Config().osworld.python)
    if python is None:
        raise UserError(f"not installed: {Config().osworld.python} does not exist")
    os.environ.setdefault(GUEST_PACKAGES, str(Path(python).parents[1] / "guest-packages"))
    began = time.monotonic()
    limits = Limits.of(Config().osworld)
    sandbox = Sandbox(SandboxSettings(width=640, height=480, home_megabytes=64, network=False, limits=limits))
    sandbox.boot(BOOT_SECONDS)
    sandbox.close()
    return f"a light desktop starts and closes in {time.monotonic() - began:.1f} s"


def _disk() -> str:
    with tempfile.NamedTemporaryFile(dir=Path.cwd()):
        free = shutil.disk_usage(Path.cwd()).free / 2**30
    return f"{Path.cwd()} is writable, {free:.0f} GiB free"


def docker(command: Sequence[str] = DOCKER_VERSIONS) -> str:
    """Versions of client and engine. Raises UserError if one of them does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOCKER_SECONDS, check=False)
    except FileNotFoundError:
        raise UserError("the client `docker` is not installed") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"the engine does not answer within {DOCKER_SECONDS:g} s") from None
    versions = done.stdout.split()
    if done.returncode or len(versions) != 2:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise UserError(f"the engine does not answer the client: {said.splitlines()[-1]}")
    return f"client {versions[0]}, engine {versions[1]}"


def kvm(device: Path = KVM) -> str:
    if not device.exists():
        raise UserError(f"{device} does not exist")
    if not os.access(device, os.R_OK | os.W_OK):
        raise UserError(f"{device}: this user may not use it")
    return f"{device} is accessible"


def image(config: OSWorldConfig) -> str:
    """Path and size of the disk image of provider "docker"."""
    path = Path(config.machine or DEFAULT_IMAGE).absolute()
    if not path.is_file():
        raise UserError(f"no disk image at {path}")
    with path.open("rb") as file:
        if file.read(len(QCOW2)) != QCOW2:
            raise UserError(f"{path}: is not a qcow2 disk image; a .zip must be unpacked first")
    return f"{path}, {path.stat().st_size / 2**30:.1f} GiB"


def limits(config: OSWorldConfig) -> str:
    """Limits of one light desktop. Raises UserError if this user cannot make control groups."""
    from arpo.envs.osworld.fork_server import control_groups
    from arpo.envs.osworld.limits import MAX_PROCESSES

    values = f"{config.memory_megabytes} MiB, {MAX_PROCESSES} processes"
    if control_groups() is None:
        raise UserError(f"no control groups: {values} per desktop, but memory and CPU time count per process")
    return f"control groups: {values}, {config.cpus:g} CPU cores per desktop"


def _vllm() -> str:
    """Interpreter and kind of vLLM. Raises UserError if it is not installed."""
    python, on_cpu = find_vllm(Config().engine)
    return f"{python}, built for {'CPUs' if on_cpu else 'GPUs'}"


def _vllm_request() -> str:
    """A request to a server on the GPU. Its start takes a minute or two."""
    from arpo.cli.vllm_trial import request_tokens, trial_config

    return request_tokens(trial_config(), print)
