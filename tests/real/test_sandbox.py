"""Isolation of the light desktop from its host, and cleanup after it ends."""

import contextlib
import http.server
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.envs.osworld.sandbox import GUEST_PACKAGES, LOG_BYTES, Sandbox, guest_files
from arpo.envs.osworld.sandbox_layout import readable_by_guest
from arpo.errors import EnvError, EnvTimeout, UserError
from guests import BOOT_SECONDS, SETTINGS, booted
from osworld_files import ROOT

sys.path.append(str(ROOT / "tests"))
from processes import descendants, parents, wait_until

pytestmark = pytest.mark.skipif(
    not Path(os.environ[GUEST_PACKAGES]).is_dir(), reason="the light desktop is not installed: make osworld"
)


@pytest.fixture(scope="module")
def guest():
    with booted() as running:
        yield running


def is_refused(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return True
    return False


def memory():
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_wrong_token_is_refused(guest):
    assert guest.request("/screenshot", token="wrong")[0] == 401
    assert guest.request("/execute", {"command": ["true"]}, token="wrong")[0] == 401


def test_the_guest_has_its_own_user_and_host_name(guest):
    assert guest.output("id -un; hostname; echo $HOME; pwd; whoami; sudo id -u").split() == [
        "user", "user-virtual-machine", "/home/user", "/home/user", "user", "1000"
    ]  # fmt: skip
    assert guest.output("ls /home").split() == ["user"]


@pytest.mark.parametrize(
    "path",
    [
        "/root",
        str(ROOT),
        str(Path.home()),
        "/etc/shadow",
        "/etc/sudoers",
        "/etc/ssh",
        "/etc/ssl/private",
    ],
)
def test_private_paths_of_the_host_are_missing(guest, path):
    assert guest.run(f"test -e '{path}'")["returncode"] == 1


def test_a_file_of_the_host_cannot_be_read(guest, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine")
    assert guest.file(str(secret))[0] == 404
    assert guest.file(f"/proc/1/root{secret}")[0] == 404
    assert guest.file("/home/user/../../../../root/.bashrc")[0] == 404


def test_the_hosts_folders_are_read_only(guest):
    for folder in (
        "/",
        "/usr",
        "/usr/bin",
        "/usr/local/bin",
        "/usr/local/share/applications",
        "/etc",
        "/dev",
        "/opt/arpo",
        "/opt/arpo/packages",
    ):
        assert "Read-only file system" in guest.run(f"touch {folder}/mark")["error"], folder


def test_the_guest_sees_only_its_own_processes(guest):
    assert str(os.getpid()) not in guest.output("ps -e -o args").split()
    assert "pytest" not in guest.output("ps -e -o args")


def test_the_network_cannot_be_reached(guest):
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    reach = "python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)'"
    assert guest.run(f"{reach} 127.0.0.1 {port}")["returncode"] == 1
    assert "Network is unreachable" in guest.run(f"{reach} 192.0.2.1 80")["error"]
    assert guest.output(
        "ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1"
    ).split() == ["lo"]
    listening.close()


def test_the_server_survives_a_full_disk():
    with booted(replace(SETTINGS, home_megabytes=64)) as guest:
        result = guest.run(
            "head -c 200000000 /dev/zero > ~/fill; head -c 200000000 /dev/zero > /tmp/fill; sync"
        )
        assert result["error"].count("No space left on device") == 2
        assert guest.output("du -m ~/fill").split()[0] in {"63", "64"}
        assert guest.screenshot().startswith(b"\x89PNG")
        body = b'--b\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n/home/user/x\r\n--b--\r\n'
        assert guest.request("/setup/upload", body)[0] == 400
        assert guest.run("rm ~/fill /tmp/fill && echo gone")["output"] == "gone\n"


def test_output_beyond_the_limit_is_dropped():
    with booted() as guest:
        before = memory()
        guest.launch("sh", "-c", "yes flood | head -c 200000000; yes flood | head -c 200000000 >&2; sleep 60")
        assert wait_until(lambda: guest.run("pgrep -x yes")["returncode"] == 1, 60.0)
        assert memory() - before < 20 * LOG_BYTES + 50_000_000
        result = guest.run("yes line | head -c 50000000")
        assert len(result["output"]) < 2**20 + 100
        assert "more bytes were dropped" in result["output"]
        assert guest.screenshot().startswith(b"\x89PNG")


def test_close_leaves_no_process_no_file_and_no_port(tmp_path, monkeypatch):
    readable_by_guest(guest_files())  # shared by all desktops of this process
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = descendants(os.getpid())
    with booted() as guest:
        guest.launch("gnome-terminal")
        guest.run("touch /tmp/mark ~/mark; setsid sleep 1000 & setsid nohup sleep 1000 >/dev/null 2>&1 &")
        assert len(descendants(os.getpid()) - before) > 5
        ports = guest.sandbox.ports
        guest.sandbox.close()
        assert descendants(os.getpid()) - before == set()
        assert list(tmp_path.iterdir()) == []
        assert [is_refused(port) for port in (ports.server, ports.chromium, ports.vlc)] == [True] * 3
        guest.sandbox.close()


@pytest.mark.parametrize("victims", ["-f [a]rpo.envs", "-x Xvfb"])
def test_a_guest_without_its_server_or_screen_ends_completely(victims):
    before = descendants(os.getpid())
    with booted() as guest:
        with pytest.raises(OSError):
            guest.run(f"pkill -9 {victims}; sleep 60")
        assert wait_until(lambda: is_refused(guest.sandbox.ports.server))
        assert wait_until(lambda: descendants(os.getpid()) - before == set())


def test_a_killed_guest_can_still_be_closed():
    before = descendants(os.getpid())
    with booted() as guest:
        for process in descendants(os.getpid()) - before:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        assert wait_until(lambda: is_refused(guest.sandbox.ports.server))
    assert descendants(os.getpid()) - before == set()


def test_the_guest_dies_with_its_parent():
    code = (
        "import sys, time; sys.path[:0] = [{!r}, {!r}]\n"
        "from guests import booted\n"
        "with booted() as guest: print(guest.sandbox.ports.server, flush=True); time.sleep(600)"
    ).format(str(ROOT / "src"), str(Path(__file__).parent / "support"))
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    family = descendants(parent.pid)
    assert len(family) > 3
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not family & set(parents()))
    assert is_refused(port)


def test_a_guest_that_does_not_start_in_time_raises_a_timeout():
    before = descendants(os.getpid())
    sandbox = Sandbox(SETTINGS)
    with pytest.raises(EnvTimeout, match="start: the guest did not start in time"):
        sandbox.boot(0.0)
    assert descendants(os.getpid()) - before == set()


def test_the_error_of_a_failed_start_has_the_guests_output():
    sandbox = Sandbox(replace(SETTINGS, width=0, height=0))
    with pytest.raises(EnvError, match=r"the guest exited during startup; last output: (?s:.*)Xvfb"):
        sandbox.boot(BOOT_SECONDS)


def test_missing_packages_are_a_user_error(monkeypatch, tmp_path):
    monkeypatch.setenv(GUEST_PACKAGES, str(tmp_path / "none"))
    with pytest.raises(UserError, match="arpo osworld install"):
        Sandbox(SETTINGS).boot(BOOT_SECONDS)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="bubblewrap"):
        Sandbox(SETTINGS).boot(BOOT_SECONDS)


