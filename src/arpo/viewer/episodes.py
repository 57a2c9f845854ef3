"""One episode as HTML: each screenshot with the actions drawn on it, and the model's answer beside it.

All text from the model is escaped.
"""

from __future__ import annotations

import base64
import io
from html import escape

from arpo.actions import (
    Action,
    Click,
    Direction,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    LongPress,
    OpenApp,
    Point,
    RightClick,
    Scroll,
    Type,
)
from arpo.png import rgb
from arpo.types import Screenshot, Trajectory, Turn

MAX_WIDTH = 960  # pixels; wider screenshots are scaled down
DIRECTIONS = {
    Direction.UP: (0, -1),
    Direction.DOWN: (0, 1),
    Direction.LEFT: (-1, 0),
    Direction.RIGHT: (1, 0),
}


def episode_html(trajectory: Trajectory, instruction: str, *, success: bool) -> str:
    badge = f'<span class="badge {"good" if success else "bad"}">score {trajectory.score:g}</span>'
    facts = (
        f"{len(trajectory.turns)} steps, {trajectory.stop.value}, policy version {trajectory.policy_version}"
    )
    steps = "".join(_turn_html(number, turn) for number, turn in enumerate(trajectory.turns, 1))
    last = (
        f'<li><div class="screen">{_image(trajectory.final)}</div><div><h4>Final screenshot</h4></div></li>'
    )
    return (
        f"<details><summary>{badge} <b>{escape(instruction or trajectory.task_id)}</b> "
        f'<span class="dim">{escape(trajectory.episode_id)}: {escape(facts)}</span></summary>'
        f"<ol>{steps}{last}</ol></details>"
    )


def _turn_html(number: int, turn: Turn) -> str:
    width, height = turn.screenshot.size
    drawings = "".join(action_svg(action, width, height) for action in turn.actions)
    texts = [text for text in map(action_label, turn.actions) if text]
    labels = "".join(f'<span class="chip">{escape(text)}</span>' for text in texts)
    thought, found, action = turn.completion.text.partition("Action:")
    answer = f'<p class="thought">{escape(thought.removeprefix("Thought:").strip())}</p>'
    if found:
        answer += f"<pre>{escape(action.strip())}</pre>"
    if turn.error:
        answer += f'<p class="error">{escape(turn.error)}</p>'
    return (
        f'<li><div class="screen">{_image(turn.screenshot)}'
        f'<svg viewBox="0 0 {width} {height}">{drawings}</svg><div class="chips">{labels}</div></div>'
        f'<div class="answer"><h4>Step {number}</h4>{answer}</div></li>'
    )


def action_svg(action: Action, width: int, height: int) -> str:
    """SVG elements of a mouse action, in pixels of the screenshot; empty for other actions."""
    unit = width / 60
    match action:
        case Click(point=point):
            return _ring(point, unit) + _dot(point, unit / 4)
        case DoubleClick(point=point):
            return _ring(point, unit) + _ring(point, unit / 2)
        case RightClick(point=point):
            return _ring(point, unit) + _arrow(point, Point(point.x + 1.6 * unit, point.y), unit)
        case Hover(point=point):
            return _ring(point, unit, "dashed")
        case LongPress(point=point):
            return _ring(point, unit) + _dot(point, unit / 2)
        case Drag(start=start, end=end):
            return _ring(start, unit / 2) + _arrow(start, end, unit)
        case Scroll(point=point, direction=direction):
            start = point or Point(width / 2, height / 2)
            across, down = DIRECTIONS[direction]
            return _arrow(start, Point(start.x + 4 * unit * across, start.y + 4 * unit * down), unit)
        case _:
            return ""


def action_label(action: Action) -> str:
    """Text of an action without a position; empty for clicks and drags, which `action_svg` draws."""
    match action:
        case Click() | DoubleClick() | RightClick() | Hover() | LongPress() | Drag():
            return ""
        case Scroll(direction=direction):
            return f"scroll {direction}"
        case Type(text=text, submit=submit):
            return f"type “{text}”{' ⏎' if submit else ''}"
        case Hotkey(keys=keys):
            return " + ".join(keys)
        case KeyDown(key=key):
            return f"press {key}"
        case KeyUp(key=key):
            return f"release {key}"
        case OpenApp(name=name):
            return f"open {name}"
        case Finished(content=content):
            return f"finished {content}".strip()
        case Fail():
            return "fail: infeasible"
        case _:
            return type(action).__name__


def _ring(point: Point, radius: float, kind: str = "") -> str:
    shape = f'cx="{point.x:g}" cy="{point.y:g}" r="{radius:.1f}"'
    return f'<circle class="halo" {shape}/><circle class="mark {kind}" {shape}/>'


def _dot(point: Point, radius: float) -> str:
    return f'<circle class="dot" cx="{point.x:g}" cy="{point.y:g}" r="{radius:.1f}"/>'


def _arrow(start: Point, end: Point, unit: float) -> str:
    across, down = end.x - start.x, end.y - start.y
    length = (across**2 + down**2) ** 0.5 or 1.0
    dx, dy = across / length * unit, down / length * unit
    tip = f"L {end.x:g} {end.y:g}"
    wings = (end.x - dx - dy, end.y - dy + dx), (end.x - dx + dy, end.y - dy - dx)
    (left_x, left_y), (right_x, right_y) = wings
    head = f"M {left_x:.1f} {left_y:.1f} {tip} L {right_x:.1f} {right_y:.1f}"
    path = f"M {start.x:g} {start.y:g} {tip} {head}"
    return f'<path class="halo" d="{path}"/><path class="mark" d="{path}"/>'


def _image(shot: Screenshot) -> str:
    width, height = shot.size
    image_format, data, css_class = "png", shot.png, "pixels"
    if width > MAX_WIDTH:
        buffer = io.BytesIO()
        rgb(shot).resize((MAX_WIDTH, round(height * MAX_WIDTH / width))).save(buffer, "WEBP", quality=80)
        image_format, data, css_class = "webp", buffer.getvalue(), ""
    encoded = base64.b64encode(data).decode()
    return f'<img class="{css_class}" alt="" loading="lazy" src="data:image/{image_format};base64,{encoded}">'
