"""Episodes of OpenEnv servers that follow the protocol, and of servers that do not."""

import asyncio
import logging
import socket
import threading
from dataclasses import replace

import pytest

from arpo.actions import Click, Finished, Hotkey, Hover, Point, Wait
from arpo.cli import main
from arpo.config import Config, EnvConfig
from arpo.envs.factory import env_source, plays_desk, resolve_env
from arpo.envs.openenv.env import OpenEnvs
from arpo.errors import EnvError, UserError
from arpo.png import rgb
from arpo.testing import screenshot, task
from openenv_server import GOOD, PNG, SCHEMA, scripted

MAPPING = 'screenshot = "screen.png"\ngoal = "goal"\n[actions]\nClick = { kind = "click", x = "{x}" }\n'
CLICK = (Click(point=Point(7, 1)),)
TASK = task("a")


@pytest.fixture
def mapping(tmp_path):
    file = tmp_path / "m.toml"
    file.write_text(MAPPING)
    return file


def played(name, a_task=TASK, actions=CLICK):
    """The first observation, the result of a step and the score."""

    async def play():
        env = resolve_env(Config(env=EnvConfig(name=name)))()
        try:
            return await env.start(a_task), await env.step(actions), await env.evaluate()
        finally:
            await env.close()
            await env.close()

    return asyncio.run(play())


def with_observation(**fields):
    return {**GOOD, "observation": {**GOOD["observation"], **fields}}


def test_an_episode_resets_with_the_parameters_of_its_task_and_scores_the_last_reward(mapping):
    config = ({"type": "reset", "parameters": {"split": "train", "index": 3}},)
    with scripted(GOOD, {**GOOD, "reward": 0.25}, {**GOOD, "reward": 0.75, "done": True}) as (url, received):
        name = f"openenv:{url}/#{mapping}"
        a_task = replace(task("a"), config=config)
        first, result, score = played(name, a_task=a_task, actions=(*CLICK, *CLICK, *CLICK, Finished()))
    assert (first.screenshot, first.instruction) == (screenshot(1), "Win")
    assert (result.terminated, score) == (True, 0.75)
    click = {"type": "step", "data": {"kind": "click", "x": 7}}
    assert received == [
        {"type": "reset", "data": {"split": "train", "index": 3}},
        click,
        click,
        {"type": "close"},
    ]
    assert env_source(name) == MAPPING
    assert not plays_desk(EnvConfig(name=name))


@pytest.mark.parametrize(("reward", "score"), [(7.5, 1.0), (-3, 0.0), (True, 1.0), (None, 0.0)])
def test_a_reward_is_clipped_to_a_score(mapping, reward, score):
    with scripted(GOOD, {**GOOD, "reward": reward}) as (url, _):
        assert played(f"openenv:{url}#{mapping}")[2] == score


@pytest.mark.parametrize(
    ("rewards", "score"), [((0.25, 0.5, 0.0), 0.75), ((2, -1.5, None), 0.5), ((0.7, 0.7, -3), 0.0)]
)
def test_the_score_may_be_the_sum_of_all_rewards(mapping, rewards, score):
    mapping.write_text(f'score = "sum"\n{MAPPING}')
    with scripted(GOOD, *({**GOOD, "reward": reward} for reward in rewards)) as (url, _):
        assert played(f"openenv:{url}#{mapping}", actions=CLICK * 3)[2] == score


def test_actions_without_a_template_do_nothing_and_are_named_once(mapping, caplog):
    mapping.write_text(f'{MAPPING}Scroll = {{ kind = "key" }}\n"Hotkey left" = {{ kind = "key" }}\n')
    with scripted(GOOD) as (url, received), caplog.at_level(logging.WARNING):
        hover = Hover(point=Point(1, 1))
        other = Hotkey(keys=("right",))
        _, result, _ = played(f"openenv:{url}#{mapping}", actions=(other, hover, Wait(), Finished()))
    assert not result.terminated
    assert [message["type"] for message in received] == ["reset", "close"]
    missing = (
        "Hotkey right, DoubleClick, RightClick, MiddleClick, TripleClick, Hover, LongPress, MouseDown, "
        "MouseUp, Drag, KeyDown, KeyUp, Type, OpenApp, PressHome, PressBack, GiveAnswer"
    )
    assert caplog.messages == [f"{mapping}: [actions] has no {missing}: such actions do nothing"]


