"""Pictures for the browser: those of a run's screenshot pack, sizes, and thumbnails.

Sizes are checked before pixels are decoded, so a decompression bomb is refused by its header. One picture is
decoded at a time, and the newest ones stay in memory: the next screenshot of an episode is one small change.
"""

from __future__ import annotations

import io
import os
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from PIL import Image

from arpo.errors import UserError
from arpo.png import read_size
from arpo.storage.picture_codec import encode_png
from arpo.storage.run_folder import PACK
from arpo.storage.screenshots import (
    MAX_CHAIN,
    PNG,
    PRUNED,
    Record,
    decode_payload,
    naming_damage,
    payload_size,
    read_header,
    read_payload,
)
from arpo.types import screen_fault
from arpo.viewer.files import Mark, SafeFolder
from arpo.viewer.index import Index, set_mark, shot_key

MAX_CACHED_BYTES = 96 << 20  # 15 pictures of 1920x1080
MIN_WIDTH, MAX_WIDTH = 32, 1280  # of a thumbnail
COMPACT_WIDTH = 960
MAX_AREAS = 20  # of changed pixels
_RECORDS = 1_000  # in one transaction
NOT_YET = "the screenshot is not indexed yet"
DELETED = "the screenshot was deleted (store.prune_every), or is damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An encoded picture and its media type, for example image/png."""

    content: bytes
    media_type: str


class PixelCache:
    """The newest decoded pictures, by name, at most MAX_CACHED_BYTES. One thread decodes at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()

    def get(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = make()
            self._kept.move_to_end(name)
            while (
                sum(pixels.nbytes for pixels in self._kept.values()) > MAX_CACHED_BYTES
                and len(self._kept) > 1
            ):
                self._kept.popitem(last=False)
            return self._kept[name]


def checked_png(content: bytes) -> tuple[int, int]:
    """The size of a PNG. Raises UserError if it is none, or beyond the limits of a screen."""
    return checked_size(*read_size(content))


def checked_size(width: int, height: int) -> tuple[int, int]:
    if fault := screen_fault(width, height):
        raise UserError(f"the screenshot is {width}x{height}, {fault}")
    return width, height


def thumbnail(pixels: np.ndarray, width: int) -> Picture:
    """A JPEG of this width, or of the own width if that is smaller."""
    height, own = pixels.shape[:2]
    width = min(max(width, MIN_WIDTH), MAX_WIDTH, own)
    small = Image.fromarray(pixels).resize((width, max(1, round(height * width / own))), Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return Picture(content=buffer.getvalue(), media_type="image/jpeg")


def compact(picture: Picture, pixels: Callable[[], np.ndarray]) -> Picture:
    """The picture, scaled down to COMPACT_WIDTH pixels if it is wider. Decodes it only then."""
    with Image.open(io.BytesIO(picture.content)) as header:
        width, height = header.size
    if width <= COMPACT_WIDTH:
        return picture
    size = COMPACT_WIDTH, max(1, round(height * COMPACT_WIDTH / width))
    buffer = io.BytesIO()
    Image.fromarray(pixels()).resize(size).save(buffer, "WEBP", quality=80)
    return Picture(content=buffer.getvalue(), media_type="image/webp")


def changed_areas(before: np.ndarray, now: np.ndarray) -> tuple[float, list[list[int]]]:
    """The share of changed pixels, and [left, top, width, height] of up to MAX_AREAS connected areas.

    >>> before = np.zeros((40, 40, 3), np.uint8)
    >>> now = before.copy()
    >>> now[10:12, 4:8] = 255
    >>> changed_areas(before, now)
    (0.005, [[4, 10, 4, 2]])
    """
    height, width = now.shape[:2]
    if before.shape != now.shape:
        return 1.0, [[0, 0, width, height]]
    mask_HW = (before != now).any(axis=2)
    cell = max(4, width // 64)
    padded = np.pad(mask_HW, ((0, -height % cell), (0, -width % cell)))
    changed_RC = padded.reshape(padded.shape[0] // cell, cell, -1, cell).any(axis=(1, 3))
    left = {(int(row), int(column)) for row, column in np.argwhere(changed_RC)}
    areas = []
    while left:
        found = _connected(left)
        rows, columns = zip(*found, strict=True)
        top, first = min(rows) * cell, min(columns) * cell
        inner_HW = mask_HW[top : (max(rows) + 1) * cell, first : (max(columns) + 1) * cell]
        down, across = np.flatnonzero(inner_HW.any(axis=1)), np.flatnonzero(inner_HW.any(axis=0))
        corner = [first + int(across[0]), top + int(down[0])]
        areas.append([*corner, int(across[-1] - across[0]) + 1, int(down[-1] - down[0]) + 1])
    areas.sort(key=lambda area: -area[2] * area[3])
    return float(mask_HW.mean()), areas[:MAX_AREAS]


def _connected(left: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Take a cell and all that touch it, also at corners, out of `left`."""
    waiting = [left.pop()]
    found = []
    while waiting:
        row, column = waiting.pop()
        found.append((row, column))
        for place in [(row + down, column + across) for down in (-1, 0, 1) for across in (-1, 0, 1)]:
            if place in left:
                left.remove(place)
                waiting.append(place)
    return found


