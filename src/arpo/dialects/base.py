"""How a model speaks: one `Dialect` per kind of answer.

A dialect parses an answer into typed actions, and says in which coordinates their points are. `registry`
chooses the dialect of a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from arpo.actions import (
    MAX_WAITS_SECONDS,
    Action,
    Hotkey,
    KeyDown,
    KeyUp,
    Scroll,
    Wait,
    points_of,
    scale,
)
from arpo.keyboard import canonical_keys

# Agents of released models, with their prompts, in the package desktop-env. `make osworld` installs it.
AGENTS = ".venv-osworld/lib/python3.*/site-packages/mm_agents"

# Limits of one answer.
MAX_SCROLL = 1000  # wheel notches
MAX_WAIT_SECONDS = 20.0  # of one call; longer ones are shortened
MAX_COORDINATE = 100_000  # beyond any screen. Points just outside the screen are moved to its edge (`scale`)
# Some calls take a second on a real desktop. An answer of hundreds, as of a model that repeats itself, would
# exceed the timeout of a step, and the failure would count against the environment.
MAX_CALLS = 32
MAX_LINE = 200  # characters of a folded step


class ParseError(ValueError):
    """The answer is not in the action language. The message names the error and the text at fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    thought: str
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinates:
    """Unit of the points in an answer.

    `full` is the coordinate of the right and lower edge of the screen; None: pixels of the screenshot as
    resized for the model. `floor`: whole pixels are rounded down, as the published agents of a model do.
    """

    full: float | None
    floor: bool = False

    def to_screen(self, action: Action, model_size: tuple[int, int], screen: tuple[int, int]) -> Action:
        """The action in pixels of the screen. `model_size`: of the screenshot as resized for the model."""
        size = model_size if self.full is None else (self.full, self.full)
        return scale(action, size, screen, _floor) if self.floor else scale(action, size, screen)

    def to_model(self, action: Action, model_size: tuple[int, int], screen: tuple[int, int]) -> Action:
        """The opposite, to the nearest unit of the model."""
        return scale(action, screen, model_size if self.full is None else (int(self.full),) * 2)


def _floor(value: float, source: float, target: int) -> int:
    return int(value * (target / source))


class History(StrEnum):
    """What is left of steps whose screenshots are no longer shown."""

    ANSWERS = "answers"  # the answers, in full
    TEXT = "text"  # one line per step, in the text of the task
    BLOCKS = "blocks"  # the same; half of the screenshots leave at once, so that the prompt restarts rarely


class Layout(StrEnum):
    """Where the text of the task stands among screenshots and answers."""

    TASK_FIRST = "task_first"  # a message of its own, before the screenshots
    WITH_FIRST_SCREENSHOT = "with_first_screenshot"  # after it, in one message
    WITH_NEWEST_SCREENSHOT = "with_newest_screenshot"  # after it, in one message
    NEWEST_SCREENSHOT_ALONE = "newest_screenshot_alone"  # before it, in the only message: all steps are lines


PIXELS = Coordinates(full=None)
THOUSANDTHS = Coordinates(full=1000)


def thought_of(text: str) -> str:
    r"""The thought of an answer in any dialect, also of one that does not parse: the text before its action.

    >>> thought_of("Thought: open it\nAction: clikc(start_box='(105,63)')")
    'open it'
    """
    call = _CALL.search(text)
    label = call or _ACTION_LINE.search(text) or _ACTION.search(text)
    thought = _THOUGHT.sub("", text[: label.start()] if label else text, count=1)
    return _TAG.sub("", thought).strip()


_ACTION = re.compile(r"\bAction\s*[:：]")
_ACTION_LINE = re.compile(r"^[ \t]*Action\s*[:：]", re.MULTILINE)
_CALL = re.compile(r"<tool_call>|<\|begin_of_box\|>|^## Code|```", re.MULTILINE)
_THOUGHT = re.compile(r"^\s*(?:## )?Thought\s*[:：]")
_TAG = re.compile(r"</?think(?:ing)?>")


