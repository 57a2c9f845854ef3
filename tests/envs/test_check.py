import asyncio
import inspect
import itertools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from arpo.actions import Action, Click, Hotkey, Point, Scroll, Wait
from arpo.config import EnvConfig
from arpo.envs.check import check_env
from arpo.envs.check_probe import every_action
from arpo.envs.loop_watch import LoopWatch
from arpo.errors import EnvError
from arpo.testing import FakeEnv, failing, hanging, lying, screenshot, task
from arpo.types import Observation, Screenshot, StepResult
from env_hosts import FAKE
from pngs import corrupt, plain

CONFIG = EnvConfig(name=FAKE, start_seconds=0.2, step_seconds=0.2, evaluate_seconds=0.2)
SOLUTION = ("click(start_box='(5,6)')", "finished()")
TASKS = [replace(task("a"), solution=SOLUTION), replace(task("b"), solution=SOLUTION)]
UNSOLVED = [task("a"), task("b")]
HERE = Path(__file__).relative_to(Path.cwd())


def line_of(function: Any, offset: int = 0) -> str:
    return f"{HERE}:{inspect.findsource(function)[1] + 1 + offset}"


class Solvable(FakeEnv):
    """A click at (5, 6) solves the task."""

    async def evaluate(self):
        return float(any(Click(point=Point(5, 6)) in actions for actions in self.steps))


def check(factory, tasks=TASKS):
    return asyncio.run(check_env(factory, tasks, CONFIG))


def found(factory, tasks=TASKS):
    """The lines of the findings."""
    return [str(each) for each in check(factory, tasks) if not each.ok]


def test_a_good_environment_passes_every_check():
    checks = check(Solvable)
    assert [str(each) for each in checks] == [
        "ok    every task starts and returns a screenshot",
        "ok    the screen size stays the same",
        "ok    every action is executed or raises EnvError",
        "ok    evaluate() returns a number in [0, 1] and changes nothing",
        "ok    close() works twice, and before start()",
        "ok    the solution of a task scores 1",
        "ok    doing nothing does not solve a feasible task",
        "ok    two environments do not affect each other",
        "ok    a task always starts with the same screen",
        "ok    no call blocks the other environments",
    ]


def test_without_solutions_one_check_is_skipped():
    skipped = [str(each) for each in check(FakeEnv, UNSOLVED) if each.mark != "ok"]
    assert skipped == [
        "skip  the solution of a task scores 1: no task has a solution, so only unsolved tasks were scored: "
        'add to a task, for example, "solution": ["click(start_box=\'(105,63)\')"]'
    ]


def test_every_kind_of_action_is_tried():
    kinds = {type(action) for action in every_action(56, 56)}
    assert kinds == set(Action.__args__)


@pytest.mark.parametrize("at", ["start", "step", "evaluate", "close"])
def test_faults_and_hangs_are_found(at):
    assert any(f"chaos at {at}" in line for line in found(failing(Solvable, at, times=99)))
    assert any("no answer within 0.2 s" in line for line in found(hanging(Solvable, at, times=1)))


def test_a_call_that_always_hangs_is_tried_twice():
    class Stuck(Solvable):
        calls_of_step = 0

        async def step(self, actions):
            Stuck.calls_of_step += 1
            await asyncio.Event().wait()

    [line] = found(Stuck)
    assert line == (
        f"FAIL  {line_of(Stuck.step, 2)}: step: no answer within 0.2 s: make it faster, or raise "
        "--env.step_seconds (in 5 of 10 checks)"
    )
    assert Stuck.calls_of_step == 2


def test_the_same_cause_is_one_line_with_a_count():
    class NoRoom(Solvable):
        async def step(self, actions):
            raise KeyError("room")

    assert found(NoRoom) == [
        f"FAIL  {line_of(NoRoom.step, 1)}: step: KeyError: 'room': correct this line; ignore actions that "
        "the environment does not support (in 5 of 10 checks)"
    ]


def test_a_line_that_fails_differently_for_each_action_is_one_cause():
    class Dicts(Solvable):
        async def step(self, actions):
            return actions[0]["type"]

    [line] = found(Dicts)
    assert line.startswith(f"FAIL  {line_of(Dicts.step, 1)}: step: TypeError: 'Wait' object is not subscri")
    assert line.endswith("(in 5 of 10 checks)")


def test_a_method_with_other_arguments_is_named_with_its_line():
    class Extra(Solvable):
        async def evaluate(self, task):  # type: ignore[override]
            return 0.0

    [line] = found(Extra)
    assert line.startswith(f"FAIL  {line_of(Extra.evaluate, 0)}: evaluate: TypeError: ")


