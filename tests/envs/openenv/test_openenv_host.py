"""`arpo env-host --openenv` over plain WebSockets, and with the client of this package."""

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import pytest

from arpo.actions import (
    Click,
    Direction,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Point,
    Scroll,
    Type,
    Wait,
)
from arpo.config import EnvConfig
from arpo.dialects.ui_tars import parse_solution
from arpo.envs.check import check_env
from arpo.envs.host import hosting
from arpo.envs.openenv.env import OpenEnvs
from arpo.envs.openenv.host import OpenEnvHost, read_action
from arpo.envs.openenv.server import openenv_tasks
from arpo.envs.remote import parse_hosts
from arpo.envs.wire import BadRequest
from arpo.errors import UserError
from arpo.testing import FakeEnv, failing, hanging, screenshot, task
from env_hosts import ANY_PORT, FAKE, until
from openenv_server import TOKEN, own_mapping

TASKS = [task("a", "do a"), task("b", "do b"), task("c", "do c")]
SPLITS = {"train": TASKS[:2], "heldout": TASKS[2:], "empty": []}
WAIT, FINISHED = {"action": "Wait"}, {"action": "Finished"}


class Made:
    """A factory with a list of its environments. Their score is 0.5 after a click."""

    def __init__(self, **arguments):
        self.envs = []
        self.arguments = {"score": lambda actions: 0.5 * (Click(point=Point(3, 4)) in actions), **arguments}

    def __call__(self):
        self.envs.append(FakeEnv(**self.arguments))
        return self.envs[-1]


@asynccontextmanager
async def served(factory, token=None, lease_seconds=60.0, max_steps=4, **settings):
    config = EnvConfig(**{"name": FAKE, "parallel": 2, **settings})
    make_host = partial(OpenEnvHost, splits=SPLITS, max_steps=max_steps)
    serving = hosting(
        factory, config, token=token, listen=ANY_PORT, lease_seconds=lease_seconds, make_host=make_host
    )
    async with serving as address, aiohttp.ClientSession() as session:
        yield Caller(session, address)


class Caller:
    def __init__(self, session, address):
        self.session, self.address = session, address

    @asynccontextmanager
    async def open(self, **more):
        async with self.session.ws_connect(f"{self.address}/ws", **more) as channel:
            yield channel

    async def get(self, path, body=None):
        method = "GET" if body is None else "POST"
        async with self.session.request(method, self.address + path, json=body) as answer:
            return answer.status, await answer.json()


async def ask(channel, kind, **data):
    await channel.send_json({"type": kind, "data": data} if kind != "state" else {"type": kind})
    answer = json.loads((await channel.receive(10)).data)
    return answer["data"]


def run(test, factory=None, **settings):
    async def play():
        made = factory or Made()
        async with served(made, **settings) as caller:
            await test(caller, made)
        return made

    return asyncio.run(play())


def test_a_session_plays_one_episode_after_the_other_in_its_slot():
    async def test(caller, made):
        async with caller.open() as channel:
            first = await ask(channel, "reset", split="heldout", index=0)
            assert first["observation"] == {
                "screenshot": base64.b64encode(screenshot(0).png).decode(),
                "instruction": "do c",
                "metadata": {"task_id": "c"},
            }
            assert (first["reward"], first["done"]) == (None, False)
            clicked = await ask(channel, "step", action="Click", x=3, y=4, metadata={})
            assert (clicked["reward"], clicked["done"]) == (0.0, False)
            assert (await ask(channel, "state"))["step_count"] == 1
            ended = await ask(channel, "step", **FINISHED)
            assert (ended["reward"], ended["done"]) == (0.5, True)
            assert "the episode is done: send a reset" in (await ask(channel, "step", **WAIT))["message"]

            again = await ask(channel, "reset", seed=5)
            assert again["observation"]["metadata"] == {"task_id": "b"}
            results = [await ask(channel, "step", **WAIT) for _ in range(4)]
            assert [(one["reward"], one["done"]) for one in results] == [(0.0, False)] * 3 + [(0.0, True)]

    made = run(test)
    assert [env.calls[-1] for env in made.envs] == ["close", "close"]


def test_an_environment_may_end_the_episode():
    async def test(caller, made):
        async with caller.open() as channel:
            await ask(channel, "reset")
            assert (await ask(channel, "step", **WAIT))["done"]

    run(test, Made(ends_after=1))


