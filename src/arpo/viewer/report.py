"""A run as one page: report.html, which needs no network, no script and no other file.

It shows what the run folder holds and computes nothing of its own. What a model wrote is escaped, and the
page's content policy forbids any script in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.envs.task_files import load_tasks
from arpo.errors import UserError
from arpo.recipe import load_config
from arpo.reporting.display import success_rows, total_rows
from arpo.storage.run_folder import METRICS, RECIPE, TRAJECTORIES, RunFolderReader, write_atomically
from arpo.viewer.charts import Series, line_chart
from arpo.viewer.episodes import episode_html
from arpo.viewer.style import document

REPORT = "report.html"
SHOWN_OF_A_KIND = 3  # episodes: the first and the last so many successes, and failures

# title, metrics and their labels, whether they are fractions
CHARTS: tuple[tuple[str, Mapping[str, str], bool], ...] = (
    (
        "Success in evaluation",
        {"eval_train": "training tasks", "eval_heldout": "held-out tasks", "eval_overall": "all tasks"},
        True,
    ),
    ("Success while training", {"success": "success"}, True),
    ("Reward", {"reward": "mean"}, False),
    ("Groups", {"rescued": "rescued by replay", "without_signal": "without signal"}, False),
    ("Loss", {"loss": "loss"}, False),
    ("Entropy", {"entropy": "nats per token"}, False),
    ("Clipped tokens", {"clip_fraction": "clipped"}, True),
    ("Log-probability gap, engine and learner", {"logprob_gap": "mean"}, False),
)

BODY = """
<h2>Success before and after</h2><div class="tables">{tables}</div>
<h2>Curves <span class="dim">over the batches</span></h2><div class="charts">{charts}</div>{more}
<h2>Episodes <span class="dim">first and last, solved and not</span></h2>{episodes}
<h2>Recipe</h2><details><summary>Every setting of this run</summary><pre>{recipe}</pre></details>
"""


def write_report(run_folder: Path) -> Path:
    """Write report.html into a run's folder, finished or not, and return its path."""
    store = RunFolderReader(run_folder)
    recipe_path = run_folder / RECIPE
    if not recipe_path.is_file():
        raise UserError(f"{run_folder}: not a run folder: it has no {RECIPE}")
    config = load_config(recipe_path)
    metrics = list(store.read_log(METRICS))
    summary = store.read_summary()
    body = BODY.format(
        tables=_table(("", "before", "after", "change"), success_rows(summary))
        + _table((), total_rows(summary)),
        charts="".join(_chart(metrics, title, names, percent) for title, names, percent in CHARTS),
        more=_more_charts(metrics),
        episodes=_episodes(store, config),
        recipe=escape(recipe_path.read_text("utf-8")),
    )
    store.close()
    page = document(f"ARPO run {run_folder.resolve().name}", _subtitle(config, summary), body)
    # A model's text may hold half of a surrogate pair, which no file can.
    write_atomically(run_folder / REPORT, page.encode("utf-8", "replace").decode("utf-8"))
    return run_folder / REPORT


def _subtitle(config: Config, summary: Mapping[str, Any]) -> str:
    online = "GRPO with replay" if config.replay.enabled else "GRPO without replay"
    method = online if config.train.method == "online" else config.train.method.upper()
    state = "" if summary else ", not finished yet"
    return f"{method}, {config.tasks.train}, model {config.model.path}, seed {config.run.seed}{state}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(text)}</th>" for text in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _chart(metrics: Sequence[Mapping[str, Any]], title: str, names: Mapping[str, str], percent: bool) -> str:
    series = [
        Series(
            label=label,
            points=[(record["step"], record[name]) for record in metrics if record.get(name) is not None],
        )
        for name, label in names.items()
    ]
    return line_chart(title, series, percent=percent)


def _more_charts(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Every metric that has no chart above."""
    above = {"step", *(name for _, names, _ in CHARTS for name in names)}
    names = dict.fromkeys(name for record in metrics for name in record if name not in above)
    charts = "".join(_chart(metrics, name, {name: name}, False) for name in names)
    return (
        f'<details><summary>More numbers</summary><div class="charts">{charts}</div></details>'
        if charts
        else ""
    )


def _episodes(store: RunFolderReader, config: Config) -> str:
    instructions = _instructions(config)
    known = set(store.episode_ids())  # the run may go on and add others meanwhile
    records = [
        record
        for record in store.read_log(TRAJECTORIES)
        if record["episode_id"] in known and store.has_screenshots(record)
    ]
    scores = {record["episode_id"]: record["score"] for record in records}
    threshold = config.replay.threshold
    return "".join(
        episode_html(
            trajectory, instructions.get(trajectory.task_id, ""), success=trajectory.score >= threshold
        )
        for trajectory in map(store.load_trajectory, choose(scores, threshold))
    )


def choose(scores: Mapping[str, float], threshold: float) -> list[str]:
    """The first and last few successes and failures, in the order in which they happened."""
    successes = [name for name, score in scores.items() if score >= threshold]
    failures = [name for name, score in scores.items() if score < threshold]
    count = SHOWN_OF_A_KIND
    chosen = {*successes[:count], *successes[-count:], *failures[:count], *failures[-count:]}
    return [name for name in scores if name in chosen]


def _instructions(config: Config) -> dict[str, str]:
    """What each task asked for; where the task files are gone, the report does without."""
    found: dict[str, str] = {}
    for source in (config.tasks.train, config.tasks.heldout, config.tasks.overall):
        try:
            found.update((task.id, task.instruction) for task in load_tasks(source, config.tasks.examples))
        except UserError:
            continue
    return found
