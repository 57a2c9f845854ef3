"""A judge for stored episodes: `arpo judge RUN` asks a vision-language model whether each task was done.

Every vote is stored when it arrives, so an interrupted command resumes with the missing ones. A failed
request or an answer in another form is a missing vote. It is counted, never a failure of the episode, and
asked for again by the next command.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arpo.config import Config, ServerConfig
from arpo.config.recipe import load_config, load_recorded
from arpo.engines.openai import OpenAIEngine
from arpo.errors import EngineError, UserError
from arpo.interrupts import run_interruptibly
from arpo.prompts.judge_question import Question, decide, evenly, read_answer
from arpo.reporting.display import Display, count_noun, open_display
from arpo.reporting.statistics import wilson
from arpo.storage.codec import COLLECTED, StoredEpisode, is_training_episode
from arpo.storage.judgements import Vote, VoteLog
from arpo.storage.run_folder import NO_SCREENSHOTS, RECIPE, RunFolderReader
from arpo.tasks.sets import load_sets
from arpo.tasks.sources import TaskIndex
from arpo.types import Prompt, Sampling

TEMPERATURE = 0.7
MAX_TOKENS = 2048  # of an answer, with a thought
SECONDS, ATTEMPTS = 120.0, 3  # of a request
MAX_FAILED = 3  # requests before the first answer
NO_ANSWER = "no answer"
# What to do, by a part of the reason of a missing vote. The first that fits.
REMEDIES = (
    (
        "not in the form",
        "The model does not keep to the form of the answer: use a larger one, or a newer one",
    ),
    ("the answer was cut", "Use a model with shorter thoughts, or serve it without thinking"),
    ("status 401", "Set OPENAI_API_KEY to the key of the server"),
    ("status 403", "Set OPENAI_API_KEY to the key of the server"),
    ("status 404", "Set server.model to a model of this server, and check the path of server.endpoints"),
    ("conversation is too long", "A lower --screenshots makes the question shorter"),
    (
        "(tried ",
        "Check that the server runs and is not overloaded (a lower env.parallel), or name another one",
    ),
    ("", "A judge is a vision-language model: serve one that accepts several screenshots"),
)
NO_EVALUATOR = "their tasks have no evaluator"
JUDGED = "their scores contain verdicts of a judge (reward.judge)"
OTHER_TASKS = "their tasks are not in the recipe, or have no instruction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """What to ask. `episodes`: evenly spaced over the run; None: all. `planted`: again with an injection."""

    votes: int
    unanimous: bool
    screenshots: int
    episodes: int | None
    planted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question about an episode. `evaluated`: whether its task's evaluator calls it a success."""

    evaluated: bool
    question: Question
    model: str

    def verdict(self, log: VoteLog, judging: Judging) -> bool | None:
        votes = stored_votes(log, self.question, self.model, judging.votes)
        return decide([vote.success if vote else None for vote in votes], unanimous=judging.unanimous)


def stored_votes(log: VoteLog, question: Question, model: str, count: int) -> list[Vote | None]:
    """The stored votes by number; None for one that was not asked for yet."""
    name, mark = question.episode.episode_id, question.mark
    return [log.votes.get((name, model, mark, number)) for number in range(count)]


class Judge:
    """Asks a served model for votes and stores them. Use between `start()` and `close()`.

    Raises UserError if the first requests to a model all fail.
    """

    def __init__(self, server: ServerConfig, log: VoteLog) -> None:
        self.model, self._log = server.model, log
        plain = replace(server, special_tokens=False)
        self._engine = OpenAIEngine(
            plain, os.environ.get("OPENAI_API_KEY", ""), seconds=SECONDS, attempts=ATTEMPTS
        )
        self._failed: list[EngineError] = []
        own = (vote for vote in log.votes.values() if vote.model == self.model)
        self._answered = any(vote.success is not None for vote in own)  # now or before

    async def start(self) -> Sequence[str]:
        return await self._engine.start()

    async def close(self) -> None:
        await self._engine.close()

    async def ask(self, question: Question, count: int) -> list[Vote]:
        """The votes on a question with pixels. Asks for those that are not stored or have no verdict."""
        mark = question.mark
        name = f"{question.episode.episode_id} {mark}"
        votes: list[Vote] = []
        prompt = Prompt(episode_id=name, token_ids=(), images=(), messages=question.messages())
        for number, vote in enumerate(stored_votes(self._log, question, self.model, count)):
            if vote is None or vote.success is None:
                success, reason = await self._vote(prompt, mark, number)
                vote = Vote(
                    episode=question.episode.episode_id,
                    final=question.episode.final.sha256,
                    model=self.model,
                    mark=mark,
                    planted=question.planted,
                    number=number,
                    success=success,
                    reason=reason,
                )
                self._log.add(vote)
            votes.append(vote)
        await self._engine.release(name)
        return votes

    async def _vote(self, prompt: Prompt, mark: str, number: int) -> tuple[bool | None, str]:
        """The verdict and its reason; None and what is wrong if there is none."""
        sampling = Sampling(temperature=TEMPERATURE, max_tokens=MAX_TOKENS, seed=int(mark[:7], 16) + number)
        try:
            answer = await self._engine.generate(prompt, sampling)
        except EngineError as error:
            self._failed.append(error)
            self.refuse_if_nothing_works(MAX_FAILED)
            return None, f"{NO_ANSWER}: {error.message[:1000]}"
        self._answered = True
        if answer.finish == "length":
            return None, f"the answer was cut at {MAX_TOKENS} tokens"
        return read_answer(answer.text, mark)

    def refuse_if_nothing_works(self, failed: int = 1) -> None:
        """Raise UserError if so many requests failed, and the model has never answered."""
        if not self._answered and len(self._failed) >= failed:
            message = self._failed[0].message
            raise UserError(f"no question was answered: {message}. {remedy(message)}")


