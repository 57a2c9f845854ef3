"""Requests and responses of the guest's server: JSON, form and multipart bodies, read with size limits.

A body over its limit, or one with invalid content, raises `BadRequest` with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl

BODY_BYTES = 16 * 2**20  # of a body in memory; uploaded files go to disk in chunks
FIELD_BYTES = 2**20
_CHUNK = 64 * 1024
_DRAINED_CHUNKS = 1024


class BadRequest(Exception):
    """A mistake of the client. The response has this reason and status."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """Sends `file` if it is set, else `body`."""

    body: bytes = b""
    content_type: str = "application/octet-stream"
    status: int = 200
    file: Path | None = None


def json_response(value: Any, status: int = 200) -> Response:
    return Response(body=json.dumps(value).encode(), content_type="application/json", status=status)


def text_response(text: str, status: int = 200) -> Response:
    return Response(body=text.encode(), content_type="text/plain; charset=utf-8", status=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Text fields, and uploads as temporary files. The caller deletes the files."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


class Request:
    def __init__(self, headers: Mapping[str, str], stream: BinaryIO) -> None:
        self._headers = headers
        self._stream = stream
        length = headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or "Transfer-Encoding" in headers:
            raise BadRequest("the request needs a valid Content-Length header", 411)
        self._left = int(length)

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the body; empty at its end."""
        wanted = min(size, self._left)
        chunk = self._stream.read(wanted)
        if len(chunk) < wanted:
            raise BadRequest("the body ended early")
        self._left -= len(chunk)
        return chunk

    def body(self) -> bytes:
        if self._left > BODY_BYTES:
            raise BadRequest(f"the body has {self._left} bytes, must have at most {BODY_BYTES}", 413)
        return self.read(self._left)

    def drain(self) -> bool:
        """Reads the rest of the body, at most 64 MiB. True if it reached the end.

        The client reads the response only after it has sent the whole body.
        """
        with contextlib.suppress(BadRequest):
            for _ in range(_DRAINED_CHUNKS):
                self.read(_CHUNK)
        return self._left == 0

    def json(self) -> dict[str, Any]:
        try:
            value = json.loads(self.body())
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRequest(f"the body is a JSON {type(value).__name__}, must be an object")
        return value

    def form(self) -> Form:
        header = Message()
        header["Content-Type"] = self._headers.get("Content-Type", "")
        if header.get_content_type() != "multipart/form-data":
            pairs = parse_qsl(self.body().decode("utf-8", "replace"), keep_blank_values=True)
            return Form(fields=dict(pairs))
        boundary = header.get_param("boundary")
        if not isinstance(boundary, str) or not boundary:
            raise BadRequest("the multipart Content-Type has no boundary")
        return _Multipart(self, b"\r\n--" + boundary.encode()).form()


class _Multipart:
    """Splits a multipart body at its delimiter, and writes files to disk in chunks."""

    def __init__(self, request: Request, delimiter: bytes) -> None:
        self._request = request
        self._delimiter = delimiter
        self._buffer = b"\r\n"  # the first delimiter has no line break before it

    def form(self) -> Form:
        form = Form()
        try:
            self._copy_part(None, FIELD_BYTES)
            while not self._at_end():
                self._read_part(form)
        except BaseException:
            for path in form.files.values():
                path.unlink(missing_ok=True)
            raise
        return form

    def _at_end(self) -> bool:
        self._fill_buffer(2)
        end, self._buffer = self._buffer[:2] == b"--", self._buffer[2:]
        return end

    def _read_part(self, form: Form) -> None:
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > FIELD_BYTES:
                raise BadRequest(f"the headers of a multipart part are longer than {FIELD_BYTES} bytes")
            self._fill_buffer(len(self._buffer) + 1)
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        headers = BytesParser().parsebytes(head + b"\r\n\r\n", headersonly=True)
        name = headers.get_param("name", header="Content-Disposition")
        if not isinstance(name, str):
            raise BadRequest("a multipart part has no name")
        if headers.get_filename() is None:
            with tempfile.SpooledTemporaryFile(FIELD_BYTES) as value:
                self._copy_part(value, FIELD_BYTES)  # type: ignore[arg-type]
                value.seek(0)
                form.fields[name] = value.read().decode("utf-8", "replace")
        else:
            descriptor, path = tempfile.mkstemp(prefix="upload-")
            form.files[name] = Path(path)
            with os.fdopen(descriptor, "wb") as file:
                self._copy_part(file, None)

    def _copy_part(self, target: BinaryIO | None, limit: int | None) -> None:
        """Copies everything before the next delimiter, and skips the delimiter."""
        copied = 0
        while (end := self._buffer.find(self._delimiter)) < 0:
            complete = max(0, len(self._buffer) - len(self._delimiter))
            copied += self._write(target, self._buffer[:complete])
            self._buffer = self._buffer[complete:]
            if limit is not None and copied > limit:
                raise BadRequest(f"a form field has more than {limit} bytes", 413)
            self._fill_buffer(len(self._buffer) + 1)
        self._write(target, self._buffer[:end])
        self._buffer = self._buffer[end + len(self._delimiter) :]

    def _write(self, target: BinaryIO | None, data: bytes) -> int:
        if target is not None:
            target.write(data)
        return len(data)

    def _fill_buffer(self, size: int) -> None:
        while len(self._buffer) < size:
            chunk = self._request.read(_CHUNK)
            if not chunk:
                raise BadRequest("the multipart body ended early")
            self._buffer += chunk
