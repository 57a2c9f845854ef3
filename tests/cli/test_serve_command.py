"""`arpo serve` with a scripted server. tests/vllm/test_serve.py runs it with vLLM."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

import fake_vllm
from arpo.cli.entry_point import main
from processes import descendants, wait_until

pytestmark = pytest.mark.slow

KEY = "0123456789abcdef"


def free_port():
    """The first of two free ports."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
        try:
            socket.create_server(("127.0.0.1", port + 1)).close()
        except OSError:
            continue
        return port


@contextmanager
def started(tmp_path, port, *more, key=""):
    """`arpo serve base` as a process, ended at the end of the block."""
    command = [sys.executable, "-m", "arpo", "serve", "base", "--port", str(port)]
    own = ["--log-dir", str(tmp_path / "logs"), "--engine.python", fake_vllm.install(tmp_path, "child")]
    environment = {**os.environ, "ARPO_ENGINE_KEY": key} if key else None
    with subprocess.Popen(
        [*command, *own, *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=tmp_path,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def output_until(process, text):
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    raise AssertionError(f"no {text!r} in {lines}")


def are_gone(pids):
    return wait_until(lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in pids))


def test_servers_with_their_load_until_ctrl_c(tmp_path):
    port = free_port()
    with started(tmp_path, port, "--replicas", "2") as process:
        lines = output_until(process, "servers healthy")
        assert lines[0].startswith(f"starting vLLM servers at ports {port}, {port + 1}: ")
        assert lines[0].endswith(f"logs: {tmp_path / 'logs'}")
        urls = f"http://127.0.0.1:{port}-{port + 1}"
        assert lines[-2] == f"all servers are ready: --engine.name vllm --engine.endpoints {urls}"
        assert lines[-1] == "2 of 2 servers healthy, 6 running, 4 waiting, 0 restarts"
        processes = descendants(process.pid)
        assert len(processes) == 6  # guard, server and its child, twice
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stdout.read().splitlines() == ["ending all servers", "all servers have ended"]
        assert are_gone(processes)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_a_kill(tmp_path, number):
    with started(tmp_path, free_port()) as process:
        output_until(process, "all servers are ready")
        processes = descendants(process.pid)
        assert len(processes) == 3
        process.send_signal(number)
        assert process.wait(60) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        assert are_gone(processes)


def test_a_key_is_required_and_shown_nowhere(tmp_path):
    port = free_port()
    with started(tmp_path, port, key=KEY) as process:
        lines = output_until(process, "servers healthy")
        assert not any(KEY in line for line in lines)
        with pytest.raises(urllib.error.HTTPError, match="401") as caught:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=20)
        caught.value.close()
        for pid in descendants(process.pid):
            assert KEY not in Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], r"--host 0\.0\.0\.0: is reachable from other machines, but there is no key"),
        (["--gpus", "0"], r"engine\.gpus: is '0', but this vLLM is a CPU build: leave it empty"),
        (["--replicas", "0"], "--replicas: is '0', must be an integer >= 1"),
        (["--port", "80"], r"engine\.port: is 80, must be >= 1024"),
        (
            ["--model.train", "lora", "--model.lora_rank", "1024"],
            r"model\.lora_rank: is 1024, vLLM accepts at most",
        ),
    ],
)
def test_bad_input(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ARPO_ENGINE_KEY", raising=False)
    python = fake_vllm.install(tmp_path)
    port = [] if "--port" in words else ["--port", str(free_port())]
    assert main(["serve", "base", "--engine.python", python, *port, *words]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_beyond_loopback_with_a_key(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ARPO_ENGINE_KEY", KEY)
    elsewhere = (
        "192.0.2.1"  # reserved for documentation: allowed with a key, but not an address of this machine
    )
    python = fake_vllm.install(tmp_path)
    assert main(["serve", "base", "--host", elsewhere, "--engine.python", python]) == 2
    assert "192.0.2.1:9000: Cannot assign requested address" in capsys.readouterr().err


def test_a_missing_model_is_found_before_anything_starts(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none"), "--engine.python", fake_vllm.install(tmp_path)]) == 2
    assert "none: not found; model.path needs" in capsys.readouterr().err


def test_a_port_in_use(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        python = fake_vllm.install(tmp_path)
        assert main(["serve", "base", "--port", str(port), "--engine.python", python]) == 2
    assert f"127.0.0.1:{port}: Address already in use: choose another port" in capsys.readouterr().err


def test_a_server_that_does_not_start(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    python = fake_vllm.install(tmp_path, "fails")
    assert main(["serve", "base", "--port", str(free_port()), "--engine.python", python]) == 2
    assert "did not start: exit code 3; its last output: ValueError" in capsys.readouterr().err
