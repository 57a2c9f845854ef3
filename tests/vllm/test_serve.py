"""`arpo serve` with real vLLM on the CPU: starts, restarts, ends, and leaves no process."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from arpo.testing import screenshot
from processes import descendants, parents, wait_until
from real_vllm import PYTHON

KEY = "0123456789abcdef"
SECONDS = 900.0  # for two servers to start on two busy cores


@pytest.fixture(autouse=True)
def vllm_is_installed() -> None:
    if not PYTHON.exists():
        pytest.fail("vLLM is not installed: make vllm")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def serving(folder: Path, port: int, replicas: int) -> Iterator[subprocess.Popen[bytes]]:
    """`arpo serve base` with its output in output.txt, killed at the end of the block."""
    command = [
        sys.executable,
        "-m",
        "arpo",
        "serve",
        "base",
        "--replicas",
        str(replicas),
        "--port",
        str(port),
    ]
    own = ["--log-dir", str(folder / "logs"), "--engine.python", str(PYTHON)]
    with (
        (folder / "output.txt").open("wb") as output,
        subprocess.Popen(
            [*command, *own], stdout=output, stderr=output, env={**os.environ, "ARPO_ENGINE_KEY": KEY}
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def is_healthy(port: int) -> bool:
    return status(port, "GET", "/health", KEY) == 200


def status(port: int, method: str, path: str, key: str) -> int:
    """The status of the answer; 0 without an answer."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    body = b"{}" if method == "POST" else None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def api_server(process: subprocess.Popen[bytes], port: int) -> int:
    """The process that listens on the port; the guard has the same words in its command line."""
    [pid] = [
        pid
        for pid in descendants(process.pid)
        if str(port).encode() in (words := Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
        and words[2] == b"-m"
    ]
    return pid


def ask(port: int, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        return dict(json.load(answer))


def is_decoding(port: int) -> bool:
    """Whether the server has sampled tokens of its only running request."""
    headers = {"Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        metrics = answer.read().decode()
    tokens = re.search(r"^vllm:generation_tokens_total{.*} (\S+)$", metrics, re.MULTILINE)
    return tokens is not None and float(tokens[1]) > 1  # one is of the first request


def preempt_a_request_with_a_cached_screenshot(port: int) -> None:
    """Its screenshot is in the prefix cache when it starts. It is computed again after the reset."""
    screen = base64.b64encode(screenshot(128, (224, 168)).png).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{screen}"}}
    # The prefix cache keeps whole blocks of 128 tokens: the first one contains the screenshot.
    question = {"type": "text", "text": "Open Mail and save the file " * 40}
    body = {"model": "base", "messages": [{"role": "user", "content": [image, question]}], "temperature": 0}
    ask(port, body | {"max_tokens": 1})
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask, port, body | {"max_tokens": 300, "ignore_eos": True})
        assert wait_until(lambda: is_decoding(port))
        resets = ("/reset_prefix_cache?reset_running_requests=true", "/reset_encoder_cache")
        for route in ("/pause?mode=keep&clear_cache=false", *resets, "/resume"):  # as for new weights
            assert status(port, "POST", route, KEY) == 200
        assert answer.result()["usage"]["completion_tokens"] == 300


def test_serve_restart_and_kill(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port, replicas=2) as process:
        output = tmp_path / "output.txt"
        ready = wait_until(lambda: "all servers are ready" in output.read_text(), SECONDS)
        assert ready, output.read_text()
        assert is_healthy(port) and is_healthy(port + 1)

        # Every route needs the key, also those that vLLM's own key does not protect.
        routes = [("GET", "/health"), ("GET", "/metrics"), ("POST", "/collective_rpc"), ("POST", "/sleep")]
        for method, path in [*routes, ("POST", "/inference/v1/generate"), ("OPTIONS", "/sleep")]:
            assert status(port, method, path, "another key of 24 chars") == 401

        preempt_a_request_with_a_cached_screenshot(port)

        # A killed server comes back, without its old processes. The other one is not touched.
        killed, other = api_server(process, port), api_server(process, port + 1)
        old = descendants(killed)
        assert len(old) >= 2  # engine and worker
        os.kill(killed, signal.SIGKILL)
        assert wait_until(lambda: not old & set(parents()))
        assert wait_until(lambda: is_healthy(port), SECONDS)
        assert api_server(process, port) != killed
        assert api_server(process, port + 1) == other

        everything = descendants(process.pid)
        process.kill()
        process.wait()
        assert wait_until(lambda: not everything & set(parents()), 60.0)
        assert "servers healthy, 0 running, 0 waiting" in output.read_text()
        assert KEY not in output.read_text()


def test_ctrl_c_while_servers_start_leaves_no_process(tmp_path: Path) -> None:
    with serving(tmp_path, free_port(), replicas=1) as process:
        assert wait_until(lambda: len(descendants(process.pid)) >= 3, SECONDS)  # guard, server, its engine
        everything = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert wait_until(lambda: not everything & set(parents()))
