"""Mapping files and the part of JSON Schema that checks them."""

import pytest

from arpo.actions import (
    Click,
    Direction,
    DoubleClick,
    Drag,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    OpenApp,
    Point,
    Scroll,
    Type,
    Wait,
)
from arpo.envs.openenv.mapping import read_mapping
from arpo.errors import UserError
from openenv_server import SCHEMA

SIZE = (64, 48)
OPEN = {**SCHEMA, "action": {"type": "object", "additionalProperties": True}}


@pytest.fixture
def mapped(tmp_path):
    def read(text, schema=SCHEMA):
        file = tmp_path / "m.toml"
        file.write_text(text)
        return read_mapping(str(file), schema)

    return read


def steps(mapped, actions, action):
    return mapped(f'screenshot = "screen.png"\n[actions]\n{actions}', OPEN).steps(action, SIZE)


POINT = Point(3.4, 4.6)


@pytest.mark.parametrize(
    ("template", "action", "expected"),
    [
        ('Click = { a = "tap", at = ["{x}", "{y}"] }', Click(point=POINT), [{"a": "tap", "at": [3, 5]}]),
        ('Click = { code = "click({x}, {y})" }', Click(point=POINT), [{"code": "click(3, 5)"}]),
        ('Type = { code = "type({text!r})" }', Type(text="it's"), [{"code": 'type("it\'s")'}]),
        ('Type = { text = "{text}" }', Type(text="a", submit=True), [{"text": "a\n"}]),
        (
            'Type = { text = "{text}", enter = "{submit}" }',
            Type(text="a", submit=True),
            [{"text": "a", "enter": True}],
        ),
        ('DoubleClick = [{ x = "{x}" }, { y = "{y}" }]', DoubleClick(point=POINT), [{"x": 3}, {"y": 5}]),
        ('Drag = { d = "{x},{y},{end_x},{end_y}" }', Drag(start=POINT, end=Point(1, 2)), [{"d": "3,5,1,2"}]),
        ('Hotkey = { k = "{keys}" }', Hotkey(keys=("ctrl", "c")), [{"k": ["ctrl", "c"]}]),
        ('Hotkey = { k = "{key}" }\n"Hotkey left" = { id = 3 }', Hotkey(keys=("left",)), [{"id": 3}]),
        ('Hotkey = { k = "{key}" }\n"Hotkey left" = { id = 3 }', Hotkey(keys=("a", "b")), [{"k": "a+b"}]),
        (
            '"Scroll up" = { n = "{amount}", x = "{x}" }',
            Scroll(point=None, direction=Direction.UP),
            [{"n": 5, "x": 32}],
        ),
        ('"Scroll up" = { n = "{amount}" }', Scroll(point=None, direction=Direction.DOWN), None),
        ('Wait = { s = "{seconds}" }', Wait(), [{"s": 1.0}]),
        ("Wait = {}", Hover(point=POINT), None),
    ],
)
def test_an_action_is_written_as_its_template_says(mapped, template, action, expected):
    assert steps(mapped, template, action) == expected


