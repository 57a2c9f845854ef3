"""Leasing environments from hosts: equal episodes, and recovery from lost hosts."""

import asyncio
import gc
import logging
import signal
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import replace
from functools import partial

import pytest
from aiohttp import web

from arpo.actions import Wait
from arpo.config import Config, EnvConfig, RolloutConfig
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs import remote, wire
from arpo.envs.check import check_env
from arpo.envs.desk.env import DeskEnv
from arpo.envs.factory import open_factory, open_pool
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.envs.remote import Hosts, LeaseOnStartEnv, RemoteHost, add_timeout_slack, parse_hosts
from arpo.errors import EnvError, Outage, UserError
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import Scheduler
from arpo.storage.run_folder import RunFolder
from arpo.tasks.lists import load_tasks
from arpo.testing import FakeEnv, failing, hanging, screenshot, task
from arpo.training.checkpoints import check_folder
from arpo.training.trainer import run_training
from arpo.types import Failure, Observation, Screenshot, StopReason, Trajectory
from desks import solution
from env_hosts import FAKE, HostCommand, hosted, hosts_at
from players import CLICK, DONE, RENDERER, TEMPLATE, WAIT, scripted
from pngs import bomb, corrupt, plain
from verdicts import A, B, small_config

TASK = task("t")
DESK = EnvConfig(name="desk", parallel=2)
TOKEN = "0123456789abcdef"


def config(**changes):
    return EnvConfig(**{"name": FAKE, "parallel": 4, "attempts": 1, "quarantine_after": 99, **changes})


def verdict(score):
    return Trajectory(
        episode_id="e",
        task_id="t",
        turns=(),
        final=screenshot(0),
        score=score,
        malformed=False,
        stop=StopReason.FINISHED,
    )


async def episode(env):
    await env.start(TASK)
    await env.step((Wait(),))
    return verdict(await env.evaluate())


async def free(address):
    async with remote.open_session() as session, session.get(f"{address}/health") as answer:
        return (await answer.json())["free"]


async def seen(env, played):
    """The screenshots of an episode and its score."""
    shown = [(await env.start(played)).screenshot]
    for _, action in solution(played):
        shown.append((await env.step((action,))).observation.screenshot)
    score = await env.evaluate()
    await env.close()
    return shown, score


@pytest.mark.slow
def test_desk_on_a_host_behaves_like_local_desk(tmp_path):
    tasks = load_tasks("desk:32")[::4]
    command = HostCommand(tmp_path, "--env", "desk", "--slots", "2", "--listen", "127.0.0.1:0")

    async def play(played):
        here = await seen(DeskEnv(), played)
        async with hosts_at(DESK, command.address).lease() as env:
            assert await seen(env, played) == here
        return here

    try:
        outcomes = [asyncio.run(play(played)) for played in tasks]
        assert [score for _, score in outcomes] == [1.0] * 8
        assert len({shot.sha256 for shown, _ in outcomes for shot in shown}) > 12
        assert asyncio.run(free(command.address)) == 2
    finally:
        command.end()


def test_the_conformance_suite_passes_through_a_host():
    async def check():
        async with hosted(DeskEnv, DESK) as address:
            source = hosts_at(DESK, address)
            checks = await check_env(
                lambda: LeaseOnStartEnv(source), load_tasks("desk:32")[:2], add_timeout_slack(DESK)
            )
            assert await free(address) == 2
            return checks

    checks = asyncio.run(check())
    assert [str(found) for found in checks if not found.ok] == []
    assert len(checks) == 10


def test_remote_and_local_episodes_are_equal():
    """Through the scheduler; screenshots, answers and scores are byte-identical."""
    settings = RolloutConfig(group_size=3, max_steps=3, max_images=3, max_answer_tokens=40)
    tasks = list(enumerate(load_tasks("desk:32")[:4]))

    def by_the_draw(prompt, sampling):
        return [CLICK, WAIT, DONE][sampling.seed % 3]

    async def batch(pool):
        agent = Agent(engine=scripted(by_the_draw), renderer=RENDERER, template=TEMPLATE, dialect=UI_TARS_1_5)
        return await Scheduler(pool=pool, agent=agent, settings=settings, seed=0).run(
            "0", tasks, lambda *_: None
        )

    async def there():
        async with hosted(DeskEnv, DESK) as one, hosted(DeskEnv, DESK) as other:
            pool = EnvPool(hosts_at(replace(DESK, parallel=4), one, other), add_timeout_slack(DESK))
            return await batch(pool), pool.faults

    here = asyncio.run(batch(EnvPool(LocalEnvs(DeskEnv, 4), DESK)))
    groups, faults = asyncio.run(there())
    assert groups == here
    assert not faults
    assert len({len(played.turns) for group in here for played in group.trajectories}) > 1


