"""Measures storing of screenshots at 1920x1080: its time, while episodes are played, and its disk space.

Plays batches of episodes of 15 steps with and without storing them, in turns, and prints one JSON line. The
engine and the learner wait, as for a GPU: a turn takes 1 s, and learning 1 s per episode. A batch with
storing ends when its episodes are on disk, as at a checkpoint. `ratio` is the episodes per second with
storing, divided by those without; the goal is at least 0.95, if there are cores for the encoder processes.
`disk_ratio` is the bytes on disk (screenshots and text) divided by the bytes of the float32 RGB pixels of all
screenshots; the goal is at most 0.01.

    python benchmarks/store.py                   # screenshots drawn here: wallpaper, windows, text
    python benchmarks/store.py --from FOLDER     # your own PNG files of one size, ordered by name
    python benchmarks/store.py --desktop         # a virtual X display with common applications, which needs:
    apt-get install xvfb openbox feh xdotool xterm pcmanfm mousepad \\
        libreoffice-calc libreoffice-gtk3 gnome-backgrounds
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageGrab

from arpo.actions import Action
from arpo.config import EnvConfig, RolloutConfig
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.prompts.rendering import ChatRenderer
from arpo.prompts.templates import load_template
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import Scheduler
from arpo.storage.encoders import default_processes
from arpo.storage.run_folder import PACK, TRAJECTORIES, RunFolder
from arpo.testing import ScriptedEngine, task
from arpo.types import Completion, Observation, Prompt, Sampling, Screenshot, StepResult, Task, Trajectory

STEPS_PER_EPISODE = 15
ANSWER = "Thought: The next entry is in the list.\nAction: wait()"
WORDS = ("open", "file", "system", "settings", "window", "report", "table", "value", "region", "price")
SIZE = (1920, 1080)
DISPLAY = ":97"
WALLPAPER = "/usr/share/backgrounds/gnome/wood-d.webp"
PROGRAMS = ("Xvfb", "openbox", "feh", "xdotool", "xterm", "pcmanfm", "mousepad", "localc")

# Steps of the episode: a command to start or arguments of xdotool, and the seconds to wait afterwards.
STEPS: tuple[tuple[str, float], ...] = (
    ("start pcmanfm /usr/share", 6),
    ("mousemove 700 400 click --repeat 2 1", 3),
    ("key ctrl+l type --delay 20 /usr/share/backgrounds/gnome\n", 6),
    ("start xterm -geometry 100x40+900+300 -e sh -c 'ls -lR /usr/share/doc | head -400; sleep 600'", 4),
    ("mousemove 1300 600 click 1 key shift+Page_Up", 2),
    ("start mousepad /usr/share/common-licenses/GPL-3", 6),
    ("key Next", 2),
    ("key ctrl+f type --delay 20 warranty", 3),
    ("start localc --norestore", 30),
    ("key Escape type --delay 20 Region\tUnits\tPrice\n", 3),
    ("type --delay 20 North\t120\t3.50\nSouth\t85\t4.10\nEast\t240\t2.95\n", 3),
    ("key ctrl+a ctrl+b", 3),
    ("key alt+o", 3),
    ("key Escape alt+f", 3),
    ("key Escape", 3),
)


@contextmanager
def process(*command: str, **environment: str) -> Iterator[None]:
    child = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        child.terminate()
        child.wait(timeout=20)


def real_screenshots() -> list[bytes]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        sys.exit(f"benchmarks/store.py: not installed: {', '.join(missing)}; see --help")
    home = tempfile.mkdtemp()
    screen = {"DISPLAY": DISPLAY, "HOME": home}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.enter_context(process("Xvfb", DISPLAY, "-screen", "0", f"{SIZE[0]}x{SIZE[1]}x24"))
        time.sleep(2)
        stack.enter_context(process("openbox", **screen))
        subprocess.run(
            ["feh", "--no-fehbg", "--bg-fill", WALLPAPER], env={**os.environ, **screen}, check=True
        )
        shots = [grab()]
        for step, seconds in STEPS:
            verb, _, rest = step.partition(" ")
            if verb == "start":
                stack.enter_context(process("sh", "-c", f"exec {rest}", **screen))
            else:
                subprocess.run(
                    ["xdotool", *xdotool_arguments(step)], env={**os.environ, **screen}, check=True
                )
            time.sleep(seconds)
            shots.append(grab())
    return shots


def xdotool_arguments(step: str) -> list[str]:
    """Arguments of xdotool; the text after `type --delay 20` is one argument, the last one."""
    head, found, text = step.partition("type --delay 20 ")
    return head.split() + (["type", "--delay", "20", text] if found else [])


def grab() -> bytes:
    buffer = io.BytesIO()
    ImageGrab.grab(xdisplay=DISPLAY).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


def drawn_screenshots() -> list[bytes]:
    """A wallpaper; then windows with text open, scroll and show menus."""
    rng = np.random.default_rng(0)
    screen = _wallpaper(rng)
    shots = [_png(screen)]
    windows = ((100, 120, 1000, 800), (900, 300, 1800, 980), (300, 60, 1500, 1000))
    for step in range(STEPS_PER_EPISODE):
        box = windows[step // 5]
        if step % 5 not in (0, 3):  # a menu
            left, top = box[0] + 40 * step, box[1] + 60
            box = (left, top, left + 260, top + 180)
        _draw_window(screen, box, rng, dark=step // 5 == 1)
        shots.append(_png(screen))
    return shots


def _wallpaper(rng: np.random.Generator) -> Image.Image:
    """Smooth noise of several scales, which compresses like a photograph."""
    pixels = np.zeros((SIZE[1], SIZE[0], 3), np.float32)
    for cells in (4, 8, 16, 32, 64, 128, 256):
        for channel in range(3):
            noise = rng.random((cells * SIZE[1] // SIZE[0] + 2, cells + 1), np.float32)
            scaled = Image.fromarray(noise).resize(SIZE, Image.Resampling.BICUBIC)
            pixels[..., channel] += np.asarray(scaled) / cells**0.8
    pixels = (pixels - pixels.min()) / (pixels.max() - pixels.min())
    return Image.fromarray((pixels * 255).astype(np.uint8))


def _draw_window(
    screen: Image.Image, box: tuple[int, int, int, int], rng: np.random.Generator, *, dark: bool
) -> None:
    paper, ink = ((30, 30, 34), (220, 220, 220)) if dark else ((250, 250, 250), (20, 20, 20))
    left, top, right, bottom = box
    draw, font = ImageDraw.Draw(screen), ImageFont.load_default(15)
    draw.rectangle(box, fill=paper, outline=(90, 90, 90))
    draw.rectangle((left, top, right, top + 30), fill=(60, 63, 70))
    for y in range(top + 8, bottom - 20, 22):
        words = rng.choice(WORDS, int(rng.integers(2, max(3, (right - left) // 80))))
        draw.text((left + 14, y), " ".join(words), font=font, fill=(240, 240, 240) if y < top + 30 else ink)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


class Recorded:
    """An environment that shows recorded screenshots. No two PNGs are the same: each has a number as text."""

    shots: Sequence[bytes] = ()
    numbers = count()

    async def start(self, task: Task) -> Observation:
        self._left = iter(self.shots)
        return self._next()

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        return StepResult(observation=self._next())

    async def evaluate(self) -> float:
        return 1.0

    async def close(self) -> None: ...

    def _next(self) -> Observation:
        png, text = next(self._left), b"number\0%d" % next(self.numbers)
        chunk = struct.pack(">I", len(text)) + b"tEXt" + text + struct.pack(">I", zlib.crc32(b"tEXt" + text))
        return Observation(screenshot=Screenshot.of(png[:33] + chunk + png[33:]))  # after the header


class WaitingEngine(ScriptedEngine):
    """Answers after `seconds`, as a GPU that the event loop waits for."""

    def __init__(self, seconds: float) -> None:
        super().__init__([ANSWER] * STEPS_PER_EPISODE, str.encode, end=0)
        self._seconds = seconds

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        await asyncio.sleep(self._seconds)
        return await super().generate(prompt, sampling)


def open_scheduler(options: argparse.Namespace) -> Scheduler:
    agent = Agent(
        engine=WaitingEngine(options.turn_seconds),
        renderer=ChatRenderer(3136, 12_845_056),
        template=load_template("desk"),
        dialect=UI_TARS_1_5,
    )
    settings = RolloutConfig(
        group_size=options.episodes, max_steps=STEPS_PER_EPISODE, max_images=STEPS_PER_EPISODE
    )
    config = EnvConfig(name="recorded", parallel=options.episodes, width=0, height=0)
    return Scheduler(
        pool=EnvPool(LocalEnvs(Recorded, options.episodes), config), agent=agent, settings=settings, seed=0
    )


async def play_batch(
    scheduler: Scheduler, name: str, learn_seconds: float, store: RunFolder | None
) -> Sequence[Trajectory]:
    """One batch of the training loop, with or without a store."""

    prepare = store.prepare if store is not None else lambda *_: None
    (group,) = await scheduler.run(name, [(0, task("bench"))], lambda *_: None, on_screenshot=prepare)
    assert not group.failures, group.failures
    for trajectory in group.trajectories:
        if store is not None:
            store.add_trajectory(trajectory)
    await asyncio.sleep(learn_seconds * len(group.trajectories))
    if store is not None:
        store.offsets()
    return group.trajectories


def compare(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Play batches with and without storing, in turns."""
    scheduler = open_scheduler(options)
    seconds, cpu = {False: 0.0, True: 0.0}, {False: 0.0, True: 0.0}
    screenshots = 0
    with closing(RunFolder(folder)) as store:
        store.add_trajectory(asyncio.run(play_batch(scheduler, "warm-up", 0.0, None))[0])
        sizes = store.offsets()  # the encoder processes have started
        for number in range(options.batches):
            for storing in (False, True):
                began, cpu_began = time.perf_counter(), time.process_time()
                played = asyncio.run(
                    play_batch(
                        scheduler, f"batch-{number + 1}", options.learn_seconds, store if storing else None
                    )
                )
                seconds[storing] += time.perf_counter() - began
                cpu[storing] += time.process_time() - cpu_began
                screenshots += storing * sum(1 + len(trajectory.turns) for trajectory in played)
    while any(thread.name == "arpo-encoder" for thread in threading.enumerate()):
        time.sleep(0.1)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    rates = {storing: options.batches * options.episodes / seconds[storing] for storing in seconds}
    return {
        "stored_bytes": sizes[PACK] + sizes[TRAJECTORIES],  # of the first episode
        "ratio": round(rates[True] / rates[False], 3),
        "episodes_per_second": round(rates[True], 3),
        "episodes_per_second_without": round(rates[False], 3),
        "cpu_seconds_per_screenshot": round(
            (children.ru_utime + children.ru_stime) / (screenshots + 1 + STEPS_PER_EPISODE), 3
        ),
        "main_cpu_seconds_per_screenshot": round((cpu[True] - cpu[False]) / screenshots, 4),
    }


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def seconds_to_read(folder: Path, pngs: Sequence[bytes]) -> float:
    """CPU seconds to read a screenshot of the first episode. Compares the pixels."""
    with closing(RunFolder(folder)) as store:
        began = time.process_time()
        loaded = store.load_trajectory(store.episode_ids()[0])
        seconds = time.process_time() - began
    for turn, png in zip(loaded.turns, pngs, strict=False):
        assert np.array_equal(pixels(turn.screenshot.png), pixels(png)), "a stored screenshot lost pixels"
    return seconds / len(pngs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", type=Path, dest="source", help="directory with at least 16 PNG files")
    parser.add_argument("--desktop", action="store_true", help="screenshots of a virtual X display")
    parser.add_argument("--keep", type=Path, help="output directory for the screenshots")
    parser.add_argument("--episodes", type=int, default=8, help="episodes per batch, played at the same time")
    parser.add_argument("--batches", type=int, default=2, help="batches with and without storing")
    parser.add_argument("--turn-seconds", type=float, default=1.0, help="seconds per answer of the engine")
    parser.add_argument("--learn-seconds", type=float, default=1.0, help="seconds of learning per episode")
    options = parser.parse_args()
    if options.source:
        pngs = [path.read_bytes() for path in sorted(options.source.glob("*.png"))]
    else:
        pngs = real_screenshots() if options.desktop else drawn_screenshots()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        for index, png in enumerate(pngs):
            (options.keep / f"{index:02d}.png").write_bytes(png)
    if len(pngs) <= STEPS_PER_EPISODE:
        sys.exit(f"benchmarks/store.py: {len(pngs)} screenshots, must be at least {STEPS_PER_EPISODE + 1}")
    Recorded.shots = pngs[: STEPS_PER_EPISODE + 1]
    with tempfile.TemporaryDirectory() as folder:
        measured = compare(options, Path(folder))
        read_seconds = seconds_to_read(Path(folder), Recorded.shots)
    float32 = sum(4 * 3 * shot.size[0] * shot.size[1] for shot in map(Screenshot.of, Recorded.shots))
    space = {
        "png_bytes": sum(map(len, Recorded.shots)),
        "disk_ratio": round(measured["stored_bytes"] / float32, 5),
        "cpu_seconds_to_read_one": round(read_seconds, 3),
    }
    settings = {"cores": os.cpu_count(), "processes": default_processes(), "episodes": options.episodes}
    print(json.dumps({"benchmark": "store", **measured, **space, **settings}))


if __name__ == "__main__":
    main()
