"""Measures `arpo view` on a made run of 100,000 episodes with screenshots of 1920x1080. Prints one JSON line.

The run has 8 steps per episode and 900,000 stored screenshots. To save disk space, most of them are one plain
picture under different names; every 100th episode has drawn ones, stored as changes, and these are measured.
`first_page` is the time for the page, its scripts, the list of runs and the metrics. `episode` is the time
for an episode with all steps and its first screenshot: the median and the maximum of 20 of them. Both are
measured without an index (the first episode, then others while the index is made), and with a complete index
after a restart. Goals: first page 1 s, episode 0.2 s, memory 500 MB.

    python benchmarks/viewer.py                    # 100,000 episodes: 3 GB of disk, some minutes
    python benchmarks/viewer.py --episodes 2000
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import io
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image, ImageDraw

from arpo.config import Config
from arpo.config.recipe import to_toml
from arpo.storage.picture_codec import encode
from arpo.storage.run_folder import METRICS, PACK, RECIPE, TRAJECTORIES
from arpo.storage.screenshots import CHANGE, HEADER, MAGIC, NO_BASE, PATCH

SIZE = (1920, 1080)
STEPS, GROUP, GROUPS, TOKENS = 8, 8, 32, 60
DRAWN_EVERY = 100  # episodes
SEQUENCES = 5  # of drawn screenshots
MEASURED = 20
WORDS = ("open", "file", "system", "settings", "window", "report", "table", "value", "region", "price")


def drawn_sequence(number: int) -> list[Image.Image]:
    """Screenshots of one episode: a wallpaper, and a window more in each step."""
    randomness = random.Random(number)
    image = Image.effect_noise((SIZE[0] // 8, SIZE[1] // 8), 40).resize(SIZE).convert("RGB")
    pictures = []
    for _ in range(STEPS + 1):
        left, top = randomness.randrange(1200), randomness.randrange(600)
        draw = ImageDraw.Draw(image)
        draw.rectangle((left, top, left + 600, top + 400), fill=(240, 240, 240), outline=(30, 30, 30))
        for line in range(20):
            draw.text((left + 10, top + 20 * line), " ".join(randomness.choices(WORDS, k=8)), fill=(0, 0, 0))
        pictures.append(image.copy())
    return pictures


def encoded_sequence(number: int) -> list[bytes]:
    """Payloads: the first picture, then the changes."""
    pictures = drawn_sequence(number)
    return [encode(picture, base) for picture, base in zip(pictures, [None, *pictures], strict=False)]


def make_run(folder: Path, episodes: int) -> None:
    """Write recipe, metrics, episodes and screenshots of a run, in the formats of the project."""
    folder.mkdir(parents=True)
    (folder / RECIPE).write_text(to_toml(Config()), "utf-8")
    sequences = [encoded_sequence(number) for number in range(SEQUENCES)]
    plain = io.BytesIO()
    Image.new("RGB", SIZE, (40, 60, 80)).save(plain, "WEBP", lossless=True)
    batches = -(-episodes // (GROUP * GROUPS))
    rows = [
        {"step": step, "success": step / batches, "reward": 0.1, "loss": 0.0}
        for step in range(1, batches + 1)
    ]
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    randomness = random.Random(0)
    with (folder / TRAJECTORIES).open("w", encoding="utf-8") as lines, (folder / PACK).open("wb") as pack:
        for number in range(episodes):
            names = [hashlib.sha256(f"{number}-{step}".encode()).hexdigest() for step in range(STEPS + 1)]
            drawn = number % DRAWN_EVERY == 0
            payloads = sequences[number % SEQUENCES] if drawn else [plain.getvalue()] * (STEPS + 1)
            for base, name, payload in zip([None, *names], names, payloads, strict=False):
                pack.write(record(name, base if drawn else None, payload))
            lines.write(episode_line(number, names, randomness))


def record(name: str, base: str | None, payload: bytes) -> bytes:
    """One screenshot in the pack: complete, or the change of `base`."""
    kind, base_name = (CHANGE, bytes.fromhex(base)) if base else (PATCH, NO_BASE)
    return (
        HEADER.pack(MAGIC, kind, bytes.fromhex(name), base_name, len(payload), zlib.crc32(payload)) + payload
    )


def episode_line(number: int, names: list[str], randomness: random.Random) -> str:
    batch, rest = divmod(number, GROUP * GROUPS)
    group, member = divmod(rest, GROUP)
    turns = []
    for name in names[:-1]:
        thought = " ".join(randomness.choices(WORDS, k=12))
        point = randomness.randrange(1920), randomness.randrange(1080)
        completion = {
            "text": f"Thought: {thought}\nAction: click(start_box='({point[0]},{point[1]})')",
            "token_ids": randomness.sample(range(30_000), TOKENS),
            "logprobs": [-randomness.random() for _ in range(TOKENS)],
            "finish": "stop",
            "versions": [[batch, TOKENS]],
        }
        turns.append(
            {
                "screenshot": name,
                "context": [1, [7, 2691], 3],
                "images": [name],
                "restart": True,
                "completion": completion,
                "actions": [{"do": "Click", "point": {"x": point[0], "y": point[1]}}],
                "error": "",
            }
        )
    line = {
        "episode_id": f"batch-{batch + 1}-{group}-{member}",
        "task_id": f"pool-{(batch * GROUPS + group) % 128:03}",
        "score": float(randomness.random() < 0.3),
        "malformed": False,
        "stop": "finished",
        "final": names[-1],
        "turns": turns,
    }
    return json.dumps(line, separators=(",", ":")) + "\n"


class Browser:
    """Requests with the cookie of the server, over one connection."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=600)
        self._cookie = ""
        self._connection.request("GET", f"/?{parts.query}")
        answer = self._connection.getresponse()
        answer.read()
        self._cookie = answer.headers["Set-Cookie"].partition(";")[0]

    def get(self, path: str) -> bytes:
        self._connection.request("GET", path, headers={"Cookie": self._cookie})
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status == 200, (path, answer.status, content[:300])
        return content

    def json(self, path: str) -> Any:
        return json.loads(self.get(path))

    def first_page(self) -> float:
        """Seconds for everything that the first page loads."""
        began = time.monotonic()
        page = self.get("/").decode()
        for script in re.findall(r'(?:src|href)="(static/[^"]+)"', page):
            self.get(f"/{script}")
        for source in self.json("/api/sources")["sources"]:
            self.get(f"/api/s/{source['id']}/metrics")
        return time.monotonic() - began

    def episode(self, number: int) -> float:
        """Seconds for an episode and its first screenshot."""
        batch, rest = divmod(number, GROUP * GROUPS)
        name = "batch-{}-{}-{}".format(batch + 1, *divmod(rest, GROUP))
        began = time.monotonic()
        steps: list[Any] = []
        while not steps or not steps[0]["shot"]["url"]:  # not indexed yet
            steps = self.json(f"/api/s/run/episodes/{name}")["steps_list"]
        self.get(steps[0]["shot"]["url"])
        took = time.monotonic() - began
        assert len(steps) == STEPS and steps[0]["shot"]["width"] == SIZE[0]
        return took