def test_a_repeated_screenshot_is_transferred_once():
    class Still(FakeEnv):
        def _observe(self):
            self.steps = []
            return super()._observe()

    async def play():
        async with hosted(Still, config()) as address, hosts_at(config(), address).lease() as env:
            first = (await env.start(TASK)).screenshot
            assert (await env.step((Wait(),))).observation.screenshot is first
            await env.close()

    asyncio.run(play())


def test_terminated_is_transferred():
    async def play():
        async with (
            hosted(lambda: FakeEnv(ends_after=2), config()) as address,
            hosts_at(config(), address).lease() as env,
        ):
            await env.start(TASK)
            return [(await env.step((Wait(),))).terminated for _ in range(3)]

    assert asyncio.run(play()) == [False, True, False]


class Asking(FakeEnv):
    """Gives its instruction itself."""

    text = "Zoë 中文 🙂" * 300

    async def start(self, task):
        return Observation(screenshot=(await super().start(task)).screenshot, instruction=self.text)


def test_an_instruction_is_transferred():
    async def play():
        async with hosted(Asking, config()) as address, hosts_at(config(), address).lease() as env:
            return (await env.start(TASK)).instruction

    assert asyncio.run(play()) == Asking.text


@pytest.mark.parametrize("text", ["x" * 4001, 3, None])
def test_an_instruction_that_is_no_text_or_too_long_is_a_fault(text):
    class Wrong(Asking):
        pass

    Wrong.text = text

    async def play():
        async with hosted(Wrong, config()) as address, hosts_at(config(), address).lease() as env:
            await env.start(TASK)

    with pytest.raises(EnvError, match=r"instruction of its Observation must be a text of at most 4,000"):
        asyncio.run(play())


def test_leases_go_to_the_host_with_the_most_free_slots():
    async def play():
        async with (
            hosted(FakeEnv, config(parallel=3)) as large,
            hosted(FakeEnv, config(parallel=1)) as small,
            AsyncExitStack() as leases,
        ):
            source = hosts_at(config(parallel=9), small, large)
            left = []
            for _ in range(4):
                await leases.enter_async_context(source.lease())
                left.append((await free(large), await free(small)))
            return left

    assert asyncio.run(play()) == [(2, 1), (1, 1), (1, 0), (0, 0)]


def test_at_most_env_parallel_leases_at_a_time():
    async def play():
        async with hosted(FakeEnv, config(parallel=8)) as address:
            source = hosts_at(config(parallel=3), address)
            most = 0

            async def one():
                nonlocal most
                async with source.lease() as env:
                    await env.start(TASK)
                    most = max(most, 8 - await free(address))
                    await env.close()

            await asyncio.gather(*(one() for _ in range(9)))
            return most

    assert asyncio.run(play()) == 3


def test_a_lease_waits_for_a_slot_without_a_timeout():
    """Another caller holds the slot for longer than `start_seconds`."""
    short = config(parallel=1, start_seconds=0.5)

    async def play():
        async with hosted(FakeEnv, short) as address:
            pool = EnvPool(hosts_at(short, address), short)
            async with hosts_at(short, address).lease() as other:
                await other.start(TASK)
                waiting = asyncio.create_task(pool.run(TASK, "e", episode))
                await asyncio.sleep(1.5)
                assert not waiting.done()
                await other.close()
            outcome = await waiting
            return outcome, pool.faults

    outcome, faults = asyncio.run(play())
    assert isinstance(outcome, Trajectory)
    assert not faults


def test_faults_keep_their_class_and_message():
    async def outcome(factory, settings):
        async with hosted(factory, settings) as address:
            pool = EnvPool(hosts_at(settings, address), add_timeout_slack(settings))
            found = await pool.run(TASK, "e", episode)
            assert isinstance(found, Failure) and found.host == address
            return found, await free(address)

    short = config(step_seconds=0.5)
    late, slots = asyncio.run(outcome(hanging(FakeEnv, "step", times=1), short))
    assert (late.kind, late.where, late.message) == ("EnvTimeout", "step", "no answer within 0.5 s")
    assert slots == 4
    broken, slots = asyncio.run(outcome(failing(FakeEnv, "evaluate", times=1), config()))
    assert (broken.kind, broken.where, broken.message) == (
        "EnvError",
        "evaluate",
        "RuntimeError: chaos at evaluate",
    )
    assert slots == 4


