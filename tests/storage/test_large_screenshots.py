"""Episodes with large screenshots: other processes encode them, and a thread writes them."""

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arpo.storage import encoders, run_folder, screenshots
from arpo.storage.encoders import EncoderDied
from arpo.storage.picture_codec import MIN_ENCODED_BYTES
from arpo.storage.run_folder import LOGS, PACK, TRAJECTORIES, RunFolder, RunFolderReader
from arpo.storage.screenshots import HEADER, MAGIC, NO_BASE, PATCH, ScreenshotPack
from arpo.types import Screenshot
from processes import wait_until
from stored_episodes import desktop, episode, large_desktop, pixels_of, png, small

DEADLINE = 20.0  # seconds, against a hang
SHARED = large_desktop(0)
EPISODES = [
    episode("a", [SHARED, *[large_desktop(0, window=step) for step in range(18)]]),  # longer than a chain
    episode("b", [SHARED, large_desktop(0, window=16), large_desktop(0, window=30), large_desktop(5)]),
    episode("c", [small(1), small(2)]),
    episode("d", [desktop(1), large_desktop(0, window=31), large_desktop(0, window=32)]),
]


def contents(folder):
    return {name: (folder / name).read_bytes() for name in (*LOGS, PACK)}


@pytest.fixture
def encoded_here(monkeypatch):
    """The sizes of pictures that this process encodes."""
    sizes, original = [], screenshots.encode

    def encode(image, base):
        sizes.append(image.size)
        return original(image, base)

    monkeypatch.setattr(screenshots, "encode", encode)
    return sizes


def test_this_process_encodes_only_small_pictures_and_the_files_are_the_same(
    tmp_path, monkeypatch, encoded_here
):
    store = RunFolder(tmp_path / "processes")
    for played in reversed(EPISODES):  # they are played in any order
        for previous, turn in zip((None, *played.turns), played.turns, strict=False):
            store.prepare(turn.screenshot, previous and previous.screenshot)
    for played in EPISODES:
        store.add_trajectory(played)
    store.close()
    assert encoded_here == [(400, 300)]

    monkeypatch.setattr(screenshots, "PROCESS_PIXELS", 1 << 30)
    store = RunFolder(tmp_path / "here")
    for played in EPISODES:
        store.add_trajectory(played)
    store.close()
    assert len(encoded_here) > 20
    assert contents(tmp_path / "processes") == contents(tmp_path / "here")


def test_every_picture_is_encoded_once(tmp_path, monkeypatch):
    encoded, original = [], encoders._Worker._encode

    def counted(worker, shot, base):
        encoded.append(shot)
        return original(worker, shot, base)

    monkeypatch.setattr(encoders._Worker, "_encode", counted)
    blank = Screenshot.of(png(np.zeros((480, 640, 3), np.uint8)))  # small as a PNG, and a base all the same
    shots = [blank, *[large_desktop(0, window=step) for step in range(18)]]  # more than a chain
    store = RunFolder(tmp_path)
    for previous, shot in zip((None, *shots), shots, strict=False):
        store.prepare(shot, previous)
    store.add_trajectory(episode("a", shots))
    store.close()
    assert Counter(encoded) == Counter(shots[1:])  # several processes have any order


