"""Measures the disk space of a stored trajectory: 15 screenshots of a real desktop at 1920x1080.

Starts a virtual X display with a wallpaper, a window manager and common applications, uses them like an
agent, stores the episode and prints one JSON line. `ratio` is the bytes on disk (screenshots and text)
divided by the bytes of the float32 RGB pixels of all screenshots. The goal is at most 0.01.

    apt-get install xvfb openbox feh xdotool xterm pcmanfm mousepad \\
        libreoffice-calc libreoffice-gtk3 gnome-backgrounds
    python benchmarks/store.py [--keep FOLDER]    # also save the screenshots in FOLDER as PNG files
    python benchmarks/store.py --from FOLDER      # use your own PNG files, ordered by name
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from PIL import Image, ImageGrab

from arpo.actions import Wait
from arpo.storage.run_folder import RunFolder
from arpo.types import Completion, Screenshot, StopReason, Trajectory, Turn

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


def episode(shots: list[Screenshot]) -> Trajectory:
    """A trajectory of realistic size: 120 sampled tokens and 2,600 image tokens per turn."""
    turns = tuple(
        Turn(
            screenshot=shot,
            context=(151652, *[151655] * 2600, 151653),
            images=(shot,),
            restart=index == 0,
            completion=Completion(
                token_ids=tuple(range(1000, 1120)),
                logprobs=tuple(-0.1234567 * token for token in range(120)),
                text="Thought: The next entry is in the list.\nAction: wait()",
                finish="stop",
                policy_version=0,
            ),
            actions=(Wait(),),
        )
        for index, shot in enumerate(shots)
    )
    return Trajectory(
        episode_id="bench",
        task_id="bench",
        turns=turns,
        final=shots[-1],
        score=1.0,
        malformed=False,
        stop=StopReason.MAX_STEPS,
    )


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="output directory for the screenshots")
    parser.add_argument("--from", type=Path, dest="source", help="directory with PNG files to use instead")
    options = parser.parse_args()
    if options.source:
        pngs = [path.read_bytes() for path in sorted(options.source.glob("*.png"))]
    else:
        pngs = real_screenshots()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        for index, png in enumerate(pngs):
            (options.keep / f"{index:02d}.png").write_bytes(png)
    shots = [Screenshot.of(png) for png in pngs]
    with tempfile.TemporaryDirectory() as folder:
        run_folder = RunFolder(Path(folder))
        started = time.perf_counter()
        run_folder.add_trajectory(episode(shots))
        seconds = time.perf_counter() - started
        loaded = run_folder.load_trajectory("bench")
        run_folder.close()
        for turn, png in zip(loaded.turns, pngs, strict=True):
            assert np.array_equal(pixels(turn.screenshot.png), pixels(png)), "a stored screenshot lost pixels"
        stored = sum(path.stat().st_size for path in Path(folder).iterdir())
    float32 = sum(4 * 3 * shot.size[0] * shot.size[1] for shot in shots)
    result = {
        "benchmark": "store",
        "screenshots": len(shots),
        "distinct": len({shot.sha256 for shot in shots}),
        "png_bytes": sum(map(len, pngs)),
        "stored_bytes": stored,
        "float32_bytes": float32,
        "ratio": round(stored / float32, 5),
        "ratio_png": round(sum(map(len, pngs)) / float32, 5),
        "seconds_per_screenshot": round(seconds / len(shots), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
