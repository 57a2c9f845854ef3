"""Latency of the light desktop compared with OSWorld's guest server, and a leak test of parallel desktops.

Two servers run in one sandbox and get the same clicks: ours, and a copy of the behaviour of OSWorld's guest
server, which is in no package. That server starts a Python process for every action and saves each Pillow
screenshot to a file. Then `--slots` environments play whole episodes in parallel for `--minutes`. Prints one
JSON line; `ratio` is the time of our step divided by the time of OSWorld's step.

    .venv-osworld/bin/python benchmarks/desktops.py [--minutes 10] [--slots 8]
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from arpo.actions import Click, Finished, Hotkey, Point, Type
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.fork_server import private_root
from arpo.envs.osworld.limits import Limits
from arpo.envs.osworld.sandbox import Sandbox, SandboxSettings
from arpo.envs.pyautogui_program import program
from arpo.tasks.lists import load_tasks
from arpo.types import Task

LIMITS = Limits.of(OSWorldConfig())
SETTINGS = SandboxSettings(width=1920, height=1080, home_megabytes=512, network=False, limits=LIMITS)
PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "
MEBIBYTE = 2**20

PUBLISHED_WAY = """
import http.server, json, subprocess
import pyautogui
from PIL import ImageGrab

class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        done = subprocess.run(order["command"], capture_output=True, text=True, timeout=120)
        self.answer(json.dumps({"output": done.stdout, "error": done.stderr}).encode())

    def do_GET(self):
        image = ImageGrab.grab(xdisplay=":0")
        image.save("/tmp/screenshot.png")
        with open("/tmp/screenshot.png", "rb") as file:
            self.answer(file.read())

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words): pass

http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler).serve_forever()
"""


def ask(sandbox: Sandbox, path: str, order: object = None, *, port: int | None = None) -> bytes:
    body = None if order is None else json.dumps(order).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port or sandbox.ports.server}{path}", data=body)
    request.add_header("Content-Type", "application/json")
    if port is None:
        secret = base64.b64encode(f"arpo:{sandbox.token}".encode()).decode()
        request.add_header("Authorization", f"Basic {secret}")
    with urllib.request.urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def booted() -> Sandbox:
    sandbox = Sandbox(SETTINGS)
    sandbox.boot(60)
    return sandbox


def start_published_way(sandbox: Sandbox) -> None:
    writing = f"open('/tmp/published.py', 'w').write({PUBLISHED_WAY!r})"
    ask(sandbox, "/execute", {"command": ["python3", "-c", writing]})
    ask(
        sandbox,
        "/setup/launch",
        {"command": "python3 /tmp/published.py >/tmp/published.log 2>&1", "shell": True},
    )
    for _ in range(200):
        try:
            ask(sandbox, "/screenshot", port=sandbox.ports.vlc)
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("OSWorld's guest server did not start: " + ask_file(sandbox, "/tmp/published.log"))


def ask_file(sandbox: Sandbox, path: str) -> str:
    answer = json.loads(ask(sandbox, "/execute", {"command": ["cat", path]}))
    return str(answer["output"])


def click(sandbox: Sandbox, number: int, port: int | None) -> None:
    code = program([Click(point=Point(300 + 40 * (number % 20), 500))]).replace("\n", "; ")
    ask(sandbox, "/execute", {"command": ["python", "-c", PREFIX + code], "shell": False}, port=port)


def step(sandbox: Sandbox, number: int, port: int | None) -> None:
    click(sandbox, number, port)
    assert ask(sandbox, "/screenshot", port=port).startswith(b"\x89PNG")


def milliseconds(act: Callable[[int], object], times: int) -> float:
    """Median time of a call in milliseconds, after one warm-up call."""
    taken = []
    for number in range(times + 1):
        began = time.perf_counter()
        act(number)
        taken.append(time.perf_counter() - began)
    return round(1000 * statistics.median(taken[1:]), 1)


def descendants(of: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, look = [], [of]
    while look:
        here = children.get(look.pop(), [])
        found += here
        look += here
    return found


def proportional_memory(processes: Iterable[int]) -> float:
    """Proportional set size (PSS) of the processes in MiB: shared memory is divided among its users."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return round(total / 1024, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUsage:
    """Resources in use while no episode runs. An increase between two measurements is a leak."""

    processes: int
    files: int
    handles: int
    mebibytes: float

    @classmethod
    def now(cls) -> ResourceUsage:
        below = descendants(os.getpid())
        return cls(
            processes=len(below),
            files=sum(1 for _ in private_root().rglob("*")),
            handles=len(os.listdir("/proc/self/fd")),
            mebibytes=proportional_memory([os.getpid(), *below]),
        )