def test_the_tasks_of_the_recipe_are_splits():
    async def test(caller, made):
        assert await caller.get("/list_environments") == (200, ["FakeEnv"])
        assert (await caller.get("/fakeenv/splits"))[1] == [
            {"name": "train", "type": "train"},
            {"name": "heldout", "type": "test"},
        ]
        b = {"id": "b", "index": 1, "instruction": "do b", "domain": ""}
        assert (await caller.get("/FakeEnv/tasks", {"split": "train"}))[1]["tasks"][1] == b
        assert (await caller.get("/FakeEnv/num_tasks", {"split": "train"}))[1] == {"num_tasks": 2}
        assert (await caller.get("/FakeEnv/task", {"split": "train", "index": 1}))[1] == {"task": b}
        assert (await caller.get("/FakeEnv/task_range", {"split": "train", "start": 1}))[1] == {"tasks": [b]}
        assert (await caller.get("/other/splits"))[0] == 404
        status, fault = await caller.get("/FakeEnv/task", {"split": "train", "index": 2})
        assert (status, fault["message"]) == (400, "index: is 2, must be 0 to 1")
        status, fault = await caller.get("/FakeEnv/tasks", {"split": "empty"})
        assert (status, fault["message"]) == (400, "split: is 'empty', must be one of train, heldout")
        assert (await caller.get("/health"))[1] == {"status": "healthy"}

    run(test)


BAD = {
    "no JSON": ("{", "INVALID_JSON", "not JSON"),
    "type": ('{"type": "jump"}', "UNKNOWN_TYPE", "must be reset, step, state or close"),
    "no object": ("[]", "UNKNOWN_TYPE", "must be reset"),
    "data": ('{"type": "reset", "data": 3}', "VALIDATION_ERROR", "data: must be an object"),
    "split": (
        '{"type": "reset", "data": {"split": "x"}}',
        "VALIDATION_ERROR",
        "must be one of train, heldout",
    ),
    "index": ('{"type": "reset", "data": {"index": -1}}', "VALIDATION_ERROR", "index: is -1, must be 0 to 1"),
    "step first": ('{"type": "step", "data": {"action": "Wait"}}', "EXECUTION_ERROR", "has not started"),
    "action": (
        '{"type": "step", "data": {"action": "Jump"}}',
        "VALIDATION_ERROR",
        "action: is 'Jump', must be",
    ),
}


def test_a_bad_message_is_one_error_and_the_session_goes_on():
    async def test(caller, made):
        async with caller.open() as channel:
            for text, code, message in BAD.values():
                await channel.send_str(text)
                answer = json.loads((await channel.receive(10)).data)
                assert (answer["type"], answer["data"]["code"]) == ("error", code)
                assert message in answer["data"]["message"]
            assert "observation" in await ask(channel, "reset")

    run(test)


def test_a_full_host_says_so_and_a_closed_session_frees_its_slot():
    async def test(caller, made):
        async with caller.open() as one, caller.open() as two:
            await ask(one, "reset")
            await ask(two, "reset")
            async with caller.open() as three:
                answer = json.loads((await three.receive(10)).data)
                assert answer["data"]["code"] == "CAPACITY_REACHED"
            await one.send_json({"type": "close"})
            assert (await one.receive(10)).type is aiohttp.WSMsgType.CLOSE
            async with caller.open() as four:
                assert "observation" in await ask(four, "reset")

    made = run(test)
    assert all(env.calls[-1] == "close" for env in made.envs)


def test_a_caller_that_disconnects_during_a_call_frees_its_slot():
    async def test(caller, made):
        async with caller.open() as channel:
            await channel.send_json({"type": "reset", "data": {}})
            await until(lambda: bool(made.envs))
        await until(lambda: "close" in made.envs[0].calls)

    made = Made()
    run(lambda caller, _: test(caller, made), hanging(made, "start", 1))


def test_an_idle_session_expires():
    async def test(caller, made):
        async with caller.open() as channel:
            await ask(channel, "reset")
            assert (await channel.receive(10)).type is aiohttp.WSMsgType.CLOSE
        assert made.envs[0].calls[-1] == "close"

    run(test, lease_seconds=0.05)


@pytest.mark.parametrize(
    ("make", "message"), [(failing, "start: RuntimeError: chaos"), (hanging, "no answer within 0.2 s")]
)
def test_a_fault_of_the_environment_is_an_error_of_the_session(make, message):
    async def test(caller, made):
        async with caller.open() as channel:
            answer = await ask(channel, "reset")
            assert message in answer["message"]
            assert answer["code"] == "EXECUTION_ERROR"

    run(test, make(FakeEnv, "start", 1), start_seconds=0.2)