def checked(url, mapping, tmp_path, capsys):
    """The exit code of check-env, and its findings."""
    tasks = tmp_path / "tasks.json"
    tasks.write_text('[{"id": "a", "instruction": "Win", "config": [], "evaluator": {}}]')
    code = main(["check-env", f"openenv:{url}#{mapping}", "--tasks", str(tasks)])
    return code, [line for line in capsys.readouterr().out.splitlines() if line.startswith(("FAIL", "warn"))]


def test_check_env_names_each_action_that_the_server_refuses(mapping, tmp_path, capsys):
    """Also one of a key that no other check presses."""
    mapping.write_text(f'{MAPPING}"Hotkey left" = {{ kind = "key", text = "9" }}\n')
    refusals = [
        {"type": "error", "data": {"message": "no such key: 9", "code": "EXECUTION_ERROR"}},
        {"type": "error", "data": {"message": "Invalid", "errors": [{"loc": ["x"], "msg": "too big"}]}},
    ]

    def answer(message):
        if message["type"] == "reset":
            return GOOD
        return refusals[0] if message["data"]["kind"] == "key" else refusals[1]

    with scripted(answer) as (url, _):
        code, findings = checked(url, mapping, tmp_path, capsys)
    remedy = "correct the template, or remove it"
    assert (code, findings[:2]) == (1, [
        f"FAIL  step: {mapping}: actions: Hotkey left: the server refuses {{'kind': 'key', 'text': '9'}}: "
        f"no such key: 9: {remedy} (at Hotkey(keys=('left',)))",
        f"FAIL  step: {mapping}: actions: Click: the server refuses {{'kind': 'click', 'x': 28}}: "
        f"Invalid: x: too big: {remedy} (at Click(point=Point(x=28, y=28)))",
    ])  # fmt: skip
    with scripted(GOOD) as (url, _):
        assert checked(url, mapping, tmp_path, capsys) == (0, [])


def test_a_server_without_task_lists_asks_for_a_task_file(mapping, capsys):
    """Older versions of OpenEnv have no /list_environments."""
    with scripted(GOOD) as (url, _):
        assert main(["check-env", f"openenv:{url}#{mapping}"]) == 2
        assert main(["check-env", f"openenv:{url}#{mapping}", "--tasks", f"openenv:{url}#train"]) == 2
    one, other = capsys.readouterr().err.splitlines()
    assert one == other
    assert f"{url}: has no task lists: set tasks.train or --tasks to a file tasks.json" in one


def test_a_server_gets_its_own_token_and_not_that_of_our_hosts(mapping, monkeypatch):
    monkeypatch.setenv("ARPO_OPENENV_TOKEN", "0123456789abcdef")
    with scripted(GOOD, token="0123456789abcdef") as (url, _):
        assert played(f"openenv:{url}#{mapping}")[2] == 0.0
        monkeypatch.delenv("ARPO_OPENENV_TOKEN")
        monkeypatch.setenv("ARPO_HOST_TOKEN", "0123456789abcdef")
        with pytest.raises(UserError, match="/schema: answered with status 401: set ARPO_OPENENV_TOKEN"):
            played(f"openenv:{url}#{mapping}")


ROWS = [[[0, 0, 0]] * 8 + [[255, 128, 0]] * 8] * 8


