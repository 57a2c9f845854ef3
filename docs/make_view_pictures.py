"""Takes docs/view-*.png: three pages of `arpo view`, in Debian's Chromium.

    python docs/make_view_pictures.py runs/desk

The folder is a run of the recipe desk. The pictures show a batch, a group that replay has rescued, and the
tokens of the replayed episode.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
CHROMIUM = "/usr/bin/chromium"
SIZE = (1280, 760)
DECODED = """() => Promise.all([...document.images]
    .filter((image) => image.getBoundingClientRect().top < innerHeight).map((image) => image.decode()))"""
COLOURS = 256  # of the PNG files: small, and enough for text and dots


def main(folder: str) -> None:
    command = [sys.executable, "-m", "arpo", "view", folder, "--no-open"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found, "arpo view has printed no address"
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
            page.goto(found[0])
            take_all(page, Path(folder).name)
            browser.close()
    finally:
        server.terminate()
        server.wait()


def take_all(page: Page, run: str) -> None:
    """The newest batch with a rescued group; the rescued group with the longest episode; that episode."""
    home = page.url.split("#")[0]
    batches = answer(page, f"s/{run}/batches")["batches"]
    batch = next(one["batch"] for one in reversed(batches) if one["rescued"])
    groups = answer(page, f"s/{run}/batches/{batch}")["groups"]
    dots = [(dot["steps"], group["group"], dot) for group in groups for dot in group["dots"]]
    _, group, dot = max((one for one in dots if one[2]["kind"] == "replayed"), key=lambda one: one[0])
    for name, view in (
        ("view-batch", f"batch/{batch}?sort=signal"),
        ("view-group", f"group/{group}"),
        ("view-episode", f"episode/{dot['episode']}?step=2&view=tokens"),
    ):
        page.goto(f"{home}#/s/{run}/{view}")
        page.wait_for_selector("main:not([aria-busy]) > *")
        take(page, name)


def answer(page: Page, path: str) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("path => fetch(`./api/${path}`).then(one => one.json())", path)
    return found


def take(page: Page, name: str) -> None:
    page.evaluate(DECODED)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = HERE / f"{name}.png"
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main(sys.argv[1])
