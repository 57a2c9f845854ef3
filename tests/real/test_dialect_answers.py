"""The same answers give the same input events as the published agents in desktop-env (`mm_agents`).

Their parsers are functions of files that import unrelated packages. The test takes these functions alone from
the files. Both programs are compared as events: clicks, moves, keys, typed text. Pauses and durations differ.
Kinds of answers in DIFFERENT have another result on purpose, with the reason.
"""

import ast
import json
import math
import random
import re
import traceback
import types
import typing
from pathlib import Path

import pytest

from arpo.actions import CallUser, Fail, Finished, Point, Wait, resolve_pointer, up_to_terminal
from arpo.config.recipe import PROJECT
from arpo.dialects.base import ParseError
from arpo.dialects.pyautogui_code import OPENCUA
from arpo.dialects.tool_calls import GUI_OWL, QWEN2_5_VL, QWEN3_VL
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs.osworld.guest import pyautogui_parser as parser
from arpo.envs.pyautogui_program import program
from arpo.keyboard import canonical_keys

SCREEN, RESIZED, QWEN3_RESIZED = (1920, 1080), (1932, 1092), (1920, 1088)
CENTRE = (SCREEN[0] // 2, SCREEN[1] // 2)
COUNT = 200  # answers per dialect


def agents(name: str) -> Path:
    found = sorted(PROJECT.glob(f".venv-osworld/lib/python3.*/site-packages/mm_agents/{name}"))
    if not found:
        pytest.skip("desktop-env is not installed: run make osworld")
    return found[0]


def functions(file: str, *names: str, **known: object) -> dict[str, typing.Any]:
    """Functions of a file, and methods of its classes, without the rest of the file."""
    tree = ast.parse(agents(file).read_text("utf-8"))
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    taken: list[ast.stmt] = [
        node for body in bodies for node in body if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    quiet = types.SimpleNamespace(error=lambda *_: None, warning=lambda *_: None)
    limits = {"IMAGE_FACTOR": 28, "MAX_RATIO": 200, "MIN_PIXELS": 3136, "MAX_PIXELS": 12845056}
    modules = {"ast": ast, "json": json, "math": math, "re": re, "traceback": traceback}
    scope = {**vars(typing), **limits, **modules, "logger": quiet, "print": lambda *_: None, **known}
    exec(compile(ast.Module(body=taken, type_ignores=[]), file, "exec"), scope)
    return scope


# their programs


def qwen(file: str, resized: tuple[int, int]) -> typing.Callable[[str], list[str]]:
    parse = functions(file, "parse_response")["parse_response"]
    agent = types.SimpleNamespace(coordinate_type="relative")
    return lambda answer: parse(agent, answer, *SCREEN, *resized)[1]


def owl() -> typing.Callable[[str], list[str]]:
    names = (
        "parse_action_fncall",
        "convert_point_format",
        "parsing_response_to_pyautogui_code",
        "escape_single_quotes",
    )
    scope = functions("owl_agent.py", *names)

    def programs(answer: str) -> list[str]:
        [action] = scope["parse_action_fncall"](answer, None, SCREEN[1], SCREEN[0])
        if action["action_type"] in ("fail", "finished"):
            return [{"fail": "FAIL", "finished": "DONE"}[action["action_type"]]]
        return [scope["parsing_response_to_pyautogui_code"](action, SCREEN[1], SCREEN[0], False)]

    return programs


def ui_tars() -> typing.Callable[[str], list[str]]:
    names = (
        "parse_action", "escape_single_quotes", "round_by_factor", "ceil_by_factor", "floor_by_factor",
        "smart_resize", "parse_action_to_structure_output", "parsing_response_to_pyautogui_code",
    )  # fmt: skip
    scope = functions("uitars15_v1.py", *names)

    def programs(answer: str) -> list[str]:
        actions = scope["parse_action_to_structure_output"](answer, 1000, SCREEN[1], SCREEN[0], "qwen25vl")
        ends = {"finished": "DONE", "wait": "WAIT", "error_env": "FAIL", "call_user": "FAIL"}
        to_code = scope["parsing_response_to_pyautogui_code"]
        return [ends.get(one["action_type"]) or to_code(one, SCREEN[1], SCREEN[0]) for one in actions]

    return programs


def opencua() -> typing.Callable[[str], list[str]]:
    resize = functions(
        "opencua/utils.py", "smart_resize", "round_by_factor", "ceil_by_factor", "floor_by_factor"
    )
    names = ("parse_response_to_cot_and_action", "project_coordinate_to_absolute_scale")
    scope = functions("opencua/opencua_agent.py", *names, smart_resize=resize["smart_resize"])
    return lambda answer: scope[names[0]](answer, SCREEN, "qwen25")[1]


# events


def ours(dialect, resized, answer: str) -> list[str]:
    actions = up_to_terminal(dialect.parse(answer).actions)
    screen = [dialect.coordinates.to_screen(action, resized, SCREEN) for action in actions]
    ends = {Finished: "DONE", Fail: "FAIL", CallUser: "FAIL", Wait: "WAIT"}
    return [ends.get(type(one)) or program([one]) for one in resolve_pointer(screen, Point(*CENTRE))[0]]


def events(programs: list[str]) -> list[tuple]:
    found: list[tuple] = []
    pointer, clipboard = CENTRE, ""
    for code in programs:
        if code in ("DONE", "FAIL", "WAIT"):
            found.append((code,))
            continue
        tree = ast.parse(code)
        tree.body = [
            line
            for line in tree.body
            if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
        ]
        parsed = parser.parse_program(ast.unparse(tree))
        assert parsed is not None, code
        if parsed and all(isinstance(event, parser.Sleep) for event in parsed):
            found.append(("WAIT",))
        for event in parsed:
            match event:
                case parser.MovePointer(x=float() | int() as x, y=float() | int() as y):
                    place = (round(x), round(y))
                    found += [("move", *place)] if place != pointer else []
                    pointer = place
                case parser.ClickButton(button=button, times=times):
                    found.append(("click", button, times))
                case parser.SetButton(button=button, down=down):
                    found.append(("button", button, down))
                case parser.TurnWheel(notches=notches, horizontal=horizontal):
                    found.append(("wheel", notches, horizontal))
                case parser.SetKey(key=key, down=down):
                    found.append(("key", canonical_keys(key), down))
                case parser.PressKeys(keys=keys, times=times):
                    found += [("chord", canonical_keys(key)) for key in keys] * times
                case parser.KeyChord(keys=("ctrl", "v")) if clipboard:
                    found.append(("type", clipboard))
                case parser.KeyChord(keys=keys):
                    found.append(("chord", tuple(name for key in keys for name in canonical_keys(key))))
                case parser.TypeText(text=text):
                    for piece in re.split("(\n)", text):
                        found += (
                            [("chord", ("enter",))] if piece == "\n" else [("type", piece)] if piece else []
                        )
                case parser.SetClipboard(text=text):
                    clipboard = text
    return found


# answers

TEXTS = (
    "hello",
    "a b  c",
    'say "hi"',
    "x=1; y=[2]",
    "https://a.b/?c=d&e",
    "100%",
    "</p>",
    "two\nlines",
    "line\n",
)
KEYS = (["ctrl", "c"], ["enter"], ["alt", "f4"], ["ctrl", "shift", "t"], ["pagedown"], ["esc"])


def plain(**arguments: object) -> str:
    call = json.dumps({"name": "computer_use", "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def tool(rng: random.Random, **arguments: object) -> str:
    before = rng.choice(("", "Action: do it\n", "<thinking>\nI see it.\n</thinking>\n"))
    return before + plain(**arguments)


def qwen_answer(rng: random.Random, full: tuple[int, int]) -> tuple[str, str]:
    place = [rng.randrange(full[0] - 2), rng.randrange(full[1] - 2)]
    kinds: dict[str, typing.Callable[[], str]] = {
        "click": lambda: tool(rng, action=rng.choice(POINTED), coordinate=place),
        "click at the pointer": lambda: tool(rng, action=rng.choice(POINTED)),
        "move": lambda: tool(rng, action="mouse_move", coordinate=place),
        "drag": lambda: tool(rng, action="left_click_drag", coordinate=place),
        "type": lambda: tool(rng, action="type", text=rng.choice([t for t in TEXTS if "\n" not in t])),
        "keys": lambda: tool(rng, action="key", keys=rng.choice(KEYS)),
        "scroll": lambda: tool(rng, action="scroll", pixels=rng.choice((-10, -5, -1, 3, 100))),
        "wait": lambda: "Action: wait\n" + plain(action="wait", time=2),
        "success": lambda: "Action: end\n" + plain(action="terminate", status="success"),
        "wait without a line": lambda: plain(action="wait", time=2),
        "two calls": lambda: "Action: both\n" + plain(action="wait") + "\n" + plain(action="key", keys=["a"]),
        "without tags": lambda: (
            "Action: wait\n" + json.dumps({"name": "computer_use", "arguments": {"action": "wait"}})
        ),
        "no JSON": lambda: tool(rng, action="wait").replace("}", ""),
        "no call": lambda: "I do not know.",
        "unknown action": lambda: tool(rng, action="jump"),
        "unknown tool": lambda: tool(rng, action="wait").replace("computer_use", "browser"),
        "quote in text": lambda: tool(rng, action="type", text="it's"),
        "lines in text": lambda: tool(rng, action="type", text="two\nlines"),
        "triple click": lambda: tool(rng, action="triple_click", coordinate=place),
        "failure": lambda: "Action: end\n" + plain(action="terminate", status="failure"),
        "one line": lambda: plain(action="wait").replace("\n", ""),
        "call in a thought": lambda: f"<think>\n{plain(action='key', keys=['a'])}\n</think>",
    }
    kind = rng.choice(list(kinds))
    return kind, kinds[kind]()


POINTED = ("left_click", "right_click", "middle_click", "double_click")
QWEN_DIFFERENT = {
    "quote in text": "their program is not Python; ours types the quote",
    "lines in text": "their program is not Python; ours types both lines",
    "wait without a line": "they raise an error: WAIT has no dot, at which they cut a program",
    "triple click": "they do nothing",
    "failure": "they report success",
    "one line": "they skip a call on the line of its tag",
    "call in a thought": "they perform a call that the model only considered",
}


def owl_answer(rng: random.Random) -> tuple[str, str]:
    place, other = [[rng.randrange(1930), rng.randrange(1090)] for _ in range(2)]
    kinds: dict[str, typing.Callable[[], str]] = {
        "click": lambda: tool(
            rng, action=rng.choice(("click", "left_click", "right_click", "double_click")), coordinate=place
        ),
        "move": lambda: tool(rng, action="mouse_move", coordinate=place),
        "drag": lambda: tool(rng, action="drag", coordinate=place, coordinate2=other),
        "type": lambda: tool(
            rng, action="type", text=rng.choice([t for t in TEXTS if "\n" not in t]), enter=rng.choice((0, 1))
        ),
        "type over": lambda: tool(rng, action="type", text="new", clear=1),
        "keys": lambda: tool(rng, action="key", keys=rng.choice(KEYS)),
        "scroll": lambda: tool(rng, action="scroll", pixels=rng.choice((-5, -1, 3, 5))),
        "wait": lambda: tool(rng, action="wait", time=2),
        "success": lambda: tool(rng, action="terminate", status="success") + "<conclusion>done</conclusion>",
        "failure": lambda: tool(rng, action="terminate", status="failure"),
        "one line": lambda: tool(rng, action="wait", time=1).replace("\n", ""),
        "no JSON": lambda: tool(rng, action="wait").replace("}", ""),
        "no call": lambda: "I do not know.",
        "unknown action": lambda: tool(rng, action="jump"),
        "no coordinate": lambda: tool(rng, action="click"),
        "middle click": lambda: tool(rng, action="middle_click", coordinate=place),
        "two calls": lambda: plain(action="key", keys=["a"]) + "\n" + plain(action="key", keys=["b"]),
    }
    kind = rng.choice(list(kinds))
    return kind, kinds[kind]()


OWL_DIFFERENT = {
    "no coordinate": "they raise an error; ours clicks at the pointer",
    "middle click": "they raise an error, although their prompt offers it",
    "two calls": "they perform the last one only",
}


def ui_tars_answer(rng: random.Random) -> tuple[str, str]:
    x, y, u, v = (rng.randrange(1, size - 2) for size in (*RESIZED, *RESIZED))
    text = rng.choice(("hello", "a b  c", 'say "hi"', "x=1; y=[2]", "100%"))
    key = rng.choice(("ctrl c", "enter", "alt f4", "ctrl shift t", "pagedown"))
    kinds = {
        "click": f"{rng.choice(('click', 'left_double', 'right_single', 'hover'))}(start_box='({x},{y})')",
        "drag": f"drag(start_box='({x},{y})', end_box='({u},{v})')",
        "type": f"type(content='{text}')",
        "type and submit": f"type(content='{text}\\n')",
        "keys": f"hotkey(key='{key}')",
        "key down": "keydown(key='shift')",
        "key up": "keyup(key='shift')",
        "scroll": f"scroll(start_box='({x},{y})', direction='{rng.choice(('up', 'down'))}')",
        "scroll anywhere": "scroll(direction='down')",
        "wait": "wait()",
        "finished": "finished(content='done')",
        "two calls": f"click(start_box='({x},{y})')\n\ntype(content='{text}')",
        "not closed": f"click(start_box='({x},{y}'",
        "no call": "I do not know",
        "a box of words": "click(start_box='here')",
        "unknown call": "jump(start_box='(1,2)')",
        "sideways": f"scroll(start_box='({x},{y})', direction='left')",
        "press": "press(key='enter')",
    }
    kind = rng.choice(list(kinds))
    return kind, f"{rng.choice(('Thought: I see it.', 'Thought: a, b'))}\nAction: {kinds[kind]}"


UI_TARS_DIFFERENT = {
    "sideways": "they do nothing; ours scrolls",
    "press": "they raise an error: a variable has no value",
}


def opencua_answer(rng: random.Random) -> tuple[str, str]:
    x, y = rng.randrange(2, RESIZED[0] - 2), rng.randrange(2, RESIZED[1] - 2)
    function = rng.choice(("click", "rightClick", "doubleClick", "tripleClick", "middleClick", "moveTo"))
    kinds = {
        "click": f"pyautogui.{function}(x={x}, y={y})",
        "positions": f"pyautogui.{function}({x}, {y})",
        "button": f"pyautogui.click(x={x}, y={y}, clicks=1, button='right')",
        "drag": f"pyautogui.moveTo(x={x}, y={y})\npyautogui.dragTo(x={y}, y={y // 2}, button='left')",
        "type": f"pyautogui.write(message={rng.choice(TEXTS)!r})",
        "keys": f"pyautogui.hotkey({rng.choice(KEYS)})",
        "press": f"pyautogui.press(keys='down', presses={rng.randint(1, 3)})",
        "scroll": f"pyautogui.scroll({rng.choice((-10, -3, 5))})",
        "wait": "computer.wait()",
        "success": "computer.terminate(status='success')",
        "failure": "computer.terminate(status='failure')",
        "no status": "computer.terminate()",
        "with import": f"import pyautogui\npyautogui.click(x={x}, y={y})",
        "corner": "pyautogui.click(x=1, y=1)",
        "own triple click": f"computer.triple_click(x={x}, y={y})",
        "other code": "import os\nos.system('ls')",
    }
    kind = rng.choice([*kinds, "no block"])
    code = f"```python\n{kinds.get(kind, '')}\n```" if kind in kinds else "pyautogui.click(1, 2)"
    return kind, f"## Thought:\nI see it.\n\n## Action:\nDo it\n\n## Code:\n{code}"


OPENCUA_DIFFERENT = {
    "corner": "they take a small position for a share of the screen; ours is the pixel",
    "own triple click": "their guest has no module computer",
    "no status": "they report failure; ours is a parse error",
    "no block": "they report failure; ours is a parse error",
}


def result(programs: typing.Callable[[str], list[str]], answer: str) -> list[tuple] | str:
    """The events of an answer; "refused" if nothing can be performed.

    An error, a program without input events, and other code, which their guest would run, count as refused.
    """
    try:
        return events(programs(answer)) or "refused"
    except (
        ParseError,
        AssertionError,
        ValueError,
        KeyError,
        IndexError,
        TypeError,
        SyntaxError,
        UnboundLocalError,
    ):
        return "refused"


CASES = {
    "qwen3_vl": (
        QWEN3_VL, QWEN3_RESIZED, lambda: qwen("qwen3vl_agent.py", QWEN3_RESIZED),
        lambda rng: qwen_answer(rng, (999, 999)), QWEN_DIFFERENT,
    ),
    "qwen2_5_vl": (
        QWEN2_5_VL, RESIZED, lambda: qwen("qwen25vl_agent.py", RESIZED),
        lambda rng: qwen_answer(rng, RESIZED), QWEN_DIFFERENT,
    ),
    "gui_owl": (GUI_OWL, RESIZED, owl, owl_answer, OWL_DIFFERENT),
    "ui_tars_1_5": (UI_TARS_1_5, RESIZED, ui_tars, ui_tars_answer, UI_TARS_DIFFERENT),
    "opencua": (OPENCUA, RESIZED, opencua, opencua_answer, OPENCUA_DIFFERENT),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_answers_have_the_events_of_the_published_agent(name: str) -> None:
    dialect, resized, reference, make, different = CASES[name]
    theirs, rng = reference(), random.Random(name)
    seen: dict[str, set[bool]] = {}
    for _ in range(COUNT):
        kind, answer = make(rng)
        expected, found = result(theirs, answer), result(lambda text: ours(dialect, resized, text), answer)
        seen.setdefault(kind, set()).add(expected == found)
        assert expected == found or kind in different, (kind, answer, expected, found)
    assert {kind for kind in different if seen.get(kind) != {False}} == set(), "no difference any more"