@contextmanager
def served(folder: Path) -> Iterator[tuple[Browser, int, float]]:
    """A browser, the process id of the server, and the seconds that it took to start."""
    began = time.monotonic()
    command = [sys.executable, "-m", "arpo", "view", str(folder), "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        yield Browser(address), server.pid, time.monotonic() - began
    finally:
        server.terminate()
        server.wait()


def peak_megabytes(process: int) -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) / 1024


def wait_for_index(browser: Browser) -> float:
    began = time.monotonic()
    while browser.json("/api/sources")["sources"][0]["indexing"]:
        time.sleep(0.5)
    return time.monotonic() - began


def while_indexing(browser: Browser) -> list[float]:
    """Seconds for episodes that are indexed already, one in every second."""
    times: list[float] = []
    for number in range(MEASURED):
        time.sleep(0.5)
        indexed = browser.json("/api/sources")["sources"][0]["episodes"]
        time.sleep(0.5)
        times.append(browser.episode(random.Random(number).randrange(indexed) // DRAWN_EVERY * DRAWN_EVERY))
    return times


def measure(folder: Path, episodes: int) -> dict[str, Any]:
    drawn = list(range(0, episodes, DRAWN_EVERY))
    chosen = random.Random(1).sample(drawn, min(MEASURED, len(drawn)))
    with served(folder) as (browser, process, start):
        first = browser.first_page()
        early = browser.episode(0)
        later = while_indexing(browser)
        without = {
            "start_s": round(start, 3),
            "first_page_s": round(first, 3),
            "first_episode_s": round(early, 3),
            "episode_median_s": round(statistics.median(later), 3),
            "episode_max_s": round(max(later), 3),
            "index_s": round(wait_for_index(browser), 1),
            "peak_mb": round(peak_megabytes(process)),
        }
    with served(folder) as (browser, process, start):
        first = browser.first_page()
        waited = wait_for_index(browser)
        times = [browser.episode(number) for number in chosen]
        began = time.monotonic()
        found = browser.json("/api/s/run/episodes?text=price%20region&sort=-score")
        searched = time.monotonic() - began
        return {
            "episodes": episodes,
            "without_index": without,
            "with_index": {
                "start_s": round(start, 3),
                "first_page_s": round(first, 3),
                "wait_s": round(waited, 3),
                "episode_median_s": round(statistics.median(times), 3),
                "episode_max_s": round(max(times), 3),
                "search_s": round(searched, 3),
                "found": found["total"],
                "peak_mb": round(peak_megabytes(process)),
            },
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="where the folder `run` is made; kept, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="arpo-viewer-") as temporary:
        folder = (options.folder or Path(temporary)) / "run"
        if not folder.exists():
            make_run(folder, options.episodes)
        for index in folder.glob(".view-index*"):
            index.unlink()
        result = measure(folder, options.episodes)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
