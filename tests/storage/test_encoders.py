import io
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from PIL import Image

from arpo.storage import encoders
from arpo.storage.encoder_process import BASE, CHANGE, WHOLE, Recent
from arpo.storage.encoders import EncoderDied, Encoders
from arpo.storage.picture_codec import encode
from arpo.types import Screenshot
from processes import descendants, parents, wait_until
from stored_episodes import large_desktop

FIRST, SECOND, THIRD = large_desktop(1), large_desktop(1, window=10), large_desktop(1, window=20)


def image(shot):
    return Image.open(io.BytesIO(shot.png))


def workers():
    return descendants(os.getpid())


def ended_workers():
    """Wait for the processes of earlier tests. Returns those that are no encoders."""
    assert wait_until(lambda: "arpo-encoder" not in {thread.name for thread in threading.enumerate()})
    return workers()


def test_pictures_are_those_of_the_codec():
    with closing(Encoders(processes=1)) as coders:
        for pair in [(FIRST, None), (SECOND, FIRST), (THIRD, SECOND)]:
            coders.start(*pair)
        assert coders.take(THIRD, SECOND) == encode(image(THIRD), image(SECOND))
        assert coders.take(FIRST, None) == encode(image(FIRST), None)
        assert coders.take(SECOND, FIRST) == encode(image(SECOND), image(FIRST))
        assert coders.take(THIRD, FIRST) == encode(image(THIRD), image(FIRST))  # not begun before


def test_a_picture_is_encoded_once(monkeypatch):
    encoded, original = [], encoders._Worker._encode

    def counted(worker, shot, base):
        encoded.append(shot)
        return original(worker, shot, base)

    monkeypatch.setattr(encoders._Worker, "_encode", counted)
    with closing(Encoders(processes=2)) as coders:
        for pair in [(FIRST, None), (SECOND, FIRST), (FIRST, None), (THIRD, FIRST)]:
            coders.start(*pair)
        for pair in [(FIRST, None), (SECOND, FIRST), (THIRD, FIRST)]:
            coders.take(*pair)
    assert sorted(shot.sha256 for shot in encoded) == sorted(shot.sha256 for shot in (FIRST, SECOND, THIRD))


@pytest.fixture
def sent(monkeypatch):
    """(task, screenshot) of the requests to the processes."""
    requests, original = [], encoders._Worker._send

    def send(worker, process, task, shot, base):
        requests.append((task, shot))
        original(worker, process, task, shot, base)

    monkeypatch.setattr(encoders._Worker, "_send", send)
    return requests


def test_a_base_that_the_process_has_decoded_is_not_sent_again(sent):
    other, next_of_other = large_desktop(2), large_desktop(2, window=5)
    with closing(Encoders(processes=1)) as coders:  # two episodes take turns
        for pair in [(FIRST, None), (other, None), (SECOND, FIRST), (next_of_other, other), (THIRD, SECOND)]:
            assert coders.take(*pair)
    assert [task for task, _ in sent] == [WHOLE, WHOLE, CHANGE, CHANGE, CHANGE]


@pytest.mark.slow
def test_a_base_that_the_process_has_forgotten_is_sent_again(sent, monkeypatch):
    monkeypatch.setattr(encoders, "MAX_DECODED_PIXELS", 640 * 480)
    with closing(Encoders(processes=1)) as coders:
        coders.take(FIRST, None)
        coders.take(large_desktop(2), None)
        assert coders.take(SECOND, FIRST) == encode(image(SECOND), image(FIRST))
        assert coders.take(THIRD, SECOND) == encode(image(THIRD), image(SECOND))
    assert [task for task, _ in sent] == [WHOLE, WHOLE, BASE, CHANGE, CHANGE]


def test_the_pictures_used_last_are_kept_within_a_limit_of_pixels():
    recent = Recent[str](limit=10)
    for name, pixels in [(b"a", 4), (b"b", 4), (b"c", 2)]:
        recent.put(name, pixels, name.decode())
    assert recent.get(b"a") == "a"  # used again
    recent.put(b"d", 4, "d")
    assert [recent.get(name) for name in (b"a", b"b", b"c", b"d")] == ["a", None, "c", "d"]
    recent.put(b"e", 99, "e")  # one picture may exceed the limit
    assert [recent.get(name) for name in (b"a", b"c", b"d", b"e")] == [None, None, None, "e"]


def test_processes_start_with_the_work_and_end_with_the_encoders():
    before = ended_workers()
    coders = Encoders(processes=2)
    assert workers() == before
    coders.take(FIRST, None)
    assert len(workers() - before) == 1
    coders.close()
    assert ended_workers() == before


def test_a_process_that_dies_is_replaced():
    before = ended_workers()
    with closing(Encoders(processes=1)) as coders:
        coders.take(FIRST, None)
        (pid,) = workers() - before
        os.kill(pid, signal.SIGKILL)
        assert coders.take(SECOND, FIRST) == encode(image(SECOND), image(FIRST))


@pytest.mark.slow
def test_a_picture_that_always_ends_its_process_is_an_error():
    with closing(Encoders(processes=1)) as coders:
        broken = Screenshot.of(FIRST.png[:-30] + bytes(30))
        with pytest.raises(
            EncoderDied,
            match=r"encodes screenshots died \(.*damaged PNG.*\): check the free memory, then run",
        ):
            coders.take(broken, None)
        assert coders.take(FIRST, None)


def test_a_process_killed_again_and_again_is_an_error(monkeypatch):
    start = encoders._start_process

    def killed():
        child = start()
        child.process.kill()
        return child

    monkeypatch.setattr(encoders, "_start_process", killed)
    with closing(Encoders(processes=1)) as coders, pytest.raises(EncoderDied, match="killed by SIGKILL"):
        coders.take(FIRST, None)


@pytest.mark.slow
def test_no_process_outlives_a_killed_parent():
    script = (
        "import sys; from arpo.storage.encoders import Encoders; from stored_episodes import large_desktop\n"
        "coders = Encoders(processes=1); coders.take(large_desktop(1), None); print('ready', flush=True)\n"
        "for number in range(2, 100): coders.start(large_desktop(number), None)\n"
        "sys.stdin.read()"
    )
    support = str(Path(__file__).parents[1] / "support")
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": support},
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        (child,) = descendants(parent.pid)
        parent.kill()
    assert wait_until(lambda: child not in parents())


@pytest.mark.slow
def test_closing_gives_up_unfinished_pictures():
    before = ended_workers()
    coders = Encoders(processes=1)
    for number in range(2, 30):
        coders.start(large_desktop(number), None)
    coders.close()
    assert ended_workers() == before


def test_an_unexpected_error_of_the_thread_reaches_the_caller(monkeypatch):
    def fail(worker, shot, base):
        raise MemoryError("no memory for the reply")

    with closing(Encoders(processes=1)) as coders:
        with monkeypatch.context() as patch:
            patch.setattr(encoders._Worker, "_ask", fail)
            coders.start(FIRST, None)
            (future,) = coders._started[FIRST.sha256].values()
            with pytest.raises(MemoryError):
                future.result(timeout=60)
        assert coders.take(FIRST, SECOND)
