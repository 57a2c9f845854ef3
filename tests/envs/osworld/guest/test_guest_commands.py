"""Commands of the guest: what they say is kept to a limit, and none runs for ever."""

import os
import time

import pytest

from arpo.envs.osworld.guest import commands
from arpo.envs.osworld.guest.commands import run
from arpo.envs.osworld.guest.launches import program
from processes import wait_until


def gone(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_both_outputs_and_the_code_come_back():
    outcome = run("echo out; echo err >&2; exit 3", True, 10.0)
    assert (outcome.output, outcome.error, outcome.returncode, outcome.problem) == ("out\n", "err\n", 3, "")


def test_a_text_is_split_into_words_where_no_shell_reads_it():
    assert run("echo 'a  b' $HOME", False, 10.0).output == "a  b $HOME\n"


def test_a_leading_tilde_is_the_home_folder():
    assert run(["echo", "~/x", "a~/x"], False, 10.0).output == f"{os.path.expanduser('~')}/x a~/x\n"


def test_a_flood_is_read_to_its_end_and_cut(monkeypatch):
    monkeypatch.setattr(commands, "OUTPUT_BYTES", 1000)
    outcome = run("head -c 5000000 /dev/zero | tr '\\0' x; echo done >&2", True, 60.0)
    assert outcome.output == "x" * 1000 + "\n[4999000 bytes more were dropped]"
    assert outcome.error == "done\n"


def test_output_that_is_not_text_is_still_an_answer():
    assert run(["printf", "a\\377b"], False, 10.0).output == "a\ufffdb"


def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path):
    file = tmp_path / "child"
    outcome = run(f"sleep 60 & echo $! > {file}; wait", True, 1.0)
    assert outcome.returncode == commands.TOO_LONG
    assert outcome.problem == outcome.error == "Command timed out after 1 seconds."
    assert wait_until(lambda: gone(int(file.read_text())))


def test_a_background_process_does_not_hold_the_answer_up(tmp_path):
    file = tmp_path / "child"
    start = time.monotonic()
    outcome = run(f"sleep 60 & echo $! > {file}; echo here", True, 30.0)
    try:
        assert outcome.output == "here\n"
        assert time.monotonic() - start < 30
        assert not gone(int(file.read_text()))
    finally:
        os.kill(int(file.read_text()), 9)


@pytest.mark.parametrize("command", [["no-such-program-here"], "'unbalanced", ["a\0b"]])
def test_a_command_that_can_not_start_is_an_answer(command):
    outcome = run(command, False, 10.0)
    assert outcome.returncode == commands.NOT_FOUND
    assert outcome.problem


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
def test_which_program_a_command_starts(command, name):
    assert program(command) == name
