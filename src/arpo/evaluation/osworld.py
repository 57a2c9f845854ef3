"""`arpo eval osworld`: a model behind servers plays a list of tasks, in OSWorld's layout of results.

What has a result is not played again, so a stopped evaluation goes on. What failed for reasons that are not
the model's is counted apart and never scored; what cannot run here is skipped with the reason. Nothing is
trained.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from arpo.actions import Action
from arpo.config import Config
from arpo.engines.openai import OpenAIEngine
from arpo.envs.base import Env
from arpo.envs.factory import open_pool
from arpo.envs.osworld.needs import REMEDY, runnable
from arpo.envs.pool import EnvPool
from arpo.envs.task_files import load_tasks, select_tasks
from arpo.errors import UserError
from arpo.evaluation.osworld_results import SUMMARY, Place, Played, Trial, model_folder, place_of, scores
from arpo.evaluation.osworld_summary import summarise, table
from arpo.prompts.conversation import load_template
from arpo.prompts.rendering import ChatRenderer
from arpo.reporting.display import Display, PartProgress, open_display
from arpo.rollout.episode import Agent, run_episode
from arpo.rollout.scheduler import reason
from arpo.storage.run_folder import write_atomically
from arpo.types import Failure, Observation, StepResult, Task, Trajectory

SECTIONS = ("run", "model", "tasks", "env", "osworld", "rollout", "eval", "server")


def run_osworld_evaluation(config: Config) -> int:
    """Play what has no result yet, then write and print where things stand; 1 if something failed."""
    chosen = select_tasks(load_tasks(config.eval.tasks, config.tasks.examples), config.tasks)
    tasks, skipped = runnable(chosen, config)
    if not tasks:
        why = f"none of its {len(chosen)} tasks can run here; the first: {skipped[0][1]}; {REMEDY}"
        raise UserError(f"{config.eval.tasks}: {why}")
    root, model = Path(config.eval.results), config.server.model
    names = list(dict.fromkeys(name.strip() for name in config.eval.trials.split(",")))
    with ExitStack() as held:
        trials = [held.enter_context(Trial(root, model, name)) for name in names]
        for trial in trials:
            trial.begin(terms(config), {name: asdict(getattr(config, name)) for name in SECTIONS})
        _play_what_is_left(config, tasks, len(skipped), trials)
        folder = model_folder(root, model)
        places = {place_of(task) for task in tasks}
        summary = summarise(folder, config, terms(config), names=names, places=places, skipped=skipped)
        write_atomically(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    print(*table(summary), f"results: {folder}", sep="\n")
    return 1 if summary["failures"] else 0


def terms(config: Config) -> dict[str, Any]:
    """What two episodes must share to be of one evaluation."""
    osworld = config.env.name == "osworld"
    return {
        "model": config.server.model,
        "prompt": config.model.prompt,
        "coordinates": config.model.coordinates,
        "temperature": config.eval.temperature,
        "top_p": config.server.top_p,
        "frequency_penalty": config.server.frequency_penalty,
        "stop": config.server.stop,
        "max_steps": config.rollout.max_steps,
        "max_images": config.rollout.max_images,
        "max_answer_tokens": config.rollout.max_answer_tokens,
        "env": f"osworld, {config.osworld.provider}" if osworld else config.env.name,
        "screen": f"{config.env.width}x{config.env.height}",
    }


def _play_what_is_left(config: Config, tasks: Sequence[Task], skipped: int, trials: Sequence[Trial]) -> None:
    done = {trial.name: scores(trial.folder) for trial in trials}
    left = [(trial, task) for trial in trials for task in tasks if place_of(task) not in done[trial.name]]
    if not left:
        return
    if skipped:
        print(f"{skipped} tasks cannot run here and are skipped; the reasons are at the end")
    display = open_display(sys.stdout)
    try:
        progress = _Progress(display, tasks, done)
        asyncio.run(_play(config, left, progress))
    finally:
        display.close()
    progress.refuse_if_nothing_was_played()


async def _play(config: Config, left: Sequence[tuple[Trial, Task]], progress: _Progress) -> None:
    """All at once, as many as there are environments; the first error that is the user's ends it."""
    renderer = ChatRenderer(config.model.min_pixels, config.model.max_pixels)
    template = load_template(config.model.prompt)
    async with OpenAIEngine(config.server, os.environ.get("OPENAI_API_KEY", "")) as engine:
        for note in await engine.probe():
            progress.display.note(note)
        pool = open_pool(config)
        agent = Agent(
            engine=engine, renderer=renderer, template=template, coordinates=config.model.coordinates
        )
        try:
            async with asyncio.TaskGroup() as running:
                for trial, task in left:
                    running.create_task(_episode(config, trial, task, agent, pool, progress))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def _episode(
    config: Config, trial: Trial, task: Task, agent: Agent, pool: EnvPool, progress: _Progress
) -> None:
    place = place_of(task)
    settings = replace(config.rollout, temperature=config.eval.temperature)
    episode_id = "/".join((trial.name, *place))
    times: list[datetime] = []

    async def episode(env: Env) -> Trajectory:
        times.clear()
        return await run_episode(
            task,
            _TimedEnv(env, times),
            agent,
            episode_id=episode_id,
            settings=settings,
            seed=config.run.seed,
        )

    outcome = await pool.run(task, episode_id, episode)
    if isinstance(outcome, Trajectory):
        played = Played(trajectory=outcome, times=tuple(times), max_steps=settings.max_steps)
        await asyncio.to_thread(trial.add, place, played)
    else:
        trial.add_failure(place, outcome)
    progress.ended(place, outcome)