def test_small_screenshots_start_no_thread_and_no_process(tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("not in place")

    monkeypatch.setattr(run_folder.InOrder, "put", refuse)
    monkeypatch.setattr(screenshots.Encoders, "take", refuse)
    store = RunFolder(tmp_path)
    store.add_trajectory(episode("a", [small(1), desktop(1), desktop(1, window=3)]))
    assert (tmp_path / TRAJECTORIES).read_bytes().count(b"\n") == 1  # written at once
    store.close()


def test_every_reader_waits_for_added_episodes(tmp_path):
    store = RunFolder(tmp_path)
    store.add_trajectory(EPISODES[1])
    assert store.episode_ids() == ["b"]
    store.add_trajectory(EPISODES[3])
    assert [one.episode_id for one in store.episodes()] == ["b", "d"]
    store.add_trajectory(EPISODES[0])
    loaded = store.load_trajectory("a")
    for got, wanted in zip(loaded.turns, EPISODES[0].turns, strict=True):
        assert np.array_equal(pixels_of(got.screenshot), pixels_of(wanted.screenshot))
    store.prune(["b"])
    offsets = store.offsets()
    store.add_trajectory(episode("e", [large_desktop(9), small(1)]))
    store.rewind(offsets)
    assert store.episode_ids() == ["b", "d", "a"]
    store.close()


@pytest.mark.slow
def test_sizes_of_a_moment_while_episodes_are_added(tmp_path):
    """A checkpoint does not block rollouts, and contains what was added before it."""
    store = RunFolder(tmp_path)
    store.add_trajectory(EPISODES[0])
    store.log_metrics(1, {"reward": 0.5})
    sizes = store.begin_offsets()
    store.add_trajectory(EPISODES[1])
    store.log_metrics(2, {"reward": 0.5})
    offsets = sizes()
    store.rewind(offsets)
    assert store.episode_ids() == ["a"]
    assert [line["step"] for line in store.read_log("metrics.jsonl")] == [1]
    assert store.offsets() == offsets
    store.close()


def test_a_reader_waits_while_the_pruned_file_is_opened(tmp_path, monkeypatch):
    pack = ScreenshotPack(tmp_path / "pack", writable=True)
    kept, other = small(1), desktop(1)
    pack.add(kept, None)
    pack.add(other, None)
    opening, may_open, original = threading.Event(), threading.Event(), ScreenshotPack._next_record

    def next_record(pack):
        opening.set()
        assert may_open.wait(DEADLINE)
        return original(pack)

    monkeypatch.setattr(ScreenshotPack, "_next_record", next_record)
    with ThreadPoolExecutor(2) as threads:
        pruned = threads.submit(pack.prune, [kept.sha256])
        assert opening.wait(DEADLINE)
        found = threads.submit(pack.read, [kept.sha256])
        wait([found], timeout=0.2)
        may_open.set()
        pruned.result(DEADLINE)
        assert found.result(DEADLINE) == {kept.sha256: kept}
    assert other.sha256 not in pack
    pack.close()


def test_a_running_episode_keeps_its_pictures_and_those_of_a_failed_one_are_forgotten(tmp_path):
    pack = ScreenshotPack(tmp_path / "pack", writable=True)
    running, failed = large_desktop(0), Screenshot.of(large_desktop(7).png)
    name = failed.sha256
    pack.prepare(failed, None)
    pack.prepare(running, None)
    assert pack._planned == {name: 0, running.sha256: 0}
    del failed
    assert wait_until(lambda: pack._freed)  # until then, a thread sends it to a process
    pack.sync()  # as a checkpoint does
    pack.prepare(running, None)
    assert pack._planned == {running.sha256: 0}
    assert list(pack._encoders._started) == [running.sha256]
    pack.add(running, None)
    assert not pack._planned and not pack._prepared and not pack._encoders._started
    pack.close()


def test_a_picture_that_is_prepared_again_while_the_file_is_opened_is_forgotten(tmp_path):
    pack = ScreenshotPack(tmp_path / "pack", writable=True)
    pack.add(SHARED, None)
    record = pack._live.pop(SHARED.sha256)  # as while a pruned file is opened
    pack.prepare(SHARED, None)
    assert list(pack._encoders._started) == [SHARED.sha256]
    pack._register(record)
    assert not pack._planned and not pack._prepared and not pack._encoders._started
    pack.close()


@pytest.mark.slow
def test_little_memory_for_waiting_episodes_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "MAX_WAITING_BYTES", 1)
    store = RunFolder(tmp_path)
    for played in EPISODES:
        store.add_trajectory(played)
    store.close()
    assert RunFolderReader(tmp_path).episode_ids() == ["a", "b", "c", "d"]


STORING = """
import sys
from pathlib import Path
from arpo.storage.run_folder import RunFolder
from processes import wait_until
from stored_episodes import episode, large_desktop
store = RunFolder(Path(sys.argv[1]))
for number in range(1000):
    store.add_trajectory(episode(f"e{number}", [large_desktop(number), large_desktop(number, window=9)]))
"""


@pytest.mark.slow
def test_every_line_of_a_killed_process_refers_to_stored_screenshots(tmp_path):
    support = str(Path(__file__).parents[1] / "support")
    process = subprocess.Popen(
        [sys.executable, "-c", STORING, str(tmp_path)], env={**os.environ, "PYTHONPATH": support}
    )
    lines = tmp_path / TRAJECTORIES
    assert wait_until(lambda: lines.exists() and lines.read_bytes().count(b"\n") >= 5)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    store = RunFolder(tmp_path)
    names = store.episode_ids()
    assert len(names) >= 5
    for number, name in enumerate(names):
        assert name == f"e{number}"
        assert np.array_equal(
            pixels_of(store.load_trajectory(name).final), pixels_of(large_desktop(number, window=9))
        )
    store.add_trajectory(EPISODES[0])
    store.close()


