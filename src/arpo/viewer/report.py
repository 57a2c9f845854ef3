"""The HTML report of a run: report.html, one file without scripts or network access.

The report shows the contents of the run folder and computes nothing itself. Text from the model is escaped,
and the page's content policy forbids scripts.
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
from arpo.storage.run_folder import METRICS, RECIPE, RunFolderReader, write_atomically
from arpo.viewer.charts import Series, line_chart
from arpo.viewer.episodes import episode_html
from arpo.viewer.style import document

REPORT = "report.html"
EPISODES_PER_KIND = 3  # this many first successes, last successes, first failures and last failures

# (title, labels by metric, whether the values are fractions)
CHARTS: tuple[tuple[str, Mapping[str, str], bool], ...] = (
    (
        "Success rate in evaluations",
        {"eval_train": "training tasks", "eval_heldout": "held-out tasks", "eval_overall": "all tasks"},
        True,
    ),
    ("Success rate of training episodes", {"success": "success rate"}, True),
    ("Reward", {"reward": "mean"}, False),
    ("Groups", {"rescued": "rescued by replay", "without_signal": "without signal"}, False),
    ("Loss", {"loss": "loss"}, False),
    ("Entropy", {"entropy": "nats per token"}, False),
    ("Clipped tokens", {"clip_fraction": "share of tokens"}, True),
    ("Log-probability gap between engine and learner", {"logprob_gap": "mean"}, False),
)

BODY = """
<h2>Success rate before and after training</h2><div class="tables">{tables}</div>
<h2>Curves <span class="dim">by training step</span></h2><div class="charts">{charts}</div>{more}
<h2>Episodes <span class="dim">first and last successes and failures</span></h2>{episodes}
<h2>Recipe</h2><details><summary>All settings of this run</summary><pre>{recipe}</pre></details>
"""


def write_report(run_folder: Path) -> Path:
    """Write report.html into a run folder, finished or not. Returns the path of the report."""
    store = RunFolderReader(run_folder)
    recipe_path = run_folder / RECIPE
    if not recipe_path.is_file():
        raise UserError(f"{run_folder}: not a run folder: {RECIPE} is missing: give the folder of a run")
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
    # Text from the model may contain a lone surrogate, which UTF-8 cannot encode.
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
    """Charts of all metrics outside CHARTS."""
    above = {"step", *(name for _, names, _ in CHARTS for name in names)}
    names = dict.fromkeys(name for record in metrics for name in record if name not in above)
    charts = "".join(_chart(metrics, name, {name: name}, False) for name in names)
    return (
        f'<details><summary>Other metrics</summary><div class="charts">{charts}</div></details>'
        if charts
        else ""
    )


def _episodes(store: RunFolderReader, config: Config) -> str:
    instructions = _instructions(config)
    scores = {
        episode.episode_id: episode.score for episode in store.episodes() if store.has_screenshots(episode)
    }
    threshold = config.replay.threshold
    return "".join(
        episode_html(
            trajectory, instructions.get(trajectory.task_id, ""), success=trajectory.score >= threshold
        )
        for trajectory in map(store.load_trajectory, select_episodes(scores, threshold))
    )


def select_episodes(scores: Mapping[str, float], threshold: float) -> list[str]:
    """Ids of the first and last successes and failures, in the order of `scores`."""
    successes = [name for name, score in scores.items() if score >= threshold]
    failures = [name for name, score in scores.items() if score < threshold]
    count = EPISODES_PER_KIND
    chosen = {*successes[:count], *successes[-count:], *failures[:count], *failures[-count:]}
    return [name for name in scores if name in chosen]


def _instructions(config: Config) -> dict[str, str]:
    """Instructions by task id. Skips task files that cannot be loaded any more."""
    found: dict[str, str] = {}
    for source in (config.tasks.train, config.tasks.heldout, config.tasks.overall):
        try:
            found.update((task.id, task.instruction) for task in load_tasks(source, config.tasks.examples))
        except UserError:
            continue
    return found
