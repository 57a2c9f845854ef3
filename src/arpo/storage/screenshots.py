"""The screenshot pack: an append-only file with each distinct screenshot once.

A small PNG (every screen of Desk) is stored unchanged. A large one is stored as its change from the previous
screenshot of the episode, without loss (`picture_codec`). When it is read, it has the same sha256 name and
the same pixels, but is encoded as a new PNG. Large screens are encoded by other processes (`encoders`).

A record is a header and a payload. Reading the headers rebuilds the index and detects an incomplete last
record. Truncating the file to an earlier size restores exactly the earlier pack. Records never move. The
content depends on the order of `add` alone, not on which picture was encoded first.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import threading
import weakref
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from arpo.errors import UserError
from arpo.png import decode, read_size, rgb
from arpo.storage.encoders import Encoders
from arpo.storage.files import RESTORE, RESTORE_OR_LEAVE, naming, write_all
from arpo.storage.picture_codec import (
    apply_change,
    apply_patch,
    decode_whole,
    encode,
    encode_png,
    has_change,
    is_encoded,
    picture_size,
)
from arpo.types import Screenshot

HEADER = struct.Struct("<4sB32s32sII")  # magic, kind, sha256, sha256 of the base, payload size, payload crc32
MAGIC = b"SHOT"
# Kinds of payload. PATCH with a base: a change of the whole screen, as written by earlier versions.
PRUNED, PNG, PATCH, CHANGE = range(4)
NO_BASE = bytes(32)
DAMAGED = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)  # raised for a damaged picture
MAX_PICTURE_BYTES = 160 << 20  # MAX_SCREEN_PIXELS without compression
MAX_CHAIN = 15  # changes to apply when reading one screenshot
_THREADS = min(8, os.cpu_count() or 1)
_SIZE_ONLY = struct.Struct(">16xII")  # the beginning of a PNG, as far as Screenshot.size reads it
PROCESS_PIXELS = 1 << 18  # smaller pictures are encoded in place, in a few milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The header of a stored picture, at byte `offset`."""

    kind: int
    name: str
    base: str  # "" if it is complete
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


def read_header(descriptor: int, offset: int) -> Record | None:
    """The record at an offset. None if there is none, or an incomplete or unknown one."""
    raw = os.pread(descriptor, HEADER.size, offset)
    if len(raw) < HEADER.size or not raw.startswith(MAGIC):
        return None
    _, kind, name, base, size, crc = HEADER.unpack(raw)
    base_name = "" if base == NO_BASE else base.hex()
    if kind > CHANGE or (kind == CHANGE and not base_name) or (kind == PNG and base_name):
        return None
    return Record(kind=kind, name=name.hex(), base=base_name, offset=offset, size=size, crc=crc)


@contextmanager
def naming_damage(path: Path | str, record: Record) -> Iterator[None]:
    """Convert what a damaged picture raises in the block to a UserError."""
    try:
        yield
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(
            f"{path}: screenshot {record.name} at byte {record.offset} is damaged: {RESTORE}"
        ) from error


def read_payload(descriptor: int, record: Record) -> bytes:
    """Raises ValueError if it is too large, has another checksum, or is a PNG of another name."""
    if record.size > MAX_PICTURE_BYTES:
        raise ValueError(f"has {record.size:,} bytes, more than {MAX_PICTURE_BYTES:,}")
    payload = os.pread(descriptor, record.size, record.payload)
    if zlib.crc32(payload) != record.crc:
        raise ValueError("its checksum differs")
    if record.kind == PNG and hashlib.sha256(payload).hexdigest() != record.name:
        raise ValueError("its name is not its hash")
    return payload


def payload_size(record: Record, payload: bytes) -> tuple[int, int]:
    """(width, height) of a complete picture, from its header. Raises UserError or one of DAMAGED."""
    return read_size(payload) if record.kind == PNG else picture_size(payload)


def decode_payload(record: Record, payload: bytes, base: np.ndarray | None) -> np.ndarray:
    """RGB pixels. `base` are those of the picture that the record changes. Raises one of DAMAGED."""
    if record.kind == PNG:
        return np.asarray(decode(payload))  # strict: the pack may come from somebody else
    if base is None:
        return decode_whole(payload)
    return (apply_change if record.kind == CHANGE else apply_patch)(payload, base)