@pytest.mark.slow
def test_a_full_disk_is_one_error_and_keeps_the_episodes_before_it(tmp_path, monkeypatch):
    store = RunFolder(tmp_path)
    store.add_trajectory(EPISODES[1])
    offsets = store.offsets()
    original = screenshots.write_all

    def full(file, data):
        original(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(screenshots, "write_all", full)
        store.add_trajectory(EPISODES[3])
        with pytest.raises(OSError, match="No space left") as caught:
            store.offsets()
        assert caught.value.filename == str(tmp_path / PACK)
        with pytest.raises(OSError, match="No space left"):
            store.add_trajectory(EPISODES[0])
        store.close()
    again = RunFolder(tmp_path)
    assert again.episode_ids() == ["b"]
    again.rewind(offsets)
    again.add_trajectory(EPISODES[3])
    assert np.array_equal(pixels_of(again.load_trajectory("d").final), pixels_of(EPISODES[3].final))
    again.close()


@pytest.mark.slow
def test_an_encoder_that_dies_is_one_error_and_keeps_the_episodes_before_it(tmp_path):
    damaged = Screenshot.of(SHARED.png[:-30] + bytes(30))
    store = RunFolder(tmp_path)
    store.add_trajectory(EPISODES[1])
    store.add_trajectory(episode("broken", [damaged, small(1)]))
    with pytest.raises(EncoderDied, match="a process that encodes screenshots died"):
        store.close()
    assert RunFolderReader(tmp_path).episode_ids() == ["b"]


@pytest.mark.slow
def test_a_change_of_the_whole_screen_is_still_read(tmp_path):
    """Packs of earlier versions have such records."""
    before, after = pixels_of(SHARED), pixels_of(large_desktop(0, window=40))
    changed = (before != after).any(axis=2, keepdims=True)
    patch = np.concatenate([after * changed, changed.astype(np.uint8) * 255], axis=2)
    one, two = b"\1" * 32, b"\2" * 32
    records = []
    for name, base, pixels in ((one, NO_BASE, before), (two, one, patch)):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "WEBP", lossless=True, method=2, quality=20)
        payload = buffer.getvalue()
        records.append(HEADER.pack(MAGIC, PATCH, name, base, len(payload), zlib.crc32(payload)) + payload)
    (tmp_path / PACK).write_bytes(b"".join(records))
    pack = ScreenshotPack(tmp_path / PACK, writable=False)
    read = pack.read([one.hex(), two.hex()])
    assert np.array_equal(pixels_of(read[two.hex()]), after)
    pack.close()


def test_a_screenshot_read_from_one_pack_is_readable_from_another(tmp_path):
    """Read, it is a new PNG with the old name: a smaller one if the first was compressed badly."""
    buffer = io.BytesIO()
    Image.new("RGB", (640, 480), (9, 9, 9)).save(buffer, "PNG", compress_level=0)
    flat = Screenshot.of(buffer.getvalue())
    packs = [ScreenshotPack(tmp_path / name, writable=True) for name in ("first", "second")]
    packs[0].add(flat, None)
    again = packs[0].read([flat.sha256])[flat.sha256]
    assert len(again.png) < MIN_ENCODED_BYTES < len(flat.png)
    packs[1].add(again, None)
    assert (pixels_of(packs[1].read([flat.sha256])[flat.sha256]) == pixels_of(flat)).all()
    for pack in packs:
        pack.close()


def test_a_screenshot_is_prepared_while_its_base_is_being_registered(tmp_path):
    """The writing thread registers screenshots at any moment: the base is either planned or stored."""
    base, shot = large_desktop(0), large_desktop(0, window=3)
    pack = ScreenshotPack(tmp_path / "pack", writable=True)

    class Planned(dict[str, int]):
        def pop(self, name, default=None):
            value = super().pop(name, default)
            if name == base.sha256:
                pack.prepare(shot, base)
            return value

    pack._planned = Planned()
    pack.prepare(base, None)
    pack.add(base, None)
    assert pack._planned == {shot.sha256: 1}
    pack.close()
