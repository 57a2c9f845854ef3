import asyncio
import threading

import pytest
from PIL import Image

import tiny_vlm
from arpo.config import EnvConfig
from arpo.envs.pool import EnvPool, GuardedEnv, LocalEnvs
from arpo.errors import Discarded, EngineError, Outage
from arpo.prompts import vision
from arpo.storage.picture_codec import MIN_ENCODED_BYTES
from arpo.storage.screenshots import ScreenshotPack
from arpo.testing import FakeEnv, failing, hanging, lying, screenshot, task
from arpo.types import Failure, Observation, Screenshot, StopReason, Trajectory
from env_hosts import FAKE
from pngs import bomb, corrupt, cut_short, plain
from tools.pretrain.tiny import IMAGE_SETTINGS

TASK = task("t")


def trajectory(score):
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
    await env.step(())
    return trajectory(await env.evaluate())


async def late(env):
    """While it waits, other episodes ask for a slot."""
    await asyncio.sleep(0.01)
    return await episode(env)


def config(**changes):
    return EnvConfig(**{"name": FAKE, "attempts": 1, "quarantine_after": 99, "parallel": 2, **changes})


def pool_of(factory, settings):
    return EnvPool(LocalEnvs(factory, settings.parallel), settings)


class Made:
    """A factory with a list of its environments."""

    def __init__(self, **arguments):
        self.envs = []
        self.arguments = arguments

    def __call__(self):
        self.envs.append(FakeEnv(**self.arguments))
        return self.envs[-1]


def test_a_trajectory_is_returned_and_its_environment_closed():
    made = Made(score=lambda actions: 0.25)
    pool = pool_of(made, config())
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Trajectory)
    assert outcome.score == 0.25
    assert made.envs[0].calls == ["start", "step", "evaluate", "close"]
    assert not pool.faults


@pytest.mark.parametrize("at", ["start", "step", "evaluate"])
def test_a_fault_is_retried_in_a_new_environment(at):
    made = Made()
    pool = pool_of(failing(made, at, times=2), config(attempts=3))
    assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)
    assert len(made.envs) == 3
    assert all(env.calls[-1] == "close" for env in made.envs)
    assert pool.faults == {f"{at}:EnvError": 2}


def test_a_discarded_episode_is_played_again_and_is_no_fault():
    made = Made()

    async def discarded_twice(env):
        played = await episode(env)
        if len(made.envs) < 3:
            raise Discarded("generate", "the person discarded the episode")
        return played

    pool = pool_of(made, config(attempts=1, quarantine_after=1))
    assert isinstance(asyncio.run(pool.run(TASK, "e", discarded_twice)), Trajectory)
    assert [env.calls[-1] for env in made.envs] == ["close"] * 3
    assert not pool.faults


def test_after_the_last_attempt_it_is_a_failure():
    pool = pool_of(failing(FakeEnv, "step", times=99), config(attempts=3))
    assert asyncio.run(pool.run(TASK, "e7", episode)) == Failure(
        episode_id="e7",
        task_id="t",
        kind="EnvError",
        where="step",
        message="RuntimeError: chaos at step",
        attempts=3,
    )


@pytest.mark.parametrize("at", ["start", "step", "evaluate"])
def test_a_hanging_environment_times_out(at):
    short = config(start_seconds=0.01, step_seconds=0.01, evaluate_seconds=0.01)
    pool = pool_of(hanging(FakeEnv, at, times=1), short)
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.where) == ("EnvTimeout", at)


@pytest.mark.parametrize("verdict", [None, float("nan"), float("inf"), 7, -0.1, "1.0"])
def test_an_invalid_score_is_a_fault(verdict):
    pool = pool_of(lying(FakeEnv, verdict), config())
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert outcome.where == "evaluate"
    assert repr(verdict) in outcome.message


def showing(*pngs):
    """A factory of environments that show these screens in turn."""

    class Shows(FakeEnv):
        def _observe(self):
            return Observation(screenshot=Screenshot.of(pngs[len(self.steps)]))

    return Shows