def test_an_expired_episode_is_an_env_error():
    async def play():
        async with (
            hosted(FakeEnv, config(), lease_seconds=0.2) as address,
            hosts_at(config(), address).lease() as env,
        ):
            await env.start(TASK)
            await asyncio.sleep(0.6)
            with pytest.raises(EnvError, match=r"expired after 0.2 s without a call"):
                await env.step((Wait(),))
            await env.close()

    asyncio.run(play())


def test_a_cancelled_episode_frees_its_slot():
    async def play():
        async with hosted(hanging(FakeEnv, "step", times=1), config()) as address:
            running = asyncio.create_task(
                EnvPool(hosts_at(config(), address), config()).run(TASK, "e", episode)
            )
            await asyncio.sleep(0.3)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return await free(address)

    assert asyncio.run(play()) == 4


@pytest.mark.parametrize("started", [False, True])
def test_a_lease_that_is_left_without_close_frees_its_slot(started):
    async def play():
        async with hosted(FakeEnv, config()) as address:
            async with hosts_at(config(), address).lease() as env:
                if started:
                    await env.start(TASK)
                assert await free(address) == 3
            return await free(address)

    assert asyncio.run(play()) == 4


def test_a_lease_that_is_left_by_an_exception_frees_its_slot_and_keeps_the_exception():
    """The environment even fails to close."""

    async def play():
        async with hosted(failing(FakeEnv, "close", times=1), config()) as address:
            with pytest.raises(ZeroDivisionError):
                async with hosts_at(config(), address).lease() as env:
                    await env.start(TASK)
                    raise ZeroDivisionError
            return await free(address)

    assert asyncio.run(play()) == 4


def test_a_lease_closes_its_environment_once():
    deleted = []

    def delete():
        deleted.append("episode")
        return web.Response(status=204)

    async def play():
        async with pretending(delete=delete) as address, hosts_at(config(), address).lease() as env:
            await env.close()

    asyncio.run(play())
    assert deleted == ["episode"]


@pytest.mark.slow
def test_a_killed_host_costs_one_attempt_and_is_used_again_after_its_restart(tmp_path):
    words = ("--env", FAKE, "--slots", "2")
    first = HostCommand(tmp_path, *words, "--listen", "127.0.0.1:0")
    second = HostCommand(tmp_path, "--env", FAKE, "--slots", "1", "--listen", "127.0.0.1:0")
    settings = config(attempts=3, start_seconds=20.0)
    commands = [first, second]

    async def play():
        source = hosts_at(settings, first.address, second.address)
        pool = EnvPool(source, add_timeout_slack(settings))
        attempts = 0

        async def killing(env):
            nonlocal attempts
            attempts += 1
            await env.start(TASK)
            if attempts == 1:
                assert await free(first.address) == 1
                first.end(signal.SIGKILL)
            return await episode_from(env)

        async def episode_from(env):
            await env.step((Wait(),))
            return verdict(await env.evaluate())

        assert isinstance(await pool.run(TASK, "e", killing), Trajectory)
        assert attempts == 2
        assert pool.faults == {"step:HostLost": 1}
        commands.append(HostCommand(tmp_path, *words, "--listen", f"127.0.0.1:{first.port}"))
        async with AsyncExitStack() as leases, asyncio.timeout(30):
            for _ in range(3):  # more than the second can hold
                await leases.enter_async_context(source.lease())
            assert [await free(first.address), await free(second.address)] == [0, 0]

    try:
        asyncio.run(play())
    finally:
        for command in commands:
            command.end()


