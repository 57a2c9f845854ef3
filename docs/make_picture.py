"""Draws docs/before-after.png: one task of a finished run of `make train`, before and after training.

python docs/make_picture.py runs/desk_fresh
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from arpo.actions import render
from arpo.envs.desk.canvas import LAYOUT_WIDTH
from arpo.envs.desk.fresh import fresh_task
from arpo.png import rgb
from arpo.storage.codec import EVALUATED
from arpo.storage.run_folder import RunFolderReader
from arpo.types import Trajectory, Turn
from arpo.viewer.drawing import draw_actions

OUT = Path(__file__).parent / "before-after.png"
SCREEN = (672, 504)
UNIT = SCREEN[0] / LAYOUT_WIDTH  # image pixels per layout unit
GAP, HEADER, CAPTION = 40, 96, 108
PAGE, CARD, INK, SOFT, GOOD, BAD = "#e9edf4", "#ffffff", "#1c2030", "#6b7288", "#1f9d55", "#d23b2a"


def main(folder: Path) -> None:
    before, after = before_and_after(folder)
    task = fresh_task(after.task_id)
    assert task is not None
    rows = [
        (f"before training: “{task.instruction}”", "failed", BAD, before.turns),
        ("after training", "solved", GOOD, after.turns),
    ]
    draw_page(rows)


def before_and_after(folder: Path) -> tuple[Trajectory, Trajectory]:
    """The shortest pair of evaluation episodes of a training task that failed before and succeeded after."""
    with closing(RunFolderReader(folder)) as reader:
        found: dict[str, list[Trajectory]] = {}
        for one in reader.episodes():
            if one.episode_id.startswith(EVALUATED) and fresh_task(one.task_id):
                found.setdefault(one.task_id, []).append(reader.load_trajectory(one.episode_id))
    pairs = [
        (first, last)
        for first, last in (group for group in found.values() if len(group) == 2)
        if first.score == 0 and last.score == 1 and 1 < len(first.turns) < len(last.turns) > 3
    ]
    return min(pairs, key=lambda pair: len(pair[1].turns))


def draw_page(rows: Sequence[tuple[str, str, str, Sequence[Turn]]]) -> None:
    """One line of screenshots per episode, below its title and its result."""
    wide, high = SCREEN[0] + GAP, HEADER + SCREEN[1] + CAPTION + GAP
    page = Image.new("RGB", (max(len(turns) for *_, turns in rows) * wide + GAP, len(rows) * high), PAGE)
    draw = ImageDraw.Draw(page)
    for row, (title, result, colour, turns) in enumerate(rows):
        middle = row * high + HEADER / 2 + 8
        draw.text((GAP, middle), title, INK, font(44), anchor="lm")
        draw.text((page.width - GAP, middle), result, colour, font(44), anchor="rm")
        for number, turn in enumerate(turns):
            page.paste(card(number + 1, turn), (GAP + number * wide, row * high + HEADER))
    page.resize((page.width // 2, page.height // 2), Image.Resampling.LANCZOS).save(OUT, optimize=True)
    print(OUT)


def card(number: int, turn: Turn) -> Image.Image:
    """Screenshot with its action drawn, and below it the thought and the action in the model's syntax."""
    image = Image.new("RGB", (SCREEN[0], SCREEN[1] + CAPTION), CARD)
    screen = rgb(turn.screenshot).resize(SCREEN, Image.Resampling.NEAREST)
    image.paste(draw_actions(screen, turn.actions, UNIT))
    draw = ImageDraw.Draw(image)
    middle = SCREEN[1] + CAPTION / 2
    draw.ellipse((20, middle - 26, 72, middle + 26), INK)
    draw.text((46, middle), str(number), CARD, font(30), anchor="mm")
    thought = turn.completion.text.partition("Action:")[0].removeprefix("Thought:").strip()
    draw.text((94, middle - 20), thought, INK, font(34), anchor="lm")
    call = render(turn.actions[:1]).removeprefix("Action: ")
    draw.text((94, middle + 24), call, SOFT, font(22), anchor="lm")
    return image


def font(size: float) -> ImageFont.FreeTypeFont:
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