def test_only_a_caller_with_the_token_may_connect():
    async def test(caller, made):
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with caller.open(headers=headers):
                    pass
            assert refused.value.status == 401
        assert (await caller.get("/schema"))[0] == 401
        async with caller.open(headers={"Authorization": f"Bearer {TOKEN}"}) as channel:
            assert "observation" in await ask(channel, "reset")

    run(test, token=TOKEN)


def test_a_web_page_may_not_connect_without_a_token():
    async def test(caller, made):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with caller.open(headers={"Origin": "http://127.0.0.1:8000"}):
                pass
        assert refused.value.status == 401

    run(test)


@pytest.mark.parametrize(
    ("data", "action"),
    [
        ({"action": "Click", "x": 3, "y": 4.5}, Click(point=Point(3, 4.5))),
        (
            {"action": "Drag", "x": 1, "y": 2, "end_x": 3, "end_y": 4},
            Drag(start=Point(1, 2), end=Point(3, 4)),
        ),
        ({"action": "Scroll", "direction": "up"}, Scroll(point=None, direction=Direction.UP)),
        (
            {"action": "Scroll", "direction": "up", "x": 1, "y": 2, "amount": 3},
            Scroll(point=Point(1, 2), direction=Direction.UP, amount=3),
        ),
        ({"action": "Hotkey", "key": "ctrl+c"}, Hotkey(keys=("ctrl", "c"))),
        ({"action": "Hotkey", "key": "ctrl++"}, Hotkey(keys=("ctrl", "+"))),
        ({"action": "Hotkey", "keys": ["Control", "A"], "x": None}, Hotkey(keys=("ctrl", "a"))),
        ({"action": "Type", "text": "a"}, Type(text="a")),
        ({"action": "Wait", "seconds": 2}, Wait(seconds=2)),
        ({"action": "Finished"}, Finished()),
        ({"action": "Fail"}, Fail()),
    ],
)
def test_an_action_has_flat_fields(data, action):
    assert read_action(data, (56, 56)) == action


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "action: is 'None', must be one of Click, "),
        ({"action": "Click"}, "its keys must be do, point"),
        ({"action": "Click", "x": 3}, "action.point: must be {x, y} in finite numbers"),
        ({"action": "Click", "x": 3, "y": 4, "text": "a"}, "text: no field of Click; its fields are: x, y"),
        ({"action": "Scroll", "direction": "in"}, "action.direction: must be one of up, down, left, right"),
        ({"action": "Type", "text": 3}, "action.text: must be a text, not 3"),
        ({"action": "Click", "x": 56, "y": 4}, "the point (56, 4) is outside the screen of 56x56 pixels"),
        ({"action": "Wait", "seconds": 300}, "waits for 300 seconds in all, at most 30"),
        ({"action": "KeyDown", "key": "hyper"}, "KeyDown: unknown key 'hyper'"),
    ],
)
def test_a_wrong_action_is_refused_with_its_field(data, message):
    with pytest.raises(BadRequest) as refused:
        read_action(data, (56, 56))
    assert message in str(refused.value)


def test_the_client_of_this_package_plays_on_the_host(tmp_path):
    """Every action is written and read with the same fields, and both agree with /schema."""
    file = tmp_path / "arpo.toml"
    file.write_text(own_mapping())

    async def test(caller, made):
        factory = await asyncio.to_thread(OpenEnvs, f"openenv:{caller.address}#{file}")
        tasks = await asyncio.to_thread(openenv_tasks, f"openenv:{caller.address}#train")
        assert [one.instruction for one in tasks] == ["do a", "do b"]
        checks = await check_env(factory, tasks, EnvConfig(name=FAKE))
        assert [str(check) for check in checks if not check.ok] == []
        made.envs.clear()
        env = factory()
        await env.start(tasks[0])
        actions = [*parse_solution(["click(start_box='(3,4)')", "hotkey(key='ctrl c')"]), (Finished(),)]
        for one in actions:
            await env.step(one)
        assert await env.evaluate() == 0.5
        await env.close()
        assert made.envs[0].steps == actions

    run(test, max_steps=1000, parallel=8)


def test_a_run_that_expects_the_other_protocol_says_so():
    async def test(caller, made):
        hosts = parse_hosts(EnvConfig(name=FAKE, hosts=caller.address))
        with pytest.raises(UserError, match="speaks OpenEnv: start its `arpo env-host` without --openenv"):
            async with hosts.lease():
                pass

    run(test)
