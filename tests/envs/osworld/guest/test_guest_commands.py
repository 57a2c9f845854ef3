"""Commands in the guest: output limit, timeout, and the program name of a command line."""

import os
import time

import pytest

from arpo.envs.osworld.guest import commands
from arpo.envs.osworld.guest.commands import run
from arpo.envs.osworld.guest.launcher import pgrep_commands, program_name
from processes import wait_until


def has_exited(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_run_returns_both_outputs_and_the_exit_code():
    result = run("echo out; echo err >&2; exit 3", True, 10.0)
    assert (result.output, result.error, result.returncode, result.problem) == ("out\n", "err\n", 3, "")


def test_a_string_is_split_into_words_without_a_shell():
    assert run("echo 'a  b' $HOME", False, 10.0).output == "a  b $HOME\n"


def test_a_leading_tilde_is_the_home_folder():
    assert run(["echo", "~/x", "a~/x"], False, 10.0).output == f"{os.path.expanduser('~')}/x a~/x\n"


def test_output_beyond_the_limit_is_dropped(monkeypatch):
    monkeypatch.setattr(commands, "OUTPUT_BYTES", 1000)
    result = run("head -c 5000000 /dev/zero | tr '\\0' x; echo done >&2", True, 60.0)
    assert result.output == "x" * 1000 + "\n[4999000 more bytes were dropped]"
    assert result.error == "done\n"


def test_invalid_utf8_in_the_output_is_replaced():
    assert run(["printf", "a\\377b"], False, 10.0).output == "a\ufffdb"


def test_a_timeout_kills_the_command_and_its_children(tmp_path):
    file = tmp_path / "child"
    result = run(f"sleep 60 & echo $! > {file}; wait", True, 1.0)
    assert result.returncode == commands.EXIT_TIMED_OUT
    assert result.problem == result.error == "Command timed out after 1 seconds."
    assert wait_until(lambda: has_exited(int(file.read_text())))


def test_run_does_not_wait_for_a_background_process(tmp_path):
    file = tmp_path / "child"
    start = time.monotonic()
    result = run(f"sleep 60 & echo $! > {file}; echo here", True, 30.0)
    try:
        assert result.output == "here\n"
        assert time.monotonic() - start < 30
        assert not has_exited(int(file.read_text()))
    finally:
        os.kill(int(file.read_text()), 9)


@pytest.mark.parametrize("command", [["no-such-program-here"], "'unbalanced", ["a\0b"]])
def test_a_command_that_cannot_start_returns_a_result(command):
    result = run(command, False, 10.0)
    assert result.returncode == commands.EXIT_NOT_FOUND
    assert result.problem


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["google-chrome", "--remote-debugging-port=1337"], "google-chrome"),
        ("VLC_VERBOSE=-1 vlc --no-audio 'a b.mp4'", "vlc"),
        ("/usr/bin/gimp", "gimp"),
        (["VLC_VERBOSE=-1 vlc --no-audio"], "vlc"),
        (["pkill", "vlc"], "pkill"),
        ("'", ""),
        ([], ""),
    ],
)
def test_program_name_of_a_command(command, name):
    assert program_name(command) == name


@pytest.mark.parametrize(
    ("command", "searches"),
    [
        (["pkill", "chrome"], ["pgrep chrome"]),
        (["pkill", "-9", "-f", "vlc"], ["pgrep -f vlc"]),
        (["pkill", "-SIGKILL", "-x", "vlc"], ["pgrep -x vlc"]),
        (["pkill", "--signal", "9", "-e", "vlc"], ["pgrep vlc"]),
        (["killall", "-q", "-s", "KILL", "gimp", "vlc"], ["pgrep -x gimp", "pgrep -x vlc"]),
        (["killall", "gnome-terminal-server"], ["pgrep -x gnome-terminal-"]),
    ],
)
def test_searches_for_the_processes_of_a_kill_command(command, searches):
    assert [" ".join(search) for search in pgrep_commands(command)] == searches