def one_line(text: str) -> str:
    """The thought of an answer, or else its text, as one line of bounded length."""
    line = " ".join((thought_of(text) or text).split())
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The answers of one family of models.

    `names` is a regular expression for names of such models, lower case. `types` are their `model_type`.
    `parse` returns typed actions, in time linear in the text. It raises ParseError and nothing else.
    `write` is the opposite, for teachers that give actions without text (`arpo collect`); None: they cannot.
    `examples` are answers that parse, for the conformance check.
    `prompt` is the published prompt, as in model.prompt; "": no installable package has it. `layout` and
    `history` are how its agent writes earlier steps; `summary` turns an answer into the line of its step.
    """

    name: str
    names: str
    types: tuple[str, ...]
    coordinates: Coordinates
    parse: Callable[[str], Answer]
    examples: tuple[str, ...]
    write: Callable[[Sequence[Action], str], str] | None = None
    prompt: str = ""
    layout: Layout = Layout.TASK_FIRST
    history: History = History.ANSWERS
    summary: Callable[[str], str] = one_line

    def answer(
        self, actions: Sequence[Action], thought: str, model_size: tuple[int, int], screen: tuple[int, int]
    ) -> str:
        """The answer with these actions, which are in pixels of the screen.

        Raises ParseError if the dialect cannot write, or if a point is outside the screen: a script with
        another scale would teach it.
        """
        if self.write is None:
            raise ParseError(f"actions cannot be written in the dialect {self.name}: send its text")
        for action in actions:
            _require_inside(action, screen)
        return self.write(
            [self.coordinates.to_model(action, model_size, screen) for action in actions], thought
        )


def is_coordinate(value: Any) -> bool:
    """Whether a value is a number, not a boolean, within the limit of coordinates."""
    return type(value) in (int, float) and abs(value) <= MAX_COORDINATE


def scroll_amount(notches: float) -> int:
    """Whole wheel notches of a scroll, without its direction."""
    return min(round(abs(notches)), MAX_SCROLL)


def wait_seconds(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_WAIT_SECONDS)


def bounded(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions. Raises ParseError if there are none, too many, or if they wait for too long."""
    if not actions:
        raise ParseError("the answer contains no action")
    if len(actions) > MAX_CALLS:
        raise ParseError(f"the answer has more than {MAX_CALLS} calls")
    waits = sum(action.seconds or 0.0 for action in actions if isinstance(action, Wait))
    if waits > MAX_WAITS_SECONDS:
        raise ParseError(f"the answer waits for {waits:g} seconds in all, at most {MAX_WAITS_SECONDS:g}")
    return tuple(actions)


def checked_actions(actions: Sequence[Action], screen: tuple[int, int] | None) -> tuple[Action, ...]:
    """Actions that a program gives as data, in pixels of the screen, with canonical keys.

    Raises ParseError for what no answer could contain: `bounded`, unknown keys, values out of range, and
    points outside the screen (None: it is not known).
    """
    for action in bounded(actions):
        match action:
            case Scroll(amount=int(amount)) if not 0 <= amount <= MAX_SCROLL:
                raise ParseError(f"Scroll: amount is {clipped(str(amount))}, must be 0 to {MAX_SCROLL}")
            case Wait(seconds=float() | int() as seconds) if seconds < 0:
                raise ParseError(f"Wait: seconds is {seconds:g}, must be 0 or more")
        if screen is not None:
            _require_inside(action, screen)
    return tuple(map(_with_canonical_keys, actions))


def _require_inside(action: Action, screen: tuple[int, int]) -> None:
    """Raises ParseError if a point of the action, in pixels, is outside the screen."""
    for point in points_of(action):
        if not (0 <= point.x < screen[0] and 0 <= point.y < screen[1]):
            place, size = f"({point.x:g}, {point.y:g})", f"{screen[0]}x{screen[1]} pixels"
            raise ParseError(f"the point {place} is outside the screen of {size}")


def _with_canonical_keys(action: Action) -> Action:
    """The action with canonical keys: ("Control+A",) becomes ("ctrl", "a"). Raises ParseError."""
    if not isinstance(action, Hotkey | KeyDown | KeyUp):
        return action
    name, written = type(action).__name__, action.keys if isinstance(action, Hotkey) else (action.key,)
    try:
        keys = tuple(key for text in written for key in canonical_keys(text))
    except ValueError as error:
        raise ParseError(f"{name}: {error}") from None
    if isinstance(action, Hotkey):
        if not keys:
            raise ParseError("Hotkey: has no key")
        return Hotkey(keys=keys)
    if len(keys) != 1:
        raise ParseError(f"{name}: {quoted(action.key)} is more than one key")
    return type(action)(key=keys[0])


def quoted(text: str) -> str:
    """The beginning of a text in quotes, for error messages."""
    return repr(clipped(text))


def clipped(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"
