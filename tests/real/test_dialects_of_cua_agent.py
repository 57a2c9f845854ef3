"""The same answers give the actions of cua-agent: Qwen3.5, GLM-4.5V and UI-TARS.

Its parsers are functions of files that import many packages. The test takes these functions alone from the
files. Places may differ by two pixels: its agent for Qwen3.5 divides by 1000 and rounds, OSWorld's agents
divide by 999 and round down. Kinds of answers in DIFFERENT have another result on purpose, with the reason.
"""

import ast
import asyncio
import importlib.util
import json
import math
import random
import re
import types
import typing
from pathlib import Path

import pytest

from arpo.actions import (
    CallUser,
    Click,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    MiddleClick,
    RightClick,
    Scroll,
    TripleClick,
    Type,
    Wait,
)
from arpo.dialects.base import ParseError
from arpo.dialects.glm import GLM_4_5V
from arpo.dialects.qwen3_5 import QWEN3_5
from arpo.dialects.ui_tars import UI_TARS

SCREEN = (1920, 1080)
COUNT = 200  # answers per dialect
NOTHING = ()
Act = tuple[typing.Any, ...]


def functions(file: str, *names: str, **known: object) -> dict[str, typing.Any]:
    spec = importlib.util.find_spec("cua_agent")
    if spec is None or spec.origin is None:
        pytest.skip("cua-agent is not installed: make test-real installs it")
    tree = ast.parse((Path(spec.origin).parent / "loops" / file).read_text("utf-8"))
    taken: list[ast.stmt] = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names
    ]
    modules = {"ast": ast, "json": json, "math": math, "re": re, "print": lambda *_: None}
    # Names of types, in annotations alone.
    unknown = dict.fromkeys(("ModelResponse", "ResponseComputerToolCallParam"), object)
    other = {"ResponseOutputMessageParam": int}
    scope = {**vars(typing), **modules, **unknown, **other, **known}
    exec(compile(ast.Module(body=taken, type_ignores=[]), file, "exec"), scope)
    return scope


ITEMS: dict[str, typing.Callable[..., typing.Any]] = {
    "make_click_item": lambda x, y, button="left": {"act": (f"{button}_click", x, y)},
    "make_double_click_item": lambda x, y: {"act": ("double_click", x, y)},
    "make_drag_item": lambda path: {"act": ("drag", *(value for place in path for value in place.values()))},
    "make_keypress_item": lambda keys: {"act": ("keypress", tuple(keys))},
    "make_type_item": lambda text: {"act": ("type", text)},
    "make_scroll_item": lambda x, y, right, down: {"act": ("scroll", x, y, _sign(right), _sign(down))},
    "make_wait_item": lambda: {"act": ("wait",)},
    "make_output_text_item": lambda text: {},
    "make_reasoning_item": lambda text: {},
    "model_dump": dict,
}


def _sign(number: float) -> str:
    return "+" if number > 0 else "-" if number < 0 else "0"


# their actions


def qwen3_5() -> typing.Callable[[str], Act]:
    names = (
        "_parse_tool_call_from_text",
        "_unnormalize_coordinate",
        "convert_qwen_tool_args_to_computer_action",
    )
    scope = functions("qwen35.py", *names)

    def act(answer: str) -> Act:
        call = scope[names[0]](answer)
        arguments = asyncio.run(scope[names[1]](call["arguments"], SCREEN)) if call else {}
        found = scope[names[2]](arguments)
        if found is None:
            return NOTHING
        kind, rest = found.pop("action"), found
        if kind == "scroll":
            return (kind, _sign(rest["scroll_x"]), _sign(rest["scroll_y"]))
        return (kind, *(tuple(value) if isinstance(value, list) else value for value in rest.values()))

    return act


def glm() -> typing.Callable[[str], Act]:
    names = ("parse_glm_response", "convert_glm_completion_to_responses_items")
    scope = functions("glm45v.py", *names, **ITEMS)

    def act(answer: str) -> Act:
        message = types.SimpleNamespace(content=answer)
        response = types.SimpleNamespace(choices=[types.SimpleNamespace(message=message)])
        return _first(scope[names[1]](response, *SCREEN))

    return act