@pytest.mark.slow
def test_a_hanging_host_is_detected_and_recovers(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "PROBE_SECONDS", 0.5)
    monkeypatch.setattr(remote, "SLACK_SECONDS", 0.3)
    command = HostCommand(tmp_path, "--env", FAKE, "--slots", "2", "--listen", "127.0.0.1:0")
    settings = config(step_seconds=0.5, start_seconds=20.0)

    async def play():
        async with hosted(FakeEnv, config(parallel=1)) as other:
            source = hosts_at(settings, command.address, other)
            async with source.lease() as env:
                await env.start(TASK)
                command.send(signal.SIGSTOP)
                with pytest.raises(EnvError, match=r"no answer within 0.8 s"):
                    await env.step((Wait(),))
                await env.close()
            async with source.lease() as env:  # goes to the other one
                await env.start(TASK)
                assert await free(other) == 0
                waiting = asyncio.create_task(one_more(source))
                await asyncio.sleep(0.2)
                assert not waiting.done()
                command.send(signal.SIGCONT)
                async with asyncio.timeout(20):
                    assert isinstance(await waiting, Trajectory)
                await env.close()

    async def one_more(source):
        async with source.lease() as env:
            outcome = await episode(env)
            await env.close()
            return outcome

    try:
        asyncio.run(play())
    finally:
        command.send(signal.SIGCONT)
        command.end()


def test_unreachable_hosts_are_a_user_error():
    lost = config(start_seconds=1.5)
    addresses = ("http://127.0.0.1:1", "http://127.0.0.1:2")

    async def play():
        return await EnvPool(hosts_at(lost, *addresses), add_timeout_slack(lost)).run(TASK, "e", episode)

    with pytest.raises(UserError) as refused:
        asyncio.run(play())
    assert str(refused.value).startswith("no environment host is reachable: http://127.0.0.1:1: Client")
    assert str(refused.value).endswith(": start one with `arpo env-host`, or correct env.hosts")
    assert all(address in str(refused.value) for address in addresses)


@pytest.mark.slow
def test_a_lease_fails_after_all_hosts_were_lost_for_start_seconds():
    lost = config(start_seconds=1.5, attempts=1, outage_seconds=0)

    async def play():
        async with hosted(FakeEnv, lost) as address:
            pool = EnvPool(hosts_at(lost, address, "http://127.0.0.1:1"), add_timeout_slack(lost))
            assert isinstance(await pool.run(TASK, "e", episode), Trajectory)
        return await pool.run(TASK, "f", episode)

    with pytest.raises(Outage, match=r"start: no environment host is reachable: http://127\.0\.0\.1:"):
        asyncio.run(play())


def test_one_reachable_host_is_enough():
    async def play():
        async with hosted(FakeEnv, config()) as address:
            source = hosts_at(config(), "http://127.0.0.1:1", address)
            return await EnvPool(source, add_timeout_slack(config())).run(TASK, "e", episode)

    assert isinstance(asyncio.run(play()), Trajectory)


def test_pauses_between_probes_grow_and_reset(monkeypatch):
    now = 100.0
    monkeypatch.setattr(remote.time, "monotonic", lambda: now)
    host = RemoteHost("http://a", lambda: "http://a", None)
    pauses = []
    for _ in range(7):
        host._mark_lost("gone")
        host._mark_lost("gone, reported by another episode")
        before = now
        while not host.needs_probe:
            now += 0.5
        pauses.append(now - before)
    assert pauses == [1, 2, 4, 8, 16, 32, 60]
    assert host.lost_since == 100.0
    host.lost_since = None
    host._mark_lost("gone again")
    now += 1
    assert host.needs_probe


@pytest.mark.parametrize(
    "text",
    [
        "a:8700", "http://", "ftp://a:1", "http://a:99999", "http://a/path", "http://u:p@a", "http://a?b",
        "http://a,,http://b", "http://a;http://b:c", " ", "/a", "http://a#b",
    ],
)  # fmt: skip
def test_a_bad_address_is_a_user_error(text):
    with pytest.raises(UserError, match="is not an address: use http://HOST:PORT"):
        parse_hosts(config(hosts=text))


def test_addresses():
    hosts = parse_hosts(config(hosts="http://a:8700/, https://b ,http://[::1]:1"))
    assert [host.name for host in hosts._hosts] == ["http://a:8700", "https://b", "http://[::1]:1"]
    with pytest.raises(UserError, match="http://a:1 occurs twice"):
        parse_hosts(config(hosts="http://a:1,http://a:1/"))


def first_lease(settings, *addresses):
    async def lease():
        async with hosts_at(settings, *addresses).lease():
            pass

    return lease()


def test_a_host_of_other_environments_is_rejected():
    async def play():
        async with hosted(FakeEnv, config()) as good, hosted(DeskEnv, DESK) as address:
            with pytest.raises(UserError, match=f"{address}: serves 'desk', but env.name = '{FAKE}'"):
                await first_lease(config(), good, address)
            wide = replace(DESK, width=1920)
            with pytest.raises(UserError, match=r"screens of \(224, 168\), but .* are \(1920, 168\)"):
                await first_lease(wide, address)

    asyncio.run(play())