class PackReader:
    """The pictures of a run, by sha256. One picture is a few reads at byte offsets of the index.

    `ScreenshotPack` reads the headers of all pictures first; a million of them would take too long, and too
    much memory. The header at an offset must have the expected name, otherwise the index is made again.
    """

    def __init__(self, folder: SafeFolder, index: Index, cache: PixelCache) -> None:
        self._folder, self._index, self._cache = folder, index, cache
        self._complete: int | None = None  # generation of the index that has all pictures

    def refresh(self, deadline: float) -> bool:
        """Index new pictures until the deadline, in seconds of time.monotonic(). True: all are indexed."""
        try:
            with self._folder.open(PACK) as descriptor:
                generation, mark = self._index.generation, self._index.mark(PACK)
                if mark is not None and not mark.fits(descriptor):
                    self._index.write(lambda connection: connection.execute("DELETE FROM shots"))
                    mark = None
                end, total, complete = mark.end if mark else 0, os.fstat(descriptor).st_size, False
                while not complete:
                    end, complete = self._add(descriptor, end, total, generation)
                    if time.monotonic() > deadline:
                        break
                self._complete = generation if complete else None
                return complete
        except FileNotFoundError:
            return True

    def _add(self, descriptor: int, end: int, total: int, generation: int) -> tuple[int, bool]:
        """Index up to _RECORDS pictures from `end` on. Returns the new end, and whether all are done."""
        found: list[tuple[int, int]] = []
        first, complete = end, False
        for _ in range(_RECORDS):
            record = read_header(descriptor, end)
            complete = record is None or record.end > total
            if record is None or complete:
                break
            if record.kind != PRUNED:
                found.append((shot_key(record.name), record.offset))
            end = record.end

        def change(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR IGNORE INTO shots VALUES (?, ?)", found)
            set_mark(connection, PACK, Mark.at(descriptor, end))

        if end != first and not self._index.write(change, generation):
            return 0, False
        return end, complete

    def size(self, name: str) -> tuple[int, int]:
        """(width, height). Raises UserError for a picture that is missing, damaged or too large."""
        with self._folder.open(PACK) as descriptor:
            root = self._chain(descriptor, name)[-1]
            content = self._payload(descriptor, root)
            with naming_damage(self._folder.path(PACK), root):
                return checked_size(*payload_size(root, content))

    def picture(self, name: str) -> Picture:
        """The picture as it is stored if that is complete, otherwise as a new PNG of the same pixels."""
        with self._folder.open(PACK) as descriptor:
            record = self._find(descriptor, name)
            content = self._payload(descriptor, record)
        if record.base:
            return Picture(content=encode_png(self.pixels(name)), media_type="image/png")
        with naming_damage(self._folder.path(PACK), record):
            checked_size(*payload_size(record, content))
        return Picture(content=content, media_type="image/png" if record.kind == PNG else "image/webp")

    def pixels(self, name: str) -> np.ndarray:
        with self._folder.open(PACK) as descriptor:
            chain = self._chain(descriptor, name)
            pixels: np.ndarray | None = None
            for record in reversed(chain):
                pixels = self._cache.get(record.name, partial(self._decode, descriptor, record, pixels))
            assert pixels is not None
            return pixels

    def _decode(self, descriptor: int, record: Record, base: np.ndarray | None) -> np.ndarray:
        content = self._payload(descriptor, record)
        with naming_damage(self._folder.path(PACK), record):
            if base is None:
                checked_size(*payload_size(record, content))
            return decode_payload(record, content, base)

    def _chain(self, descriptor: int, name: str) -> list[Record]:
        """The record of a picture, then its bases up to a complete picture."""
        chain: list[Record] = []
        while name:
            if len(chain) > MAX_CHAIN:
                raise UserError(f"{self._folder.path(PACK)}: damaged, more than {MAX_CHAIN} changes in a row")
            chain.append(self._find(descriptor, name))
            name = chain[-1].base
        return chain

    def _find(self, descriptor: int, name: str) -> Record:
        row = self._index.row("SELECT at FROM shots WHERE key = ?", (shot_key(name),))
        if row is None:
            raise UserError(DELETED if self._complete == self._index.generation else NOT_YET)
        record = read_header(descriptor, int(row["at"]))
        if record is None or record.name != name:
            self._index.distrust()
            raise UserError(
                f"{self._folder.path(PACK)}: damaged, or its index did not fit and is made again: try again "
                "in a moment"
            )
        if record.kind == PRUNED:
            raise UserError(DELETED)
        return record

    def _payload(self, descriptor: int, record: Record) -> bytes:
        with naming_damage(self._folder.path(PACK), record):
            return read_payload(descriptor, record)
