"""Child processes: output, exit, end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.processes.child import Child, describe_exit, python_command, read_tail
from processes import descendants, wait_until


def python(code: str, **options: object) -> Child:
    return Child([sys.executable, "-c", code], env=dict(os.environ), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "killed by SIGKILL"), (143, "killed by SIGTERM")],
)
def test_exits_in_words(code: int, text: str) -> None:
    assert describe_exit(code) == text


def test_the_last_lines_of_stderr_are_kept() -> None:
    child = python("import sys; [print('line', n, file=sys.stderr) for n in range(100)]; sys.exit(3)")
    assert child.wait(30) and child.exit_reason == "exit code 3"
    assert child.last_lines[0] == "line 80" and len(child.last_lines) == 20
    assert child.last_output == "line 95 | line 96 | line 97 | line 98 | line 99"


def test_errors_are_preferred_to_other_lines() -> None:
    child = python("import sys; print('ValueError: too small', 'later', sep='\\n', file=sys.stderr)")
    assert child.wait(30) and child.last_output == "ValueError: too small"


def test_a_log_is_appended_and_read_from_the_start_of_the_child(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "child.log"
    for text in ("first", "second"):
        child = python(f"print({text!r})", log=log)
        assert child.wait(30)
    assert child.last_output == "second" and read_tail(log) == ["first", "second"]
    assert log.stat().st_mode & 0o777 == 0o600
    assert read_tail(tmp_path / "missing") == []


def test_a_module_of_the_current_folder_does_not_run_in_a_child(tmp_path: Path) -> None:
    for name in ("json", "os", "arpo"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w')")
    child = Child(python_command("arpo", "--version"), env=dict(os.environ), cwd=tmp_path)
    assert child.wait(30) and child.exit_reason == "exit code 0", child.last_lines
    assert not (tmp_path / "run").exists()


def test_a_child_gets_its_variables_alone_and_no_ctrl_c() -> None:
    child = Child(
        [sys.executable, "-I", "-c", "import os; print(*os.environ, os.getsid(0) == os.getpid())"],
        env={"ONLY": "1"},
        stdout=subprocess.PIPE,
    )
    assert child.process.stdout is not None
    words = child.process.stdout.read().split()
    assert b"ONLY" in words and b"HOME" not in words and words[-1] == b"True"
    child.end()


@pytest.mark.parametrize(("grace", "reason"), [(20.0, "exit code 0"), (0.0, "killed by SIGKILL")])
def test_a_child_may_end_by_itself_when_its_stdin_closes(grace: float, reason: str) -> None:
    child = python("import sys; sys.stdin.read()", grace_seconds=grace)
    child.end()
    child.end()
    assert child.exit_reason == reason


def test_a_child_that_does_not_end_is_killed() -> None:
    child = python("import time; time.sleep(600)", grace_seconds=0.1)
    child.end()
    assert child.exit_reason == "killed by SIGKILL"


def test_a_guarded_child_takes_its_processes_with_it() -> None:
    before = descendants(os.getpid())
    code = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
    child = python(code, guarded=True, grace_seconds=5.0)
    assert wait_until(lambda: len(descendants(os.getpid()) - before) == 3)
    child.end()
    assert child.exit_reason == "killed by SIGTERM"
    assert wait_until(lambda: not descendants(os.getpid()) - before)


def test_what_a_killed_guard_leaves_is_killed() -> None:
    before = descendants(os.getpid())
    child = python("import subprocess; subprocess.run(['sleep', '600'])", guarded=True)
    assert wait_until(lambda: len(descendants(os.getpid()) - before) == 3)
    family = descendants(os.getpid()) - before
    child.process.send_signal(signal.SIGKILL)
    child.end()
    assert wait_until(lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in family))


def test_garbage_collection_ends_a_child() -> None:
    pid = python("import time; time.sleep(600)").process.pid
    assert wait_until(lambda: not Path(f"/proc/{pid}/root").exists())
