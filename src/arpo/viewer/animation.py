"""An episode as an animated GIF: each screenshot with its actions, thought and calls."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from arpo.actions import Action, action_from_json
from arpo.errors import UserError
from arpo.viewer.drawing import HALO, INK, PAPER, draw_actions, enlarge
from arpo.viewer.pages.episodes import find_episode
from arpo.viewer.source import Json, Source

STEP_MS, END_MS = 1500, 3000  # a frame is shown this long
MAX_STEPS = 200
MAX_WIDTH = 960  # pixels; larger screenshots are scaled down
COLOURS = 255
LINE = 84  # characters; the font has half of its size as the mean width of a character
MAX_LINES = 3  # below a screenshot
_FONT_SHARE = 43  # width of the picture / size of the font


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A screenshot with the actions that follow, and the lines of text below it."""

    screen: Image.Image
    actions: tuple[Action, ...] = ()
    lines: tuple[str, ...] = ()


def step_frame(number: int, screen: Image.Image, actions: Sequence[Action], thought: str, call: str) -> Frame:
    """The frame of a step. `call` is the text of its actions, or of the fault of the answer."""
    lines = (f"{number}. {thought}".strip(), *call.splitlines())
    return Frame(screen=screen, actions=tuple(actions), lines=lines)


def animate(title: str, frames: Sequence[Frame]) -> bytes:
    """The frames as a GIF that repeats, all of the same size. `title` is shown above each."""
    drawn = [_draw(title, frame) for frame in frames]
    width, height = (max(getattr(image, side) for image in drawn) for side in ("width", "height"))
    pages = []
    for image in drawn:
        page = Image.new("RGB", (width, height), PAPER)
        page.paste(image)
        pages.append(page.quantize(COLOURS, dither=Image.Dither.NONE))
    buffer = io.BytesIO()
    durations = [STEP_MS] * (len(pages) - 1) + [END_MS]
    pages[0].save(buffer, "GIF", save_all=True, append_images=pages[1:], duration=durations, loop=0)
    return buffer.getvalue()


def animate_episode(source: Source, name: str, end: str) -> bytes:
    """A stored episode as a GIF. `end`: text below its final screenshot. Raises UserError without pixels."""
    one = find_episode(source, name)
    steps, final = source.steps(name)
    frames = [_stored_frame(source, step) for step in steps[:MAX_STEPS] if step["shot"]]
    if final:
        frames.append(Frame(screen=_pixels(source, final), lines=(end,)))
    if not frames:
        raise UserError(f"{name!r}: has no screenshots: a GIF cannot be made")
    return animate(source.instruction(one.task) or one.task, frames)


def _stored_frame(source: Source, step: Json) -> Frame:
    actions = [action_from_json(action) for action in step["actions"]]
    call = step["error"] or step["action_text"]
    return step_frame(step["step"], _pixels(source, step["shot"]), actions, step["thought"], call)


def _pixels(source: Source, shot: Json) -> Image.Image:
    return Image.fromarray(source.pixels(shot["shot"]))


def _draw(title: str, frame: Frame) -> Image.Image:
    screen, scale = _fitted(frame.screen)
    size = round(screen.width / _FONT_SHARE)
    above = textwrap.wrap(title, LINE, max_lines=2, placeholder=" …")
    below = [_shortened(line) for line in frame.lines[:MAX_LINES]]
    top, bottom = (_height(count, size) for count in (len(above), MAX_LINES))
    page = Image.new("RGB", (screen.width, top + screen.height + bottom), PAPER)
    page.paste(draw_actions(screen, frame.actions, scale), (0, top))
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(size)
    page.paste(INK, (0, 0, page.width, top))
    for lines, start, colour in ((above, 0, HALO), (below, top + screen.height, INK)):
        for number, line in enumerate(lines):
            draw.text((size / 2, start + size * (1.5 * number + 0.4)), line, colour, font)
    return page


def _fitted(screen: Image.Image) -> tuple[Image.Image, float]:
    """The screenshot in a good size for a GIF, and its scale."""
    if screen.width <= MAX_WIDTH:
        return enlarge(screen)
    scale = MAX_WIDTH / screen.width
    return screen.resize((MAX_WIDTH, round(screen.height * scale)), Image.Resampling.LANCZOS), scale


def _height(lines: int, size: int) -> int:
    return round(size * (1.5 * lines + 0.4)) if lines else 0


def _shortened(line: str) -> str:
    flat = " ".join(line.split())
    return flat if len(flat) <= LINE else f"{flat[: LINE - 1]}…"
