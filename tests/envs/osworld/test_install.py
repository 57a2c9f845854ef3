"""`arpo osworld install`, with a stand-in for the Python that it calls: the real one downloads 300 MB."""

import os
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from arpo.envs.osworld import install
from arpo.envs.osworld.install import PACKAGE, STATE, install_desktops
from arpo.errors import UserError

# Makes an environment whose python is itself, and logs every other call. $FAIL is the call that fails.
STAND_IN = """#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in *"$FAIL"*) echo "no space left" >&2; exit 1;; esac
shift 2
if [ "$1" = venv ]; then
    mkdir -p "$2/bin" "$2/lib/python3.11/site-packages" && cp "$0" "$2/bin/python"
fi
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / "python"
    program.write_text(STAND_IN, "utf-8")
    program.chmod(0o755)
    here = tmp_path / "lists"
    here.mkdir()
    (here / "install.sh").write_text("exit 0\n", "utf-8")  # the real one calls apt-get
    for name in install.LISTS:
        (here / name).write_text((install.HERE / name).read_text("utf-8"), "utf-8")
    monkeypatch.setattr(install, "HERE", here)
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("FAIL", "nothing fails")
    return str(program)


def calls(folder: Path) -> list[str]:
    return (folder / "log").read_text("utf-8").splitlines()


def test_a_second_call_does_nothing_and_a_changed_list_installs_again(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = tmp_path / ".venv-osworld"
    install_desktops(venv, python)
    parts = [call.split()[2] for call in calls(tmp_path)]
    assert parts == ["venv", "pip", "pip", "arpo.envs.osworld.prepare_home"]
    assert (venv / "lib/python3.11/site-packages/arpo").resolve() == PACKAGE
    install_desktops(venv, python)
    assert len(calls(tmp_path)) == 4
    assert capsys.readouterr().out.endswith(f"The desktops are installed in {venv}\n")
    (install.HERE / install.LISTS[0]).write_text("desktop-env==9\n", "utf-8")
    install_desktops(venv, python)
    assert len(calls(tmp_path)) == 8


def test_a_failed_step_is_named_and_the_same_command_repairs_it(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / ".venv-osworld"
    monkeypatch.setenv("FAIL", "guest-packages")
    with pytest.raises(UserError, match="cannot install the guest's packages: see the message above"):
        install_desktops(venv, python)
    monkeypatch.setenv("FAIL", "nothing fails")
    install_desktops(venv, python)
    assert len((venv / STATE).read_text("utf-8")) == 65


def test_a_folder_of_somebody_else_is_not_deleted(python: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"did not create it\. Remove it, or set"):
        install_desktops(tmp_path / "mine", python)
    assert os.listdir(tmp_path / "mine") == ["thesis.tex"]


def test_the_command_installs_where_osworld_python_is(
    python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["osworld", "install", "--python", python, "--osworld.python"]
    assert main([*words, str(tmp_path / "deep" / "osw" / "bin" / "python")]) == 0
    assert (tmp_path / "deep" / "osw" / STATE).is_file()
    assert main([*words, str(tmp_path / "python3")]) == 2
    assert "Name a virtual environment: FOLDER/bin/python" in capsys.readouterr().err
    assert main(["osworld", "install", "--python", "/none/python"]) == 2
    assert capsys.readouterr().err == "arpo: error: --python /none/python: no such program\n"


def test_an_installed_package_installs_into_a_folder_of_the_user(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "arpo"
    package.mkdir(parents=True)
    for module in PACKAGE.glob("*.py"):
        shutil.copy(module, package)
    shutil.copytree(PACKAGE / "config", package / "config")
    code = "from arpo.config.recipe import PROJECT; print(PROJECT)"
    environment = {"PYTHONPATH": str(package.parent), "XDG_DATA_HOME": str(tmp_path / "data")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path / 'data' / 'arpo'}\n"


def test_the_wheel_contains_every_file_of_the_installation() -> None:
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["arpo"]
    for name in ("install.sh", *install.LISTS):
        file = f"envs/osworld/{name}"
        assert (PACKAGE / file).is_file() and any(fnmatch(file, pattern) for pattern in patterns), file