def test_parallel_desktops_share_nothing():
    with booted() as one, booted() as two:
        one.run("echo one > /tmp/who; echo one > ~/who; setsid python3 -m http.server 8123 >/dev/null 2>&1 &")
        assert wait_until(lambda: one.run("curl -s localhost:8123")["returncode"] == 0)
        assert two.run("curl -s localhost:8123")["returncode"] != 0
        assert two.run("cat /tmp/who ~/who")["output"] == ""
        assert "http.server" not in two.output("ps -e -o args")
        assert one.sandbox.token != two.sandbox.token
        assert two.request("/screenshot", token=one.sandbox.token)[0] == 401


def host_address():
    """A non-loopback address of this machine, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


@pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="a user-mode network needs /dev/net/tun")
def test_the_user_mode_network_reaches_the_host_but_not_its_loopback():
    address = host_address()
    if address is None:
        pytest.skip("this machine has only a loopback address")
    handler = http.server.SimpleHTTPRequestHandler
    with (
        http.server.ThreadingHTTPServer(("0.0.0.0", 0), handler) as server,
        booted(replace(SETTINGS, network=True)) as guest,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        status = "curl --silent --max-time 5 --output /dev/null --write-out '%{{http_code}}' http://{}:{}"
        assert guest.run(status.format(address, server.server_port))["output"] == "200"
        assert guest.run(status.format("10.0.2.2", server.server_port))["output"] == "000"
        server.shutdown()
    assert wait_until(lambda: "slirp4netns" not in {_name(process) for process in descendants(os.getpid())})


def _name(process):
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""
