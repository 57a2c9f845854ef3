"""Questions and answers of the guest's server, apart from the network: bodies read with a limit, and typed.

JSON, forms and multipart uploads are read here. A body that is too large or not what it claims to be is a
`BadRequest` with its reason.
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

BODY_BYTES = 16 * 2**20  # of a body that is held in memory; files are written as they come
FIELD_BYTES = 2**20
_CHUNK = 64 * 1024
_DRAINED_CHUNKS = 1024


class BadRequest(Exception):
    """The asker's mistake, answered with 400 and this reason, or with another status."""

    def __init__(self, reason: str, status: int = 400) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Bytes of a kind, or a file that is sent as it is."""

    body: bytes = b""
    kind: str = "application/octet-stream"
    status: int = 200
    file: Path | None = None


def as_json(value: Any, status: int = 200) -> Answer:
    return Answer(body=json.dumps(value).encode(), kind="application/json", status=status)


def as_text(text: str, status: int = 200) -> Answer:
    return Answer(body=text.encode(), kind="text/plain; charset=utf-8", status=status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Fields, and for each uploaded one a temporary file that the caller moves away or removes."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


class Request:
    def __init__(self, headers: Mapping[str, str], stream: BinaryIO) -> None:
        self._headers = headers
        self._stream = stream
        length = headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or "Transfer-Encoding" in headers:
            raise BadRequest("a body needs a Content-Length", 411)
        self._left = int(length)

    def read(self, size: int) -> bytes:
        """At most so many bytes of the body; empty at its end."""
        wanted = min(size, self._left)
        chunk = self._stream.read(wanted)
        if len(chunk) < wanted:
            raise BadRequest("the body ended early")
        self._left -= len(chunk)
        return chunk

    def body(self) -> bytes:
        if self._left > BODY_BYTES:
            raise BadRequest(f"a body of {self._left} bytes, more than {BODY_BYTES}", 413)
        return self.read(self._left)

    def drain(self) -> bool:
        """Read what was not asked for, so that the asker gets to read the answer; True at the body's end."""
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
        kind = Message()
        kind["Content-Type"] = self._headers.get("Content-Type", "")
        if kind.get_content_type() != "multipart/form-data":
            pairs = parse_qsl(self.body().decode("utf-8", "replace"), keep_blank_values=True)
            return Form(fields=dict(pairs))
        boundary = kind.get_param("boundary")
        if not isinstance(boundary, str) or not boundary:
            raise BadRequest("multipart without a boundary")
        return _Multipart(self, b"\r\n--" + boundary.encode()).form()


class _Multipart:
    """Parts are told apart by a line that no part holds; files go to disk chunk by chunk."""

    def __init__(self, request: Request, mark: bytes) -> None:
        self._request = request
        self._mark = mark
        self._buffer = b"\r\n"  # the first mark has no line before it

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
        self._need(2)
        end, self._buffer = self._buffer[:2] == b"--", self._buffer[2:]
        return end

    def _read_part(self, form: Form) -> None:
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > FIELD_BYTES:
                raise BadRequest("a part's headers are too long")
            self._need(len(self._buffer) + 1)
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        headers = BytesParser().parsebytes(head + b"\r\n\r\n", headersonly=True)
        name = headers.get_param("name", header="Content-Disposition")
        if not isinstance(name, str):
            raise BadRequest("a part without a name")
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
        """Everything up to the next mark, which is passed over too."""
        copied = 0
        while (at := self._buffer.find(self._mark)) < 0:
            safe = max(0, len(self._buffer) - len(self._mark))
            copied += self._write(target, self._buffer[:safe])
            self._buffer = self._buffer[safe:]
            if limit is not None and copied > limit:
                raise BadRequest(f"a field of more than {limit} bytes", 413)
            self._need(len(self._buffer) + 1)
        self._write(target, self._buffer[:at])
        self._buffer = self._buffer[at + len(self._mark) :]

    def _write(self, target: BinaryIO | None, data: bytes) -> int:
        if target is not None:
            target.write(data)
        return len(data)

    def _need(self, size: int) -> None:
        while len(self._buffer) < size:
            chunk = self._request.read(_CHUNK)
            if not chunk:
                raise BadRequest("the multipart body ended early")
            self._buffer += chunk
