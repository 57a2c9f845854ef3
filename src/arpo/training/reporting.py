"""Records of a run: metrics, durations of stages, calls of episodes, token statistics, failed episodes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from arpo.config import Config
from arpo.config.task_set_names import TRAIN, TRAINING_EPISODES
from arpo.envs.pool import Quarantined
from arpo.errors import AgentError, EnvTimeout
from arpo.evaluation.scoring import OF_JUDGE, training_episodes
from arpo.learner.base import Metrics, TokenStats
from arpo.plugins import open_plugin, run_callback
from arpo.reporting.display import Display, count_noun, format_seconds
from arpo.reporting.findings import (
    Answered,
    Finding,
    answer_findings,
    answer_stats,
    engine_findings,
    phase_title,
)
from arpo.reporting.tracking import Trackers
from arpo.rollout.activity import Call, EpisodeCalls
from arpo.storage.codec import StoredCalls, is_training_episode
from arpo.storage.files import RESTORE_OR_LEAVE, damage
from arpo.storage.from_json import from_json
from arpo.storage.run_folder import CALLS, EVALUATIONS, FAILURES, METRICS, TIMING, RunFolder, RunFolderReader
from arpo.training.checkpoints import Progress, UnfinishedBatch
from arpo.types import Failure, Group, Task, Trajectory


class Records:
    """Stores, shows and counts what happens in a training run."""

    def __init__(self, config: Config, store: RunFolder, display: Display, progress: Progress) -> None:
        self.store, self.display, self.progress = store, display, progress
        self.timing = Timing(last_durations(store))
        self.trackers = Trackers(store, ())  # more when training begins: a loop may refuse to resume
        self.callback = open_plugin(config.plugins, "callback")
        self.calls = CallLog(store, progress.seconds)
        self._config = config

    def store_group(self, group: Group, episodes: int | None = None) -> None:
        """Store the first `episodes` of a played group, by default all. Store and count its failures."""
        for trajectory in group.trajectories[:episodes]:
            self.store.add_trajectory(trajectory)
        for failure in group.failures:
            self.store_failure(failure)

    def store_failure(self, failure: Failure) -> None:
        self.store.add_failure(failure)
        self.progress.failures += 1

    def show_batch(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a trained batch, before its evaluation. Reports skipped updates."""
        if skipped := int(metrics["skipped"]):
            self.progress.skipped += skipped
            self.display.note(
                f"{skipped} of {skipped + int(metrics['updates'])} updates were skipped: their loss or "
                "gradient was not finite. If this continues, start again with a lower optim.lr or loss.kl"
            )
        self.display.batch(self.progress.batch, metrics)

    def check_answers(self, phase: str, played: Sequence[tuple[Task, Trajectory]]) -> None:
        """Show a finding about the answers when it first becomes true. `phase` is "batch3" or "eval0".

        `played` has one episode of each task. Tasks with the same instruction count once.
        """
        if not played:
            return
        progress, solved = self.progress, self._config.replay.threshold
        stats = answer_stats(
            phase_title(phase),
            {
                task.instruction or task.id: Answered(
                    solved=episode.score >= solved,
                    malformed=episode.malformed,
                    answers=[turn.completion.text for turn in episode.turns],
                )
                for task, episode in reversed(played)
            },
        )
        progress.first_answers, progress.newest_answers = progress.first_answers or stats, stats
        for finding in answer_findings(progress.first_answers, stats):
            if finding.name not in progress.shown_findings:
                progress.shown_findings = (*progress.shown_findings, finding.name)
                self.display.note(finding.text)

    def findings(self) -> list[Finding]:
        """What is wrong with the run now, as in its report."""
        first, newest = self.progress.first_answers, self.progress.newest_answers
        answers = answer_findings(first, newest) if first and newest else []
        return answers + engine_findings(self.store.read_log(METRICS))

    def store_batch(self, batch: UnfinishedBatch, measured: Metrics, activity: Metrics) -> None:
        """Store the metrics and durations of a batch. `measured` are the metrics of its evaluation.

        `activity` has the shares of the environments' time.
        """
        number, metrics = self.progress.batch, {**batch.metrics, **measured}
        if self.callback:
            metrics |= run_callback(self.callback, number, metrics, batch.groups)
        self.trackers.log(number, metrics)
        self.store.log_timing(number, self.timing.take(batch.played) | dict(activity))
        self.store_stages()

    def store_stages(self) -> None:
        """Store the stages of the batch since the last call."""
        self.calls.add_stages(self.progress.batch, self.timing.take_stages())

    def store_token_stats(self, stats: Sequence[Sequence[TokenStats]]) -> None:
        """Store the learner's statistics of the batch in training. Blocks its thread."""
        for line in token_lines(self.progress.batch + 1, stats):
            self.store.log_token_stats(line)

    def summary(self) -> dict[str, Any]:
        config, progress, changes = self._config, self.progress, self.store.read_changes()
        on_training_tasks = None
        if TRAIN not in progress.success.get("base", {}):  # no evaluation plays them
            on_training_tasks = training_episodes(self.store.read_log(METRICS))
        return {
            "recipe": asdict(config),
            "seed": config.run.seed,
            "episodes": progress.episodes,
            "success": progress.success,
            "counts": progress.counts,
            "intervals": progress.intervals,
            "kinds": progress.kinds,
            "left_out": progress.left_out,
            **({TRAINING_EPISODES: on_training_tasks} if on_training_tasks else {}),
            "groups": progress.groups,
            "failures": progress.failures,
            **({"learner_restarts": progress.learner_restarts} if config.cluster.ray else {}),
            "skipped_updates": progress.skipped,
            "untrained_batches": progress.untrained,
            **({"changes": [asdict(change) for change in changes]} if changes else {}),
            "seconds": progress.seconds,
        }