def ui_tars() -> typing.Callable[[str], Act]:
    names = ("parse_uitars_response", "convert_to_computer_actions")
    helpers = ("escape_single_quotes", "parse_action", "parse_box_coordinates")
    scope = functions("uitars.py", *names, *helpers, **ITEMS)

    def act(answer: str) -> Act:
        try:
            return _first(scope[names[1]](scope[names[0]](answer, *SCREEN), *SCREEN))
        except ValueError:
            return NOTHING

    return act


def _first(items: list[dict[str, typing.Any]]) -> Act:
    return next((item["act"] for item in items if "act" in item), NOTHING)


# ours


def ours(dialect, answer: str, wheel_down: int, placed_wheel: bool) -> Act:
    """The first action in their form. `wheel_down` is their sign of a scroll down."""
    try:
        action = dialect.parse(answer).actions[0]
    except ParseError:
        return NOTHING
    action = dialect.coordinates.to_screen(action, SCREEN, SCREEN)
    names = {
        Click: "left_click", RightClick: "right_click", MiddleClick: "middle_click",
        DoubleClick: "double_click", TripleClick: "triple_click", Hover: "move",
    }  # fmt: skip
    match action:
        case Click() | RightClick() | MiddleClick() | DoubleClick() | TripleClick() | Hover():
            return (names[type(action)], action.point.x, action.point.y)
        case Drag(start=start, end=end):
            return ("drag", start.x, start.y, end.x, end.y)
        case Hotkey(keys=keys):
            return ("keypress", keys)
        case Type(text=text, submit=submit):
            return ("type", text + "\n" * submit)
        case Scroll(point=point, direction=direction):
            right = {"right": 1, "left": -1}.get(direction, 0)
            down = {"down": wheel_down, "up": -wheel_down}.get(direction, 0)
            place = (point.x, point.y) if point and placed_wheel else ()
            return ("scroll", *place, _sign(right), _sign(down))
        case Wait():
            return ("wait",)
        case Finished() | Fail() | CallUser():
            return NOTHING  # theirs end by other means
    return (action,)


# answers

TEXTS = ("hello", "a b  c", 'say "hi"', "x=1; y=[2]", "https://a.b/?c=d&e", "100%")
KEYS = (["ctrl", "c"], ["enter"], ["alt", "f4"], ["ctrl", "shift", "t"], ["pagedown"], ["esc"])


def qwen3_5_answer(rng: random.Random) -> tuple[str, str]:
    place = [rng.randrange(999), rng.randrange(999)]
    pointed = rng.choice(("left_click", "right_click", "middle_click", "double_click"))
    kinds: dict[str, dict[str, typing.Any]] = {
        "click": {"action": pointed, "coordinate": place},
        "move": {"action": "mouse_move", "coordinate": place},
        "keys": {"action": "key", "keys": rng.choice(KEYS)},
        "type": {"action": "type", "text": rng.choice(TEXTS)},
        "scroll": {"action": rng.choice(("scroll", "hscroll")), "pixels": rng.choice((-10, -1, 5, 300))},
        "wait": {"action": "wait", "time": 2},
        "end": {"action": "terminate", "status": "success"},
        "type instead of action": {"type": "left_click", "coordinate": place},
        "unknown action": {"action": "jump"},
        "no keys": {"action": "key"},
        "one number": {"action": "mouse_move", "coordinate": [3]},
        "triple click": {"action": "triple_click", "coordinate": place},
        "drag": {"action": "left_click_drag", "coordinate": place},
        "at the pointer": {"action": pointed},
    }
    kind = rng.choice([*kinds, "no call", "not closed"])
    arguments = kinds.get(kind, kinds["click"])
    if kind == "no call":
        return kind, "I do not know."
    if kind != "type instead of action" and rng.random() < 0.5:
        body = json.dumps({"name": "computer", "arguments": arguments})
    else:
        written = {
            name: value if isinstance(value, str) else json.dumps(value) for name, value in arguments.items()
        }
        lines = [f"<parameter={name}>\n{value}\n</parameter>" for name, value in written.items()]
        body = "\n".join(["<function=computer>", *lines, "</function>"])
    before = rng.choice(("", "<think>\nI see it.\n</think>\n\n"))
    answer = f"{before}<tool_call>\n{body}\n</tool_call>"
    return kind, answer[:-30] if kind == "not closed" else answer


