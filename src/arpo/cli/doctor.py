"""What is installed, what works here, what is missing and how to get it.

Every finding comes from trying the thing itself. Whatever goes wrong in a try is its finding: the doctor
never crashes, changes nothing and downloads nothing.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from arpo.config import Config
from arpo.errors import UserError

REQUIRED = (
    *("torch", "transformers", "tokenizers", "safetensors", "numpy", "Pillow", "rich", "tensorboardX"),
    "aiohttp",
)
BOOT_SECONDS = 60.0
OPTIONAL = {"wandb": "metrics on Weights & Biases: pip install 'arpo[wandb]'"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    works: bool
    detail: str
    remedy: str = ""
    needed: bool = True

    def __str__(self) -> str:
        sign = "ok" if self.works else "MISSING" if self.needed else "-"
        line = f"{sign:>8}  {self.name:<14} {self.detail}"
        return line if self.works or not self.remedy else f"{line}\n{'':>10}{'':<14} -> {self.remedy}"


def run_doctor(say: Callable[[str], None] = print) -> int:
    """Say each finding as it is made; 0 when everything that training needs works."""
    fit = True
    for finding in findings():
        say(str(finding))
        fit = fit and (finding.works or not finding.needed)
    say("Training works here: arpo train" if fit else "Training does not work here yet: see the arrows.")
    return 0 if fit else 1


def run_memory(config: Config, gpu: int | None, say: Callable[[str], None] = print) -> int:
    """Say what the recipe's model will need of a GPU, and what to change if it does not fit.

    The GPU is one of `gpu` GiB, or the one here. A folder that could not be loaded is refused first.
    """
    import torch

    from arpo.learner.ranks import device_of
    from arpo.models.loading import check_weights, load_renderer, resolve_model
    from arpo.models.memory_plan import GIB, describe, memory, read_facts

    load_renderer(config.model)
    if config.model.weights == "load":
        check_weights(resolve_model(config.model.path))
    room = None
    if gpu is not None:
        room = gpu * GIB
    elif torch.cuda.is_available():
        room = torch.cuda.get_device_properties(0).total_memory
    facts = read_facts(config)
    for line in describe(facts, config, room):
        say(line)
    if room is None:
        return 0
    if gpu is None:
        device_of(0, config)
    return 0 if memory(facts, config).total <= room else 1


def findings() -> list[Finding]:
    return [
        _python(),
        *[_package(name, f"pip install {name}", needed=True) for name in REQUIRED],
        *[_package(name, remedy, needed=False) for name, remedy in OPTIONAL.items()],
        _try("pictures", _pictures, "pip install --force-reinstall Pillow"),
        _try("processor", _processor, "pip install torch"),
        _try("GPU", _gpu, "not needed for the desk recipe; large models need one", needed=False),
        _try("base model", _base_model, "arpo pretrain --help says how it is made"),
        _try("desk", _desk, "reinstall this package"),
        _try("real desktops", _real_desktops, "make osworld, on Debian or Ubuntu", needed=False),
        _try("disk", _disk, "choose a folder that you may write to: --run.dir"),
    ]


def _try(name: str, attempt: Callable[[], str], remedy: str, *, needed: bool = True) -> Finding:
    """The boundary: an attempt returns what it saw, or raises, and that is the finding."""
    try:
        return Finding(name=name, works=True, detail=attempt(), needed=needed)
    except Exception as error:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        return Finding(name=name, works=False, detail=reason, remedy=remedy, needed=needed)


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


def _pictures() -> str:
    from PIL import features

    if not features.check("webp"):
        raise UserError("this Pillow was built without WebP, which stores large screenshots")
    return "PNG and WebP"


def _processor() -> str:
    import torch

    assert float((torch.ones(2, 2) @ torch.ones(2, 2)).sum()) == 8.0
    return f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise UserError("torch finds none")
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, {memory:.0f} GiB"


def _base_model() -> str:
    from arpo.envs.desk.base_model.card import fingerprint, read_fingerprint
    from arpo.models.loading import load_model, resolve_model

    config = Config()
    folder = resolve_model(config.model.path)
    model = load_model(replace(config.model, device="cpu"), config.run.seed)
    if read_fingerprint(folder) != fingerprint():
        raise UserError("was trained on other screens, tokens or prompts than those of this package")
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters"


def _desk() -> str:
    from arpo.envs.factory import resolve_env
    from arpo.envs.task_files import load_tasks

    config = Config()
    tasks = load_tasks(config.tasks.train)

    async def look() -> tuple[int, int]:
        env = resolve_env(config)()
        observation = await env.start(tasks[0])
        await env.evaluate()
        await env.close()
        return observation.screenshot.size

    width, height = asyncio.run(look())
    return f"{len(tasks)} tasks in {config.tasks.train}, screens of {width}x{height}"


def _real_desktops() -> str:
    from arpo.envs.osworld.sandbox import GUEST_PACKAGES, Sandbox, SandboxSettings

    python = Path(Config().osworld.python).absolute()
    if not python.is_file():
        raise UserError(f"{Config().osworld.python} is not there")
    os.environ.setdefault(GUEST_PACKAGES, str(python.parents[1] / "guest-packages"))
    began = time.monotonic()
    sandbox = Sandbox(SandboxSettings(width=640, height=480, home_megabytes=64, network=False))
    sandbox.boot(BOOT_SECONDS)
    sandbox.close()
    return f"a light desktop boots and closes in {time.monotonic() - began:.1f} s"


def _disk() -> str:
    with tempfile.NamedTemporaryFile(dir=Path.cwd()):
        free = shutil.disk_usage(Path.cwd()).free / 2**30
    return f"{Path.cwd()} can be written, {free:.0f} GiB free"
