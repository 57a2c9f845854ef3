"""The success rates of a run's summary, measured before and after training."""

from __future__ import annotations

from collections.abc import Mapping

from arpo.evaluation.scoring import Score, over_same_tasks, read_scores
from arpo.storage.run_folder import EVALUATIONS, RunFolder
from arpo.training.checkpoints import Progress


def set_landmark(progress: Progress, store: RunFolder, landmark: str, scores: Mapping[str, Score]) -> None:
    """Set the rates of "base" or "final". With "final", both are over the same tasks."""
    landmarks = {landmark: scores}
    if landmark == "final":
        base = next(one for one in store.read_log(EVALUATIONS) if one["landmark"] == "base")
        before, after = over_same_tasks(read_scores(base), scores)
        landmarks = {"base": before, "final": after}
        progress.left_out = {which: sorted(score.left_out) for which, score in after.items()}
    for name, found in landmarks.items():
        progress.success[name] = {which: score.rate for which, score in found.items()}
        progress.counts[name] = {which: (score.successes, score.episodes) for which, score in found.items()}
