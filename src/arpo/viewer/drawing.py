"""Draws a step on its screenshot: marks for mouse actions, and below them the calls of the answer as text."""

from __future__ import annotations

from collections.abc import Sequence
from math import atan2, cos, pi, sin

from PIL import Image, ImageDraw, ImageFont

import arpo.actions as act
from arpo.actions import Action, Direction, Point, render
from arpo.png import rgb
from arpo.types import Turn

MARK, HALO, PAPER, INK = "#f0442e", "#ffffff", "#ffffff", "#1c2030"
DIRECTIONS = {
    Direction.UP: (0, -1),
    Direction.DOWN: (0, 1),
    Direction.LEFT: (-1, 0),
    Direction.RIGHT: (1, 0),
}
SUPERSAMPLING = 4  # marks are drawn at this scale and reduced, for smooth edges
WIDTH = 640  # pixels; smaller screenshots are enlarged to about this width


def draw_turn(turn: Turn) -> Image.Image:
    """The screenshot with the actions of its answer."""
    screen, factor = enlarge(rgb(turn.screenshot))
    calls = [render([action]).removeprefix("Action: ") for action in turn.actions] or [turn.error]
    return _with_caption(draw_actions(screen, turn.actions, factor), calls, round(screen.width / 43))


def enlarge(screen: Image.Image) -> tuple[Image.Image, int]:
    """A small screenshot enlarged by a whole number, and this number."""
    factor = max(1, round(WIDTH / screen.width))
    return screen.resize((screen.width * factor, screen.height * factor), Image.Resampling.NEAREST), factor


def draw_actions(screen: Image.Image, actions: Sequence[Action], scale: float) -> Image.Image:
    """The picture with marks of mouse actions. `scale`: its pixels per unit of the actions' positions."""
    overlay = Image.new("RGBA", (screen.width * SUPERSAMPLING, screen.height * SUPERSAMPLING))
    draw, unit = ImageDraw.Draw(overlay), overlay.width / 60
    for action in actions:
        for colour, width in ((HALO, 0.7 * unit), (MARK, 0.4 * unit)):
            pen = _Pen(draw, scale * SUPERSAMPLING, unit, colour, max(1, round(width)))
            pen.action(action, overlay.size)
    marks = overlay.resize(screen.size, Image.Resampling.LANCZOS)
    drawn = screen.copy()
    drawn.paste(marks, (0, 0), marks)
    return drawn


def _with_caption(screen: Image.Image, lines: list[str], size: int) -> Image.Image:
    font = ImageFont.load_default(size)
    page = Image.new("RGB", (screen.width, screen.height + round(size * (1.5 * len(lines) + 0.5))), PAPER)
    page.paste(screen)
    draw = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        draw.text((size / 2, screen.height + size * (1.5 * number + 0.5)), line, INK, font)
    return page


class _Pen:
    """Draws in one colour. Points are in pixels of the original screenshot."""

    def __init__(
        self, draw: ImageDraw.ImageDraw, factor: float, unit: float, colour: str, width: int
    ) -> None:
        self._draw, self._factor, self._unit = draw, factor, unit
        self._colour, self._width = colour, width

    def action(self, action: Action, size: tuple[int, int]) -> None:
        match action:
            case (
                act.Click(point=point)
                | act.Hover(point=point)
                | act.MouseDown(point=point)
                | act.MouseUp(point=point)
            ):
                self._ring(point, 1.5 * self._unit)
            case act.DoubleClick(point=point) | act.LongPress(point=point) | act.TripleClick(point=point):
                self._ring(point, 1.5 * self._unit)
                self._ring(point, 0.75 * self._unit)
            case act.RightClick(point=point) | act.MiddleClick(point=point):
                self._ring(point, 1.5 * self._unit)
                self._arrow(point, Point(point.x + 3 * self._unit / self._factor, point.y))
            case act.Drag(start=start, end=end):
                self._ring(start, self._unit / 2)
                self._arrow(start, end)
            case act.Scroll(point=point, direction=direction):
                width, height = size
                start = point or Point(width / 2 / self._factor, height / 2 / self._factor)
                across, down = DIRECTIONS[direction]
                length = 4 * self._unit / self._factor
                self._arrow(start, Point(start.x + length * across, start.y + length * down))

    def _ring(self, point: Point, radius: float) -> None:
        x, y = point.x * self._factor, point.y * self._factor
        self._draw.ellipse((x - radius, y - radius, x + radius, y + radius), None, self._colour, self._width)

    def _arrow(self, start: Point, end: Point) -> None:
        tip = (end.x * self._factor, end.y * self._factor)
        angle = atan2(end.y - start.y, end.x - start.x)
        wings = [
            (tip[0] + self._unit * cos(angle + turn), tip[1] + self._unit * sin(angle + turn))
            for turn in (0.8 * pi, -0.8 * pi)
        ]
        for line in ([(start.x * self._factor, start.y * self._factor), tip], [wings[0], tip, wings[1]]):
            self._draw.line(line, self._colour, self._width, "curve")
