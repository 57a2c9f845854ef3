"""Draws docs/picture.png: the screenshots of one Desk episode, with the action drawn on each.

    python docs/make_picture.py

The scripted solver plays the episode on a desktop from a fixed seed, so the image is reproducible.
"""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from arpo.actions import Finished, render
from arpo.envs.desk.canvas import LAYOUT_WIDTH, PALETTE
from arpo.envs.desk.env import act, set_up, task_score
from arpo.envs.desk.goals import FEASIBLE, from_json, next_step
from arpo.envs.desk.goals.base import Step
from arpo.envs.desk.random_tasks import random_task
from arpo.types import Task
from arpo.viewer.drawing import draw_actions

OUT = Path(__file__).parent / "picture.png"
SEED, FAMILIES = "picture-3", ("MoveFile", "TurnSwitch")
SCREEN = (672, 504)
UNIT = SCREEN[0] / LAYOUT_WIDTH  # image pixels per layout unit
COLUMNS, GAP, HEADER, CAPTION = 3, 40, 96, 108
PAGE, CARD, INK, SOFT, GOOD = "#e9edf4", "#ffffff", "#1c2030", "#6b7288", "#1f9d55"


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
    image.paste(draw_actions(screen, [step.action], UNIT))
    draw = ImageDraw.Draw(image)
    middle = SCREEN[1] + CAPTION / 2
    draw.ellipse((20, middle - 26, 72, middle + 26), INK)
    draw.text((46, middle), str(number), CARD, font(30), anchor="mm")
    draw.text((94, middle - 20), step.thought, INK, font(34), anchor="lm")
    call = render([step.action]).removeprefix("Action: ")
    draw.text((94, middle + 24), call, SOFT, font(22), anchor="lm")
    return image


def font(size: float) -> ImageFont.FreeTypeFont:
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont)
    return found


if __name__ == "__main__":
    main()