def failed(factory, **changes):
    """The failure of one episode, as text. It counts against the task."""
    pool = pool_of(factory, config(**changes))
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert outcome.kind == "EnvError"
    assert pool.state().failures == {"t": 1}
    return f"{outcome.where}: {outcome.message}"


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (b"GIF89a", 'the screenshot is not a PNG: save the image with the format "PNG"'),
        (plain()[:-20], "the screenshot is a damaged PNG: its end is missing"),
        (corrupt(plain()), "the screenshot is a damaged PNG: broken data stream when reading image file"),
        (
            cut_short(plain()),
            "the screenshot is a damaged PNG: image file is truncated (0 bytes not processed)",
        ),
        (bomb(), "the screenshot is 13300x13300, must be 56x56, the size of the first one of the episode"),
    ],
    ids=["no PNG", "torn", "corrupt", "cut short", "bomb"],
)
def test_a_damaged_screenshot_is_a_fault(damaged, message):
    """Found only in a prefill, it would fail every episode of the prefill batch."""
    assert failed(showing(plain(), damaged)) == f"step: {message}"


def test_a_bomb_at_the_start_is_a_fault():
    found = failed(showing(bomb()))
    assert found == "start: the screenshot is 13300x13300, must have at most 33,554,432 pixels"


def test_a_screenshot_of_another_size_than_in_the_recipe_is_a_fault():
    sized = {"name": "desk", "width": 224, "height": 168}
    for pngs, where in (([plain(3000, 10)], "start"), ([plain(224, 168), plain(3000, 10)], "step")):
        assert failed(showing(*pngs), **sized) == (
            f"{where}: the screenshot is 3000x10, must be 224x168: "
            "set env.width and env.height to the size of the screens"
        )


def test_screens_of_an_own_environment_keep_their_size_within_an_episode():
    assert failed(showing(plain(64, 48), plain(48, 64))) == (
        "step: the screenshot is 48x64, must be 64x48, the size of the first one of the episode"
    )
    for size in ((64, 48), (48, 64)):
        pool = pool_of(showing(plain(*size), plain(*size)), config())
        assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)


def test_a_screenshot_must_carry_its_own_sha256():
    """Engine and store identify screenshots by it."""

    class Borrowed(FakeEnv):
        def _observe(self):
            return Observation(screenshot=Screenshot(plain(), screenshot(0).sha256))

    assert failed(Borrowed) == "start: the screenshot has a wrong sha256: create it with Screenshot.of(png)"


@pytest.fixture
def decoding_threads(monkeypatch):
    """The threads in which Pillow opens an image, one entry per image."""
    threads, real = [], Image.open

    def opened(*arguments, **options):
        threads.append(threading.current_thread())
        return real(*arguments, **options)

    monkeypatch.setattr(Image, "open", opened)
    return threads


def test_the_pool_the_model_and_the_store_share_one_decoding(decoding_threads, tmp_path):
    shots = [tiny_vlm.screenshot(seed, 224, 168) for seed in (101, 102)]
    pool = pool_of(showing(*(shot.png for shot in shots)), config())
    assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)
    pack = ScreenshotPack(tmp_path / "pack", writable=True)
    for previous, shot in zip([None, *shots], shots, strict=False):
        assert len(shot.png) >= MIN_ENCODED_BYTES
        vision.pixels(shot, IMAGE_SETTINGS)
        pack.add(shot, previous)
    pack.close()
    assert len(decoding_threads) == 2


def test_only_large_screenshots_of_remote_environments_are_decoded_in_threads(decoding_threads):
    """A thread ends at any time, so a local run would not repeat itself exactly."""
    sizes = [(56, 56), (1000, 700)]

    async def start(env):
        await env.start(TASK)

    for size in sizes:
        asyncio.run(start(GuardedEnv(showing(screenshot(201, size).png)(), config())))
    for size in sizes:
        asyncio.run(pool_of(showing(screenshot(202, size).png), config()).run(TASK, "e", start))
    main = threading.main_thread()
    assert [thread is main for thread in decoding_threads] == [True, False, True, True]


def test_a_fault_in_close_does_not_fail_the_episode():
    for broken in (failing, hanging):
        pool = pool_of(broken(FakeEnv, "close", times=1), config(step_seconds=0.01))
        assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)
        assert sum(pool.faults.values()) == 1
        assert all(name.startswith("close:") for name in pool.faults)


