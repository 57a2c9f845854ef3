"""Attacks from inside a light desktop: on the host's secrets, on the kernel, on resources, on the score."""

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.envs.osworld.sandbox import GUEST_PACKAGES
from guests import LIMITS, SETTINGS, booted
from osworld_files import ROOT

sys.path.append(str(ROOT / "tests"))
from processes import descendants

pytestmark = pytest.mark.skipif(
    not Path(os.environ[GUEST_PACKAGES]).is_dir(), reason="the light desktop is not installed: make osworld"
)

SECRETS = ("AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "ARPO_HOST_TOKEN")
SERVER = "pgrep -f ^/usr/bin/python3.*arpo.envs.osworld.guest$"  # the process id of the guest's server


@pytest.fixture(scope="module")
def guest():
    before = {name: os.environ.get(name) for name in SECRETS}
    os.environ.update(dict.fromkeys(SECRETS, "the-hosts-secret"))
    with booted() as running:
        yield running
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


def python(guest, code):
    """Runs a Python program in the guest, and returns its last line of stderr."""
    path = "/tmp/attack.py"
    guest.run(f"cat > {path} <<'END'\n{code}\nEND")
    return (guest.run(f"/usr/bin/python3 {path}")["error"].strip().splitlines() or ["no error"])[-1]


def test_no_process_shows_the_hosts_environment(guest):
    shown = guest.run("cat /proc/*/environ /proc/*/task/*/environ | tr '\\0' '\\n'; env")["output"]
    assert "HOME=/home/user" in shown
    assert "the-hosts-secret" not in shown
    assert {line.partition("=")[0] for line in shown.splitlines()} & {
        *SECRETS,
        "PYTEST_CURRENT_TEST",
    } == set()
    assert guest.output("cat /proc/1/environ | tr '\\0' '\\n'") == "PATH=/usr/bin:/bin:/usr/sbin\n"


def test_the_screen_cannot_show_the_hosts_environment(guest):
    """The attack with ordinary input: a terminal, typed text, a screenshot."""
    guest.launch("gnome-terminal")
    guest.run_pyautogui("pyautogui.write('cat /proc/1/environ > /tmp/seen; echo done >> /tmp/seen')")
    guest.run_pyautogui("pyautogui.press('enter')")
    guest.screenshot()
    assert guest.output("timeout 20 sh -c 'until grep -q done /tmp/seen; do sleep 0.1; done'; cat /tmp/seen")
    assert "secret" not in guest.output("cat /tmp/seen")


def test_kernel_settings_are_read_only(guest):
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    assert "Read-only" in guest.run("echo '|/tmp/mine' > /proc/sys/kernel/core_pattern")["error"]
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before
    assert guest.output("find /proc/sys -writable | wc -l").strip() == "0"
    assert guest.run("cat /proc/sys/kernel/ostype")["output"] == "Linux\n"
    assert guest.run("ls /sys")["returncode"] != 0


@pytest.mark.parametrize(
    "name", ["keys", "kallsyms", "kcore", "cmdline", "timer_list", "sysrq-trigger", "kmsg"]
)
def test_kernel_files_are_hidden(guest, name):
    if Path("/proc", name).exists():
        assert guest.run(f"cat /proc/{name}")["output"] == ""
        assert guest.run(f"echo x > /proc/{name}")["returncode"] != 0


def test_the_guest_belongs_to_an_unprivileged_user_of_the_host(guest):
    (display,) = [process for process in descendants(os.getpid()) if name_of(process) == "Xvfb"]
    status = Path("/proc", str(display), "status").read_text()
    (users,) = re.findall(r"^Uid:\s+(.*)$", status, re.MULTILINE)
    assert set(users.split()) == {"65534" if os.geteuid() == 0 else str(os.geteuid())}


def name_of(process):
    return Path("/proc", str(process), "comm").read_text().strip()


def test_the_guest_has_no_capabilities_no_new_privileges_and_a_filter(guest):
    status = dict(
        line.split(":\t") for line in guest.output("cat /proc/self/status").splitlines() if ":\t" in line
    )
    assert {status[name].strip("0") for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {""}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_user_namespaces_are_refused(guest):
    assert "Operation not permitted" in guest.run("unshare --user true")["error"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("libc.syscall(435, 0, 0)", "Function not implemented"),  # clone3, on all architectures
        ("libc.syscall(425, 8, 0)", "Function not implemented"),  # io_uring_setup
        ("libc.syscall(438, 0, 0, 0)", "Operation not permitted"),  # pidfd_getfd
        ("libc.ptrace(0, 0, 0, 0)", "Operation not permitted"),
        ("libc.process_vm_readv(1, 0, 0, 0, 0, 0)", "Operation not permitted"),
        ("libc.unshare(0x10000000)", "Operation not permitted"),
        ("libc.personality(0x40000)", "Operation not permitted"),
        ("libc.socket(38, 5, 0)", "Address family not supported by protocol"),  # AF_ALG
        ("libc.socket(16, 3, 0)", "no error"),  # AF_NETLINK
        ("libc.ioctl(0, 0x5412, b'x')", "Operation not permitted"),  # TIOCSTI
    ],
)
def test_dangerous_system_calls_are_refused(guest, call, error):
    code = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"if {call} < 0: sys.exit(os.strerror(ctypes.get_errno()))"
    )
    assert python(guest, code) == error