def test_an_exception_without_a_message():
    class Strict(Solvable):
        async def step(self, actions):
            raise AssertionError

    [line] = found(Strict)
    assert "step: AssertionError: correct this line; ignore actions" in line


def test_a_fault_of_some_tasks_names_the_first():
    class Picky(Solvable):
        async def start(self, task):
            if task.id != "a":
                raise LookupError(f"no {task.config}")
            return await super().start(task)

    tasks = [*TASKS, replace(TASKS[0], id="c")]
    assert found(Picky, tasks) == [
        f"FAIL  {line_of(Picky.start, 2)}: start: LookupError: no (): correct this line, or the task "
        "(task b and 1 other; in 5 of 10 checks)"
    ]


def test_an_invalid_score_is_found():
    assert found(lying(Solvable, None)) == [
        "FAIL  evaluate: returned None, not a number in [0, 1]: return 1.0 if the task is solved and 0.0 if "
        "not (in 5 of 10 checks)"
    ]


class Refusing(Solvable):
    async def step(self, actions):
        if isinstance(actions[0], Hotkey):
            raise EnvError("step", "no keyboard") from KeyError("ctrl")
        return await super().step(actions)


class Crashing(Solvable):
    async def step(self, actions):
        if isinstance(actions[0], Hotkey):
            raise KeyError("ctrl")
        if isinstance(actions[0], Scroll):
            raise ValueError("wheel")
        return await super().step(actions)


def test_refusing_an_action_is_allowed_and_crashing_is_not():
    assert found(Refusing) == []
    remedy = "correct this line; ignore actions that the environment does not support"
    scroll = "Scroll(point=Point(x=28, y=28), direction=<Direction.UP: 'up'>, amount=None)"
    assert found(Crashing) == [
        f"FAIL  {line_of(Crashing.step, 4)}: step: ValueError: wheel: {remedy} (at {scroll} and 5 others)",
        f"FAIL  {line_of(Crashing.step, 2)}: step: KeyError: 'ctrl': {remedy} "
        "(at Hotkey(keys=('ctrl', 'a')) and 1 other)",
    ]


def test_a_screen_that_changes_size_is_found():
    class Growing(Solvable):
        async def step(self, actions):
            await super().step(actions)
            return StepResult(observation=Observation(screenshot=screenshot(0, (60, 60))))

    assert found(Growing) == [
        f"FAIL  {line_of(Growing.step)}: step: the screenshot is 60x60, must be 56x56, the size of the first "
        "one of the episode (in 5 of 10 checks)"
    ]


@pytest.mark.parametrize("png", [plain()[:40], corrupt(plain())], ids=["torn", "corrupt"])
def test_a_damaged_screenshot_is_found(png):
    class Torn(Solvable):
        async def start(self, task):
            return Observation(screenshot=Screenshot.of(png))

    [line] = found(Torn)
    assert line.startswith(f"FAIL  {line_of(Torn.start)}: start: the screenshot is a damaged PNG")


def test_a_class_that_cannot_be_created_is_found():
    class NeedsMore(Solvable):
        def __init__(self, address):
            super().__init__()

    [line] = found(NeedsMore)
    assert line.startswith(f"FAIL  {line_of(NeedsMore)}: create: TypeError: ")
    assert "missing 1 required positional argument: 'address': the constructor must work without arg" in line
    assert line.endswith("(in 9 of 10 checks)")


def test_closing_is_possible_before_starting():
    class Opens(Solvable):
        async def start(self, task):
            self.window = "open"
            return await super().start(task)

        async def close(self):
            del self.window

    assert found(Opens) == [
        f"FAIL  {line_of(Opens.close, 1)}: close: AttributeError: 'Opens' object has no attribute 'window': "
        "correct this line; close() must work twice, and before start()"
    ]


def test_evaluating_twice_must_not_change_the_score():
    class Forgetful(Solvable):
        async def evaluate(self):
            self.calls.append("evaluate")
            return (
                0.5 / self.calls.count("evaluate")
                if self.steps[-1:] != [(Click(point=Point(5, 6)),)]
                else 1.0
            )

    lines = found(Forgetful, UNSOLVED)
    assert lines == [
        f"FAIL  {line_of(Forgetful.evaluate)}: evaluate: three calls returned 0.5, 0.25, 0.166667, although "
        "nothing was done: it must score the current state and not change it"
    ]