def test_a_factory_that_raises_is_a_fault():
    def factory():
        raise OSError("no display")

    outcome = asyncio.run(pool_of(factory, config()).run(TASK, "e", episode))
    assert isinstance(outcome, Failure)
    assert outcome.message == "OSError: no display"


def test_at_most_parallel_environments_at_a_time():
    alive, most = 0, 0

    async def counted(env):
        nonlocal alive, most
        alive, most = alive + 1, max(most, alive + 1)
        await asyncio.sleep(0.001)
        alive -= 1
        return trajectory(0.0)

    async def main():
        pool = pool_of(FakeEnv, config(parallel=3))
        await asyncio.gather(*(pool.run(TASK, str(number), counted) for number in range(10)))

    asyncio.run(main())
    assert most == 3


def test_waiting_for_a_slot_does_not_count_as_start_time():
    short = config(parallel=1, start_seconds=0.2)

    async def long(env):
        outcome = await episode(env)
        await asyncio.sleep(0.5)
        return outcome

    async def main():
        pool = pool_of(FakeEnv, short)
        return await asyncio.gather(*(pool.run(TASK, str(number), long) for number in range(2)))

    assert all(isinstance(outcome, Trajectory) for outcome in asyncio.run(main()))


def test_one_source_serves_several_event_loops():
    pool = pool_of(FakeEnv, config(parallel=1))

    async def main():
        return await asyncio.gather(*(pool.run(TASK, str(number), late) for number in range(3)))

    for _ in range(2):
        assert all(isinstance(outcome, Trajectory) for outcome in asyncio.run(main()))


def test_a_task_may_be_quarantined_while_its_episode_waits_for_a_slot():
    made = Made()
    pool = pool_of(failing(made, "start", times=99), config(parallel=1, quarantine_after=1))

    async def main():
        return await asyncio.gather(*(pool.run(TASK, str(number), late) for number in range(3)))

    assert [outcome.kind for outcome in asyncio.run(main())] == ["EnvError", "Quarantined", "Quarantined"]
    assert len(made.envs) == 1


def test_a_task_that_keeps_failing_is_quarantined():
    made = Made()
    pool = pool_of(failing(made, "start", times=99), config(quarantine_after=2))

    async def main():
        return [await pool.run(TASK, str(number), episode) for number in range(4)]

    kinds = [(outcome.kind, outcome.attempts) for outcome in asyncio.run(main())]
    assert kinds == [("EnvError", 1), ("EnvError", 1), ("Quarantined", 0), ("Quarantined", 0)]
    assert len(made.envs) == 2
    assert pool.quarantine.tasks == {"t"}


def test_concurrent_failures_of_a_task_count_once():
    made = Made()
    pool = pool_of(failing(made, "start", times=99), config(quarantine_after=2, parallel=4))

    async def main():
        return await asyncio.gather(*(pool.run(TASK, str(number), late) for number in range(4)))

    assert [outcome.kind for outcome in asyncio.run(main())] == ["EnvError"] * 4
    assert pool.state().failures == {"t": 1}
    assert not pool.quarantine.tasks


def test_a_success_resets_consecutive_failures():
    pool = pool_of(failing(FakeEnv, "start", times=1), config(quarantine_after=2))

    async def main():
        for number in range(2):
            await pool.run(TASK, str(number), episode)
        return pool

    assert asyncio.run(main()).state().failures == {}


def test_engine_faults_quarantine_no_task():
    async def dead(env):
        raise EngineError("generate", "gone")

    pool = pool_of(FakeEnv, config(quarantine_after=1))
    outcome = asyncio.run(pool.run(TASK, "e", dead))
    assert isinstance(outcome, Failure)
    assert outcome.kind == "EngineError"
    assert not pool.quarantine.tasks


def test_a_cancelled_episode_still_closes_its_environment():
    made = Made()

    async def endless(env):
        await asyncio.Event().wait()

    async def main():
        pool = pool_of(made, config())
        running = asyncio.create_task(pool.run(TASK, "e", endless))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert made.envs[0].calls == ["close"]


def test_an_environment_that_answers_a_cancellation_with_an_error_is_not_tried_again():
    class Stubborn(FakeEnv):
        async def start(self, task):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise RuntimeError("connection lost") from None

    async def main():
        pool = pool_of(Stubborn, config(attempts=2))
        running = asyncio.create_task(pool.run(TASK, "e", episode))
        await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10)

    asyncio.run(main())