@pytest.mark.parametrize(
    ("pixels", "shape", "colour"),
    [
        (ROWS, None, (255, 128, 0)),
        ([value for row in ROWS for pixel in row for value in pixel], [8, 16, 3], (255, 128, 0)),
        ([[0] * 8 + [9] * 8] * 8, None, (9, 9, 9)),
    ],
)
def test_a_screenshot_may_be_an_array_of_pixels(mapping, pixels, shape, colour):
    mapping.write_text('screenshot = "s.pixels"\n' + ('shape = "s.shape"\n' if shape else "") + MAPPING[26:])
    schema = {**SCHEMA, "observation": {"properties": {"s": {"type": "object"}, "goal": {"type": "string"}}}}
    with scripted(with_observation(s={"pixels": pixels, "shape": shape}), schema=schema) as (url, _):
        first, _, _ = played(f"openenv:{url}#{mapping}")
    image = rgb(first.screenshot)
    assert (image.size, image.getpixel((15, 7)), image.getpixel((0, 0))) == ((16, 8), colour, (0, 0, 0))


LIES = {
    "screenshot missing": ({**GOOD, "observation": {"goal": "Win"}}, "start: observation.screen: is missing"),
    "no observation": (
        {"reward": 1.0},
        "observation.screen: is missing, although the server's /schema allows",
    ),
    "wrong type": (
        with_observation(screen={"png": 3}),
        "observation.screen.png: is 3, must be a base64 PNG or",
    ),
    "null": (with_observation(screen={"png": None}), "observation.screen.png: is None, must be"),
    "not base64": (with_observation(screen={"png": "ä"}), "observation.screen.png: "),
    "not a PNG": (
        with_observation(screen={"png": "AAAA"}),
        "observation.screen.png: the screenshot is not a PNG",
    ),
    "damaged": (
        with_observation(screen={"png": PNG[:-8]}),
        "observation.screen.png: the screenshot is a damaged",
    ),
    "ragged": (
        with_observation(screen={"png": [[1, 2], [3]]}),
        "png: is an array with rows of different length",
    ),
    "flat": (
        with_observation(screen={"png": [1, 2]}),
        "png: is an array of shape [2], must be [height, width, 3]",
    ),
    "values": (
        with_observation(screen={"png": [[256] * 9] * 9}),
        "other values than whole numbers of 0 to 255",
    ),
    "size": (with_observation(screen={"png": [[1] * 3] * 9}), "png: is 3x9, must have sides of 8 to 16,383"),
    "goal": (with_observation(goal=None), "start: observation.goal: is None, must be the goal as text"),
    "reward": ({**GOOD, "reward": "high"}, "start: reward: is 'high', must be a finite number"),
    "done": ({**GOOD, "done": "no"}, "start: done: is 'no', must be true or false"),
    "no JSON": ("{", "the answer is not JSON: '{'"),
    "no object": ("[1]", "the answer has the type 'None', not 'observation'"),
    "type": ({"type": "state", "data": {}}, "the answer has the type 'state', not 'observation'"),
    "error": (
        {"type": "error", "data": {"message": "no such task", "code": "EXECUTION_ERROR"}},
        "no such task",
    ),
    "refused": (
        {
            "type": "error",
            "data": {"message": "Invalid message", "errors": [{"loc": ["x"], "msg": "too big"}]},
        },
        "Invalid message: x: too big",
    ),
    "closed": (None, "the server has closed the session"),
}


@pytest.mark.parametrize(("answer", "message"), LIES.values(), ids=LIES)
def test_a_server_that_lies_is_one_error_with_the_field(mapping, answer, message):
    with scripted(answer) as (url, _), pytest.raises(EnvError) as fault:
        played(f"openenv:{url}#{mapping}")
    assert message in str(fault.value)


def test_a_lie_in_a_step_is_an_error_of_the_step(mapping):
    missing = pytest.raises(EnvError, match=r"step: observation\.screen: is missing")
    with scripted(GOOD, {"observation": {}}) as (url, _), missing:
        played(f"openenv:{url}#{mapping}")


def test_a_set_up_step_of_another_environment_is_refused(mapping):
    a_task = replace(task("a"), config=({"type": "open", "parameters": {}},))
    with (
        scripted(GOOD) as (url, _),
        pytest.raises(EnvError, match="cannot run the setup step of type 'open'"),
    ):
        played(f"openenv:{url}#{mapping}", a_task=a_task)


def test_without_a_mapping_the_error_lists_the_fields(mapping):
    with (
        scripted(GOOD) as (url, _),
        pytest.raises(
            UserError, match=r"add a mapping file: .* fields screen, goal, .*; the action kind, x, text"
        ),
    ):
        OpenEnvs(f"openenv:{url}")


