"""Measures a policy: plays each task several times and writes the success rates (`arpo eval`)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import Any, TypeVar

from arpo.config import Config
from arpo.config.task_set_names import HELDOUT, OVERALL, TRAIN, set_label
from arpo.engines.factory import model_id
from arpo.errors import UserError
from arpo.evaluation.finished_episodes import FinishedEpisodes, evaluation_key, is_of_another_evaluation
from arpo.evaluation.scoring import (
    Score,
    by_kind,
    report_failures,
    report_without_verdict,
    without_partial_credit,
)
from arpo.interrupts import run_interruptibly
from arpo.models.hub import pin_model
from arpo.reporting.display import Display, note_cancel, open_display
from arpo.rollout.agent import OnScreenshot
from arpo.rollout.player import open_player
from arpo.rollout.scheduler import OnEpisode, Outcome, Scheduler
from arpo.storage.run_folder import write_atomically
from arpo.tasks.sets import evaluated, load_sets, playable, report_skipped, rollouts_of
from arpo.tasks.sources import goal_families
from arpo.types import Group, Screenshot, Task, Trajectory

_T = TypeVar("_T")
OnPlayed = Callable[[Task, Trajectory], None]


async def evaluate(
    scheduler: Scheduler,
    tasks: Sequence[tuple[int, Task]],
    *,
    name: str,
    rollouts: int,
    temperature: float,
    on_episode: OnEpisode,
    finished: Mapping[str, Trajectory] = MappingProxyType({}),
    on_screenshot: OnScreenshot = lambda screenshot, previous: None,
) -> list[Group]:
    """Play `rollouts` episodes of each (index, task) at `temperature`. Episode ids are name-index-number.

    Episodes in `finished` are not played again.
    """
    settings = replace(scheduler.settings, group_size=rollouts, temperature=temperature)
    playing = replace(scheduler, settings=settings)
    return await playing.run(name, tasks, on_episode, finished, on_screenshot=on_screenshot)


async def evaluate_resumably(
    scheduler: Scheduler,
    tasks: Sequence[tuple[int, Task]],
    *,
    name: str,
    shown: str,
    rollouts: int,
    temperature: float,
    display: Display,
    kept: FinishedEpisodes | None,
    on_played: OnPlayed = lambda task, trajectory: None,
) -> list[Group]:
    """`evaluate` with a progress bar (`shown`). `kept` has the finished episodes, and gets the others."""
    by_index = dict(tasks)

    def on_screenshot(screenshot: Screenshot, previous: Screenshot | None) -> None:
        if kept is not None:
            kept.prepare(screenshot, previous)

    def on_episode(index: int, outcome: Outcome) -> None:
        if isinstance(outcome, Trajectory):
            if kept is not None:
                kept.add(outcome)
            on_played(by_index[index], outcome)
        display.episode_done()

    finished = kept.episodes if kept is not None else {}
    total = len(tasks) * rollouts
    done = sum(episode.startswith(f"{name}-") for episode in finished)
    display.begin(shown, total, min(done, total))
    return await evaluate(
        scheduler,
        tasks,
        name=name,
        rollouts=rollouts,
        temperature=temperature,
        on_episode=on_episode,
        finished=finished,
        on_screenshot=on_screenshot,
    )


async def evaluate_sets(
    scheduler: Scheduler,
    config: Config,
    sets: Mapping[str, Sequence[Task]],
    name: str,
    display: Display,
    kept: FinishedEpisodes | None = None,
    on_played: OnPlayed = lambda task, trajectory: None,
) -> dict[str, list[Group]]:
    """Play each task set with its own number of rollouts, without partial credit.

    `kept` has the episodes that are finished already, and receives the others, as does `on_played`.
    """
    groups: dict[str, list[Group]] = {}
    scheduler.pool.quarantine.begin_evaluation()
    for set_name, tasks in sets.items():
        if not tasks:
            groups[set_name] = []
            continue
        shown = shown_name(set_name)
        played = await evaluate_resumably(
            scheduler,
            list(enumerate(tasks)),
            name=f"{name}-{set_name}",
            shown=f"evaluating, {shown}",
            rollouts=rollouts_of(set_name, config.eval),
            temperature=config.eval.temperature,
            display=display,
            kept=kept,
            on_played=on_played,
        )
        groups[set_name] = [without_partial_credit(group, config.env.partial) for group in played]
        score = Score.of(groups[set_name])
        display.evaluation(f"{name}, {shown}", score.successes, score.episodes)
        report_failures(groups[set_name], display)
        report_without_verdict(f"{name}, {shown}", score, display)
    return groups


def shown_name(set_name: str) -> str:
    """The name of a set in messages: "train tasks", "new instances (test)"."""
    return f"{set_name} tasks" if set_name in (TRAIN, HELDOUT, OVERALL) else set_label(set_name)


def run_evaluation(config: Config, out: Path | None) -> int:
    """`arpo eval`: measure the recipe's model on its tasks. Prints the rates; `out` receives the scores."""
    measure(config, open_display(sys.stdout), out)
    print("not stored: --out FILE writes the scores of each task" if out is None else f"written to {out}")
    return 0


