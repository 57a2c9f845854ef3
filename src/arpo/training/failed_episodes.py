"""The failed episodes of a run: one line at its end, and exit code 1 if they spoil its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from arpo.envs.pool import Quarantined
from arpo.errors import EnvTimeout
from arpo.reporting.display import Display, count_noun
from arpo.storage.codec import EVALUATED
from arpo.storage.run_folder import EVALUATIONS, FAILURES, RunFolderReader
from arpo.types import Failure

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
    reason = f"most often {_most_frequent(failures)}"
    of_env = [failure for failure in failures if failure.where not in OF_ENGINE]
    refused = [failure for failure in failures if _is_refused_score(failure)]
    played = _count_played(store)
    if len(of_env) > played:
        total = f"{len(of_env)} of {len(of_env) + played}"
        display.note(f"most episodes failed because of the environment ({total}), {reason}. {REMEDY}")
        return 1
    if refused and len(refused) > (scored := _count_scored(store)):
        counts = f"evaluate() failed in {count_noun(len(refused), 'episode')}, {scored} scored above 0"
        display.note(f"most successes were refused: {counts}, most often {_most_frequent(refused)}. {REMEDY}")
        return 1
    path = store.folder / FAILURES
    display.note(f"{count_noun(len(failures), 'episode')} failed, {reason}. See {path}")
    return 0


def _most_frequent(failures: Sequence[Failure]) -> str:
    """For example "step: KeyError: 'room' (my_env.py:14)"."""
    tried = [failure for failure in failures if failure.kind != Quarantined.__name__] or failures
    causes = Counter((one.where, one.message.partition("\n")[0][:300], one.place) for one in tried)
    [((where, message, place), _)] = causes.most_common(1)
    return f"{where}: {message}{f' ({place})' if place else ''}"


def _is_refused_score(failure: Failure) -> bool:
    """Whether the user's evaluate() raised an exception or returned an invalid score."""
    return failure.where == "evaluate" and bool(failure.place) and failure.kind != EnvTimeout.__name__


def _count_played(store: RunFolderReader) -> int:
    trained = sum(not name.startswith(EVALUATED) for name in store.episode_ids())
    return trained + len(_evaluated_scores(store))


def _count_scored(store: RunFolderReader) -> int:
    """Number of episodes with a score above 0."""
    trained = [one.score for one in store.episodes() if not one.episode_id.startswith(EVALUATED)]
    return sum(score > 0 for score in (*trained, *_evaluated_scores(store)))


def _evaluated_scores(store: RunFolderReader) -> list[float]:
    """Scores of all episodes of evaluations: only one per task is stored as a trajectory."""
    records = store.read_log(EVALUATIONS)
    tasks = [
        scores for record in records for by_task in record["sets"].values() for scores in by_task.values()
    ]
    return [score for scores in tasks for score in scores]
