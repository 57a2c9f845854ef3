"""Episodes as HTML, alone or in pairs: screenshots with the actions drawn on them, and the model's answers.

All text from the model is escaped.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
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
from arpo.reporting.display import count_noun
from arpo.reporting.numbers import format_number
from arpo.types import Screenshot, Trajectory, Turn

MAX_WIDTH = 960  # pixels; wider screenshots are scaled down
DIRECTIONS = {
    Direction.UP: (0, -1),
    Direction.DOWN: (0, 1),
    Direction.LEFT: (-1, 0),
    Direction.RIGHT: (1, 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """An episode with the texts that the report shows about it."""

    trajectory: Trajectory
    instruction: str
    solved: bool
    end: str  # why it ended, and why its score is 0
    when: str  # for example "training batch 3"
    facts: tuple[str, ...] = ()  # for example ("held-out task",)


def episode_html(view: EpisodeView, *, opened: bool = False) -> str:
    """One episode: each step is a row with the screenshot and the answer."""
    body = f'<p class="end">{_heading(view)}</p>{_steps_html(view.trajectory)}'
    return _details(view, _badge(view), body, (*view.facts, view.when), opened=opened)


def pair_html(before: EpisodeView, after: EpisodeView, *, opened: bool = False) -> str:
    """Two episodes of one task, in two columns."""
    badges = f"{_badge(before, 'before: ')} → {_badge(after, 'after: ')}"
    columns = "".join(
        f'<section><p class="end"><b>{name}</b> {_heading(view)}</p>{_steps_html(view.trajectory)}</section>'
        for name, view in (("Before:", before), ("After:", after))
    )
    return _details(after, badges, f'<div class="pair">{columns}</div>', after.facts, opened=opened)


def _details(view: EpisodeView, badges: str, body: str, facts: Sequence[str], *, opened: bool) -> str:
    task = view.trajectory.task_id
    listed = ", ".join((f"task {task}", *facts))
    return (
        f"<details{' open' if opened else ''}><summary>{badges} <b>{escape(view.instruction or task)}</b> "
        f'<span class="dim">{escape(listed)}</span></summary>{body}</details>'
    )


def _badge(view: EpisodeView, prefix: str = "") -> str:
    kind = "good" if view.solved else "bad"
    return f'<span class="badge {kind}">{prefix}score {format_number(view.trajectory.score)}</span>'


def _heading(view: EpisodeView) -> str:
    """Reason of the end, then the phase, the number of steps and the id."""
    steps = count_noun(len(view.trajectory.turns), "step")
    facts = f"{view.when}, {steps}, episode {view.trajectory.episode_id}"
    kind = "good" if view.solved else "bad"
    return f'<span class="{kind}">{escape(view.end)}</span> <small>{escape(facts)}</small>'


def _steps_html(trajectory: Trajectory) -> str:
    steps = "".join(_turn_html(number, turn) for number, turn in enumerate(trajectory.turns, 1))
    return (
        f'<ol>{steps}<li><div class="screen">{_image(trajectory.final)}</div>'
        '<div class="answer"><h4>Final screenshot</h4></div></li></ol>'
    )


def _turn_html(number: int, turn: Turn) -> str:
    width, height = turn.screenshot.size
    drawings = "".join(action_svg(action, width, height) for action in turn.actions)
    texts = [text for text in map(action_label, turn.actions) if text]
    labels = "".join(f'<span class="chip">{escape(text)}</span>' for text in texts)
    thought, action = split_answer(turn.completion.text)
    answer = f'<p class="thought">{escape(thought)}</p>'
    if action:
        answer += f"<pre>{escape(action)}</pre>"
    if turn.error:
        answer += f'<p class="error">{escape(turn.error)}</p>'
    return (
        f'<li><div class="screen">{_image(turn.screenshot)}'
        f'<svg viewBox="0 0 {width} {height}">{drawings}</svg><div class="chips">{labels}</div></div>'
        f'<div class="answer"><h4>Step {number}</h4>{answer}</div></li>'
    )


def split_answer(text: str) -> tuple[str, str]:
    """Thought and actions: ("Open it", "wait()") for the answer "Thought: Open it\\nAction: wait()"."""
    thought, _, action = text.partition("Action:")
    return thought.removeprefix("Thought:").strip(), action.strip()


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
