"""Request bodies: JSON, forms and uploads, with size limits and error messages."""

import io

import pytest

from arpo.envs.osworld.guest import protocol
from arpo.envs.osworld.guest.protocol import BadRequest, Request


def request(body, kind="application/json", length=None):
    size = len(body) if length is None else length
    return Request({"Content-Length": str(size), "Content-Type": kind}, io.BytesIO(body))


def multipart(*parts, boundary="frontier", end="--"):
    """Parts as requests_toolbelt writes them: (name, file name or None, content)."""
    body = b""
    for name, file, content in parts:
        disposition = f'form-data; name="{name}"' + (f'; filename="{file}"' if file else "")
        body += f"--{boundary}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"
    return request(body + f"--{boundary}{end}\r\n".encode(), f"multipart/form-data; boundary={boundary}")


def failure(call):
    """(status, message) of the raised BadRequest."""
    with pytest.raises(BadRequest) as caught:
        call()
    return caught.value.status, str(caught.value)


def test_json_is_an_object():
    assert request(b'{"command": ["ls"]}').json() == {"command": ["ls"]}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_invalid_json_is_refused(body):
    status, message = failure(request(body).json)
    assert status == 400
    assert message.startswith("the body is not JSON: ")


def test_json_other_than_an_object_is_refused():
    assert failure(request(b"[1]").json) == (400, "the body is a JSON list, must be an object")


def test_a_body_that_ends_early_is_refused():
    assert failure(request(b"{}", length=5).json) == (400, "the body ended early")


def test_a_large_body_is_refused_unread(monkeypatch):
    monkeypatch.setattr(protocol, "BODY_BYTES", 10)
    assert failure(request(b"x" * 11).body) == (413, "the body has 11 bytes, must have at most 10")


@pytest.mark.parametrize("length", ["", "-1", "1e3", "x"])
def test_an_invalid_length_is_refused(length):
    assert failure(lambda: request(b"", length=length))[0] == 411


def test_a_plain_form():
    form = request(b"file_path=%2Ftmp%2Fa+b&x=", "application/x-www-form-urlencoded").form()
    assert form.fields == {"file_path": "/tmp/a b", "x": ""}


def test_an_upload_is_written_to_a_file():
    content = bytes(range(256)) * 1000 + b"\r\n--frontie\r\n--front"
    form = multipart(("file_path", None, "/tmp/é".encode()), ("file_data", "x.bin", content)).form()
    try:
        assert form.fields == {"file_path": "/tmp/é"}
        assert form.files["file_data"].read_bytes() == content
    finally:
        form.files["file_data"].unlink()


def test_an_empty_upload_is_an_empty_file():
    form = multipart(("file_data", "x", b"")).form()
    assert form.files["file_data"].read_bytes() == b""
    form.files["file_data"].unlink()


def test_an_incomplete_upload_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol.tempfile, "tempdir", str(tmp_path))
    broken = multipart(("file_data", "x", b"y" * 100_000), end="")
    assert failure(broken.form) == (400, "the multipart body ended early")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"", "multipart/form-data", "the multipart Content-Type has no boundary"),
        (b"no delimiter", "multipart/form-data; boundary=b", "the multipart body ended early"),
        (b"--b\r\nX: y\r\n\r\nz\r\n--b--", "multipart/form-data; boundary=b", "a multipart part has no name"),
    ],
)
def test_broken_multipart_is_refused(body, kind, message):
    assert failure(request(body, kind).form) == (400, message)


def test_a_field_over_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(protocol, "FIELD_BYTES", 1000)
    assert failure(multipart(("file_path", None, b"x" * 200_000)).form)[0] == 413
