"""Screenshots by content, each stored once, in one append-only file.

A small PNG (every screen of Desk) is kept as it is, byte for byte. A large one is kept as a patch: a lossless
picture of only those pixels that differ from the screenshot before it in the episode, transparent elsewhere;
read back it has the same name and the same pixels, in a PNG of our own making.

A record is a header and a payload, so the index is rebuilt by walking the headers, a torn tail is noticed,
and cutting the file at an earlier size gives exactly the pack of that time. Nothing is changed in place.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from arpo.errors import UserError
from arpo.types import Screenshot

HEADER = struct.Struct("<4sB32s32sII")  # magic, kind, sha256, its base's sha256, payload's size and crc32
MAGIC = b"SHOT"
GONE, PNG, PATCH = range(3)
NO_BASE = bytes(32)
KEEP_AS_IS = 1 << 15  # bytes: a smaller PNG costs little, and a patch would save nothing
LONGEST_CHAIN = 15  # patches upon patches that reading one screenshot may need


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    kind: int
    name: str
    base: str  # "" when it stands alone
    offset: int
    size: int
    crc: int

    @property
    def payload(self) -> int:
        return self.offset + HEADER.size

    @property
    def end(self) -> int:
        return self.payload + self.size

    @property
    def header(self) -> bytes:
        base = bytes.fromhex(self.base) or NO_BASE
        return HEADER.pack(MAGIC, self.kind, bytes.fromhex(self.name), base, self.size, self.crc)


class ScreenshotPack:
    """Appends at the end of what could be read: a torn record behind that is overwritten."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._mode = "r+b" if writable else "rb"
        if writable:
            path.touch()
        self._last: tuple[str, np.ndarray] = (
            "",
            np.empty(0),
        )  # the newest screenshot's pixels: the next one's base
        self._open()

    @property
    def size(self) -> int:
        return self._records[-1].end if self._records else 0

    def __contains__(self, name: str) -> bool:
        return name in self._live

    def add(self, shot: Screenshot, previous: Screenshot | None) -> None:
        """Store it unless it is there; `previous` is the one before it in the episode, stored already."""
        if shot.sha256 in self:
            return
        kind, base, payload = PNG, "", shot.png
        if len(shot.png) >= KEEP_AS_IS and (pixels := self._pixels_of(shot)) is not None:
            base, patch = self._patch(pixels, previous)
            self._last = (shot.sha256, pixels)
            if len(patch) < len(shot.png):
                kind, payload = PATCH, patch
        record = _Record(
            kind=kind,
            name=shot.sha256,
            base=base if kind == PATCH else "",
            offset=self.size,
            size=len(payload),
            crc=zlib.crc32(payload),
        )
        self._file.seek(record.offset)
        self._file.write(record.header + payload)
        self._file.flush()
        self._remember(record)

    def read(self, names: Iterable[str]) -> dict[str, Screenshot]:
        decoded: dict[str, np.ndarray] = {}
        return {name: self._screenshot(self._find(name), decoded) for name in names}

    def sync(self) -> None:
        self._file.truncate(self.size)
        os.fsync(self._file.fileno())

    def rewind(self, size: int) -> None:
        """Go back to the pack as it was when it had this size."""
        if size and size not in (record.end for record in self._records):
            raise UserError(
                f"{self._path}: is damaged: no record ends at byte {size}, which the checkpoint names: "
                "bring the file back, or begin another run.dir"
            )
        self._file.truncate(size)
        self._file.close()
        self._open()

    def prune(self, keep: Collection[str]) -> None:
        """Free the disk space of all but these, and what they are patches of; all at once or not at all.

        Records stay where they are and freed payloads become holes in the file, so that the sizes which
        checkpoints name stay true.
        """
        needed = {record.name for name in keep for record in self._chain(name)}
        beside = self._path.with_suffix(".tmp")
        with beside.open("wb") as file:
            for record in self._records:
                file.seek(record.offset)
                if record.name in needed and record.kind != GONE:
                    file.write(record.header + self._payload(record))
                else:
                    file.write(replace(record, kind=GONE).header)
            file.truncate(self.size)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._path)
        self._file.close()
        self._open()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        self._file = self._path.open(self._mode)
        self._records: list[_Record] = []  # in the order of the file
        self._live: dict[str, _Record] = {}
        self._depth: dict[str, int] = {}
        total = os.fstat(self._file.fileno()).st_size
        while (record := self._read_header(self.size)) and record.end <= total:
            self._remember(record)

    def _read_header(self, offset: int) -> _Record | None:
        raw = os.pread(self._file.fileno(), HEADER.size, offset)
        if len(raw) < HEADER.size or not raw.startswith(MAGIC):
            return None
        _, kind, name, base, size, crc = HEADER.unpack(raw)
        base_name = "" if base == NO_BASE else base.hex()
        return _Record(kind=kind, name=name.hex(), base=base_name, offset=offset, size=size, crc=crc)

    def _remember(self, record: _Record) -> None:
        self._records.append(record)
        if record.kind != GONE:
            self._live[record.name] = record
            self._depth[record.name] = self._depth[record.base] + 1 if record.base else 0

    def _find(self, name: str) -> _Record:
        if name not in self:
            raise UserError(f"{self._path}: screenshot {name} is not in it")
        return self._live[name]

    def _chain(self, name: str) -> Iterator[_Record]:
        while name:
            record = self._find(name)
            yield record
            name = record.base

    def _payload(self, record: _Record) -> bytes:
        payload = os.pread(self._file.fileno(), record.size, record.payload)
        if zlib.crc32(payload) != record.crc:
            raise UserError(
                f"{self._path}: screenshot {record.name} is damaged, at byte {record.offset}: "
                "bring the file back, or remove its run"
            )
        return payload

    def _screenshot(self, record: _Record, decoded: dict[str, np.ndarray]) -> Screenshot:
        if record.kind == PNG:
            return Screenshot(self._payload(record), record.name)
        buffer = io.BytesIO()
        Image.fromarray(self._restore(record, decoded)).save(buffer, "PNG", compress_level=1)
        return Screenshot(buffer.getvalue(), record.name)

    def _restore(self, record: _Record, decoded: dict[str, np.ndarray]) -> np.ndarray:
        """The pixels of a record. `decoded` saves walking down the chain again for the next one."""
        if record.name not in decoded:
            image = Image.open(io.BytesIO(self._payload(record)))
            if record.base:
                patch = np.asarray(image.convert("RGBA"))
                base = self._restore(self._live[record.base], decoded)
                decoded[record.name] = np.where(patch[..., 3:] > 0, patch[..., :3], base)
            else:
                decoded[record.name] = np.asarray(image.convert("RGB"))
        return decoded[record.name]

    def _pixels_of(self, shot: Screenshot) -> np.ndarray | None:
        """RGB pixels; None for a PNG of any other kind, which is then kept as it is."""
        if self._last[0] == shot.sha256:
            return self._last[1]
        image = Image.open(io.BytesIO(shot.png))
        return np.asarray(image) if image.mode == "RGB" else None

    def _patch(self, pixels: np.ndarray, previous: Screenshot | None) -> tuple[str, bytes]:
        """The base's name ("" for none) and the picture of what differs from it."""
        if previous and self._depth.get(previous.sha256, LONGEST_CHAIN) < LONGEST_CHAIN:
            base = self._pixels_of(previous)
            if base is not None and base.shape == pixels.shape:
                changed = (pixels != base).any(axis=2, keepdims=True)
                patch = np.concatenate([pixels * changed, changed.astype(np.uint8) * 255], axis=2)
                return previous.sha256, _webp(patch)
        return "", _webp(pixels)


def _webp(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "WEBP", lossless=True, method=2, quality=20)
    return buffer.getvalue()
