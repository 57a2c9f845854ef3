import json
from dataclasses import replace

import pytest

from arpo.actions import Click, Direction, Hotkey, Point, Scroll, Type
from arpo.config import EnvConfig
from arpo.envs import wire
from arpo.envs.check_probe import every_action
from arpo.envs.wire import BadRequest, Health, NoFreeSlot, NoSuchEpisode
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.tasks.lists import load_tasks
from arpo.testing import task
from arpo.types import Task


def over(value):
    """The value after JSON encoding and decoding."""
    return wire.read_json(json.dumps(value).encode(), "step")


def refusal(read, value):
    with pytest.raises(BadRequest) as caught:
        read(value, "step")
    assert caught.value.where == "step"
    return caught.value.message


def test_every_action_arrives_as_it_was_sent():
    actions = (*every_action(1920, 1080), Click(point=Point(0.1, 2)), Type(text="\ud800\0 é\\", submit=False))
    arrived = wire.actions_from_json(over(wire.actions_to_json(actions)), "step")
    assert arrived == actions
    half = arrived[-2]
    assert isinstance(half, Click)
    assert [type(half.point.x), type(half.point.y)] == [float, int]


def test_every_task_arrives_as_it_was_sent():
    whole = Task(
        id="a/../b",
        instruction="wait…",
        snapshot="os",
        config=({"type": "sleep", "parameters": {"seconds": 0.5, "deep": [None, {"x": True}]}},),
        evaluator={"func": ["a", "b"], "conj": "or"},
        related_apps=("os", "vlc"),
        domain="multi_apps",
    )
    for sent in (whole, task("plain"), *load_tasks("desk:32")):
        assert wire.task_from_json(over(wire.task_to_json(sent)), "start") == sent


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("Wait", "actions[0]: unknown action 'Wait'"),
        ({}, "actions[0]: unknown action None"),
        ({"do": ["Wait"]}, "actions[0]: unknown action ['Wait']"),
        ({"do": "Eval"}, "actions[0]: unknown action 'Eval'"),
        ({"do": "Point", "x": 1, "y": 2}, "actions[0]: unknown action 'Point'"),
        ({"do": "Wait", "long": True}, "actions[0]: its keys must be do, seconds, not ['do', 'long']"),
        ({"do": "Click"}, "actions[0]: its keys must be do, point, not ['do']"),
        ({"do": "Click", "point": None}, "{x, y} in finite numbers, not None"),
        ({"do": "Click", "point": [1, 2]}, "{x, y} in finite numbers, not [1, 2]"),
        ({"do": "Click", "point": {"x": 1}}, "{x, y} in finite numbers, not {'x': 1}"),
        ({"do": "Click", "point": {"x": "1", "y": 2}}, "{x, y} in finite numbers, not {'x': '1', 'y': 2}"),
        ({"do": "Click", "point": {"x": True, "y": 2}}, "{x, y} in finite numbers, not {'x': True, 'y': 2}"),
        ({"do": "Scroll", "point": None, "direction": "in"}, "one of up, down, left, right, not 'in'"),
        ({"do": "Scroll", "point": None, "direction": {}}, "one of up, down, left, right, not {}"),
        ({"do": "Hotkey", "keys": "ctrl"}, "actions[0].keys: must be a list of texts, not 'ctrl'"),
        ({"do": "Hotkey", "keys": [1]}, "actions[0].keys: must be a list of texts, not [1]"),
        ({"do": "Type", "text": 3, "submit": False}, "actions[0].text: must be a text, not 3"),
        ({"do": "Type", "text": "3", "submit": 0}, "actions[0].submit: must be true or false, not 0"),
    ],
)  # fmt: skip
def test_a_bad_action_is_refused_with_its_path(action, reason):
    assert refusal(wire.actions_from_json, [action]).endswith(reason)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_coordinate_is_a_finite_number(number):
    body = wire.read_json(b'[{"do": "Hover", "point": {"x": %s, "y": 1}}]' % number.encode(), "step")
    assert "finite numbers" in refusal(wire.actions_from_json, body)