@pytest.mark.parametrize("call", ["start", "step", "evaluate", "close"])
def test_an_environment_that_exits_fails_its_episode_alone(call):
    class Exits(FakeEnv):
        pass

    async def leave(self, *_):
        raise SystemExit(f"{call} gave up")

    setattr(Exits, call, leave)
    pool = pool_of(Exits, config())
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert pool.faults == {f"{call}:EnvError": 1}
    if call == "close":
        assert isinstance(outcome, Trajectory)
    else:
        assert isinstance(outcome, Failure)
        assert (outcome.where, outcome.message) == (call, f"SystemExit: {call} gave up")


def test_an_internal_error_is_not_caught():
    async def wrong(env):
        raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        asyncio.run(pool_of(FakeEnv, config()).run(TASK, "e", wrong))


class Outages:
    """A factory whose environments cannot be made while `down`, for `left` attempts."""

    def __init__(self):
        self.left = 0
        self.made = 0

    def __call__(self):
        self.made += 1
        if self.left > 0:
            self.left -= 1
            raise OSError("no display")
        return FakeEnv()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 0.001)


def outage_pool(factory, **changes):
    pool = pool_of(factory, config(attempts=2, quarantine_after=1, parallel=3, **changes))
    notes: list[str] = []
    pool.outage.report = notes.append
    assert isinstance(asyncio.run(pool.run(TASK, "first", episode)), Trajectory)
    return pool, notes


def test_an_outage_of_all_environments_pauses_and_costs_no_task_and_no_episode():
    factory = Outages()
    pool, notes = outage_pool(factory)
    factory.left = 12
    tasks = [task(name) for name in "abcdefgh"]

    async def main():
        return await asyncio.gather(*(pool.run(one, one.id, episode) for one in tasks))

    assert all(isinstance(outcome, Trajectory) for outcome in asyncio.run(main()))
    assert pool.state().failures == {}
    assert notes[0].startswith("no environment works (start: OSError: no display). The run pauses, next")
    assert notes[-1].startswith("the environments work again after") and len(notes) > 2
    assert pool.outage.take_seconds() > 0 == pool.outage.take_seconds()
    assert factory.made < 1 + 12 + len(tasks) + 4  # episodes that wait for a slot stay out of the outage


def test_single_faults_between_played_episodes_need_no_probe():
    """A probe costs the start of an environment. It may fail too, and pause a run without an outage."""
    factory = Outages()
    pool, notes = outage_pool(factory)
    for number in range(4):
        factory.left, before = 1, factory.made
        assert isinstance(asyncio.run(pool.run(TASK, str(number), episode)), Trajectory)
        assert factory.made == before + 2  # the attempt and the next one
    assert notes == []


def test_a_single_fault_of_the_only_attempt_is_examined():
    factory = Outages()
    pool = pool_of(factory, config(attempts=1))
    assert isinstance(asyncio.run(pool.run(TASK, "first", episode)), Trajectory)
    factory.left = 3  # the attempt and two probes
    assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)


def test_one_failed_probe_is_no_outage():
    """It may meet a broken environment by chance."""
    factory = Outages()
    pool, notes = outage_pool(factory)
    factory.left = 3  # two attempts and a probe
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Failure) and (outcome.attempts, notes) == (2, [])


def test_a_task_that_fails_while_others_work_is_no_outage():
    class OneBroken(FakeEnv):
        async def start(self, task):
            if task.id == "broken":
                raise RuntimeError("no such file")
            return await super().start(task)

    pool, notes = outage_pool(OneBroken)
    outcome = asyncio.run(pool.run(task("broken"), "e", lambda env: env.start(task("broken"))))
    assert (outcome.kind, outcome.attempts, notes) == ("EnvError", 2, [])
    assert pool.quarantine.tasks == {"broken"}


def test_before_the_first_played_episode_a_fault_is_no_outage():
    factory = Outages()
    factory.left = 99
    pool = pool_of(factory, config(attempts=2))
    assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Failure)
    assert factory.made == 2


