"""A guard ends its server with all of its processes, however the server or the supervisor ended."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from arpo.processes import guard
from processes import descendants, wait_until

# A server with a child in another session, as vLLM's processes may be.
SERVER = (
    "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
)
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVER}"


@contextmanager
def guarded(code, grace=20.0):
    command = [sys.executable, "-I", "-S", guard.__file__, str(grace), sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        yield process


def family(process, size=2):
    """The server and its child, once both run."""
    assert wait_until(lambda: len(descendants(process.pid)) == size)
    return descendants(process.pid)


def are_gone(pids):
    return wait_until(lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in pids))


def server_of(process, pids):
    [server] = [pid for pid in pids if descendants(pid)]
    return server


def test_the_end_of_stdin_ends_everything():
    with guarded(SERVER) as process:
        pids = family(process)
        process.stdin.close()
        assert process.wait(30) == 128 + signal.SIGTERM
        assert are_gone(pids)


def test_a_server_that_ignores_sigterm_is_killed():
    with guarded(DEAF, grace=0.1) as process:
        pids = family(process)
        process.stdin.close()
        assert process.wait(30) == 128 + signal.SIGKILL
        assert are_gone(pids)


def test_a_killed_server_takes_its_processes_with_it():
    with guarded(SERVER) as process:
        pids = family(process)
        subprocess.run(["kill", "-9", str(server_of(process, pids))], check=True)
        assert process.wait(30) == 128 + signal.SIGKILL
        assert are_gone(pids)


def test_a_killed_guard_takes_the_server_with_it():
    with guarded(SERVER) as process:
        pids = family(process)
        server = server_of(process, pids)
        process.kill()
        assert are_gone([server])
        process.wait(30)
        [child] = pids - {server}
        os.kill(child, signal.SIGKILL)  # in another session: only the guard would find it


def test_the_shared_memory_of_a_killed_server_is_removed(tmp_path):
    told = tmp_path / "name"
    code = (
        "from multiprocessing.shared_memory import SharedMemory; import time; "
        f"open({str(told)!r}, 'w').write(SharedMemory(create=True, size=8).name); time.sleep(600)"
    )
    with guarded(code) as process:
        assert wait_until(lambda: told.exists() and told.read_text())
        memory = Path("/dev/shm", told.read_text().lstrip("/"))
        assert memory.exists()
        pids = family(process)  # the server and Python's resource tracker
        subprocess.run(["kill", "-9", str(server_of(process, pids))], check=True)
        assert process.wait(30) == 128 + signal.SIGKILL
        assert not memory.exists()
        assert are_gone(pids)


@pytest.mark.slow
def test_a_tracker_that_does_not_end_is_killed():
    tracker = ["-c", "import time; time.sleep(600)  # multiprocessing.resource_tracker"]
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, *{tracker}]); time.sleep(600)"
    with guarded(code) as process:
        pids = family(process)
        subprocess.run(["kill", "-9", str(server_of(process, pids))], check=True)
        assert process.wait(30) == 128 + signal.SIGKILL
        assert are_gone(pids)


def test_an_interrupt_is_passed_on():
    waits = "try: print('runs', flush=True); time.sleep(600)"
    code = f"import time\n{waits}\nexcept KeyboardInterrupt: raise SystemExit(7)"
    command = [sys.executable, "-I", "-S", guard.__file__, "20", sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"runs\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 7


def test_the_exit_code_of_the_server():
    with guarded("raise SystemExit(5)") as process:
        assert process.wait(30) == 5


@pytest.mark.parametrize("program", ["/nowhere/python", "/etc/hostname"])
def test_a_program_that_cannot_run(program):
    command = [sys.executable, "-I", "-S", guard.__file__, "1", program]
    done = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr.startswith(f"{program}: ")
