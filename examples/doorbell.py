"""Doorbell, an example of a custom environment: a panel of doorbells. The task is to ring one name, once.

Run it in this folder:

    arpo check-env doorbell:Doorbell --tasks doorbell_tasks.json
    arpo train doorbell.toml
"""

import io

from PIL import Image, ImageDraw, ImageFont

from arpo.actions import Action, Click, Point
from arpo.types import Observation, Screenshot, StepResult, Task

SIZE = (224, 168)
BELL_WIDTH, BELL_HEIGHT = 70, 14
FONT = ImageFont.load_default_imagefont()


class Doorbell:
    async def start(self, task: Task) -> Observation:
        self.names: list[str] = task.config[0]["parameters"]["names"]
        self.visit: str = task.evaluator["expected"]
        self.rung = ""
        return self.observe()

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        for action in actions:
            if isinstance(action, Click) and not self.rung:
                self.rung = self.name_at(action.point)
        return StepResult(observation=self.observe(), terminated=self.rung != "")

    async def evaluate(self) -> float:
        return float(self.rung == self.visit)

    async def close(self) -> None:
        """No resources to free."""

    def bells(self) -> list[tuple[str, int, int]]:
        return [(name, 28 + 98 * (i % 2), 28 + 28 * (i // 2)) for i, name in enumerate(self.names)]

    def name_at(self, point: Point) -> str:
        for name, left, top in self.bells():
            if 0 <= point.x - left < BELL_WIDTH and 0 <= point.y - top < BELL_HEIGHT:
                return name
        return ""

    def observe(self) -> Observation:
        image = Image.new("RGB", SIZE, "#eeeef2")
        draw = ImageDraw.Draw(image)
        for name, left, top in self.bells():
            face = "#e2aa32" if name == self.rung else "#cdd0d8"
            draw.rectangle((left, top, left + BELL_WIDTH - 1, top + BELL_HEIGHT - 1), face, "#606470")
            for i, letter in enumerate(name):  # the base model reads letters at a pitch of seven pixels
                draw.text((left + 7 * i + 1, top + 2), letter, "#14141c", FONT)
        png = io.BytesIO()
        image.save(png, "PNG")
        return Observation(screenshot=Screenshot.of(png.getvalue()))
