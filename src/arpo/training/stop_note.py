"""The message after the first Ctrl-C of a training run: what it still does, and how long that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arpo.training.run import Run

AGAIN = "Press Ctrl-C again to stop at once"


def describe_stop(run: Run) -> str:
    batch, timing = run.progress.batch + 1, run.timing
    saving = f"saving ({timing.about(('save',))})"
    if run.evaluating:
        rest = f" and {saving}" if run.progress.success else ""  # before that, there is nothing to save
        return (
            f"stopping the evaluation: its finished episodes are stored; closing the environments{rest}. "
            f"{AGAIN}"
        )
    if run.asynchronous and timing.current in ("wait", "learn"):
        learning = timing.current == "learn"
        rest = timing.about(("learn", "save") if learning else ("save",))
        first = f"finishing batch {batch}" if learning else "stopping"
        return f"{first} and saving ({rest}). Finished groups are kept, others are played again. {AGAIN}"
    if run.scheduler.pool.outage.is_down:
        return f"stopping: no environment works. Only batch {batch} is lost. {AGAIN}"
    if timing.current in ("", "evaluate"):
        return f"stopping. {AGAIN}"
    if timing.current == "save":
        return f"{saving}. {AGAIN}"
    first = "rollout" if run.config.train.method == "online" else "judge"
    rest = timing.about((first, "learn", "save"))
    return f"finishing batch {batch} and saving ({rest}). {AGAIN}: only this batch is lost"
