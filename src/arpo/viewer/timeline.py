"""The section of the report about where time goes, by batch: environments, engine, learner, waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arpo.viewer.charts import Series, line_chart, stacked_chart

# Labels by name in timing.jsonl.
ENVIRONMENTS = {
    "env_start": "starting",
    "env_step": "stepping",
    "env_evaluate": "evaluating",
    "env_engine": "waiting for an answer",
    "env_idle": "idle or closing",
}
STAGES = {
    "rollout": "rollouts",
    "wait": "waiting for groups",
    "learn": "learning",
    "evaluate": "evaluation",
    "save": "saving",
}
NOTES = (
    ("env_idle", "Environments without an episode. Low is good: raise train.max_staleness if it is high."),
    ("wait", "Asynchronous training: the learner waits for groups. In lock step, it waits for rollouts."),
)


def timeline_html(timing: Sequence[Mapping[str, Any]]) -> str:
    """Stacked shares of each batch; "" for a run without them, such as an offline one."""
    played = [record for record in timing if "env_idle" in record]
    stages = {name: label for name, label in STAGES.items() if any(name in record for record in played)}
    parts = _columns(played, ENVIRONMENTS)
    charts = (
        stacked_chart("Time of the environments", list(ENVIRONMENTS.values()), parts),
        stacked_chart("Time of the training loop", list(stages.values()), _columns(played, stages)),
        line_chart("Busy", [_busy(played, "engine"), _learner_busy(played)], percent=True),
    )
    if not any(charts):
        return ""
    notes = "".join(f'<p class="dim lead"><code>{name}</code> {text}</p>' for name, text in NOTES)
    title = '<h2>Where time goes <span class="dim">by batch</span></h2>'
    return f'{title}<div class="charts">{"".join(charts)}</div>{notes}'


def _columns(
    records: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> list[tuple[float, Sequence[float]]]:
    return [(record["step"], [record.get(name) or 0.0 for name in names]) for record in records]


def _busy(records: Sequence[Mapping[str, Any]], name: str) -> Series:
    return Series(label=name, points=[(record["step"], record[f"{name}_busy"]) for record in records])


def _learner_busy(records: Sequence[Mapping[str, Any]]) -> Series:
    """Share of learning in all stages of a batch."""
    points = []
    for record in records:
        total = sum(record.get(name) or 0.0 for name in STAGES)
        points += [(record["step"], (record.get("learn") or 0.0) / total)] if total else []
    return Series(label="learner", points=points)