QWEN3_5_DIFFERENT = {
    "triple click": "they click twice",
    "drag": "they do nothing",
    "at the pointer": "they do nothing; ours clicks where the pointer is",
}


def glm_answer(rng: random.Random) -> tuple[str, str]:
    x, y, u, v = (rng.randrange(999) for _ in range(4))
    pointed = rng.choice(("left_click", "right_click", "left_double_click"))
    kinds = {
        "click": f"{pointed}(start_box='[{x},{y}]', element_info='it')",
        "drag": f"left_drag(start_box='[{x},{y}]', end_box='[{u},{v}]')",
        "keys": f"key(keys='{'+'.join(rng.choice(KEYS))}')",
        "type": f"type(content='{rng.choice(TEXTS)}')",
        "scroll": f"scroll(start_box='[{x},{y}]', direction='{rng.choice(('up', 'down'))}', step=5)",
        "wait": "WAIT()",
        "done": "DONE()",
        "fail": "FAIL()",
        "unknown call": "jump(start_box='[1,2]')",
        "no place": "left_click(element_info='it')",
        "hover": f"hover(start_box='[{x},{y}]')",
    }
    kind = rng.choice([*kinds, "no box", "no call"])
    call = kinds.get(kind, kinds["click"])
    if kind == "no call":
        return kind, "I do not know.\nMemory:\n[]"
    return kind, f"{call}\nMemory:\n[]" if kind == "no box" else (
        f"Do it. <|begin_of_box|>{call}<|end_of_box|>\nMemory:\n[]"
    )


GLM_DIFFERENT = {"hover": "they do nothing, although their prompt offers it"}


def ui_tars_answer(rng: random.Random) -> tuple[str, str]:
    x, y, u, v = (rng.randrange(1, 999) for _ in range(4))
    kinds = {
        "click": f"{rng.choice(('click', 'left_double', 'right_single'))}(start_box='({x},{y})')",
        "marked": f"click(start_box='<|box_start|>({x},{y})<|box_end|>')",
        "drag": f"drag(start_box='({x},{y})', end_box='({u},{v})')",
        "type": f"type(content='{rng.choice(TEXTS)}')",
        "keys": f"hotkey(key='{' '.join(rng.choice(KEYS))}')",
        "press": "press(key='enter')",
        "scroll": f"scroll(start_box='({x},{y})', direction='{rng.choice(('up', 'down'))}')",
        "wait": "wait()",
        "finished": "finished(content='done')",
        "call user": "call_user()",
        "a box of words": "click(start_box='here')",
        "unknown call": "jump(start_box='(1,2)')",
        "not closed": f"click(start_box='({x},{y}'",
    }
    kind = rng.choice([*kinds, "no call"])
    if kind == "no call":
        return kind, "I do not know."
    return kind, f"Thought: I see it.\nAction: {kinds[kind]}"


CASES = {
    "qwen3_5": (QWEN3_5, qwen3_5, qwen3_5_answer, QWEN3_5_DIFFERENT, -1, False),
    "glm_4_5v": (GLM_4_5V, glm, glm_answer, GLM_DIFFERENT, 1, True),
    "ui_tars": (UI_TARS, ui_tars, ui_tars_answer, {}, -1, True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_answers_give_the_same_actions(name):
    dialect, make, write, different, wheel_down, placed_wheel = CASES[name]
    theirs, rng = make(), random.Random(name)
    compared = differed = 0
    kinds: set[str] = set()
    while compared < COUNT:
        kind, answer = write(rng)
        expected, found = theirs(answer), ours(dialect, answer, wheel_down, placed_wheel)
        if kind in different:
            differed += not _same(expected, found)
            continue
        compared += 1
        kinds.add(kind)
        assert _same(expected, found), f"{kind}: {answer!r}: {expected} and {found}"
    assert len(kinds) >= 12
    assert differed or not different


def _same(one: Act, other: Act) -> bool:
    """Equal, but for two pixels."""
    return len(one) == len(other) and all(
        abs(a - b) <= 2 if isinstance(a, int | float) and isinstance(b, int | float) else a == b
        for a, b in zip(one, other, strict=True)
    )