def test_a_bool_score_is_a_warning():
    class Bool(Solvable):
        async def evaluate(self):
            return await super().evaluate() == 1.0

    assert found(Bool) == [
        f"warn  {line_of(Bool.evaluate)}: evaluate: returned a bool: write `return float(…)`"
    ]


def test_environments_that_share_state_are_found():
    class Shared(FakeEnv):
        clicked: ClassVar[list[Action]] = []

        async def start(self, task):
            self.clicked.clear()
            return await super().start(task)

        async def step(self, actions):
            self.clicked.extend(action for action in actions if action != Wait())
            return await super().step(actions)

        async def evaluate(self):
            return float(bool(self.clicked))

    assert found(Shared) == [
        f"FAIL  {line_of(Shared)}: evaluate: returned 0 alone, but 1 while another environment is open: give "
        "each its own state, port, folder or display"
    ]


def test_a_resource_that_only_one_environment_can_have_is_found():
    class Port(Solvable):
        taken = False

        async def start(self, task):
            if Port.taken:
                raise OSError("address already in use")
            Port.taken = self.owner = True
            return await super().start(task)

        async def close(self):
            if getattr(self, "owner", False):
                Port.taken = False

    assert found(Port) == [
        f"FAIL  {line_of(Port.start, 2)}: start: OSError: address already in use while another environment "
        "is open: give each its own state, port, folder or display"
    ]


def test_a_solution_must_score_one_and_change_the_screen():
    class Percent(Solvable):
        async def evaluate(self):
            return 100 * await super().evaluate()

    class Half(Solvable):
        async def evaluate(self):
            return 0.5 * await super().evaluate()

    class Still(Solvable):
        def _observe(self):
            return Observation(screenshot=screenshot(0))

    assert found(Percent) == [
        f"FAIL  {line_of(Percent.evaluate)}: evaluate: returned 100.0, not a number in [0, 1]: return 1.0 if "
        "the task is solved and 0.0 if not"
    ]
    assert found(Half) == [
        f"FAIL  {line_of(Half.evaluate)}: evaluate: returned 0.5 after the solution of the task, must return "
        "1: correct it, or the solution"
    ]
    assert found(Still) == [
        "warn  step: the screen never changed while the solution was played: draw the new state"
    ]


def test_a_task_that_is_solved_at_its_start_is_found():
    class Generous(FakeEnv):
        async def evaluate(self):
            return 1.0

    reason = (
        f"{line_of(Generous.evaluate)}: evaluate: returned 1 right after start(), before any action: score "
        "only the goal of the task, and let start() reset the state"
    )
    assert found(Generous) == [f"FAIL  {reason}"]
    assert found(Generous, UNSOLVED) == [f"warn  {reason}"]
    assert found(Generous, [replace(task("a"), evaluator={"func": "infeasible"})]) == []


def test_randomness_is_a_warning():
    shades = itertools.count()

    class Dice(Solvable):
        async def start(self, task):
            return Observation(screenshot=screenshot(next(shades) % 256))

    assert found(Dice) == [
        f"warn  {line_of(Dice.start)}: start: two starts of the task showed different screens: set all "
        "random seeds in start()"
    ]


def test_a_blocking_call_is_found(monkeypatch):
    monkeypatch.setattr("arpo.envs.check.LoopWatch", lambda: LoopWatch(limit=0.4))
    naps = iter([1.0] * 2)

    class Sleepy(Solvable):
        async def evaluate(self):
            time.sleep(next(naps, 0))  # noqa: ASYNC251
            return await super().evaluate()

    config = EnvConfig(name=FAKE)
    lines = [str(each) for each in asyncio.run(check_env(Sleepy, TASKS, config)) if not each.ok]
    assert lines == [
        f"FAIL  {line_of(Sleepy.evaluate, 1)}: evaluate: blocks all environments for more than 1 s: use "
        "`await asyncio.sleep(…)`, or `await asyncio.to_thread(function, …)` for a slow function"
    ]


def test_waiting_and_a_slow_thread_do_not_block(monkeypatch):
    monkeypatch.setattr("arpo.envs.check.LoopWatch", lambda: LoopWatch(limit=0.4))
    naps = iter([0.6] * 4)

    class Patient(Solvable):
        async def evaluate(self):
            await asyncio.to_thread(time.sleep, next(naps, 0))
            await asyncio.sleep(next(naps, 0))
            return await super().evaluate()

    assert [
        str(each) for each in asyncio.run(check_env(Patient, TASKS, EnvConfig(name=FAKE))) if not each.ok
    ] == []
