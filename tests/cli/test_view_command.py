"""The command `arpo view`: address, Ctrl-C, export, and mistakes."""

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack

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


@pytest.mark.slow
def test_strangers_neither_stop_the_server_nor_fill_its_log(tmp_path):
    make_run(tmp_path / "desk")
    command = [sys.executable, "-m", "arpo", "view", str(tmp_path), "--no-open"]
    limited = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *command]
    with (
        ExitStack() as strangers,
        subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout
        address = process.stdout.readline().strip()
        port = int(address.partition("/?")[0].rpartition(":")[2])
        for number in range(600):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", port)))
            if number % 2:
                stranger.sendall(b"GET / HTTP/1.1\r\nbad header\r\n\r\n")
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"<html" in opener.open(address, timeout=20).read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "more like this" in errors and len(errors) < 20_000


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
