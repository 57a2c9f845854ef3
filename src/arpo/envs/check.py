"""The conformance suite of `arpo check-env`: the rules for environments.

    for check in await check_env(MyEnv, tasks, EnvConfig(name="mine:MyEnv")):
        print(check)  # ok    every task starts and returns a screenshot

Each check makes its own environments and uses only the four calls of `Env`. The suite plays the solutions of
the tasks, if they have any: a solution scores 1, doing nothing does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from arpo.actions import TERMINAL, Action, Wait, up_to_terminal
from arpo.config import EnvConfig
from arpo.dialects.ui_tars import parse_solution
from arpo.envs.base import EnvFactory
from arpo.envs.check_findings import Check, CheckFailed, Findings
from arpo.envs.check_probe import Probe, describe, every_action, raised_by_env
from arpo.envs.loop_watch import LoopWatch
from arpo.envs.return_values import definition
from arpo.errors import ActionRefused, EnvError, EnvTimeout, boundary, definition_of
from arpo.types import Screenshot, Task

MIN_BLOCKS = 2  # of a call; a single one may be an import
NO_SOLUTION = (
    "no task has a solution, so only unsolved tasks were scored: add to a task, for example, "
    '"solution": ["click(start_box=\'(105,63)\')"]'
)
SHARED = "while another environment is open: give each its own state, port, folder or display"

_T = TypeVar("_T")


async def check_env(
    factory: EnvFactory,
    tasks: Sequence[Task],
    config: EnvConfig,
    on_check: Callable[[Check], None] = lambda check: None,
    on_screenshot: Callable[[Screenshot], None] = lambda screenshot: None,
    more_actions: Sequence[Action] = (),
) -> list[Check]:
    """Run all checks on `tasks`, at least one. Returns a line per rule that holds and per finding.

    `on_check` receives the lines of a rule as soon as it is checked, `on_screenshot` the first screenshot of
    each task. Later rules may add notes to a finding: compare with the result. `more_actions` are tried
    besides one of every kind.
    """
    if not tasks:
        raise ValueError("check_env needs at least one task")
    async with LoopWatch() as watch:
        suite = _Suite(factory, tasks, config, watch, on_screenshot, more_actions)
        for rule, check in suite.rules.items():
            suite.rule = rule
            await check()
            for line in suite.findings.lines(rule):
                on_check(line)
    return suite.findings.checks()


class _Suite:
    def __init__(
        self,
        factory: EnvFactory,
        tasks: Sequence[Task],
        config: EnvConfig,
        watch: LoopWatch,
        on_screenshot: Callable[[Screenshot], None],
        more_actions: Sequence[Action],
    ) -> None:
        self.rules: dict[str, Callable[[], Awaitable[None]]] = {
            "every task starts and returns a screenshot": self._every_task_starts,
            "the screen size stays the same": self._screen_size_is_constant,
            "every action is executed or raises EnvError": self._every_action_is_handled,
            "evaluate() returns a number in [0, 1] and changes nothing": self._evaluate_is_repeatable,
            "close() works twice, and before start()": self._close_is_idempotent,
            "the solution of a task scores 1": self._solutions_score_one,
            "doing nothing does not solve a feasible task": self._inaction_scores_below_one,
            "two environments do not affect each other": self._environments_are_isolated,
            "a task always starts with the same screen": self._start_is_deterministic,
            "no call blocks the other environments": self._nothing_blocks,
        }
        self.rule = ""  # the current one
        self.findings = Findings(list(self.rules), [task.id for task in tasks])
        self._factory = factory
        self._tasks = tasks
        self._first = tasks[0]
        self._config = config
        self._watch = watch
        self._on_screenshot = on_screenshot
        self._more_actions = more_actions
        self._timeouts: dict[str, list[EnvTimeout]] = {}

    async def _play_each(
        self, tasks: Sequence[Task], episode: Callable[[Probe, Task], Awaitable[None]]
    ) -> None:
        for task in tasks:
            await self._play(lambda env, task=task: episode(env, task), task=task.id)  # type: ignore[misc]

    async def _play(
        self, episode: Callable[[Probe], Awaitable[_T]], *, task: str = "", note: str = ""
    ) -> _T | None:
        """Run `episode` in a new environment and close it. Returns None after a finding."""
        try:
            async with boundary(EnvError, "create"):
                env = Probe(self._factory(), self._config, self._watch, self._timeouts)
        except EnvError as fault:
            self._report(fault, task=task)
            return None
        try:
            return await episode(env)
        except CheckFailed as failed:
            self.findings.add(self.rule, failed.what, failed.place, required=failed.required, task=task)
        except EnvError as fault:
            self._report(fault, task=task, note=note)
        finally:
            await self._close(env, task)
        return None

    async def _close(self, env: Probe, task: str) -> None:
        try:
            await env.close()
        except EnvError as fault:
            self._report(fault, task=task)

    def _report(
        self, fault: EnvError, *, task: str = "", action: Action | None = None, note: str = ""
    ) -> None:
        what, place = describe(fault), fault.place
        if fault.where == "create":
            place = place or definition_of(self._factory)
        if note and not self.findings.known(what, place):
            what = f"{what.partition(': correct this line')[0]} {note}"
        self.findings.add(self.rule, what, place, task=task, action=str(action) if action else "")

    async def _every_task_starts(self) -> None:
        async def play(env: Probe, task: Task) -> None:
            self._on_screenshot((await env.start(task)).screenshot)

        await self._play_each(self._tasks, play)

    async def _screen_size_is_constant(self) -> None:
        """GuardedEnv compares the sizes."""
        await self._play(partial(_wait, task=self._first))

    async def _every_action_is_handled(self) -> None:
        """Reuses an environment until an action is terminal, raises an exception or ends the episode."""
        seen = await self._play(lambda env: env.start(self._first))
        remaining = [*self._more_actions, *every_action(*seen.screenshot.size)] if seen else []

        async def play(env: Probe) -> bool:
            await env.start(self._first)
            while remaining and await self._try(env, (remaining.pop(0),)):
                pass
            return True

        while remaining:
            if await self._play(play) is None:
                break

    async def _try(self, env: Probe, actions: tuple[Action, ...]) -> bool:
        """Whether the episode continues after the actions. The environment itself may raise EnvError."""
        try:
            result = await env.step(actions)
        except EnvError as fault:
            if isinstance(fault, ActionRefused) or not raised_by_env(fault):
                self._report(fault, action=actions[0])
            return False
        return not result.terminated and not isinstance(actions[-1], TERMINAL)

    async def _evaluate_is_repeatable(self) -> None:
        async def play(env: Probe, task: Task) -> None:
            await env.start(task)
            scores = [await env.evaluate(), await env.evaluate()]
            await env.step((Wait(),))
            scores.append(await env.evaluate())
            place = definition(env.raw, "evaluate")
            if len(set(scores)) > 1:
                listed = ", ".join(f"{score:g}" for score in scores)
                raise CheckFailed(
                    f"evaluate: three calls returned {listed}, although nothing was done: it must score the "
                    "current state and not change it",
                    place,
                )
            if task.has_evaluator and await env.returns_bool():
                raise CheckFailed("evaluate: returned a bool: write `return float(…)`", place, required=False)

        await self._play_each(self._tasks, play)

    async def _close_is_idempotent(self) -> None:
        async def play(env: Probe) -> None:
            await env.start(self._first)
            await env.close()

        await self._play(play)
        await self._play(lambda env: env.close())

    async def _environments_are_isolated(self) -> None:
        async def disturb(other: Probe) -> None:
            task = self._first if self._first.solution else self._tasks[-1]
            screen = (await other.start(task)).screenshot
            steps = parse_solution(task.solution) or [(action,) for action in every_action(*screen.size)]
            for actions in steps:
                if not await self._try(other, up_to_terminal(actions)):
                    break

        async def beside(env: Probe) -> tuple[str, float]:
            await env.start(self._first)
            await self._play(disturb, note=SHARED)
            return await _fingerprint(env)

        alone = await self._play(partial(_wait, task=self._first))
        beside_another = await self._play(beside)
        if alone is None or beside_another is None or alone == beside_another:
            return
        place = definition_of(self._factory)
        if alone[1] != beside_another[1]:
            scores = f"returned {alone[1]:g} alone, but {beside_another[1]:g}"
            self.findings.add(self.rule, f"evaluate: {scores} {SHARED}", place)
        elif alone == await self._play(partial(_wait, task=self._first)):
            self.findings.add(self.rule, f"step: the screen changes {SHARED}", place)

    async def _solutions_score_one(self) -> None:
        async def play(env: Probe, task: Task) -> None:
            screens = {(await env.start(task)).screenshot.sha256}
            steps = parse_solution(task.solution)
            for actions in steps:
                result = await env.step(up_to_terminal(actions))
                screens.add(result.observation.screenshot.sha256)
                if result.terminated:
                    break
            score = await env.evaluate()
            if score != 1.0:
                raise CheckFailed(
                    f"evaluate: returned {score:g} after the solution of the task, must return 1: correct "
                    "it, or the solution",
                    definition(env.raw, "evaluate"),
                )
            if len(screens) == 1 and not isinstance(steps[0][0], TERMINAL):
                raise CheckFailed(
                    "step: the screen never changed while the solution was played: draw the new state",
                    definition(env.raw, "step"),
                    required=False,
                )

        solved = [task for task in self._tasks if task.solution]
        await self._play_each(solved, play)
        if not solved:
            self.findings.skip(self.rule, NO_SOLUTION)

    async def _inaction_scores_below_one(self) -> None:
        async def play(env: Probe, task: Task) -> None:
            await env.start(task)
            if await env.evaluate() == 1.0 and task.evaluator.get("func") != "infeasible":
                raise CheckFailed(
                    "evaluate: returned 1 right after start(), before any action: score only the goal of the "
                    "task, and let start() reset the state",
                    definition(env.raw, "evaluate"),
                    required=bool(task.solution),
                )

        await self._play_each(self._tasks, play)

    async def _start_is_deterministic(self) -> None:
        screens: dict[str, str] = {}  # the first one of each task

        async def play(env: Probe, task: Task) -> None:
            screen = (await env.start(task)).screenshot.sha256
            if screen != screens.setdefault(task.id, screen):
                raise CheckFailed(
                    "start: two starts of the task showed different screens: set all random seeds in start()",
                    definition(env.raw, "start"),
                    required=False,
                )

        for _ in range(2):
            await self._play_each(self._tasks, play)

    async def _nothing_blocks(self) -> None:
        """The watch has observed all calls of the other checks."""
        counts = Counter(call for call, _ in self._watch.blocked)
        for call, place in dict(reversed(self._watch.blocked)).items():
            if counts[call] >= MIN_BLOCKS:
                self.findings.add(
                    self.rule,
                    f"{call}: blocks all environments for more than 1 s: use `await asyncio.sleep(…)`, or "
                    "`await asyncio.to_thread(function, …)` for a slow function",
                    place,
                )


async def _wait(env: Probe, task: Task) -> tuple[str, float]:
    await env.start(task)
    return await _fingerprint(env)


async def _fingerprint(env: Probe) -> tuple[str, float]:
    result = await env.step((Wait(),))
    return result.observation.screenshot.sha256, await env.evaluate()
