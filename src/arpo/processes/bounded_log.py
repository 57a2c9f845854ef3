"""A log of bounded size: callers of a server can cause messages, but cannot fill a disk with them.

Messages of one kind have the same logger and the same text before its arguments. In each WINDOW_SECONDS the
log contains the first REPEATS messages of each kind; the others are counted.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

WINDOW_SECONDS = 600.0
REPEATS = 3
MAX_KINDS = 50  # in one window; all further ones count as one kind
MAX_CHARACTERS = 4000  # of one message with its traceback
_FURTHER = "messages of other kinds"


@contextmanager
def bounded_log() -> Iterator[None]:
    """Write the messages of all loggers to stderr during the block."""
    handler, root = BoundedHandler(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


class BoundedHandler(logging.StreamHandler):
    """Counts messages by kind and writes the first ones of each window. `close` writes the last counts."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()
        self._window_end = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._window_end:
            self._write_counts()
            self._window_end = now + WINDOW_SECONDS
        kind = self._kind(record)
        self._counts[kind] += 1
        if self._counts[kind] <= REPEATS:
            self._write(record)

    def format(self, record: logging.LogRecord) -> str:
        text, half = super().format(record), MAX_CHARACTERS // 2
        return text if len(text) <= MAX_CHARACTERS else f"{text[:half]} [...] {text[-half:]}"

    def close(self) -> None:
        self._write_counts()
        super().close()

    def _kind(self, record: logging.LogRecord) -> str:
        first_line = str(record.msg).partition("\n")[0]
        kind = f"{record.name}: {first_line}"[:200]
        return kind if kind in self._counts or len(self._counts) < MAX_KINDS else _FURTHER

    def _write_counts(self) -> None:
        for kind, count in self._counts.items():
            if count > REPEATS:
                self._write(logging.makeLogRecord({"msg": f"{count - REPEATS} more like this: {kind}"}))
        self._counts.clear()

    def _write(self, record: logging.LogRecord) -> None:
        self.setStream(sys.stderr)  # a live display replaces it
        super().emit(record)
