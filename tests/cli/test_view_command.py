"""The command `arpo view`: address, Ctrl-C, export, and mistakes."""

import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from arpo.cli.entry_point import main
from viewed_runs import make_run


@pytest.mark.slow
def test_it_prints_the_address_and_ends_with_ctrl_c(tmp_path):
    make_run(tmp_path / "desk")
    command = [sys.executable, "-m", "arpo", "view", str(tmp_path), "--no-open", "--at", "/s/desk/batch/2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}#/s/desk/batch/2", address)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"<html" in opener.open(address).read()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert rest.splitlines()[-1] == "ended"
    assert not list((tmp_path / "desk").glob("*-journal"))


def test_export(tmp_path, capsys):
    make_run(tmp_path / "desk")
    assert (
        main(["view", str(tmp_path), "--export", str(tmp_path / "site"), "--episodes", "solved=0&size=3"])
        == 0
    )
    assert capsys.readouterr().out == f"{tmp_path / 'site' / 'index.html'}: 3 episodes\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["missing"], "missing: no such folder"),
        (["empty"], "empty: contains no run"),
        (["empty", "--episodes", "solved=1"], "--episodes: is for --export"),
        (["empty", "--port", "70000"], "must be a port"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, words, message):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["view", *words]) == 2
    assert message in capsys.readouterr().err
