"""What every dialect guarantees: no exception but ParseError, and time that does not grow with the square."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest

from arpo import actions as do
from arpo.dialects.base import Answer, ParseError
from arpo.dialects.check import PIECES, check_dialect
from arpo.dialects.registry import DIALECTS, choose_dialect
from arpo.dialects.ui_tars import UI_TARS
from arpo.errors import UserError

PARSERS = tuple({dialect.parse: dialect for dialect in DIALECTS}.values())  # one dialect per parser


@pytest.mark.parametrize("dialect", PARSERS, ids=lambda dialect: dialect.name)
def test_shipped_dialects_conform(dialect):
    assert check_dialect(dialect, mutations=2000) == []


@pytest.mark.slow
@pytest.mark.parametrize("dialect", PARSERS, ids=lambda dialect: dialect.name)
def test_a_hundred_thousand_damaged_answers(dialect):
    assert check_dialect(dialect, mutations=100_000, seed=1) == []


@pytest.mark.slow
@pytest.mark.parametrize("dialect", PARSERS, ids=lambda dialect: dialect.name)
def test_long_repetitions_are_refused(dialect):
    """Quadratic work on 200,000 characters would take minutes."""
    for piece in PIECES:
        for start in ("", "Action: ", "<tool_call>", "```python\n", "<|begin_of_box|>", '{"name": "'):
            with pytest.raises(ParseError):
                dialect.parse(start + piece * (200_000 // len(piece)))


HERE, THERE = do.Point(10.0, 20.0), do.Point(30.0, 40.0)
ALL_ACTIONS = [
    *(kind(point=HERE) for kind in (do.Click, do.DoubleClick, do.TripleClick, do.RightClick, do.MiddleClick)),
    *(kind(point=HERE) for kind in (do.Hover, do.LongPress, do.MouseDown, do.MouseUp)),
    do.Drag(start=HERE, end=THERE),
    *(do.Scroll(point=place, direction=way, amount=3) for way in do.Direction for place in (HERE, None)),
    *(do.Hotkey(keys=keys) for keys in (("ctrl", "c"), ("ctrl", "+"), ("pagedown",))),
    do.KeyDown(key="shift"), do.KeyUp(key="shift"),
    do.Type(text="it's </a> \"é\" {x}"), do.Type(text="two\nlines"), do.Type(text="two\nlines", submit=True),
    do.OpenApp(name="Files"), do.PressHome(), do.PressBack(), do.Wait(), do.Wait(seconds=2.0),
    do.GiveAnswer(text="42"), do.Finished(), do.Fail(), do.CallUser(),
]  # fmt: skip
WRITERS = tuple({dialect.write: dialect for dialect in DIALECTS if dialect.write}.values())


@pytest.mark.parametrize("dialect", WRITERS, ids=lambda dialect: dialect.name)
def test_what_a_dialect_writes_it_reads(dialect):
    assert {type(action) for action in ALL_ACTIONS} == set(get_args(do.Action))
    for action in ALL_ACTIONS:
        assert dialect.parse(dialect.write([action], "")) == Answer(thought="", actions=(action,))
    two = (do.Click(point=HERE), do.Type(text="a"))
    assert dialect.parse(dialect.write(two, "Open it")) == Answer(thought="Open it", actions=two)


@pytest.mark.parametrize("dialect", WRITERS, ids=lambda dialect: dialect.name)
def test_coordinates_are_converted_both_ways(dialect):
    screen, resized, units = (1920, 1080), (1932, 1092), dialect.coordinates
    for x, y in ((0, 0), (1, 1079), (960, 540), (1919, 7), (1234, 567)):
        written = units.to_model(do.Click(point=do.Point(x, y)), resized, screen)
        back = units.to_screen(written, resized, screen)
        assert abs(back.point.x - x) <= 4 and abs(back.point.y - y) <= 3
        assert written == units.to_model(back, resized, screen) or units.floor


def wait_for(text):
    return Answer(thought="", actions=(do.Wait(seconds=float(text)),))


@pytest.mark.parametrize(
    ("dialect", "fault"),
    [
        ("UI-TARS", "is 'UI-TARS', must be an arpo.dialects.base.Dialect"),
        (replace(UI_TARS, examples=()), "has no examples"),
        (replace(UI_TARS, names="("), "names = '(': is no regular expression"),
        (replace(UI_TARS, name="my dialect"), "name = 'my dialect': must be one word"),
        (replace(UI_TARS, examples=("click",)), "example 'click': raised ParseError: the answer contains no"),
        (replace(UI_TARS, parse=wait_for, examples=("3",)), "raised ValueError, must raise ParseError"),
        (replace(UI_TARS, parse=cast(Any, str.strip)), 'returned "Thought: open it'),
        (
            replace(UI_TARS, parse=lambda _: Answer(thought="", actions=())),
            "returned 0 actions, must return 1",
        ),
    ],
)
def test_faults_of_a_dialect_are_found(dialect, fault):
    assert fault in check_dialect(dialect)[0]


OWN = """
import re
from dataclasses import replace
from pathlib import Path
from arpo.dialects.ui_tars import UI_TARS

MINE = replace(UI_TARS, name="mine")
BROKEN = replace(MINE, parse=int)
"""


def test_a_dialect_of_ones_own_is_a_plug_in(tmp_path, monkeypatch):
    (tmp_path / "own_dialect.py").write_text(OWN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert choose_dialect("own_dialect:MINE", "base", None).name == "mine"
    with pytest.raises(
        UserError, match=r"'own_dialect:BROKEN', which example .* raised ValueError, must raise Parse"
    ):
        choose_dialect("own_dialect:BROKEN", "base", None)
    with pytest.raises(UserError, match=r"model\.dialect = 'own_dialect:MIEN': .*did you mean MINE"):
        choose_dialect("own_dialect:MIEN", "base", None)


def test_the_dialect_of_the_documentation_conforms():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Dialect(" in block]
    scope: dict[str, Any] = {}
    exec(compile(code, "models.md", "exec"), scope)
    assert check_dialect(scope["MINE"]) == []


def test_every_dialect_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    assert {dialect.name for dialect in DIALECTS} <= set(re.findall("`(\\w+)`", page))