def test_a_wrong_token_is_a_user_error(monkeypatch):
    async def play():
        async with hosted(FakeEnv, config(), TOKEN) as address:
            with pytest.raises(UserError, match=f"{address}: set ARPO_HOST_TOKEN to the host's token"):
                await first_lease(config(), address)
            monkeypatch.setenv("ARPO_HOST_TOKEN", TOKEN[::-1])
            with pytest.raises(UserError, match="set ARPO_HOST_TOKEN"):
                await first_lease(config(), address)
            monkeypatch.setenv("ARPO_HOST_TOKEN", TOKEN)
            await first_lease(config(), address)
            monkeypatch.setenv("ARPO_HOST_TOKEN", "short")
            with pytest.raises(UserError, match="at least 16 ASCII characters"):
                parse_hosts(config(hosts=address))

    asyncio.run(play())


@asynccontextmanager
async def pretending(**answers):
    """A server with the responses of a host, except for the given calls."""

    async def health(request):
        good = wire.Health(env=FAKE, screen=None, slots=1, free=1, version="?")
        return answers["health"]() if "health" in answers else web.json_response(wire.health_to_json(good))

    async def take(request):
        return (
            answers["take"]()
            if "take" in answers
            else web.Response(status=201, headers={wire.EPISODE: "ab12"})
        )

    async def other(request):
        return answers[request.match_info["call"]]()

    async def delete(request):
        return answers["delete"]() if "delete" in answers else web.Response(status=204)

    application = web.Application()
    application.router.add_get("/health", health)
    application.router.add_post("/episodes", take)
    application.router.add_post("/episodes/ab12/{call}", other)
    application.router.add_delete("/episodes/ab12", delete)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def test_a_returned_slot_counts_as_free():
    asked = []

    def health():
        asked.append("health")
        return web.json_response(
            wire.health_to_json(wire.Health(env=FAKE, screen=None, slots=1, free=1, version="?"))
        )

    async def play():
        async with pretending(health=health) as address:
            source = hosts_at(config(), address)
            for _ in range(3):
                async with source.lease() as env:
                    await env.close()

    asyncio.run(play())
    assert asked == ["health"]


def picture(png, name):
    return web.Response(body=png, content_type="image/png", headers={"ETag": name})


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda: picture(screenshot(1).png, f'"{screenshot(2).sha256}"'), "does not match its ETag"),
        (lambda: picture(b"torn", f'"{screenshot(1).sha256}"'), "does not match its ETag"),
        (lambda: web.Response(status=204, headers={"ETag": '"ab"'}), "a screenshot that it never sent"),
        (lambda: web.Response(status=204), "a screenshot that it never sent"),
        (lambda: web.Response(status=302, headers={"Location": "/health"}), "it responded with status 302"),
        (lambda: web.Response(status=500, text="<html>"), "it responded with status 500"),
        (lambda: web.json_response(["EnvError"], status=500), "it responded with status 500"),
        (lambda: picture(b"\0" * 2000, '"ab"'), "the response is larger than 1000 bytes"),
    ],
)  # fmt: skip
def test_an_invalid_response_is_an_env_error(monkeypatch, answer, reason):
    monkeypatch.setattr(wire, "MAX_RESPONSE_BYTES", 1000)

    async def play():
        async with pretending(start=answer) as address, hosts_at(config(), address).lease() as env:
            with pytest.raises(EnvError, match=reason) as caught:
                await env.start(TASK)
            assert caught.value.where == "start"
            await env.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("png", "reason"),
    [
        (corrupt(plain()), "the screenshot is a damaged PNG: broken data stream when reading image file"),
        (bomb(), "the screenshot is 13300x13300, must have at most 33,554,432 pixels"),
    ],
    ids=["corrupt", "bomb"],
)
def test_a_bad_picture_is_a_fault_of_its_episode(png, reason):
    """Whether the host checks it, or sends it."""

    class Shows(FakeEnv):
        def _observe(self):
            return Observation(screenshot=Screenshot.of(png))

    async def outcome(address):
        return await EnvPool(hosts_at(config(), address), config()).run(TASK, "e", episode)

    async def play():
        async with hosted(Shows, config()) as address:
            checked = await outcome(address)
        async with pretending(start=lambda: picture(png, f'"{Screenshot.of(png).sha256}"')) as address:
            return checked, await outcome(address)

    for failure in asyncio.run(play()):
        assert (failure.kind, failure.where, failure.message) == ("EnvError", "start", reason)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"score": 1, "more": 2}', b"[1]"])