def remedy(reason: str) -> str:
    """What the user can do about a missing vote."""
    return next(text for part, text in REMEDIES if part in reason)


def run_judge(folder: Path, overrides: Sequence[str], judging: Judging, *, as_json: bool) -> int:
    """`arpo judge`: ask for the missing votes, then print the verdicts against the evaluators' scores."""
    if not (folder / RECIPE).is_file():
        raise UserError(f"{folder}: not a run folder: {RECIPE} is missing: give the folder of a run")
    config = load_config(load_recorded(folder / RECIPE)[0], overrides)
    server = load_config(None, overrides).server  # not that of the run's agent
    display = open_display(sys.stderr if as_json else sys.stdout)
    try:
        with closing(RunFolderReader(folder)) as reader:
            asked = list(_questions(reader, config, server.model, judging, display))
            with closing(VoteLog(folder)) as log:
                _ask_missing(reader, config, server, asked, judging, log, display)
                result = count_verdicts(asked, judging, log)
    finally:
        display.close()
    print(json.dumps(result) if as_json else "\n".join(describe(result, server.model, judging)))
    return 0 if any(sum(result["verdicts"][name].values()) for name in ("success", "failure")) else 1


def _questions(
    reader: RunFolderReader, config: Config, model: str, judging: Judging, display: Display
) -> Iterator[Asked]:
    """The questions about the chosen episodes, without pixels. Reports the episodes that are left out."""
    tasks = TaskIndex(*load_sets(config).values())
    found: dict[str, list[StoredEpisode]] = {
        name: [] for name in ("", OTHER_TASKS, NO_SCREENSHOTS, NO_EVALUATOR, JUDGED)
    }
    for episode in reader.episodes():
        task = tasks.get(episode.task_id)
        obstacle = "" if reader.has_screenshots(episode) else NO_SCREENSHOTS
        if task and not task.has_evaluator:
            obstacle = NO_EVALUATOR
        elif config.reward.judge and _has_verdict_alone(episode):
            obstacle = JUDGED
        instruction = episode.instruction or (task.instruction if task else "")
        found[obstacle if instruction else OTHER_TASKS].append(episode)
    usable = found.pop("")
    left_out = [f"{count_noun(len(some), 'episode')}: {why}" for why, some in found.items() if some]
    if not usable:
        reason = f"; left out: {'; '.join(left_out)}" if left_out else ""
        raise UserError(f"{reader.folder}: no episode to judge{reason}. Give a run that stores episodes")
    for text in left_out:
        display.note(f"{reader.folder}: left out {text}")
    for episode in evenly(usable, judging.episodes or len(usable)):
        question = Question(
            instruction=episode.instruction or tasks[episode.task_id].instruction,
            episode=reader.load_outline(episode.episode_id),
            screenshots=judging.screenshots,
        )
        score = episode.score if episode.evaluated is None else episode.evaluated
        evaluated = score >= config.replay.threshold
        for planted in (False, True)[: 1 + judging.planted]:
            yield Asked(evaluated=evaluated, question=replace(question, planted=planted), model=model)


def _has_verdict_alone(episode: StoredEpisode) -> bool:
    """Of a run with a judge. `arpo collect` asks no judge."""
    name = episode.episode_id
    return is_training_episode(name) and not name.startswith(f"{COLLECTED}-") and episode.evaluated is None


