"""The environment host over plain HTTP, and the command `arpo env-host`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from hashlib import sha256

import aiohttp
import pytest
from yarl import URL

from arpo import __version__
from arpo.actions import Click, Point, Wait
from arpo.cli.entry_point import main
from arpo.config import EnvConfig
from arpo.envs import wire
from arpo.envs.host import hosting
from arpo.envs.listen import Listen
from arpo.errors import UserError
from arpo.testing import FakeEnv, failing, hanging, lying, screenshot, task
from env_hosts import FAKE, HostCommand, hosted, until

TASK = {"task": wire.task_to_json(task("t"))}
WAIT = {"actions": wire.actions_to_json((Wait(),))}
TOKEN = "0123456789abcdef"


def config(**changes):
    return EnvConfig(**{"name": FAKE, "parallel": 2, **changes})


class Made:
    """A factory with a list of its environments."""

    def __init__(self, **arguments):
        self.envs = []
        self.arguments = arguments

    def __call__(self):
        self.envs.append(FakeEnv(**self.arguments))
        return self.envs[-1]


class Caller:
    """Sends plain HTTP requests; returns status, headers and body, with JSON parsed."""

    def __init__(self, session, address):
        self.session, self.address = session, address

    async def __call__(self, method, path, body=None, **more):
        more = {"json": body} | more if body is not None else more
        async with self.session.request(method, self.address + path, **more) as answer:
            content = await answer.read()
            is_json = answer.content_type == "application/json"
            return answer.status, answer.headers, json.loads(content) if is_json else content

    async def post(self, path, body=None):
        return await self("POST", path, {} if body is None else body)

    async def episode(self, body=TASK):
        """Take a slot and start; returns the path of the episode."""
        status, headers, _ = await self.post("/episodes")
        assert status == 201
        path = f"/episodes/{headers[wire.EPISODE]}"
        assert (await self.post(f"{path}/start", body))[0] == 200
        return path

    async def free(self):
        return (await self("GET", "/health"))[2]["free"]


@asynccontextmanager
async def calling(factory=FakeEnv, token=None, lease_seconds=60.0, **settings):
    async with (
        hosted(factory, config(**settings), token, lease_seconds=lease_seconds) as address,
        aiohttp.ClientSession() as session,
    ):
        yield Caller(session, address)


def test_a_complete_episode():
    made = Made(score=lambda actions: 0.25, ends_after=2)

    async def play():
        async with calling(made) as call:
            assert (await call("GET", "/health"))[2] == {
                "env": FAKE, "screen": None, "slots": 2, "free": 2, "version": __version__
            }  # fmt: skip
            status, headers, _ = await call.post("/episodes")
            path = f"/episodes/{headers['Arpo-Episode']}"
            assert status == 201 and await call.free() == 1
            status, headers, png = await call.post(f"{path}/start", TASK)
            assert (status, headers["Content-Type"], png) == (200, "image/png", screenshot(0).png)
            assert headers["ETag"] == f'"{sha256(png).hexdigest()}"'
            click = wire.actions_to_json((Click(point=Point(3, 4)), Wait()))
            status, headers, png = await call.post(f"{path}/step", {"actions": click})
            assert (status, headers["Arpo-Terminated"], png) == (200, "false", screenshot(1).png)
            assert (await call.post(f"{path}/step", WAIT))[1]["Arpo-Terminated"] == "true"
            assert (await call.post(f"{path}/evaluate"))[::2] == (200, {"score": 0.25})
            assert (await call("DELETE", path))[0] == 204
            assert await call.free() == 2
            assert (await call("DELETE", path))[0] == 404

    asyncio.run(play())
    assert made.envs[0].steps == [(Click(point=Point(3, 4)), Wait()), (Wait(),)]
    assert made.envs[0].calls == ["start", "step", "step", "evaluate", "close"]


def test_a_screenshot_is_sent_once_per_episode():
    class Still(FakeEnv):
        def _observe(self):
            self.steps = self.steps[:1]  # shows 0, then always 1
            return super()._observe()

    async def play():
        async with calling(Still) as call:
            path = await call.episode()
            answers = [await call.post(f"{path}/step", WAIT) for _ in range(3)]
            assert [(status, body) for status, _, body in answers] == [
                (200, screenshot(1).png),
                (204, b""),
                (204, b""),
            ]
            assert len({headers["ETag"] for _, headers, _ in answers}) == 1
            other = await call.episode()
            assert (await call.post(f"{other}/step", WAIT))[0] == 200

    asyncio.run(play())


def test_a_full_host_responds_503():
    async def play():
        async with calling(parallel=1) as call:
            path = await call.episode()
            status, headers, body = await call.post("/episodes")
            assert (status, headers["Retry-After"]) == (503, "1")
            assert body == {"kind": "NoFreeSlot", "where": "start", "message": "all 1 slots are in use"}
            await call("DELETE", path)
            assert (await call.post("/episodes"))[0] == 201

    asyncio.run(play())


@pytest.mark.parametrize("at", ["start", "step", "evaluate"])
def test_a_hanging_environment_is_closed_and_its_slot_freed(at):
    made = Made()
    short = {"start_seconds": 0.5, "step_seconds": 0.5, "evaluate_seconds": 0.5}

    async def play():
        async with calling(hanging(made, at, times=1), parallel=1, **short) as call:
            _, headers, _ = await call.post("/episodes")
            path = f"/episodes/{headers[wire.EPISODE]}"
            bodies = {"start": TASK, "step": WAIT, "evaluate": {}}
            for name in ("start", "step", "evaluate"):
                status, _, body = await call.post(f"{path}/{name}", bodies[name])
                if name == at:
                    break
            assert (status, body) == (
                504, {"kind": "EnvTimeout", "where": at, "message": "no answer within 0.5 s"}
            )  # fmt: skip
            assert (await call.post(f"{path}/step", WAIT))[0] == 404
            await call("DELETE", path)
            assert await call.free() == 1
            await call.episode()

    asyncio.run(play())
    assert made.envs[0].calls[-1] == "close"


def test_a_fault_is_reported_and_the_episode_continues():
    async def play():
        async with calling(failing(FakeEnv, "step", times=1)) as call:
            path = await call.episode()
            status, _, body = await call.post(f"{path}/step", WAIT)
            assert (status, body) == (
                500, {"kind": "EnvError", "where": "step", "message": "RuntimeError: chaos at step"}
            )  # fmt: skip
            assert (await call.post(f"{path}/step", WAIT))[0] == 200

    asyncio.run(play())


def test_an_invalid_score_is_reported_as_a_fault():
    async def play():
        async with calling(lying(FakeEnv, float("nan"))) as call:
            path = await call.episode()
            status, _, body = await call.post(f"{path}/evaluate")
            assert status == 500
            assert body["message"].startswith("returned nan, not a number in [0, 1]")

    asyncio.run(play())


def test_an_environment_that_fails_to_open_or_close_frees_its_slot():
    def none():
        raise OSError("no display")

    async def play():
        async with calling(none, parallel=1) as call:
            _, headers, _ = await call.post("/episodes")
            path = f"/episodes/{headers[wire.EPISODE]}"
            status, _, body = await call.post(f"{path}/start", TASK)
            assert (status, body["where"], body["message"]) == (500, "start", "OSError: no display")
            assert (await call("DELETE", path))[0] == 204 and await call.free() == 1
        async with calling(failing(FakeEnv, "close", times=1), parallel=1) as call:
            status, _, body = await call("DELETE", await call.episode())
            assert (status, body["where"], body["message"]) == (500, "close", "RuntimeError: chaos at close")
            assert await call.free() == 1

    asyncio.run(play())


def test_concurrent_calls_of_one_episode_are_refused():
    async def play():
        waits, go_on = asyncio.Event(), asyncio.Event()

        class Slow(FakeEnv):
            async def step(self, actions):
                waits.set()
                await go_on.wait()
                return await super().step(actions)

        async with calling(Slow) as call:
            path = await call.episode()
            first = asyncio.create_task(call.post(f"{path}/step", WAIT))
            await waits.wait()
            for name, body in (("step", WAIT), ("evaluate", {}), ("start", TASK)):
                status, _, answer = await call.post(f"{path}/{name}", body)
                assert (status, answer["kind"], answer["where"]) == (409, "OutOfTurn", name)
            go_on.set()
            assert (await first)[0] == 200
            assert (await call.post(f"{path}/evaluate"))[0] == 200

    asyncio.run(play())


def test_an_episode_can_be_closed_during_a_call():
    made = Made()

    async def play():
        async with calling(hanging(made, "step", times=1), parallel=1) as call:
            path = await call.episode()
            stuck = asyncio.create_task(call.post(f"{path}/step", WAIT))
            await asyncio.sleep(0.1)
            assert (await call("DELETE", path))[0] == 204
            status, _, body = await stuck
            assert (status, body["message"]) == (404, "the episode was closed during the call")
            assert await call.free() == 1

    asyncio.run(play())
    assert made.envs[0].calls == ["start", "close"]


def test_calls_out_of_order_are_refused():
    async def play():
        async with calling() as call:
            _, headers, _ = await call.post("/episodes")
            path = f"/episodes/{headers[wire.EPISODE]}"
            for name, body in (("step", WAIT), ("evaluate", {})):
                status, _, answer = await call.post(f"{path}/{name}", body)
                assert (status, answer["message"]) == (409, "the episode has not started")
            await call.post(f"{path}/start", TASK)
            status, _, answer = await call.post(f"{path}/start", TASK)
            assert (status, answer["message"]) == (409, "the episode has started already")

    asyncio.run(play())


def test_an_idle_episode_expires():
    made = Made()

    async def play():
        async with calling(made, parallel=1, lease_seconds=0.3) as call:
            path = await call.episode()
            await until(lambda: made.envs[0].calls[-1] == "close")
            status, _, body = await call.post(f"{path}/step", WAIT)
            assert (status, body["kind"]) == (404, "NoSuchEpisode")
            assert "expired after 0.3 s without a call" in body["message"]
            assert await call.free() == 1

    asyncio.run(play())


def test_an_episode_that_is_not_started_expires_sooner():
    async def play():
        async with calling(parallel=1, start_seconds=0.2, lease_seconds=999.0) as call:
            _, headers, _ = await call.post("/episodes")
            await asyncio.sleep(0.5)
            assert await call.free() == 1
            assert (await call.post(f"/episodes/{headers[wire.EPISODE]}/start", TASK))[0] == 404

    asyncio.run(play())


def test_an_episode_does_not_expire_during_a_call():
    class Slow(FakeEnv):
        async def step(self, actions):
            await asyncio.sleep(1.2)
            return await super().step(actions)

    async def play():
        async with calling(Slow, lease_seconds=0.6) as call:
            path = await call.episode()
            assert (await call.post(f"{path}/step", WAIT))[0] == 200

    asyncio.run(play())


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("start", b"", "the body is not JSON"),
        ("start", b"{", "the body is not JSON"),
        ("start", b"[" * 100_000, "the body is not JSON"),
        ("start", b"[]", "body: must be an object"),
        ("start", b"{}", "body: key 'task' is missing"),
        ("start", b'{"task": 3}', "task: must be an object"),
        ("start", b'{"task": {}, "seed": 1}', "body: unknown key 'seed'; the keys are: task"),
        ("step", b'{"actions": [{"do": "Reboot"}]}', "actions[0]: unknown action 'Reboot'"),
        ("step", b'{"actions": [{"do": "Wait", "x": 1}]}', "actions[0]: its keys"),
        ("evaluate", b'{"score": 1}', "body: unknown key 'score'"),
    ],
)
def test_a_request_outside_the_protocol_is_refused(path, body, reason):
    async def play():
        async with calling() as call:
            episode = await call.episode()
            headers = {"Content-Type": "application/json"}
            status, _, answer = await call("POST", f"{episode}/{path}", data=body, headers=headers)
            assert (status, answer["kind"], answer["where"]) == (400, "BadRequest", path)
            assert reason in answer["message"]
            assert (await call.post(f"{episode}/step", WAIT))[0] == 200

    asyncio.run(play())


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/episodes", 405),
        ("PUT", "/health", 405),
        ("POST", "/episodes/../health", 404),
        ("POST", "/episodes/..%2f..%2fetc%2fpasswd/step", 404),
        ("POST", "/episodes/../../etc/passwd/step", 404),
        ("POST", "/episodes/%00/step", 404),
        ("POST", "/episodes//step", 404),
        ("POST", "/episodes/" + "a" * 5000 + "/step", 404),
        ("DELETE", "/episodes/..", 404),
        ("DELETE", "/episodes/0123456789abcdef0123456789abcdef", 404),
    ],
)
def test_an_unknown_path_is_a_typed_error(method, path, status):
    async def play():
        async with calling() as call:
            body = json.dumps(WAIT)
            headers = {"Content-Type": "application/json"}
            url = URL(call.address + path, encoded=True)
            async with call.session.request(method, url, data=body, headers=headers) as answer:
                assert (answer.status, (await answer.json()).keys()) == (status, {"kind", "where", "message"})

    asyncio.run(play())


def test_a_body_that_is_too_large_or_not_json_is_refused(monkeypatch):
    monkeypatch.setattr(wire, "MAX_REQUEST_BYTES", 1000)

    async def play():
        async with calling() as call:
            path = await call.episode()
            long = {"actions": wire.actions_to_json((Wait(),) * 200)}
            status, _, answer = await call.post(f"{path}/step", long)
            assert (status, answer["kind"]) == (413, "BadRequest")
            status, _, answer = await call("POST", "/episodes", data=b"{}")
            assert (status, answer["message"]) == (
                400,
                "the body must be application/json, not application/octet-stream",
            )

    asyncio.run(play())


def test_bytes_that_are_not_http_do_no_harm():
    async def play():
        async with calling() as call:
            port = int(call.address.rpartition(":")[2])
            for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"\0" * 9000 + b"\r\n\r\n"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(junk)
                writer.write_eof()
                assert b"Traceback" not in await reader.read()
                writer.close()
            assert await call.free() == 2

    asyncio.run(play())


def test_an_internal_error_shows_no_traceback(monkeypatch):
    def broken(health):
        raise AssertionError("ours")

    monkeypatch.setattr(wire, "health_to_json", broken)

    async def play():
        async with calling() as call:
            status, _, answer = await call("GET", "/health")
            assert (status, answer) == (
                500, {"kind": "EnvError", "where": "host", "message": "AssertionError: ours"}
            )  # fmt: skip

    asyncio.run(play())


def test_requests_without_the_token_are_refused():
    async def play():
        async with calling(token=TOKEN) as call:
            wrong = (
                "",
                "Bearer",
                "Bearer 0123456789abcdeF",
                f"Basic {TOKEN}",
                f"Bearer {TOKEN}x",
                "Bearer é",
            )
            for path in ("/health", "/episodes", "/episodes/x/step", "/nowhere"):
                for shown in (None, *wrong):
                    headers = {} if shown is None else {"Authorization": shown}
                    status, _, answer = await call("POST", path, {}, headers=headers)
                    assert (status, answer["kind"]) == (401, "WrongToken")
            right = {"Authorization": f"Bearer {TOKEN}"}
            assert (await call("GET", "/health", headers=right))[0] == 200
            assert (await call("POST", "/episodes", {}, headers=right))[0] == 201

    asyncio.run(play())


def test_a_host_without_a_token_refuses_other_host_names():
    """DNS rebinding: a page can resolve its own name to this machine, but cannot change the Host header."""

    async def play():
        async with calling() as call:
            for name, status in {"evil.example:80": 401, "localhost:1": 200, "127.0.0.2": 200}.items():
                assert (await call("GET", "/health", headers={"Host": name}))[0] == status

    asyncio.run(play())


def test_stopping_the_host_closes_every_environment():
    made = Made()

    async def play():
        async with calling(hanging(made, "step", times=1)) as call:
            stuck = asyncio.create_task(call.post(f"{await call.episode()}/step", WAIT))
            await call.episode()
            await asyncio.sleep(0.1)
        with pytest.raises(aiohttp.ClientError):
            await stuck

    asyncio.run(play())
    assert [env.calls for env in made.envs] == [["start", "close"], ["start", "close"]]


def refusal(capsys, *words):
    assert main(["env-host", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    return line.removeprefix("arpo: error: ")


def test_user_errors_are_one_line(capsys, monkeypatch):
    monkeypatch.delenv("ARPO_HOST_TOKEN", raising=False)
    assert "set ARPO_HOST_TOKEN" in refusal(capsys, "--env", "desk", "--listen", "0.0.0.0:0")
    assert "not HOST:PORT" in refusal(capsys, "--listen", "8700")
    assert "env.parallel: is 0, must be >= 1" in refusal(capsys, "--slots", "0")
    assert "must be an integer" in refusal(capsys, "--slots", "many")
    assert "no_such_module" in refusal(capsys, "--env", "no_such_module:Env")
    assert "no such recipe" in refusal(capsys, "nowhere.toml")
    monkeypatch.setenv("ARPO_HOST_TOKEN", "short")
    assert "at least 16 ASCII characters" in refusal(capsys, "--env", "desk", "--listen", "127.0.0.1:0")


def test_a_port_in_use_is_reported():
    async def play():
        async with calling() as call:
            port = int(call.address.rpartition(":")[2])
            taken = Listen(host="127.0.0.1", port=port)
            with pytest.raises(UserError, match=rf"--listen 127.0.0.1:{port}: .*in use"):
                async with hosting(FakeEnv, config(), token=None, listen=taken):
                    pass

    asyncio.run(play())


FAREWELL = """
from arpo.testing import FakeEnv
class Polite(FakeEnv):
    async def close(self):
        open("closed", "a").write("x")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_every_environment_and_ends_the_command(tmp_path, monkeypatch, number):
    (tmp_path / "polite.py").write_text(FAREWELL)
    monkeypatch.chdir(tmp_path)
    command = HostCommand(tmp_path, "--env", "polite:Polite", "--slots", "3", "--listen", "127.0.0.1:0")

    async def begin_two():
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                await Caller(session, command.address).episode()

    asyncio.run(begin_two())
    code, said, complained = command.end(number)
    assert (code, complained) == (0, "")
    assert said == f"polite:Polite: 3 slots at {command.address}\n"
    assert (tmp_path / "closed").read_text() == "xx"


