"""Installs the desktops: `arpo osworld install`, or `make osworld` without an installed ARPO.

    python -m arpo.envs.osworld.install .venv-osworld

Installs Debian packages (`install.sh`), creates a virtual environment with desktop-env, and adds this
package, the packages of the guest and the prepared home. Needs the standard library only. A second call
repairs an interrupted installation, or does nothing.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from arpo.errors import UserError
from arpo.processes.child import python_command

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1]
STATE = ".installed"  # holds the digest of a complete installation, and marks the folder as ours
LISTS = ("requirements-osworld.txt", "requirements-guest.txt")
PIP = ("pip", "install", "--quiet", "--quiet", "--disable-pip-version-check", "--no-deps")


def install_desktops(folder: Path, python: str = sys.executable) -> None:
    """Install into `folder`, with its own copy of `python`. Raises UserError if a step fails."""
    folder = folder.absolute()
    _run("the Debian packages", ["sh", str(HERE / "install.sh")])
    digest = _digest(python)
    if (folder / STATE).is_file() and (folder / STATE).read_text("utf-8") == digest:
        print(f"The desktops are installed in {folder}")
        return
    print(f"Installing into {folder}; this takes some minutes, once.", flush=True)
    _clear(folder)
    _run(
        "a virtual environment (Debian package python3-venv)",
        python_command("venv", str(folder), python=python),
    )
    own = str(folder / "bin" / "python")
    packages, guest_packages = (str(HERE / name) for name in LISTS)
    _run("desktop-env", python_command(*PIP, "--requirement", packages, python=own))
    _link_package(folder)
    target = ("--target", str(folder / "guest-packages"))
    _run("the guest's packages", python_command(*PIP, *target, "--requirement", guest_packages, python=own))
    _run("the prepared home", python_command("arpo.envs.osworld.prepare_home", python=own))
    (folder / STATE).write_text(digest, "utf-8")
    print("Installed. Test it with `arpo doctor`, then `arpo train osworld_local`")


def _digest(python: str) -> str:
    """Identifies everything that the installation depends on."""
    content = [str(PACKAGE), python, *((HERE / name).read_text("utf-8") for name in LISTS)]
    return hashlib.sha256("\0".join(content).encode()).hexdigest() + "\n"


def _clear(folder: Path) -> None:
    """Make an empty folder, marked as ours. A folder that something else made is not deleted."""
    if folder.exists() and not (folder / STATE).is_file() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(
            f"{folder}: exists, and `arpo osworld install` did not create it. Remove it, or set "
            "osworld.python to another folder: FOLDER/bin/python"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / STATE).write_text("incomplete\n", "utf-8")


def _link_package(folder: Path) -> None:
    """Let the environment import this package from its place: both always have the same version."""
    [site_packages] = folder.glob("lib/python3.*/site-packages")
    (site_packages / PACKAGE.name).symlink_to(PACKAGE)


def _run(part: str, command: list[str]) -> None:
    try:
        code = subprocess.run(command, check=False).returncode
    except OSError as error:
        raise UserError(f"cannot install {part}: {command[0]}: {error.strerror}") from error
    if code:
        raise UserError(f"cannot install {part}: see the message above. Then run the same command again")


def main() -> int:
    try:
        install_desktops(Path(sys.argv[1]))
    except UserError as error:
        print(f"arpo: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