def test_an_outage_ends_with_an_error_after_its_limit():
    factory = Outages()
    pool, notes = outage_pool(factory, outage_seconds=0.01)
    factory.left = 10**9
    message = (
        r"no environment has worked for 0 s \(env.outage_seconds\): start: OSError: no display\. Correct"
    )
    with pytest.raises(Outage, match=message):
        asyncio.run(pool.run(TASK, "e", episode))
    assert notes and not pool.quarantine.tasks


def test_a_stop_ends_the_pause_of_an_outage(monkeypatch):
    factory = Outages()
    pool, _ = outage_pool(factory)
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 3600.0)
    monkeypatch.setattr("arpo.processes.backoff.LONGEST_SECONDS", 3600.0)
    pool.outage.report = lambda text: asyncio.get_running_loop().call_later(0.01, pool.outage.stop)
    factory.left = 10**9

    async def main():
        running = [pool.run(TASK, str(number), episode) for number in range(3)]
        return await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 60)

    assert {type(outcome) for outcome in asyncio.run(main())} == {Outage}


def test_a_task_that_stops_working_is_no_outage_if_others_work():
    """It was the last one that worked: the probe takes another task."""

    class Breaks(FakeEnv):
        broken = False

        async def start(self, task):
            if Breaks.broken and task.id == "t":
                raise RuntimeError("the website is gone")
            return await super().start(task)

    pool, notes = outage_pool(Breaks, outage_seconds=0)
    for name in ("other", "t"):
        assert isinstance(asyncio.run(pool.run(task(name), name, episode)), Trajectory)
    Breaks.broken = True
    outcome = asyncio.run(pool.run(TASK, "e", episode))
    assert isinstance(outcome, Failure) and (outcome.attempts, notes) == (2, [])
    assert pool.quarantine.tasks == {"t"}


def test_after_a_stop_an_outage_that_has_just_begun_does_not_end_the_batch():
    factory = Outages()
    pool, notes = outage_pool(factory)
    factory.left = 4  # two attempts and the first two probes
    pool.outage.stop()
    assert isinstance(asyncio.run(pool.run(TASK, "e", episode)), Trajectory)
    assert notes[-1].startswith("the environments work again after")
    factory.left = 10**9
    with pytest.raises(Outage):
        asyncio.run(pool.run(TASK, "e", episode))
    assert factory.left == 10**9 - 5  # two attempts and three probes


def test_a_stop_does_not_wait_for_a_slow_probe():
    class Slow(FakeEnv):
        starts = 0

        async def start(self, task):
            Slow.starts += 1
            if Slow.starts == 6:  # the third probe, after two attempts
                asyncio.get_running_loop().call_later(0.01, pool.outage.stop)
                await asyncio.sleep(3600)
            if Slow.starts > 1:
                raise OSError("no display")
            return await super().start(task)

    pool, _ = outage_pool(Slow, start_seconds=3600)

    async def main():
        with pytest.raises(Outage):
            await asyncio.wait_for(pool.run(TASK, "e", episode), 60)

    asyncio.run(main())


def test_a_failure_has_the_host_of_its_environment():
    class Remote(FakeEnv):
        host = "http://10.0.0.7:8700"

        async def step(self, actions):
            raise OSError("the screen went dark")

    def of_the_engine(env):
        raise EngineError("generate", "gone", host="http://10.0.0.9:8000")

    async def play(factory, episode):
        return await pool_of(factory, config()).run(TASK, "e", episode)

    assert asyncio.run(play(Remote, episode)).host == "http://10.0.0.7:8700"
    assert asyncio.run(play(failing(FakeEnv, "step", 9), episode)).host == ""
    assert asyncio.run(play(Remote, of_the_engine)).host == "http://10.0.0.9:8000"


@pytest.mark.parametrize("host", [None, 8700, property(lambda self: 1 / 0)])
def test_an_attribute_host_of_the_users_class_is_not_needed(host):
    """It may have no value before `start`, or raise."""

    async def step(self, actions):
        raise OSError("the screen went dark")

    own = type("Own", (FakeEnv,), {"host": host, "step": step})
    failure = asyncio.run(pool_of(own, config()).run(TASK, "e", episode))
    assert isinstance(failure, Failure) and (failure.where, failure.host) == ("step", "")