async def episode(task: Task) -> float:
    env = OSWorldEnv(OSWorldConfig(), EnvConfig(name="osworld", width=1920, height=1080))
    try:
        await env.start(task)
        await env.step((Hotkey(keys=("ctrl", "alt", "t")),))
        await env.step((Type(text="ls", submit=True),))
        await env.step((Click(point=Point(900, 500)),))
        await env.step((Finished(),))
        return await env.evaluate()
    finally:
        await env.close()


async def seconds_to_start(times: int) -> float:
    """Median time to the first screenshot of a task without applications, after one warm-up start."""
    task = Task(id="empty", instruction="", snapshot="", config=(), evaluator={"func": "infeasible"})
    taken = []
    for _ in range(times + 1):
        env = OSWorldEnv(OSWorldConfig(), EnvConfig(name="osworld", width=1920, height=1080))
        began = time.perf_counter()
        try:
            await env.start(task)
            taken.append(time.perf_counter() - began)
        finally:
            await env.close()
    return round(statistics.median(taken[1:]), 2)


async def side_by_side(tasks: list[Task], slots: int, minutes: float) -> dict[str, object]:
    await asyncio.gather(*(episode(task) for task in tasks[:slots]))  # warm-up: fills caches
    before, began, played = ResourceUsage.now(), time.monotonic(), 0

    async def slot(number: int) -> None:
        nonlocal played
        while time.monotonic() - began < 60 * minutes:
            await episode(tasks[(number + played) % len(tasks)])
            played += 1
            if played % 20 == 0:
                print(f"{played} episodes, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    await asyncio.gather(*(slot(number) for number in range(slots)))
    seconds = time.monotonic() - began
    return {
        "slots": slots,
        "minutes": round(seconds / 60, 1),
        "episodes": played,
        "seconds_an_episode": round(seconds * slots / max(1, played), 1),
        "before": asdict(before),
        "after": asdict(ResourceUsage.now()),
    }


def measure(times: int) -> dict[str, object]:
    boots, closes = [], []
    for _ in range(4):
        began = time.perf_counter()
        sandbox = booted()
        boots.append(time.perf_counter() - began)
        idle = proportional_memory(descendants(os.getpid()))
        began = time.perf_counter()
        sandbox.close()
        closes.append(time.perf_counter() - began)
    sandbox = booted()
    try:
        ours = {
            "screenshot_ms": milliseconds(lambda _: ask(sandbox, "/screenshot"), times),
            "step_ms": milliseconds(lambda number: step(sandbox, number, None), times),
        }
        start_published_way(sandbox)
        port = sandbox.ports.vlc
        published = {
            "screenshot_ms": milliseconds(lambda _: ask(sandbox, "/screenshot", port=port), times),
            "step_ms": milliseconds(lambda number: step(sandbox, number, port), times),
        }
    finally:
        sandbox.close()
    boot, close = statistics.median(boots[1:]), statistics.median(closes[1:])
    return {
        "boot_s": round(boot, 2),
        "reset_s": round(boot + close, 2),
        "start_s": asyncio.run(seconds_to_start(4)),
        "idle_mebibytes": idle,
        "ours": ours,
        "published_way": published,
        "ratio": round(ours["step_ms"] / published["step_ms"], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=30, help="number of measured steps (%(default)s)")
    parser.add_argument("--slots", type=int, default=8, help="parallel environments (%(default)s)")
    parser.add_argument(
        "--minutes", type=float, default=10, help="duration of the parallel episodes (%(default)s)"
    )
    options = parser.parse_args()
    figures = measure(options.times)
    if options.minutes:
        tasks = list(load_tasks("osworld:train"))
        figures["side_by_side"] = asyncio.run(side_by_side(tasks, options.slots, options.minutes))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
