"""Docker, KVM, OSWorld's image and the limits of desktops in `arpo doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from arpo.cli import doctor
from arpo.cli.doctor import machine_findings
from arpo.cli.entry_point import main
from arpo.config.settings import OSWorldConfig
from arpo.errors import UserError


def test_docker_needs_client_and_engine() -> None:
    assert doctor.docker(["echo", "27.1.0 27.0.3"]) == "client 27.1.0, engine 27.0.3"
    with pytest.raises(UserError, match="the client `docker` is not installed"):
        doctor.docker(["/none/docker", "version"])
    silent = "echo 27.1.0; echo note >&2; echo 'Cannot connect to the Docker daemon' >&2; exit 1"
    with pytest.raises(UserError) as refused:
        doctor.docker(["sh", "-c", silent])
    assert str(refused.value) == (
        "the engine does not answer the client: Cannot connect to the Docker daemon"
    )


def test_kvm_needs_a_device_that_this_user_may_use(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    with pytest.raises(UserError, match="kvm does not exist"):
        doctor.kvm(device)
    device.touch()
    assert doctor.kvm(device) == f"{device} is accessible"


def test_the_image_is_an_unpacked_disk(tmp_path: Path) -> None:
    path = tmp_path / "Ubuntu.qcow2"
    config = OSWorldConfig(machine=str(path))
    with pytest.raises(UserError, match=f"no disk image at {path}"):
        doctor.image(config)
    path.write_bytes(b"PK\x03\x04 a zip archive")
    with pytest.raises(UserError, match="is not a qcow2 disk image; a"):
        doctor.image(config)
    with path.open("wb") as file:
        file.write(b"QFI\xfb")
        file.truncate(3 * 2**29)  # sparse
    assert doctor.image(config) == f"{path}, 1.5 GiB"


def test_limits_are_those_of_control_groups_or_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = "arpo.envs.osworld.fork_server.control_groups"
    monkeypatch.setattr(groups, lambda: None)
    with pytest.raises(UserError, match="no control groups: 4096 MiB, 2048 processes per desktop, but"):
        doctor.limits(OSWorldConfig())
    monkeypatch.setattr(groups, object)
    assert doctor.limits(OSWorldConfig(cpus=1.5)) == (
        "control groups: 4096 MiB, 2048 processes, 1.5 CPU cores per desktop"
    )


def test_each_missing_part_has_one_line_and_one_remedy(tmp_path: Path) -> None:
    config = OSWorldConfig(machine=str(tmp_path / "none.qcow2"))
    optional, wanted = (machine_findings(config, warning=warning)[2] for warning in (False, True))
    assert not optional.needed and not wanted.needed
    first, remedy = str(optional).splitlines()
    assert first == f"{'-':>8}  OSWorld image  no disk image at {tmp_path / 'none.qcow2'}"
    assert remedy.strip().startswith('-> only for osworld.provider = "docker": unpack https://')
    assert str(wanted).split()[0] == "warning"


def test_a_recipe_with_virtual_machines_is_checked_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--recipe", "osworld_local", "--model.device", "cpu"]
    main(words)
    assert "OSWorld image" not in capsys.readouterr().out
    main([*words, "--osworld.provider", "docker"])
    assert "OSWorld image" in capsys.readouterr().out
    main([*words, "--osworld.provider", "docker", "--gpu", "80"])  # plans for another machine
    assert "OSWorld image" not in capsys.readouterr().out