def test_the_index_of_a_bad_action_is_reported():
    sent = wire.actions_to_json((Scroll(point=None, direction=Direction.UP), Hotkey(keys=("a",))))
    sent[1]["keys"] = None
    assert refusal(wire.actions_from_json, sent) == "actions[1].keys: must be a list of texts, not None"
    assert refusal(wire.actions_from_json, {}) == "actions: must be a list, not {}"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": 3}, "task.id: must be a string, not 3"),
        ({"config": {}}, "task.config: must be a list, not {}"),
        ({"config": [{}, "rm"]}, "task.config[1]: must be an object, not 'rm'"),
        ({"evaluator": []}, "task.evaluator: must be an object, not []"),
        ({"related_apps": [None]}, "task.related_apps: must be a string, not None"),
        ({"proxy": True}, "task: unknown key 'proxy'; the keys are: id, instruction, snapshot"),
    ],
)
def test_a_bad_task_is_refused_with_its_path(change, reason):
    assert refusal(wire.task_from_json, over(wire.task_to_json(task("a"))) | change).startswith(reason)


def test_a_task_without_a_key_is_refused():
    sent = wire.task_to_json(task("a"))
    del sent["domain"]
    assert refusal(wire.task_from_json, sent) == "task: key 'domain' is missing"
    assert refusal(wire.task_from_json, None) == "task: must be an object, not None"


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_a_body_that_is_not_json_is_refused(body):
    assert refusal(wire.read_json, body).startswith("the body is not JSON: ")


def test_a_solution_is_not_sent():
    solved = replace(task("a"), solution=("click(start_box='(1,2)')",))
    assert wire.task_from_json(over(wire.task_to_json(solved)), "start") == task("a")
    assert "solution" not in wire.task_to_json(solved)


def test_a_fault_keeps_its_class_call_message_and_place():
    for fault in (
        EnvTimeout("step", "no answer within 3 s"),
        EnvError("start", "é\n", "my_env.py:14"),
        NoFreeSlot("start", ""),
    ):
        back = wire.fault_from_json(over(wire.fault_to_json(fault)), "evaluate")
        assert (type(back), back.where, back.message) == (type(fault), fault.where, fault.message)
        assert back.place == fault.place
    assert wire.status_of(EnvTimeout("step", "")) == 504
    assert wire.status_of(NoSuchEpisode("step", "")) == 404


def test_an_unknown_fault_class_becomes_its_nearest_known_base():
    class NoDisplay(EnvTimeout): ...

    assert wire.fault_to_json(NoDisplay("start", "dark"))["kind"] == "EnvTimeout"
    stranger = {"kind": "ModuleNotFoundError", "where": "start", "message": "m"}
    assert type(wire.fault_from_json(stranger, "start")) is EnvError
    assert "key 'where' is missing" in refusal(wire.fault_from_json, {"kind": "EnvError"})
    assert "must be a string" in refusal(wire.fault_from_json, stranger | {"kind": 3})


def test_health():
    health = Health(env="desk", screen=(224, 168), slots=8, free=3, version="0.1.0")
    assert wire.health_from_json(over(wire.health_to_json(health)), "start") == health
    for change in ({"free": "3"}, {"slots": True}, {"screen": [1]}, {"screen": [1, "2"]}, {"more": 1}):
        assert "health" in refusal(wire.health_from_json, wire.health_to_json(health) | change)


def test_only_screen_sizes_set_by_the_recipe_are_compared():
    assert wire.configured_screen(EnvConfig(name="osworld", width=1920, height=1080)) == (1920, 1080)
    assert wire.configured_screen(EnvConfig(name="mine:Mine")) is None


def test_a_token_is_long_and_printable():
    assert wire.read_token({}) is None
    assert wire.read_token({"ARPO_HOST_TOKEN": "0123456789abcdef"}) == "0123456789abcdef"
    for bad in ("", "short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdef\n", "é" * 16):
        with pytest.raises(UserError, match="ARPO_HOST_TOKEN: must be at least 16 ASCII characters"):
            wire.read_token({"ARPO_HOST_TOKEN": bad})
