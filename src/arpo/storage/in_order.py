"""Runs calls in a thread, one after the other, while the caller goes on."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Call = Callable[[], object]


class InOrder:
    """Runs calls in the order of `put`. After the first error no further call runs: callers get the error.

    `limit` bounds the total size of the waiting calls, in a unit of the caller.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._calls: deque[tuple[Call, int]] = deque()  # the first one is running
        self._size = 0
        self._put = self._done = 0  # numbers of calls
        self._error: BaseException | None = None
        self._raised = False

    @property
    def idle(self) -> bool:
        return not self._calls and self._error is None

    def put(self, call: Call, size: int) -> int:
        """Run a call later. Waits as long as the limit is exceeded. Raises the error of an earlier call.

        Returns the number of the call, for `wait`.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._calls or self._size + size <= self._limit)
            self._raise()
            self._calls.append((call, size))
            if len(self._calls) == 1:  # the thread ends when there is nothing to do
                try:
                    threading.Thread(target=self._run, name="arpo-storage", daemon=True).start()
                except RuntimeError:  # too many threads
                    self._calls.clear()
                    raise
            self._size += size
            self._put += 1
            return self._put

    def wait(self, number: int | None = None) -> None:
        """Wait until the call of this number has run; None: all calls so far. Raises the error of one."""
        with self._changed:
            last = self._put if number is None else number
            self._changed.wait_for(lambda: not self._calls or self._done >= last)
            self._raise()

    def close(self) -> None:
        """Wait until all calls have run. Raises the error of one, unless the caller has it already."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calls)
            if not self._raised:
                self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            self._raised = True
            raise self._error

    def _run(self) -> None:
        call: Call | None
        call, size = self._calls[0]
        while call is not None:
            try:
                call()
            except BaseException as error:  # the boundary of the thread: the caller raises it
                with self._changed:
                    self._error = error
                    self._calls.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                self._calls.popleft()
                self._size -= size
                self._done += 1
                self._changed.notify_all()
                call, size = self._calls[0] if self._calls else (None, 0)
