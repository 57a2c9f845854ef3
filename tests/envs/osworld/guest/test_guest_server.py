"""The guest's server over a real socket, without a desktop: authentication, routes and error responses."""

import base64
import http.client
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from arpo.envs.osworld.guest.server import GuestServer

TOKEN = "s3cret"


@pytest.fixture
def port():
    """The port of a server."""
    listening = socket.create_server(("127.0.0.1", 0))
    desktop: Any = SimpleNamespace(screen=SimpleNamespace(expect_change=lambda: None))
    server = GuestServer(listening, TOKEN, desktop)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield listening.getsockname()[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def send(port):
    """send(method, path, body, **headers) -> (status, bytes), with the correct token by default."""

    def send_request(method, path, body=None, token=TOKEN, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        password = base64.b64encode(f"arpo:{token}".encode()).decode()
        data = json.dumps(body) if isinstance(body, dict | list) else body
        connection.request(method, path, data, {"Authorization": f"Basic {password}", **headers})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, content

    return send_request


@pytest.mark.parametrize("token", ["", "S3cret", "s3cret ", "é"])
def test_a_wrong_token_is_refused(send, token):
    assert send("POST", "/desktop_path", token=token)[0] == 401


def test_idle_connections_use_up_no_threads(send, port):
    before = threading.active_count()
    with ExitStack() as opened:
        idle = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(100)
        ]
        for connection in idle[:36]:
            assert connection.recv(1) == b""
        assert send("POST", "/desktop_path")[0] == 200
        end = time.monotonic() + 10
        while threading.active_count() > before + 100 - 36 and time.monotonic() < end:
            time.sleep(0.01)  # until the threads of closed connections have ended
        assert threading.active_count() <= before + 100 - 36


def test_a_silent_connection_is_closed_and_a_slow_caller_is_not(port, monkeypatch):
    monkeypatch.setattr("arpo.envs.osworld.guest.server.STRANGER_SECONDS", 0.3)
    password = base64.b64encode(f"arpo:{TOKEN}".encode())
    header = b"POST /desktop_path HTTP/1.1\r\nContent-Length: 2\r\nAuthorization: Basic " + password
    with ExitStack() as opened:
        half, silent, slow = (
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30)) for _ in range(3)
        )
        half.sendall(header)
        slow.sendall(header.replace(b"desktop_path", b"execute") + b"\r\n\r\n")
        assert (half.recv(1), silent.recv(1)) == (b"", b"")
        slow.sendall(b"{}")
        assert slow.recv(12) == b"HTTP/1.0 400"


def test_a_running_request_is_not_replaced(send, port, tmp_path):
    os.mkfifo(wait := tmp_path / "wait")
    with ExitStack() as opened:
        body = {"command": ["sh", "-c", f"read line < {wait}"], "shell": False}
        running = ThreadPoolExecutor().submit(send, "POST", "/execute", body)
        with wait.open("w") as fifo:  # waits until the command reads
            for _ in range(100):
                opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            assert send("POST", "/desktop_path")[0] == 200
            fifo.write("go\n")
        assert json.loads(running.result(30)[1])["returncode"] == 0


def test_missing_credentials_are_refused(send):
    assert send("POST", "/execute", {"command": ["true"]}, Authorization="")[0] == 401


def test_the_correct_token_is_accepted(send):
    status, body = send("POST", "/desktop_path")
    assert status == 200 and json.loads(body)["desktop_path"].endswith("/Desktop")


def test_unknown_routes_and_methods(send):
    assert send("GET", "/nothing")[0] == 404
    assert send("GET", "/execute")[0] == 405
    assert send("POST", "/desktop_path?x=1")[0] == 200


def test_a_command_result_has_osworlds_fields(send):
    status, body = send(
        "POST", "/execute", {"command": ["sh", "-c", "echo a; echo b >&2; exit 4"], "shell": False}
    )
    assert status == 200
    assert json.loads(body) == {"status": "success", "output": "a\n", "error": "b\n", "returncode": 4}


def test_an_unknown_command_has_status_200(send):
    status, body = send("POST", "/setup/execute", {"command": ["no-such-program-here"]})
    answer = json.loads(body)
    assert (status, answer["status"], answer["output"], answer["returncode"]) == (200, "error", "", 127)


@pytest.mark.parametrize(
    "body", ["", "{", "[]", {}, {"command": []}, {"command": [1]}, {"command": 5}, {"command": ""}]
)
def test_a_malformed_body_has_an_error_message(send, body):
    status, content = send("POST", "/execute", body)
    assert status == 400
    assert json.loads(content)["error"]


def test_upload_and_read_a_file(send, tmp_path):
    target = tmp_path / "new folder" / "data.bin"
    content = bytes(range(256)) * 500
    body = b"".join(
        (
            b'--b\r\nContent-Disposition: form-data; name="file_path"\r\n\r\n' + str(target).encode(),
            b'\r\n--b\r\nContent-Disposition: form-data; name="file_data"; filename="d"\r\n\r\n' + content,
            b"\r\n--b--\r\n",
        )
    )
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    assert send("POST", "/setup/upload", body, **kind) == (200, b"File Uploaded")
    assert target.read_bytes() == content
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert send("POST", "/file", f"file_path={target}", **form) == (200, content)


@pytest.mark.parametrize("path", ["/no/such/file", "/tmp", "/dev/zero", "/proc/self/nothing"])
def test_other_paths_than_files_are_not_found(send, path):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert send("POST", "/file", f"file_path={path}", **form)[0] == 404


def test_a_missing_or_invalid_path_is_refused(send):
    assert send("POST", "/file", "")[0] == 400
    assert send("POST", "/setup/upload", "file_path=/tmp/x")[0] == 400
    assert send("POST", "/file", "file_path=%00")[0] == 400


def test_list_directory(send, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.txt").touch()
    (tmp_path / "a.txt").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    status, body = send("POST", "/list_directory", {"path": str(tmp_path)})
    assert status == 200
    assert json.loads(body)["directory_tree"]["children"] == [
        {"type": "file", "name": "a.txt"},
        {"type": "directory", "name": "b", "children": [{"type": "file", "name": "c.txt"}]},
        {"type": "file", "name": "loop"},
    ]
    assert send("POST", "/list_directory", {"path": "/no/such"})[0] == 400


def test_an_unexpected_exception_is_one_line_with_status_500(send):
    """The fake screen has no `screenshot` method: the route fails with an AttributeError."""
    status, body = send("GET", "/screenshot")
    assert status == 500
    assert json.loads(body)["error"].startswith("AttributeError: ")