@pytest.mark.parametrize(
    ("schema", "message"),
    [([], "'action' is missing: not an OpenEnv server"), ({"action": {}}, "'observation' is missing")],
)
def test_a_server_without_a_schema_is_no_openenv_server(mapping, schema, message):
    with scripted(GOOD, schema=schema) as (url, _), pytest.raises(UserError, match=f"/schema: {message}"):
        OpenEnvs(f"openenv:{url}#{mapping}")


LYING_SCHEMAS = {
    "properties": ({"properties": None}, "observation.properties: is None, must be an object"),
    "list": ({"properties": ["screen"]}, "observation.properties: is ['screen'], must be an object"),
    "definitions": ({"$defs": None}, "observation.$defs: is None, must be an object"),
    "enum": ({"properties": {"a": {"enum": 5}}}, "observation.properties.a.enum: is 5, must be a list"),
    "required": ({"anyOf": [{"required": [[]]}]}, "anyOf[0].required: is [[]], must be a list of texts"),
    "type": ({"items": {"type": 3}}, "observation.items.type: is 3, must be a text or a list of texts"),
    "reference": ({"$ref": 3}, "observation.$ref: is 3, must be a text"),
}


@pytest.mark.parametrize(("part", "message"), LYING_SCHEMAS.values(), ids=LYING_SCHEMAS)
def test_a_part_of_a_schema_that_is_none_is_named(mapping, part, message):
    schema = {**SCHEMA, "observation": part}
    with scripted(GOOD, schema=schema) as (url, _), pytest.raises(UserError) as fault:
        OpenEnvs(f"openenv:{url}#{mapping}")
    assert message in str(fault.value)


def test_a_field_may_have_several_types(mapping):
    goal = {"type": ["string", "null"]}
    kind = {"type": ["string", "integer"], "enum": ["click"]}
    fields = {**SCHEMA["observation"]["properties"], "goal": goal}
    schema = {
        "observation": {**SCHEMA["observation"], "properties": fields},
        "action": {"properties": {"kind": kind, "x": {"type": ["integer", "null"]}}},
    }
    with scripted(GOOD, schema=schema) as (url, _):
        OpenEnvs(f"openenv:{url}#{mapping}")
        mapping.write_text(MAPPING.replace('"{x}"', '"left"'))
        with pytest.raises(UserError, match="is 'left', must be of type integer"):
            OpenEnvs(f"openenv:{url}#{mapping}")


@pytest.mark.parametrize("sent", [b"SSH-2.0-OpenSSH_9.6\r\n", b"[" * 200_000])
def test_a_server_of_another_kind_is_a_user_error(mapping, sent):
    def answer(listener):
        with listener.accept()[0] as connection:
            connection.recv(4096)
            if sent.startswith(b"["):
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            connection.sendall(sent)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer, args=[listener])
        answering.start()
        with pytest.raises(UserError, match=r"/schema: .*: start the OpenEnv server, or correct the address"):
            OpenEnvs(f"openenv:http://127.0.0.1:{listener.getsockname()[1]}#{mapping}")
        answering.join()


def test_a_redirect_is_not_followed(mapping):
    refused = pytest.raises(UserError, match="/schema: answered with status 302")
    with scripted(GOOD) as (other, _), scripted(GOOD, schema=f"{other}/schema") as (url, _), refused:
        OpenEnvs(f"openenv:{url}#{mapping}")


def test_a_wrong_address_is_a_user_error(mapping):
    with pytest.raises(UserError, match="refused: start the OpenEnv server, or correct the address"):
        OpenEnvs(f"openenv:http://127.0.0.1:9#{mapping}")
    with pytest.raises(UserError, match=r"80O0.*correct the address"):
        OpenEnvs(f"openenv:http://127.0.0.1:80O0#{mapping}")
    with pytest.raises(UserError, match="must be openenv:http://HOST:PORT#"):
        OpenEnvs("openenv:localhost:8000#m.toml")