class _TimedEnv:
    """An environment that notes when it was started, at each step, and at the verdict."""

    def __init__(self, env: Env, times: list[datetime]) -> None:
        self._env, self._times = env, times

    async def start(self, task: Task) -> Observation:
        self._times.append(datetime.now())
        return await self._env.start(task)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        self._times.append(datetime.now())
        return await self._env.step(actions)

    async def evaluate(self) -> float:
        self._times.append(datetime.now())
        return await self._env.evaluate()

    async def close(self) -> None:
        await self._env.close()


class _Progress:
    """What a person sees of it: how far each domain is, and the first failure of each kind."""

    def __init__(
        self, display: Display, tasks: Sequence[Task], done: Mapping[str, Mapping[Place, float]]
    ) -> None:
        self.display = display
        self._total = Counter({domain: count * len(done) for domain, count in _by_domain(tasks).items()})
        self._ended: Counter[str] = Counter()
        self._played: Counter[str] = Counter()
        self._successes: dict[str, float] = dict.fromkeys(self._total, 0.0)
        self._failures: dict[tuple[str, str], Failure] = {}
        places = {place_of(task) for task in tasks}
        for (domain, name), score in (pair for results in done.values() for pair in results.items()):
            if (domain, name) in places:
                self._count(domain, score)
        display.begin("playing", self._total.total(), self._ended.total())
        self._tell()

    def ended(self, place: Place, outcome: Trajectory | Failure) -> None:
        if isinstance(outcome, Trajectory):
            self._count(place[0], outcome.score)
        else:
            self._ended[place[0]] += 1
            if (kind := (outcome.where, outcome.kind)) not in self._failures:
                self._failures[kind] = outcome
                self.display.note(f"an episode failed: {reason(outcome)}")
        self.display.episode_done()
        self._tell()

    def refuse_if_nothing_was_played(self) -> None:
        """An evaluation without one episode says nothing, and going on would hide why."""
        if self._failures and not self._played:
            first = next(iter(self._failures.values()))
            raise UserError(
                f"all {self._ended.total()} episodes failed, the first of them: {reason(first)}; mend it, "
                "then give the same command again"
            )

    def _count(self, domain: str, score: float) -> None:
        self._ended[domain] += 1
        self._played[domain] += 1
        self._successes[domain] += score

    def _tell(self) -> None:
        self.display.part_progress(
            [
                PartProgress(
                    name=domain,
                    total=total,
                    ended=self._ended[domain],
                    played=self._played[domain],
                    successes=self._successes[domain],
                )
                for domain, total in self._total.items()
            ]
        )


def _by_domain(tasks: Sequence[Task]) -> Counter[str]:
    return Counter(place_of(task)[0] for task in tasks)
