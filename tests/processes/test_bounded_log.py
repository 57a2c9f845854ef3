"""The log of a server has a bounded size."""

import logging

import pytest

from arpo.processes import bounded_log as module
from arpo.processes.bounded_log import bounded_log

_log = logging.getLogger("somewhere")


def test_repeated_messages_are_counted(capsys):
    with bounded_log():
        for number in range(5):
            _log.warning("lost %d", number)
            _log.warning("found %d", number)
    assert capsys.readouterr().err.splitlines() == [
        *("lost 0", "found 0", "lost 1", "found 1", "lost 2", "found 2"),
        "2 more like this: somewhere: lost %d",
        "2 more like this: somewhere: found %d",
    ]


def test_each_window_starts_with_the_counts_of_the_last(capsys, monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with bounded_log():
        for _ in range(4):
            _log.warning("lost")
        now += module.WINDOW_SECONDS
        _log.warning("lost")
    assert capsys.readouterr().err.splitlines() == [
        *("lost", "lost", "lost"),
        "1 more like this: somewhere: lost",
        "lost",
    ]


def test_the_number_of_kinds_is_limited(capsys):
    with bounded_log():
        for number in range(1000):
            _log.warning(f"a kind of its own: {number}")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 50 + 3 + 1
    assert lines[-1] == "947 more like this: messages of other kinds"


def test_a_long_message_is_cut_in_the_middle(capsys):
    with bounded_log(), pytest.raises(ValueError):
        try:
            raise ValueError("x" * 1_000_000 + " the end")
        except ValueError:
            _log.exception("the beginning")
            raise
    written = capsys.readouterr().err
    assert written.startswith("the beginning\nTraceback")
    assert written.endswith("x the end\n")
    assert len(written) < 5000


def test_a_message_has_one_kind_for_all_its_lines(capsys):
    with bounded_log():
        for number in range(5):
            _log.warning(f"Task exception was never retrieved\nfuture: {number}")
    assert capsys.readouterr().err.splitlines()[-1] == (
        "2 more like this: somewhere: Task exception was never retrieved"
    )


def test_the_block_leaves_logging_as_it_was():
    before = list(logging.getLogger().handlers)
    with bounded_log():
        assert len(logging.getLogger().handlers) == len(before) + 1
    assert logging.getLogger().handlers == before
