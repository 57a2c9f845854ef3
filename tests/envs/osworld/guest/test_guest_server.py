"""The guest's server over a real socket, without a desktop: who may ask, and how mistakes are answered."""

import base64
import http.client
import json
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from arpo.envs.osworld.guest.server import GuestServer

TOKEN = "s3cret"


@pytest.fixture
def ask():
    """ask(method, path, body, **headers) -> (status, bytes); with the right token unless told otherwise."""
    listening = socket.create_server(("127.0.0.1", 0))
    desktop: Any = SimpleNamespace(screen=SimpleNamespace(touch=lambda: None))
    server = GuestServer(listening, TOKEN, desktop)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

    def asked(method, path, body=None, token=TOKEN, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", listening.getsockname()[1], timeout=30)
        password = base64.b64encode(f"arpo:{token}".encode()).decode()
        data = json.dumps(body) if isinstance(body, dict | list) else body
        connection.request(method, path, data, {"Authorization": f"Basic {password}", **headers})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, content

    yield asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("token", ["", "S3cret", "s3cret ", "é"])
def test_a_wrong_token_is_refused(ask, token):
    assert ask("GET", "/platform", token=token)[0] == 401


def test_without_credentials_nothing_is_answered(ask):
    assert ask("POST", "/execute", {"command": ["true"]}, Authorization="")[0] == 401


def test_the_right_token_is_let_in(ask):
    assert ask("GET", "/platform") == (200, b"Linux")


def test_unknown_routes_and_methods(ask):
    assert ask("GET", "/nothing")[0] == 404
    assert ask("GET", "/execute")[0] == 405
    assert ask("GET", "/platform?x=1")[0] == 200


def test_a_command_answers_in_osworlds_shape(ask):
    status, body = ask(
        "POST", "/execute", {"command": ["sh", "-c", "echo a; echo b >&2; exit 4"], "shell": False}
    )
    assert status == 200
    assert json.loads(body) == {"status": "success", "output": "a\n", "error": "b\n", "returncode": 4}


def test_a_command_that_does_not_exist_is_no_lost_request(ask):
    status, body = ask("POST", "/setup/execute", {"command": ["no-such-program-here"]})
    answer = json.loads(body)
    assert (status, answer["status"], answer["output"], answer["returncode"]) == (200, "error", "", 127)


@pytest.mark.parametrize(
    "body", ["", "{", "[]", {}, {"command": []}, {"command": [1]}, {"command": 5}, {"command": ""}]
)
def test_a_malformed_body_gets_a_reason(ask, body):
    status, content = ask("POST", "/execute", body)
    assert status == 400
    assert json.loads(content)["error"]


def test_only_the_web_is_downloaded_from(ask):
    status, content = ask("POST", "/setup/download_file", {"url": "file:///etc/passwd", "path": "/tmp/x"})
    assert status == 400
    assert b"must begin with http" in content


def test_files_travel_both_ways(ask, tmp_path):
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
    assert ask("POST", "/setup/upload", body, **kind) == (200, b"File Uploaded")
    assert target.read_bytes() == content
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask("POST", "/file", f"file_path={target}", **form) == (200, content)


@pytest.mark.parametrize("path", ["/no/such/file", "/tmp", "/dev/zero", "/proc/self/nothing"])
def test_what_is_no_file_is_not_found(ask, path):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert ask("POST", "/file", f"file_path={path}", **form)[0] == 404


def test_a_path_is_needed(ask):
    assert ask("POST", "/file", "")[0] == 400
    assert ask("POST", "/setup/upload", "file_path=/tmp/x")[0] == 400
    assert ask("POST", "/file", "file_path=%00")[0] == 400


def test_the_tree_of_a_folder(ask, tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.txt").touch()
    (tmp_path / "a.txt").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    status, body = ask("POST", "/list_directory", {"path": str(tmp_path)})
    assert status == 200
    assert json.loads(body)["directory_tree"]["children"] == [
        {"type": "file", "name": "a.txt"},
        {"type": "directory", "name": "b", "children": [{"type": "file", "name": "c.txt"}]},
        {"type": "file", "name": "loop"},
    ]
    assert ask("POST", "/list_directory", {"path": "/no/such"})[0] == 400


def test_scripts_run_in_their_folder(ask, tmp_path):
    script = {"script": "pwd; exit 2", "working_dir": str(tmp_path), "timeout": 20}
    status, body = ask("POST", "/run_bash_script", script)
    answer = {"status": "error", "output": f"{tmp_path}\n", "error": "", "returncode": 2}
    assert (status, json.loads(body)) == (200, answer)
    assert ask("POST", "/run_bash_script", {"script": "true", "working_dir": "/no/such"})[0] == 400
    assert ask("POST", "/run_bash_script", {"script": "true", "timeout": "long"})[0] == 400


def test_recording_is_not_offered(ask):
    status, body = ask("POST", "/start_recording")
    assert status == 501
    assert json.loads(body)["message"] == "This guest does not record its screen."


def test_what_nobody_foresaw_is_one_line_and_no_page(ask):
    """There is no screen behind this server, so a picture fails in a way that no route expects."""
    status, body = ask("GET", "/screenshot")
    assert status == 500
    assert json.loads(body)["error"].startswith("AttributeError: ")