def test_an_invalid_score_is_an_env_error(content):
    async def play():
        answer = partial(web.Response, body=content)
        async with pretending(evaluate=answer) as address, hosts_at(config(), address).lease() as env:
            with pytest.raises(EnvError):
                await env.evaluate()
            await env.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    "answers",
    [
        {"health": lambda: web.Response(text="hello")},
        {"health": lambda: web.json_response({"status": "ok"})},
        {"health": lambda: web.Response(status=404)},
        {"take": lambda: web.Response(status=201, headers={wire.EPISODE: "../../health"})},
        {"take": lambda: web.Response(status=201)},
    ],
)
def test_a_server_that_is_no_environment_host_is_a_user_error(answers):
    async def play():
        async with pretending(**answers) as address:
            with pytest.raises(UserError, match=f"env.hosts: {address}: "):
                await first_lease(config(), address)

    asyncio.run(play())


@pytest.mark.slow
def test_one_source_serves_several_event_loops_and_leaks_nothing(tmp_path, caplog, recwarn):
    gc.collect()
    recwarn.clear()  # of transports that earlier tests left open
    command = HostCommand(tmp_path, "--env", FAKE, "--slots", "2", "--listen", "127.0.0.1:0")
    settings = config(parallel=3)
    source = hosts_at(settings, command.address, "http://127.0.0.1:1")
    pool = EnvPool(source, add_timeout_slack(settings))

    async def batch():
        return await asyncio.gather(*(pool.run(TASK, str(number), episode) for number in range(8)))

    try:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                assert all(isinstance(outcome, Trajectory) for outcome in asyncio.run(batch()))
            gc.collect()
        assert not pool.faults
        assert [record.message for record in caplog.records] == []
        assert [str(warned.message) for warned in recwarn if "nclosed" in str(warned.message)] == []
    finally:
        command.end()


def test_callers_of_a_host_have_longer_timeouts():
    wider = add_timeout_slack(config(start_seconds=1.0, step_seconds=2.0, evaluate_seconds=3.0))
    assert (wider.start_seconds, wider.step_seconds, wider.evaluate_seconds) == (11.0, 12.0, 13.0)
    assert wider.attempts == config().attempts


def test_a_recipe_with_hosts_uses_them():
    async def play():
        async with hosted(FakeEnv, config()) as address:
            recipe = Config(env=config(hosts=address))
            outcome = await open_pool(recipe).run(TASK, "e", episode)
            env = open_factory(recipe)()
            await env.start(TASK)
            left = await free(address)
            await env.close()
            return outcome, left, await free(address)

    outcome, left, after = asyncio.run(play())
    assert isinstance(outcome, Trajectory)
    assert (left, after) == (3, 4)


def test_a_leased_environment_must_be_started():
    async def play():
        env = LeaseOnStartEnv(Hosts([], config()))
        with pytest.raises(EnvError, match="was not started"):
            await env.step((Wait(),))
        await env.close()
        await env.close()

    asyncio.run(play())


@pytest.mark.slow
def test_a_run_on_a_host_equals_a_local_run(tmp_path):
    """The files are byte-identical with one environment at a time.

    With more, timing decides which prompts share an engine batch, which changes the last bits of their
    log-probabilities.
    """
    settings = ("--env.name=desk", "--env.parallel=1", "--rollout.max_steps=3", "--rollout.temperature=2")
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    here = small_config(tmp_path / "here", [A, B], *settings)
    assert run_training(here) == 0
    host = HostCommand(tmp_path, "--env", "desk", "--slots", "2", "--listen", "127.0.0.1:0")
    there = small_config(tmp_path / "there", [A, B], *settings, f"--env.hosts={host.address}")
    try:
        assert run_training(there) == 0
    finally:
        host.end()
    written = ("metrics.jsonl", "trajectories.jsonl", "failures.jsonl", "screenshots.pack")
    for name in (*written, "model/model.safetensors"):
        one, other = ((tmp_path / folder / "run" / name).read_bytes() for folder in ("here", "there"))
        assert one == other, name
    with closing(RunFolder(tmp_path / "here" / "run")) as store:  # a run may resume on other hosts
        check_folder(store, replace(here, env=replace(here.env, hosts="http://other:8700")))