GOOD = '[actions]\nClick = { kind = "click", x = "{x}" }'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'screenshot = "screen.png"\n{GOOD}', ""),
        (f'screenshot = "screen.png"\ngoal = "goal"\n{GOOD}', ""),
        ("a =", "m.toml: Invalid value"),
        (f'screenshots = "screen.png"\n{GOOD}', "screenshots: unknown key (did you mean screenshot?)"),
        (GOOD, 'screenshot: must be a path in the observation, such as screenshot = "screen.png"'),
        (
            f'screenshot = "picture"\n{GOOD}',
            "no field 'picture' in observation; its fields are: count, goal, ",
        ),
        (f'screenshot = "screen.jpg"\n{GOOD}', "no field 'jpg' in observation.screen; its fields are: png"),
        (f'screenshot = "count"\n{GOOD}', "screenshot = 'count': is of type integer in the server's /schema"),
        ('screenshot = "pixels"', "[actions]: add at least one action"),
        (
            'screenshot = "pixels"\n[actions]\nClik = {}',
            "actions: Clik: no such action (did you mean Click?)",
        ),
        ('screenshot = "pixels"\n[actions]\n"Click left" = {}', "actions: Click left: no such action"),
        ('screenshot = "pixels"\n[actions]\nClick = 3', "actions: Click: must be a table"),
        ('screenshot = "pixels"\n[actions]\n"Hotkey ArrowLeft" = {}', 'ArrowLeft: write "Hotkey left"'),
        ('screenshot = "pixels"\n[actions]\n"KeyDown fire" = {}', "KeyDown fire: unknown key 'fire'"),
        ('screenshot = "pixels"\n[actions]\n"Scroll dwn" = {}', "Scroll dwn: 'dwn' is not a valid Direction"),
        (f'screenshot = "pixels"\nscore = "total"\n{GOOD}', "score = 'total': must be one of: last, sum"),
        (
            'screenshot = "pixels"\n[actions]\nClick = { x = "{text}" }',
            "no field {text}; its fields are: x, y",
        ),
        ('screenshot = "pixels"\n[actions]\nClick = { x = 1 }', "action: the field 'kind' is missing"),
        (
            'screenshot = "pixels"\n[actions]\nClick = { kind = "key", x = "{x}", z = 1 }',
            "action: no field 'z'; the fields are: kind, x, text",
        ),
        ('screenshot = "pixels"\n[actions]\nClick = { kind = "tap" }', "must be one of click, key"),
        (
            'screenshot = "pixels"\n[actions]\nType = { kind = "key", x = "{text}" }',
            "actions: Type: the server's /schema refuses it: action.x: is 'a', must be of type integer",
        ),
        ('screenshot = "pixels"\n[actions]\nWait = { kind = "key", x = true }', "must be of type integer"),
    ],
)
def test_a_mapping_that_the_schema_refuses_is_one_error(mapped, text, message):
    if not message:
        assert mapped(text).templates["Click"] == [{"kind": "click", "x": "{x}"}]
        return
    with pytest.raises(UserError, match=r"m\.toml: ") as error:
        mapped(text)
    assert message in str(error.value)


def test_one_branch_of_a_union_of_actions_is_enough(mapped):
    union = {
        "oneOf": [{"$ref": "#/$defs/Tap"}, {"$ref": "#/$defs/Key"}],
        "$defs": {
            "Tap": {"type": "object", "properties": {"tap": {"type": "integer"}}, "required": ["tap"]},
            "Key": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
    schema = {**SCHEMA, "action": union}
    text = 'screenshot = "pixels"\n[actions]\nHotkey = { key = "{key}" }\nClick = { tap = "{x}" }'
    assert mapped(text, schema).templates.keys() == {"Hotkey", "Click"}
    with pytest.raises(UserError, match="the field 'tap' is missing"):
        mapped(text.replace("{ key =", "{ keys ="), schema)


def test_selected_actions_are_those_of_one_key_direction_or_name(mapped):
    names = ("Hotkey ctrl+c", "KeyDown shift", "KeyUp shift", "Scroll left", "OpenApp Text Editor", "Hotkey")
    actions = "\n".join(f'"{name}" = {{ name = "{name}" }}' for name in names)
    mapping = mapped(f'screenshot = "pixels"\n[actions]\n{actions}', OPEN)
    selected = mapping.selected_actions()
    assert selected == [
        Hotkey(keys=("ctrl", "c")),
        KeyDown(key="shift"),
        KeyUp(key="shift"),
        Scroll(point=None, direction=Direction.LEFT),
        OpenApp(name="Text Editor"),
    ]
    assert [mapping.steps(action, SIZE) for action in selected] == [[{"name": name}] for name in names[:-1]]
