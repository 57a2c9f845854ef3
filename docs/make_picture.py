"""Draws docs/picture.png: the screenshots of one Desk episode, with the action drawn on each.

    python docs/make_picture.py

The scripted solver plays the episode on a desktop from a fixed seed, so the image is reproducible.
"""

from __future__ import annotations

import random
from math import atan2, cos, pi, sin
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from arpo.actions import Action, Click, Drag, Finished, Point, render
from arpo.envs.desk.canvas import LAYOUT_WIDTH, PALETTE
from arpo.envs.desk.env import act, set_up, task_score
from arpo.envs.desk.goals import FEASIBLE, from_json, next_step
from arpo.envs.desk.goals.base import Step
from arpo.envs.desk.random_tasks import random_task
from arpo.types import Task

OUT = Path(__file__).parent / "picture.png"
SEED, FAMILIES = "picture-3", ("MoveFile", "TurnSwitch")
SCREEN = (672, 504)
UNIT = SCREEN[0] / LAYOUT_WIDTH  # image pixels per layout unit
COLUMNS, GAP, HEADER, CAPTION = 3, 40, 96, 108
PAGE, CARD, INK, SOFT, MARK, GOOD = "#e9edf4", "#ffffff", "#1c2030", "#6b7288", "#f0442e", "#1f9d55"
SUPERSAMPLING = 4  # overlays are drawn at this scale and reduced, for smooth edges


def main() -> None:
    task = make_task()
    frames = episode(task)
    rows = -(-len(frames) // COLUMNS)
    wide, high = SCREEN[0] + GAP, SCREEN[1] + CAPTION + GAP
    page = Image.new("RGB", (COLUMNS * wide + GAP, HEADER + GAP // 2 + rows * high), PAGE)
    draw = ImageDraw.Draw(page)
    draw.text((GAP, HEADER / 2 + 8), f"“{task.instruction}”", INK, font(44), anchor="lm")
    draw.text((page.width - GAP, HEADER / 2 + 8), "score 1", GOOD, font(44), anchor="rm")
    for number, (screen, step) in enumerate(frames):
        left, top = GAP + number % COLUMNS * wide, HEADER + number // COLUMNS * high
        page.paste(card(number + 1, screen, step), (left, top))
    page.resize((page.width // 2, page.height // 2), Image.Resampling.LANCZOS).save(OUT, optimize=True)
    print(OUT)


def make_task() -> Task:
    raw = random_task(random.Random(SEED), [FEASIBLE[name] for name in FAMILIES], SEED)
    return Task(**{**raw, "config": tuple(raw["config"]), "related_apps": tuple(raw["related_apps"])})


def episode(task: Task) -> list[tuple[Image.Image, Step]]:
    """Screenshot before each step of the solver, and the step."""
    desktop = set_up(task)
    goals = from_json(task.evaluator["solution"])
    frames: list[tuple[Image.Image, Step]] = []
    while not frames or not isinstance(frames[-1][1].action, Finished):
        step = next_step(desktop, goals)
        frames.append((Image.fromarray(PALETTE[desktop.draw(*SCREEN).pixels]), step))
        act(desktop, step.action)
    assert task_score(task, desktop.world, frames[-1][1].action) == 1.0
    return frames


def card(number: int, screen: Image.Image, step: Step) -> Image.Image:
    """Screenshot with its action drawn, and below it the thought and the action in the model's syntax."""
    image = Image.new("RGB", (SCREEN[0], SCREEN[1] + CAPTION), CARD)
    image.paste(screen)
    overlay = action_overlay(step.action)
    image.paste(overlay, (0, 0), overlay)
    draw = ImageDraw.Draw(image)
    middle = SCREEN[1] + CAPTION / 2
    draw.ellipse((20, middle - 26, 72, middle + 26), INK)
    draw.text((46, middle), str(number), CARD, font(30), anchor="mm")
    draw.text((94, middle - 20), step.thought, INK, font(34), anchor="lm")
    call = render([step.action]).removeprefix("Action: ")
    draw.text((94, middle + 24), call, SOFT, font(22), anchor="lm")
    return image


def action_overlay(action: Action) -> Image.Image:
    """Transparent image with a ring for a click or an arrow for a drag; red on white for contrast."""
    large = Image.new("RGBA", (SCREEN[0] * SUPERSAMPLING, SCREEN[1] * SUPERSAMPLING))
    draw = ImageDraw.Draw(large)
    for colour, extra in (("#ffffff", 4), (MARK, 0)):
        match action:
            case Click(point=point):
                ring(draw, point, 24, 7 + extra, colour)
            case Drag(start=start, end=end):
                ring(draw, start, 14, 7 + extra, colour)
                arrow(draw, start, end, 7 + extra, colour)
            case _:
                pass
    return large.resize(SCREEN, Image.Resampling.LANCZOS)


def ring(draw: ImageDraw.ImageDraw, point: Point, radius: float, width: float, colour: str) -> None:
    x, y = point.x * UNIT * SUPERSAMPLING, point.y * UNIT * SUPERSAMPLING
    outer, inner = (radius + width / 2) * SUPERSAMPLING, round(width * SUPERSAMPLING)
    draw.ellipse((x - outer, y - outer, x + outer, y + outer), outline=colour, width=inner)


def arrow(draw: ImageDraw.ImageDraw, start: Point, end: Point, width: float, colour: str) -> None:
    scale = UNIT * SUPERSAMPLING
    angle = atan2(end.y - start.y, end.x - start.x)
    tip = (end.x * scale, end.y * scale)
    begin = (
        start.x * scale + 14 * SUPERSAMPLING * cos(angle),
        start.y * scale + 14 * SUPERSAMPLING * sin(angle),
    )
    wings = [
        (tip[0] + 30 * SUPERSAMPLING * cos(angle + turn), tip[1] + 30 * SUPERSAMPLING * sin(angle + turn))
        for turn in (pi * 0.82, -pi * 0.82)
    ]
    for line in ([begin, tip], [wings[0], tip, wings[1]]):
        draw.line(line, colour, round(width * SUPERSAMPLING), joint="curve")


def font(size: float) -> ImageFont.FreeTypeFont:
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont)
    return found


if __name__ == "__main__":
    main()
