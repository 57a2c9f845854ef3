"""The part of `arpo doctor` for desktops: limits of light ones; Docker, KVM and image of virtual machines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from arpo.config.settings import OSWorldConfig
from arpo.envs.osworld.env import DEFAULT_IMAGE, IMAGE_SOURCE
from arpo.errors import UserError

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
LIMITS_REMEDY = (
    "needs a cgroup v2 that this user may write to: as root outside containers, or inside your systemd "
    "session: systemd-run --user --scope arpo train …"
)


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