@pytest.mark.slow
def test_with_parent_it_exits_when_stdin_closes(tmp_path):
    words = ("--env", FAKE, "--listen", "127.0.0.1:0", "--with-parent")
    command = HostCommand(tmp_path, *words, stdin=subprocess.PIPE)
    assert command.process.stdin is not None
    command.process.stdin.write("not the end yet\n")
    command.process.stdin.flush()
    time.sleep(0.2)
    assert command.process.poll() is None
    command.process.stdin.close()
    assert command.process.wait(20) == 0


def test_it_needs_no_torch_no_rich_and_no_numpy(tmp_path):
    """Plays an episode in an interpreter without them."""
    code = (
        "import sys\n"
        "for name in ('torch', 'rich', 'transformers', 'numpy', 'tokenizers', 'safetensors'):\n"
        "    sys.modules[name] = None\n"
        "from arpo.cli.entry_point import main\n"
        f"sys.exit(main(['env-host', '--env', '{FAKE}', '--listen', '127.0.0.1:0', '--ready-file', 'ready']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        while not (tmp_path / "ready").exists():
            assert process.poll() is None
            time.sleep(0.02)
        address = json.loads((tmp_path / "ready").read_text())["address"]

        async def play():
            async with aiohttp.ClientSession() as session:
                await Caller(session, address).episode()

        asyncio.run(play())
    finally:
        os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 0