class ScreenshotPack:
    """Reads and appends screenshots. An incomplete last record is overwritten by the next `add`.

    One thread may prepare screenshots, another one add and prune them, and a third one read them.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._mode: Literal["r+b", "rb"] = "r+b" if writable else "rb"
        if writable:
            path.touch()
        self._encoders = Encoders()
        self._planned: dict[str, int] = {}  # length of the chain of each screenshot to be added
        self._prepared: dict[str, weakref.ref[Screenshot]] = {}
        self._freed: deque[str] = deque()  # prepared ones that no episode contains any more
        self._replacing = threading.Lock()  # the file
        self._open()

    @property
    def size(self) -> int:
        return self._records[-1].end if self._records else 0

    def __contains__(self, name: str) -> bool:
        return name in self._live

    def prepare(self, shot: Screenshot, previous: Screenshot | None) -> None:
        """Begin to encode a screenshot for a later `add`, if another process does that.

        `add` may decide on another base: then it encodes the screenshot again.
        """
        self._forget_freed()
        if shot.sha256 in self._planned or shot.sha256 in self:
            return
        name, freed = shot.sha256, self._freed
        self._prepared[name] = weakref.ref(shot, lambda _: freed.append(name))
        if not needs_process(shot):
            self._planned[shot.sha256] = 0
            return
        depth = self._planned_depth(previous)
        base = _base(shot, previous, depth)
        self._planned[shot.sha256] = depth + 1 if base else 0
        self._encoders.start(shot, base)

    def _planned_depth(self, shot: Screenshot | None) -> int:
        """Reads the plan first: another thread may be in `_register`, which removes the plan at the end."""
        planned = self._planned.get(shot.sha256) if shot else None
        return self._stored_depth(shot) if planned is None else planned

    def _stored_depth(self, shot: Screenshot | None) -> int:
        return self._depth.get(shot.sha256, MAX_CHAIN) if shot else MAX_CHAIN

    def add(self, shot: Screenshot, previous: Screenshot | None) -> None:
        """Store a screenshot unless it is stored already. `previous`, possibly its base, must be stored.

        Raises EncoderDied if it cannot be encoded.
        """
        if shot.sha256 in self:
            return
        kind, base, payload = PNG, None, shot.png
        was_read = Screenshot.of(shot.png) != shot  # from another pack: the name is that of the first PNG
        if was_read or is_encoded(shot.png):
            base = _base(shot, previous, self._stored_depth(previous))
            encoded = self._encoded(shot, base)
            if was_read or len(encoded) < len(shot.png):
                kind, payload = CHANGE if base else PATCH, encoded
        record = Record(
            kind=kind,
            name=shot.sha256,
            base=base.sha256 if base and kind == CHANGE else "",
            offset=self.size,
            size=len(payload),
            crc=zlib.crc32(payload),
        )
        with naming(self._path):
            self._file.seek(record.offset)
            write_all(self._file, record.header + payload)
        self._register(record)

    def _encoded(self, shot: Screenshot, base: Screenshot | None) -> bytes:
        if needs_process(shot):
            return self._encoders.take(shot, base)
        return encode(rgb(shot), rgb(base) if base else None)

    def read(self, names: Iterable[str]) -> dict[str, Screenshot]:
        """Return screenshots by their sha256. Raises UserError for a missing or damaged one."""
        decoded: dict[str, np.ndarray] = {}
        with self._replacing:
            records = {name: self._find(name) for name in names}
            encoded = {name: record for name, record in records.items() if record.kind != PNG}
            originals = {
                name: self._original(record) for name, record in records.items() if name not in encoded
            }
            for record in encoded.values():
                with naming_damage(self._path, record):
                    self._restore(record, decoded)
        with ThreadPoolExecutor(_THREADS) as threads:  # Pillow releases the GIL; threads start when needed
            pngs = dict(
                zip(encoded, threads.map(encode_png, [decoded[name] for name in encoded]), strict=True)
            )
        return {name: originals.get(name) or Screenshot(pngs[name], name) for name in records}

    def outlines(self, names: Iterable[str]) -> dict[str, Screenshot]:
        """Screenshots of which only `sha256` and `size` are valid. Raises UserError as `read`.

        Compares the checksum of each payload and decodes no pixels.
        """
        sizes: dict[str, tuple[int, int]] = {}
        with self._replacing:
            return {
                name: Screenshot(_SIZE_ONLY.pack(*self._screen_size(self._find(name), sizes)), name)
                for name in names
            }

    def sync(self) -> None:
        """Flush the file to disk, without an incomplete last record."""
        with naming(self._path):
            self._file.truncate(self.size)
            os.fsync(self._file.fileno())

    def _forget_freed(self) -> None:
        """Forget the pictures of failed and dropped episodes."""
        with suppress(IndexError):
            while True:
                name = self._freed.popleft()
                self._planned.pop(name, None)
                self._prepared.pop(name, None)
                self._encoders.forget(name)

    def check_size(self, size: int) -> None:
        """Raise UserError if no record ends at this size of a checkpoint."""
        if size and size not in (record.end for record in self._records):
            raise UserError(
                f"{self._path}: damaged, no record ends at byte {size}, its size in the checkpoint: "
                f"{RESTORE_OR_LEAVE}"
            )

    def rewind(self, size: int) -> None:
        """Truncate the file to an earlier size, where a record ended."""
        self.check_size(size)
        self._file.truncate(size)
        self._file.close()
        self._open()

    def prune(self, keep: Collection[str]) -> None:
        """Delete all screenshots except these and their patch bases, atomically.

        Records keep their offsets and deleted payloads become holes in the file, so the sizes in
        checkpoints stay valid.
        """
        needed = {record.name for name in keep for record in self._chain(name)}
        temporary = self._path.with_suffix(".tmp")
        try:
            with naming(self._path):
                self._write_pruned(temporary, needed)
                os.replace(temporary, self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        with self._replacing:
            self._file.close()
            self._open()

    def _write_pruned(self, path: Path, needed: Collection[str]) -> None:
        with path.open("wb") as file:
            for record in self._records:
                file.seek(record.offset)
                if record.name in needed and record.kind != PRUNED:
                    file.write(record.header + self._payload(record))
                else:
                    file.write(replace(record, kind=PRUNED).header)
            file.truncate(self.size)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self._encoders.close()
        self._file.close()

    def _open(self) -> None:
        self._file = self._path.open(self._mode, buffering=0)
        self._records: list[Record] = []  # in the order of the file
        self._live: dict[str, Record] = {}
        self._depth: dict[str, int] = {}
        total = os.fstat(self._file.fileno()).st_size
        while (record := self._next_record()) and record.end <= total:
            self._register(record)

    def _next_record(self) -> Record | None:
        """None also for a damaged one: the records from there on cannot be trusted."""
        record = read_header(self._file.fileno(), self.size)
        deep = record and record.base and self._depth.get(record.base, MAX_CHAIN) >= MAX_CHAIN
        return None if record and deep and record.kind != PRUNED else record

    def _register(self, record: Record) -> None:
        self._records.append(record)
        if record.kind != PRUNED:
            self._depth[record.name] = self._depth[record.base] + 1 if record.base else 0
            self._live[record.name] = record
        self._planned.pop(record.name, None)
        self._prepared.pop(record.name, None)
        self._encoders.forget(record.name)

    def _find(self, name: str) -> Record:
        if name not in self:
            raise UserError(f"{self._path}: damaged, contains no screenshot {name}: {RESTORE}")
        return self._live[name]

    def _chain(self, name: str) -> Iterator[Record]:
        while name:
            record = self._find(name)
            yield record
            name = record.base

    def _payload(self, record: Record) -> bytes:
        with naming_damage(self._path, record):
            return read_payload(self._file.fileno(), record)

    def _screen_size(self, record: Record, sizes: dict[str, tuple[int, int]]) -> tuple[int, int]:
        """(width, height). `sizes` caches those of its chain of bases."""
        if record.name not in sizes:
            payload = self._payload(record)
            if record.base:
                sizes[record.name] = self._screen_size(self._live[record.base], sizes)
            else:
                with naming_damage(self._path, record):
                    sizes[record.name] = payload_size(record, payload)
        return sizes[record.name]

    def _original(self, record: Record) -> Screenshot:
        """A screenshot stored as the original PNG."""
        return Screenshot(self._payload(record), record.name)

    def _restore(self, record: Record, decoded: dict[str, np.ndarray]) -> np.ndarray:
        """Decode the pixels of a record. `decoded` caches the pixels of its chain of bases."""
        if record.name not in decoded:
            payload = self._payload(record)
            base = self._restore(self._live[record.base], decoded) if record.base else None
            decoded[record.name] = decode_payload(record, payload, base)
        return decoded[record.name]


def needs_process(shot: Screenshot) -> bool:
    """Whether another process encodes the screenshot."""
    return is_encoded(shot.png) and math.prod(read_size(shot.png)) >= PROCESS_PIXELS


def _base(shot: Screenshot, previous: Screenshot | None, depth: int) -> Screenshot | None:
    """The base to store a screenshot with: the previous one, unless its chain or its pixels forbid it.

    `depth` is the length of its chain.
    """
    if previous is None or depth >= MAX_CHAIN:
        return None
    return previous if has_change(shot.png, previous.png) else None
