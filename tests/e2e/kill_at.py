"""`arpo` in a process of its own that signals itself at an exact moment: the fault injection of these tests.

Processes are forked from one that has imported torch already, which is what most of a small run's time is.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.cli import main

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["arpo.trainer", "arpo.viewer.report", "tensorboardX", "kill_at"])


@dataclass(frozen=True)
class Moment:
    """When `arms` sees a call of `owner.name` for which it is true, `signals` are sent before the call."""

    install: Callable[[Callable[[], None]], None]
    signals: tuple[int, ...] = (signal.SIGKILL,)


@dataclass(frozen=True)
class Ended:
    code: int  # minus the number of the signal, where one ended it
    output: str


def arpo(log: Path, *words: str, at: Moment | None = None) -> Ended:
    """Run a command to its end, whatever it is."""
    process = _FORKS.Process(target=_command, args=(log, words, _NAMES.get(id(at), "")))
    process.start()
    process.join()
    assert process.exitcode is not None
    return Ended(process.exitcode, log.read_text("utf-8"))
