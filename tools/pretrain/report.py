"""The report on the base model of Desk: reading, pointing, then acting (`python -m tools.pretrain`).

All screens and tasks come from seeds of their own. Questions are answered at temperature 0, tasks are
played at the temperatures of training and evaluation.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arpo.actions import Click, DoubleClick, RightClick
from arpo.config import Config, RolloutConfig
from arpo.dialects.base import Answer, ParseError
from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, LAYOUT_HEIGHT, LAYOUT_WIDTH
from arpo.envs.desk.desktop import Element
from arpo.envs.desk.goals import FEASIBLE, INFEASIBLE, compatible
from arpo.envs.desk.random_tasks import random_task, rng_for, solution_length, to_task
from arpo.errors import UserError
from arpo.evaluation.evaluate import evaluate
from arpo.interrupts import run_interruptibly
from arpo.models.loading import resolve_device
from arpo.reporting.display import Display, open_display
from arpo.rollout.player import Player, open_player
from arpo.rollout.scheduler import Scheduler
from arpo.storage.run_folder import write_atomically
from arpo.types import Prompt, Sampling, Screenshot, Task
from tools.pretrain.card import CARD, with_report
from tools.pretrain.reading import (
    Question,
    list_entry,
    listed_elements,
    point,
    read_screen,
    read_state,
)
from tools.pretrain.screens import random_desktop
from tools.pretrain.training import MODEL

REPORT = "report.json"  # in the output directory
_GOALS = {"infeasible": 0, "one goal": 1, "two goals": 2, "three goals": 3}
_LIST_TOKENS = 400  # a list of 40 elements
_ATTEMPTS = 100  # per task
_GPU_EPISODES = 256  # at the same time
_ENTRY = re.compile(r"([^()]*)\((\d+),(\d+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about a screen, and the elements of the screen."""

    question: Question
    screenshot: Screenshot
    listed: Sequence[Element]


def write_report(config: Config, folder: Path, size: int) -> None:
    """Measure the model in `folder`, write report.json there, and add a summary to the model's card."""
    if not (folder / MODEL).is_dir():
        raise UserError(f"--out {folder}: has no folder {MODEL!r}. Train first, without --report")
    config = replace(config, model=replace(config.model, path=str(folder / MODEL)))
    report = measure_ladder(config, size, open_display(sys.stdout))
    write_atomically(folder / REPORT, json.dumps(report, indent=1) + "\n")
    card = folder / MODEL / CARD
    table = report_table(report)
    card.write_text(with_report(card.read_text(encoding="utf-8"), table), encoding="utf-8")
    print(f"{table}\nwritten to {folder / REPORT}")


def measure_ladder(config: Config, size: int, display: Display) -> dict[str, Any]:
    """The report of the recipe's model: `size` screens and tasks of each kind. Closes `display`."""
    if resolve_device(config.model.device).startswith("cuda"):
        config = replace(config, env=replace(config.env, parallel=max(config.env.parallel, _GPU_EPISODES)))
    try:
        with closing(open_player(config)) as player:
            return run_interruptibly(_measure(player, config, size, display))
    finally:
        display.close()


async def _measure(player: Player, config: Config, size: int, display: Display) -> dict[str, Any]:
    screens = list(_questions(read_screen, size, 0))
    points, states = list(_questions(point, 4 * size, 1)), list(_questions(read_state, 4 * size, 2))
    async with player.started(display) as scheduler:
        parse = scheduler.agent.dialect.parse
        read = await _answers(scheduler, "read", screens, config.env.parallel, display)
        pointed = await _answers(scheduler, "point", points, config.env.parallel, display)
        told = await _answers(scheduler, "state", states, config.env.parallel, display)
        temperatures = (config.rollout.temperature, config.eval.temperature)
        acting = {f"{t:g}": await _act(scheduler, size, t, display) for t in temperatures}
    hits = [points_at(asked.question, text, parse) for asked, text in zip(points, pointed, strict=True)]
    right = [asked.question.answer == text for asked, text in zip(states, told, strict=True)]
    return {
        "size": size,
        "reading": reading_accuracy([asked.listed for asked in screens], read),
        "pointing": accuracy(points, hits),
        "state": accuracy(states, right),
        "acting": acting,
    }


def _questions(ask: Any, count: int, offset: int) -> Iterator[Asked]:
    """Questions about screens from seeds below 0, which no lesson uses."""
    number = made = 0
    while made < count:
        number += 1
        rng = rng_for("pretrain", -(3 * number + offset))
        desktop = random_desktop(rng)
        if question := ask(rng, desktop):
            made += 1
            screenshot = Screenshot.of(desktop.draw(LAYOUT_WIDTH, LAYOUT_HEIGHT).png())
            yield Asked(question=question, screenshot=screenshot, listed=listed_elements(desktop))


async def _answers(
    scheduler: Scheduler, name: str, asked: Sequence[Asked], parallel: int, display: Display
) -> list[str]:
    """The most likely answers, `parallel` at a time."""
    agent, slots = scheduler.agent, asyncio.Semaphore(parallel)
    limit = _LIST_TOKENS if name == "read" else scheduler.settings.max_answer_tokens
    display.begin(f"report, questions: {name}", len(asked))

    async def answer(number: int, one: Asked) -> str:
        conversation = agent.begin(one.question.instruction, scheduler.settings).look(one.screenshot)
        rendered = agent.renderer.render(conversation.messages())
        prompt = Prompt(
            episode_id=f"{name}-{number}",
            token_ids=rendered.token_ids,
            images=rendered.images,
            messages=conversation.messages(),
        )
        async with slots:
            sampling = Sampling(temperature=0.0, max_tokens=limit, seed=0)
            text = (await agent.engine.generate(prompt, sampling)).text
            await agent.engine.release(prompt.episode_id)
        display.episode_done()
        return text

    return await asyncio.gather(*(answer(number, one) for number, one in enumerate(asked)))