def test_a_fork_bomb_ends_at_the_limit():
    limits = replace(LIMITS, processes=256)
    with booted(replace(SETTINGS, limits=limits)) as guest:
        code = (
            "import os, signal\n"
            "children = []\n"
            "try:\n"
            "    while len(children) < 5000:\n"
            "        pid = os.fork()\n"
            "        if pid == 0: signal.pause()\n"
            "        children.append(pid)\n"
            "except OSError as error: print(len(children), error)\n"
            "finally:\n"
            "    for pid in children: os.kill(pid, 9)\n"
        )
        guest.run(f"cat > /tmp/bomb.py <<'END'\n{code}\nEND")
        started, _, reason = guest.output("/usr/bin/python3 /tmp/bomb.py").partition(" ")
        assert 50 < int(started) < 256
        assert "Resource temporarily unavailable" in reason
        assert guest.screenshot().startswith(b"\x89PNG")


def test_a_process_cannot_take_more_memory_than_its_desktop_may():
    limits = replace(LIMITS, memory_megabytes=512)
    with booted(replace(SETTINGS, limits=limits)) as guest:
        assert python(guest, "bytearray(1 << 30)") == "MemoryError"
        assert python(guest, "bytearray(1 << 27)") == "no error"
        assert "cannot modify limit" in guest.run("bash -c 'ulimit -d unlimited'")["error"]


def test_a_file_cannot_be_larger_than_the_disk_of_its_desktop(guest):
    assert guest.run("truncate -s 2G ~/sparse")["returncode"] != 0
    assert guest.output("stat --format %s ~/sparse").strip() == "0"


def test_the_server_hides_its_token_and_its_sockets(guest):
    """With them, a program in the guest could answer the evaluator in the server's place."""
    for path in ("mem", "environ", "maps", "fd/0"):
        assert "Permission denied" in guest.run(f"cat /proc/$({SERVER})/{path}")["error"], path
    assert "Permission denied" in guest.run(f"ls /proc/$({SERVER})/fd")["error"]
    assert "socket" not in guest.output("ls -l /proc/1/fd")
    files = "find /run /tmp /home/user -type f -size -100k -exec cat {} +"
    assert guest.sandbox.token not in guest.run(f"cat /proc/*/environ /proc/*/cmdline; {files}")["output"]


def test_programs_of_evaluators_cannot_be_replaced(guest):
    assert guest.run("rm -f /usr/local/bin/python")["returncode"] != 0
    assert guest.run("ln -sf /bin/false /usr/local/bin/python")["returncode"] != 0
    guest.run("mkdir -p ~/.local/bin; ln -sf /bin/false ~/.local/bin/python")
    guest.run("echo 'dumps = lambda value: 1' > ~/json.py")
    guest.run("echo 'alias ls=false; ls() { false; }' | tee ~/.bashrc ~/.profile ~/.bash_profile")
    command = ["python", "-c", "import json; print(json.dumps(2))"]
    status, body = guest.request("/execute", {"command": command, "shell": False})
    assert (status, json.loads(body)["output"]) == (200, "2\n")
    assert guest.output("ls /usr/bin/python3") == "/usr/bin/python3\n"


def test_a_killed_server_ends_the_desktop_and_gives_no_answer():
    with booted() as guest, pytest.raises(OSError):
        guest.run(f"kill -9 $({SERVER}); sleep 60")


@pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="a user-mode network needs /dev/net/tun")
def test_the_network_does_not_reach_the_metadata_of_a_cloud_machine():
    with booted(replace(SETTINGS, network=True)) as guest:
        for address in ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192"):
            code = f"import socket; socket.create_connection(('{address}', 80), 5)"
            assert python(guest, code) == "OSError: [Errno 22] Invalid argument", address
        assert guest.run("/usr/sbin/ip route del 169.254.0.0/16")["returncode"] != 0