def measure(config: Config, display: Display, out: Path | None = None) -> dict[str, Score]:
    """Play the recipe's tasks with its model. Returns the scores by task set. Closes `display`.

    `out` receives the counts as JSON. With it an evaluation is resumable: OUT.episodes has the finished
    episodes of an interrupted one.
    """
    try:
        sets, skipped = playable(config, evaluated(load_sets(config), config.eval))
        if out is not None:
            require_writable(out)
        config = pin_model(config)
        report_skipped(skipped, out, display)
        groups = play_resumably(
            config,
            sets,
            out,
            display,
            lambda scheduler, kept: evaluate_sets(scheduler, config, sets, "eval", display, kept),
        )
        _show_domains(sets, groups, display)
    finally:
        display.close()
    if out is not None:
        write_atomically(out, json.dumps(_record(config, groups) | {"skipped": skipped}, indent=1) + "\n")
        delete_kept(out)
    return {name: Score.of(played) for name, played in groups.items()}


def _show_domains(
    sets: Mapping[str, Sequence[Task]], groups: Mapping[str, Sequence[Group]], display: Display
) -> None:
    """The success rate of each domain of a set that has several, such as the tasks of MiniWoB++."""
    for name, played in groups.items():
        domains = {task.id: () if goal_families(task) else (task.domain,) for task in sets[name]}
        rates = by_kind([Score.of(played)], domains.__getitem__)
        for domain, (successes, episodes) in rates.items() if len(rates) > 1 else ():
            display.evaluation(f"{set_label(name)}, {domain}", successes, episodes)


def play_resumably(
    config: Config,
    sets: Mapping[str, Sequence[Task]],
    out: Path | None,
    display: Display,
    play: Callable[[Scheduler, FinishedEpisodes | None], Awaitable[_T]],
) -> _T:
    """Call `play` with the model and environments of a recipe.

    If `out` is given, OUT.episodes keeps the finished episodes, until `delete_kept`.
    Raises UserError if it has episodes of other tasks (`sets`), of another model or with other settings.
    """

    async def playing() -> _T:
        async with player.started(display) as scheduler:
            return await play(scheduler, kept)

    with ExitStack() as opened:
        player = opened.enter_context(closing(open_player(config)))
        kept = None
        if out is not None:
            kept = _open_kept(out, evaluation_key(config, sets, player.model))
            opened.callback(kept.close)
        return run_interruptibly(playing(), on_cancel=lambda: note_cancel(display, stored=out is not None))


def delete_kept(out: Path) -> None:
    """Delete OUT.episodes: the result is stored."""
    shutil.rmtree(_kept_folder(out), ignore_errors=True)


def _kept_folder(out: Path) -> Path:
    return out.with_name(f"{out.name}.episodes")


def _open_kept(out: Path, key: str) -> FinishedEpisodes:
    folder = _kept_folder(out)
    if is_of_another_evaluation(folder, key):
        raise UserError(
            f"{folder}: has the episodes of an interrupted evaluation with another model, other tasks or "
            "other settings. Remove it, or choose another --out"
        )
    return FinishedEpisodes(folder, key, "--out")


def require_writable(out: Path) -> None:
    """Refuse an output file that cannot be written, before hours of rollouts."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder. Name a file in it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot create its folder: {error.strerror}") from error
    try:
        with NamedTemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there: {error.strerror}") from error


def _record(config: Config, groups: Mapping[str, Sequence[Group]]) -> dict[str, Any]:
    record: dict[str, Any] = {"model": model_id(config), "temperature": config.eval.temperature}
    for set_name, played in groups.items():
        score = Score.of(played)
        record[set_name] = {
            "success": score.rate if score.episodes else None,
            "successes": score.successes,
            "episodes": score.episodes,
            "failures": score.failures,
            "without_verdict": score.without_verdict,
            "tasks": score.by_task,
        }
    return record