async def _act(scheduler: Scheduler, size: int, temperature: float, display: Display) -> dict[str, Any]:
    """Success by number of goals, and by family for tasks with one goal."""
    success: dict[str, Any] = {}
    for name, goals in _GOALS.items():
        tasks = list(enumerate(_tasks(goals, size, scheduler.settings.max_steps)))
        display.begin(f"report, {name}, temperature {temperature:g}", size)
        groups = await evaluate(
            scheduler,
            tasks,
            name=f"report-{goals}-{temperature:g}",
            rollouts=1,
            temperature=temperature,
            on_episode=lambda *_: display.episode_done(),
        )
        scores = [[trajectory.score for trajectory in group.trajectories] for group in groups]
        success[name] = _mean([score for some in scores for score in some])
        if goals == 1:
            by_family: dict[str, list[float]] = {}
            for (_, task), some in zip(tasks, scores, strict=True):
                by_family.setdefault(task.snapshot, []).extend(some)
            success["families"] = {family: _mean(some) for family, some in sorted(by_family.items())}
    return success


def _tasks(goals: int, count: int, max_steps: int) -> Iterator[Task]:
    """Tasks from seeds below 0, solvable within `max_steps`. One goal: all families in turn."""
    number = made = 0
    while made < count:
        number += 1
        if number > _ATTEMPTS * count:
            raise UserError(
                f"rollout.max_steps = {max_steps}: too few for the report's tasks with {goals} goals; use "
                f"{RolloutConfig().max_steps}"
            )
        rng = rng_for("pretrain", -(10_000_000 * (goals + 1) + number))
        raw = random_task(rng, _families(rng, goals, made), f"report-{goals}-{made}")
        if solution_length(raw) <= max_steps:
            made += 1
            yield to_task(raw)


def _families(rng: random.Random, goals: int, number: int) -> list[type[Any]]:
    if goals <= 1:
        families = list((FEASIBLE if goals else INFEASIBLE).values())
        return [families[number % len(families)]]
    while True:
        drawn = rng.sample(list(FEASIBLE.values()), goals)
        if compatible(drawn):
            return drawn


def reading_accuracy(
    listed: Sequence[Sequence[Element]], answers: Sequence[str]
) -> dict[str, dict[str, float]]:
    """By kind of element: share with the right label, and share with the label at the right place.

    An element "Save" from (60,30) to (88,44) is read in "Save(70,35)". In "Save(10,35)" only its label is.
    """
    found: dict[str, list[tuple[bool, bool]]] = {}
    for elements, answer in zip(listed, answers, strict=True):
        entries = [(text, int(x), int(y)) for text, x, y in _ENTRY.findall(answer)]
        for element in elements:
            label = list_entry(element).rpartition("(")[0]
            places = [(x, y) for text, x, y in entries if text == label]
            placed = any(_inside(element, x, y) for x, y in places)
            found.setdefault(element.kind, []).append((bool(places), placed))
    return {
        kind: {
            "elements": len(pairs),
            "label": _mean([label for label, _ in pairs]),
            "place": _mean([place for _, place in pairs]),
        }
        for kind, pairs in sorted(found.items())
    }


def points_at(question: Question, answer: str, parse: Callable[[str], Answer]) -> bool:
    """Whether the answer points into the element of the question. A slider needs the right mark."""
    assert question.element is not None
    right = question.action
    try:
        [action] = parse(answer).actions
    except (ParseError, ValueError):
        return False
    if type(action) is not type(right) or not isinstance(action, Click | DoubleClick | RightClick):
        return False
    if question.kind == "Slider":
        assert isinstance(right, Click)
        return action.point.x // CELL_WIDTH == right.point.x // CELL_WIDTH
    return _inside(question.element, action.point.x, action.point.y)


def accuracy(asked: Sequence[Asked], right: Sequence[bool]) -> dict[str, dict[str, float]]:
    """By kind of element: number of questions, and share of right answers."""
    found: dict[str, list[bool]] = {}
    for one, verdict in zip(asked, right, strict=True):
        found.setdefault(one.question.kind, []).append(verdict)
    return {kind: {"questions": len(some), "right": _mean(some)} for kind, some in sorted(found.items())}


def report_table(report: Mapping[str, Any]) -> str:
    """The report as two Markdown tables: elements by kind, and tasks by number of goals."""
    kinds = sorted({*report["reading"], *report["pointing"], *report["state"]})
    parts = (("reading", "label"), ("reading", "place"), ("pointing", "right"), ("state", "right"))
    lines = ["| element | label read | label and place | pointing | state |", "| --- " * 5 + "|"]
    for kind in kinds:
        cells = [report[part][kind][key] if kind in report[part] else None for part, key in parts]
        lines.append(f"| {kind} | {' | '.join('' if cell is None else f'{cell:.1%}' for cell in cells)} |")
    lines += ["", f"| temperature | {' | '.join(_GOALS)} |", "| --- " * (len(_GOALS) + 1) + "|"]
    for temperature, success in report["acting"].items():
        lines.append(f"| {temperature} | {' | '.join(f'{success[name]:.1%}' for name in _GOALS)} |")
    return "\n".join(lines)


def _inside(element: Element, x: float, y: float) -> bool:
    column, row = x // CELL_WIDTH - element.column, y // CELL_HEIGHT - element.row
    return 0 <= column < element.columns and 0 <= row < element.rows


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
