"""Doorbell, an environment of one's own: the panel beside a front door. Ring at one name, once.

From this folder:

    arpo check-env doorbell:Doorbell --tasks doorbell_tasks.json
    arpo train doorbell.toml
"""

import io

from PIL import Image, ImageDraw, ImageFont

from arpo.actions import Action, Click, Point
from arpo.types import Observation, Screenshot, StepResult, Task

SIZE = (224, 168)
WIDE, HIGH = 70, 14  # of a bell
FONT = ImageFont.load_default_imagefont()


class Doorbell:
    async def start(self, task: Task) -> Observation:
        self.names: list[str] = task.config[0]["parameters"]["names"]
        self.visit: str = task.evaluator["expected"]
        self.rung = ""
        return self.look()

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        for action in actions:
            if isinstance(action, Click) and not self.rung:
                self.rung = self.name_at(action.point)
        return StepResult(observation=self.look(), terminated=self.rung != "")

    async def evaluate(self) -> float:
        return float(self.rung == self.visit)

    async def close(self) -> None:
        """Nothing to give back: no process, no window, no file."""

    def bells(self) -> list[tuple[str, int, int]]:
        return [(name, 28 + 98 * (i % 2), 28 + 28 * (i // 2)) for i, name in enumerate(self.names)]

    def name_at(self, point: Point) -> str:
        for name, left, top in self.bells():
            if 0 <= point.x - left < WIDE and 0 <= point.y - top < HIGH:
                return name
        return ""

    def look(self) -> Observation:
        picture = Image.new("RGB", SIZE, "#eeeef2")
        draw = ImageDraw.Draw(picture)
        for name, left, top in self.bells():
            face = "#e2aa32" if name == self.rung else "#cdd0d8"
            draw.rectangle((left, top, left + WIDE - 1, top + HIGH - 1), face, "#606470")
            for i, letter in enumerate(name):  # seven pixels each, as the base model learned to read
                draw.text((left + 7 * i + 1, top + 2), letter, "#14141c", FONT)
        png = io.BytesIO()
        picture.save(png, "PNG")
        return Observation(screenshot=Screenshot.of(png.getvalue()))