def _ask_missing(
    reader: RunFolderReader,
    config: Config,
    server: ServerConfig,
    asked: Sequence[Asked],
    judging: Judging,
    log: VoteLog,
    display: Display,
) -> None:
    votes = [(one.question, stored_votes(log, one.question, one.model, judging.votes)) for one in asked]
    left = [(one, found) for one, found in votes if any(not vote or vote.success is None for vote in found)]
    if not left:
        return
    # New questions first: one that the server cannot answer must not keep the others waiting for ever.
    left.sort(key=lambda pair: None not in pair[1])
    questions = iter([question for question, _ in left])  # shared: each worker takes the next one
    judge = Judge(server, log)
    display.begin("judging", len(asked), len(asked) - len(left))

    async def work() -> None:
        for question in questions:
            episode = reader.load_trajectory(question.episode.episode_id)
            await judge.ask(replace(question, episode=episode), judging.votes)
            display.episode_done()

    async def ask_all() -> None:
        try:
            for warning in await judge.start():
                display.note(warning)
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(config.env.parallel, len(left))):
                    workers.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await judge.close()
        judge.refuse_if_nothing_works()

    run_interruptibly(ask_all(), on_cancel=lambda: display.note("stopping: all votes up to now are stored"))


def count_verdicts(asked: Sequence[Asked], judging: Judging, log: VoteLog) -> dict[str, Any]:
    """Counts of episodes by [verdict][score of the evaluator], and of the verdicts that an injection turned.

    Outcomes are "success", "failure" and, for verdicts, "missing". Also has precision and recall (None if
    0/0), and both outcomes of each episode.
    """
    plain = {
        one.question.episode.episode_id: one.verdict(log, judging)
        for one in asked
        if not one.question.planted
    }
    counts = Counter(
        (plain[one.question.episode.episode_id], one.evaluated) for one in asked if not one.question.planted
    )
    names = {True: "success", False: "failure", None: "missing"}
    result: dict[str, Any] = {
        "precision": _share(counts[True, True], counts[True, False]),
        "recall": _share(counts[True, True], counts[False, True]),
        "verdicts": {
            name: {"success": counts[verdict, True], "failure": counts[verdict, False]}
            for verdict, name in names.items()
        },
        "episodes": {
            one.question.episode.episode_id: {
                "verdict": names[plain[one.question.episode.episode_id]],
                "evaluator": names[one.evaluated],
            }
            for one in asked
            if not one.question.planted
        },
    }
    if judging.planted:
        pairs = Counter(
            (plain[one.question.episode.episode_id], one.verdict(log, judging))
            for one in asked
            if one.question.planted
        )
        result["injected"] = {
            names[before]: {name: pairs[before, after] for after, name in names.items()}
            for before in (True, False)
        }
    votes = (vote for one in asked for vote in stored_votes(log, one.question, one.model, judging.votes))
    result["first_missing"] = next((vote.reason for vote in votes if vote and vote.success is None), "")
    return result


def describe(result: dict[str, Any], model: str, judging: Judging) -> list[str]:
    """The lines that `arpo judge` prints. Precision first: a wrong success is the costly error."""
    verdicts = result["verdicts"]
    hits, wrong = verdicts["success"]["success"], verdicts["success"]["failure"]
    missed = verdicts["failure"]["success"]
    totals = {name: row["success"] + row["failure"] for name, row in verdicts.items()}
    rule = "unanimous" if judging.unanimous else "majority"
    lines = [
        f"judge {model}, {count_noun(judging.votes, 'vote')}" + (f", {rule}" if judging.votes > 1 else ""),
        f"precision  {_rate(hits, hits + wrong)} of the episodes judged a success",
        f"recall     {_rate(hits, hits + missed)} of the successes by the evaluators",
        f"judged     {count_noun(totals['success'] + totals['failure'], 'episode')}, missing verdicts: "
        f"{totals['missing']}",
        "",
        f"{'':17}{'evaluator: success':>20}{'failure':>10}",
    ]
    lines += [
        f"{f'judge: {name}':17}{row['success']:>20}{row['failure']:>10}" for name, row in verdicts.items()
    ]
    if result["first_missing"]:
        reason = result["first_missing"]
        lines.append(f"the first missing vote: {reason}. {remedy(reason)}")
    for before, after in result.get("injected", {}).items():
        other = "failure" if before == "success" else "success"
        lost = f", {after['missing']} missing" if after["missing"] else ""
        lines.append(
            f"injection: {_rate(after[other], after['success'] + after['failure'])} of the verdicts {before} "
            f"turned to {other}{lost}"
        )
    return lines


def _share(part: int, rest: int) -> float | None:
    return part / (part + rest) if part + rest else None


def _rate(part: int, whole: int) -> str:
    if not whole:
        return "no value (0/0)"
    low, high = wilson(part, whole)
    return f"{part / whole:.1%} ({part}/{whole}, 95% interval {low:.0%} to {high:.0%})"