def last_durations(store: RunFolderReader) -> dict[str, float]:
    """Seconds by stage of the last batch of a run; {} if there is none."""
    *_, last = ({}, *store.read_log(TIMING))
    return {name: seconds for name, seconds in last.items() if seconds is not None}


class Timing:
    """Seconds spent in each stage since the last `take`. `known` has durations of an earlier batch."""

    def __init__(
        self, known: Mapping[str, float] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.current = ""  # the latest stage
        self._clock = clock
        self._began = clock()
        self._last = dict(known or {})
        self._seconds: dict[str, float] = {}
        self._stages: list[Call] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.current, self._began = name, self._clock()
        try:
            yield
        finally:
            self._last[name] = self._clock() - self._began
            self._stages.append((name, self._began, self._last[name]))
            self.add({name: self._last[name]})

    def add(self, seconds: Mapping[str, float]) -> None:
        for name, duration in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + duration

    def take(self, played: int) -> dict[str, float]:
        """Seconds by stage, with episodes per second if any were played. Resets the counters.

        In lock step, episodes are played in the stage "rollout". In asynchronous training they are played
        all the time, also in "wait" (for groups) and "learn".
        """
        seconds = self.pause()
        stages = ("rollout",) if "rollout" in seconds else ("wait", "learn") if "wait" in seconds else ()
        spent = sum(seconds.get(name, 0.0) for name in stages)
        return seconds | ({"episodes_per_second": played / spent} if spent else {})

    def pause(self) -> dict[str, float]:
        """Seconds by stage, for `add` after a resume. Resets the counters."""
        seconds, self._seconds = self._seconds, {}
        return seconds

    def take_stages(self) -> list[Call]:
        """The stages since the last call, in seconds of the clock."""
        stages, self._stages = self._stages, []
        return stages

    def about(self, stages: Sequence[str]) -> str:
        """The remaining time as text: "about 20 s" or "duration unknown"."""
        seconds = self.remaining(stages)
        return "duration unknown" if seconds is None else f"about {format_seconds(seconds)}"

    def remaining(self, stages: Sequence[str]) -> float | None:
        """Seconds until the last of these consecutive stages ends, if all take as long as the last time.

        None if one of them has never been measured.

        >>> timing = Timing({"rollout": 30.0, "learn": 10.0})
        >>> with timing.stage("rollout"):
        ...     timing.remaining(("rollout", "learn"))
        40.0
        """
        left = stages[stages.index(self.current) :] if self.current in stages else stages
        if any(name not in self._last for name in left):
            return None
        elapsed = self._clock() - self._began if left[:1] == (self.current,) else 0.0
        running = max(0.0, self._last[left[0]] - elapsed) if left else 0.0
        return running + sum(self._last[name] for name in left[1:])


class CallLog:
    """Writes calls.jsonl, in seconds since the start of the run. `elapsed` is the age of a resumed run.

    {"episode":"batch-1-3-1","host":"","fault":"","calls":[["start",12.1,0.5],["engine",12.6,1.2],…]}
    {"step":1,"calls":[["rollout",0.2,30.1],["learn",30.3,8.4]]}
    """

    def __init__(self, store: RunFolder, elapsed: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock, self._began = store, clock, clock() - elapsed

    def elapsed(self) -> float:
        """The age of the run in seconds."""
        return self._clock() - self._began

    def add_episode(self, episode: EpisodeCalls) -> None:
        """Store an attempt at an episode, also a failed or cancelled one."""
        owner = {"episode": episode.episode_id, "host": episode.host, "fault": episode.fault}
        self._store.log_calls(owner, self._since_start(episode.calls))

    def add_stages(self, step: int, stages: Iterable[Call]) -> None:
        """Store the stages of batch number `step`."""
        self._store.log_calls({"step": step}, self._since_start(stages))

    def _since_start(self, calls: Iterable[Call]) -> list[Call]:
        return [(name, began - self._began, seconds) for name, began, seconds in calls]


def logged_seconds(store: RunFolder) -> float:
    """The end of the last logged call, in seconds since the start of the run."""
    end = 0.0
    for number, record in enumerate(store.read_log(CALLS), 1):
        with damage(f"{store.folder / CALLS}: line {number}", RESTORE_OR_LEAVE):
            for _, began, seconds in from_json(record, StoredCalls).calls[-1:]:
                end = began + seconds
    return end


DIGITS = 4


def token_lines(step: int, stats: Sequence[Sequence[TokenStats]]) -> Iterator[dict[str, Any]]:
    """Lines of token_stats.jsonl (store.token_stats): one for each answer and update that trained it.

    Updates and turns are counted from 1. A value that is not finite becomes None.
    """
    for update, samples in enumerate(stats, 1):
        for sample in samples:
            end = 0
            for answer in sample.answers:
                start, end = end, end + answer.tokens
                yield {
                    "step": step,
                    "update": update,
                    "episode": answer.episode_id,
                    "turn": answer.turn,
                    "replayed": sample.replayed,
                    "entropy": _rounded(sample.entropy[start:end]),
                    "ratio": _rounded(sample.ratio[start:end]),
                    "clipped": list(map(int, sample.clipped[start:end])),
                }


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [round(value, DIGITS) if math.isfinite(value) else None for value in values]


OF_ENGINE = ("generate", "release")  # calls of the engine; all others are calls of the environment
REMEDY = "Correct it (`arpo check-env` helps), then start again in another --run.dir"


def report_failed_episodes(store: RunFolderReader, display: Display) -> int:
    """Show how many episodes failed, and the most frequent reason. Returns the exit code of the run.

    It is 1 in two cases: more than half of all episodes failed because of the environment, those of
    evaluations included; or the user's `evaluate` failed more often than an episode scored above 0.
    """
    failures = list(store.failures())
    if not failures:
        return 0
    reason = f"most often {most_frequent(failures)}"
    of_env = [failure for failure in failures if failure.where not in (*OF_ENGINE, OF_JUDGE)]
    unjudged = [failure for failure in failures if failure.where == OF_JUDGE]
    refused = [failure for failure in failures if _is_refused_score(failure)]
    played = _count_played(store)
    if len(of_env) > played:
        total = f"{len(of_env)} of {len(of_env) + played}"
        of_agent = sum(failure.ended_by(AgentError) for failure in of_env)
        cause = "agent program" if 2 * of_agent > len(of_env) else "environment"
        display.note(f"most episodes failed because of the {cause} ({total}), {reason}. {REMEDY}")
        return 1
    if len(unjudged) > played:
        total = f"{len(unjudged)} of {len(unjudged) + played}"
        display.note(
            f"most episodes have no verdict of the judge ({total}), most often {most_frequent(unjudged)}. "
            "Try the judge with `arpo judge`, then start again in another --run.dir"
        )
        return 1
    if refused and len(refused) > (scored := _count_scored(store)):
        counts = f"evaluate() failed in {count_noun(len(refused), 'episode')}, {scored} scored above 0"
        display.note(f"most successes were refused: {counts}, most often {most_frequent(refused)}. {REMEDY}")
        return 1
    path = store.folder / FAILURES
    display.note(f"{count_noun(len(failures), 'episode')} failed, {reason}. See {path}")
    return 0


def most_frequent(failures: Sequence[Failure]) -> str:
    """For example "step: KeyError: 'room' (my_env.py:14)"."""
    tried = [failure for failure in failures if not failure.ended_by(Quarantined)] or failures
    causes = Counter((one.where, one.message.partition("\n")[0][:300], one.place) for one in tried)
    [((where, message, place), _)] = causes.most_common(1)
    return f"{where}: {message}{f' ({place})' if place else ''}"


def _is_refused_score(failure: Failure) -> bool:
    """Whether the user's evaluate() raised an exception or returned an invalid score."""
    return failure.where == "evaluate" and bool(failure.place) and not failure.ended_by(EnvTimeout)


def _count_played(store: RunFolderReader) -> int:
    trained = sum(map(is_training_episode, store.episode_ids()))
    return trained + len(_evaluated_scores(store))


def _count_scored(store: RunFolderReader) -> int:
    """Number of episodes with a score above 0."""
    trained = [one.score for one in store.episodes() if is_training_episode(one.episode_id)]
    return sum(score > 0 for score in (*trained, *_evaluated_scores(store)))


def _evaluated_scores(store: RunFolderReader) -> list[float]:
    """Scores of all episodes of evaluations: only one per task is stored as a trajectory."""
    records = store.read_log(EVALUATIONS)
    tasks = [
        scores for record in records for by_task in record["sets"].values() for scores in by_task.values()
    ]
    return [score for scores in tasks for score in scores]
