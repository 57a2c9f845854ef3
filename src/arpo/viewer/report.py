"""The HTML report of a run: report.html, one file without scripts or network access.

The report shows the contents of the run folder. Text from the model is escaped, and the page's content policy
forbids scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.envs.desk.fresh import fresh_task
from arpo.envs.task_files import load_tasks
from arpo.errors import UserError
from arpo.evaluation.scoring import over_same_tasks, training_episodes
from arpo.recipe import load_config
from arpo.reporting.display import success_rows, total_rows
from arpo.reporting.metrics import EVALUATION, find_metric
from arpo.storage.run_folder import EVALUATIONS, METRICS, RECIPE, TIMING, RunFolderReader, write_atomically
from arpo.task_set_names import TRAIN, TRAINING_EPISODES, in_order, set_label, split_sources
from arpo.types import Failure, Task
from arpo.viewer.answer_checks import answer_warnings
from arpo.viewer.charts import Series, line_chart
from arpo.viewer.episodes import EpisodeView, episode_html, pair_html
from arpo.viewer.outcomes import describe_end
from arpo.viewer.played import Played, phase_title, read_played
from arpo.viewer.report_tables import endings_html, faults_html, table_html, tasks_html
from arpo.viewer.selection import Shown, choose_episodes
from arpo.viewer.style import document
from arpo.viewer.task_table import LABELS, Evaluation, evaluation_note, read_evaluation, task_rows
from arpo.viewer.timeline import timeline_html

REPORT = "report.html"

# (title, labels by metric)
CHARTS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("Success rate of training episodes", {"success": "success rate"}),
    ("Reward", {"reward": "mean"}),
    ("Groups", {"rescued": "rescued by replay", "without_signal": "without signal"}),
    ("Staleness", {"staleness_mean": "mean", "staleness_max": "maximum"}),
    ("Dropped groups", {"dropped_groups": "groups"}),
    ("Loss", {"loss": "loss"}),
    ("Entropy", {"entropy": "nats per token"}),
    ("Clipped tokens", {"clip_fraction": "share of tokens"}),
    ("Log-probability gap between engine and learner", {"logprob_gap": "mean"}),
)

BODY = """{warnings}
<h2>Success rate before and after training</h2><div class="tables">{tables}</div>
<p class="dim lead">{evaluations}</p>
<h2>Curves <span class="dim">by batch (step)</span></h2><div class="charts">{charts}</div>{more}
{timeline}
{tasks}{endings}{faults}
<h2>{episodes_title} <span class="dim">{episodes_note}</span></h2>{episodes}
<h2>Recipe</h2><details><summary>All settings of this run</summary><pre>{recipe}</pre></details>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """Everything that the report reads from a run folder, except screenshots."""

    config: Config
    recipe: str
    metrics: Sequence[Mapping[str, Any]]
    timing: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]  # {} until the run has ended
    evaluations: Sequence[Evaluation]
    played: Sequence[Played]
    failures: Sequence[Failure]
    tasks: Mapping[str, Task]  # by id; without those whose files cannot be loaded any more

    @property
    def instructions(self) -> dict[str, str]:
        return {name: task.instruction for name, task in self.tasks.items()}

    def end_of(self, one: Played) -> tuple[str, str]:
        """Why an episode ended: reason and detail."""
        task = self.tasks.get(one.task)
        infeasible = task is not None and task.evaluator.get("func") == "infeasible"
        return describe_end(one.stored, solved=one.solved, infeasible=infeasible, limits=self.config.rollout)


def write_report(run_folder: Path, episodes: str = "") -> Path:
    """Write report.html into a run folder, finished or not. Returns the path of the report.

    `episodes` is the value of `arpo report --episodes`, as in "task:pool-040,failed:3"; "": the default.
    """
    store = RunFolderReader(run_folder)
    try:
        data = _read(store)
        chosen = choose_episodes(data.played, episodes)
        body = BODY.format(
            warnings=_warnings(data, store),
            tables=_success_tables(data),
            evaluations=escape(evaluation_note(data.evaluations, data.config.eval.every)),
            charts="".join(_chart(data, title, names) for title, names in _charts(data)),
            more=_more_charts(data),
            timeline=timeline_html(data.timing),
            tasks=tasks_html(task_rows(data.evaluations), data.evaluations, data.instructions, data.played),
            endings=endings_html(data.played, data.end_of),
            faults=faults_html(data.failures),
            episodes_title="Same tasks before and after training" if _all_pairs(chosen) else "Episodes",
            episodes_note=escape(_episodes_note(chosen, episodes, data)),
            episodes="".join(_shown_html(shown, data, store, number) for number, shown in enumerate(chosen)),
            recipe=escape(data.recipe),
        )
    finally:
        store.close()
    title = f"ARPO run {run_folder.resolve().name}"
    page = document(title, _subtitle(data.config, data.summary), body)
    # Text from the model may contain a lone surrogate, which UTF-8 cannot encode.
    write_atomically(run_folder / REPORT, page.encode("utf-8", "replace").decode("utf-8"))
    return run_folder / REPORT


def _read(store: RunFolderReader) -> RunData:
    recipe_path = store.folder / RECIPE
    if not recipe_path.is_file():
        raise UserError(f"{store.folder}: not a run folder: {RECIPE} is missing: give the folder of a run")
    config = load_config(recipe_path)
    played = read_played(store, config)
    return RunData(
        config=config,
        recipe=recipe_path.read_text("utf-8"),
        metrics=list(store.read_log(METRICS)),
        timing=list(store.read_log(TIMING)),
        summary=store.read_summary(),
        evaluations=[read_evaluation(record) for record in store.read_log(EVALUATIONS)],
        played=played,
        failures=list(store.failures()),
        tasks=_load_tasks(config, {one.task for one in played}),
    )


def _subtitle(config: Config, summary: Mapping[str, Any]) -> str:
    online = "GRPO with replay" if config.replay.enabled else "GRPO without replay"
    method = online if config.train.method == "online" else config.train.method.upper()
    state = "" if summary else ", not finished yet"
    return f"{method}, {config.tasks.train}, model {config.model.path}, seed {config.run.seed}{state}"


def _warnings(data: RunData, store: RunFolderReader) -> str:
    found = answer_warnings(data.played, data.instructions, store.answers)
    found += _engine_warnings(data.metrics, data.config.train.engine_kl_alarm)
    return "".join(f'<p class="warn"><b>Warning:</b> {escape(text)}</p>' for text in found)


def _engine_warnings(metrics: Sequence[Mapping[str, Any]], threshold: float) -> list[str]:
    """A warning about the batches in which engine and learner disagreed."""
    alarms = [record for record in metrics if record.get("engine_alarm")]
    if not alarms:
        return []
    untrained = sum(bool(record.get("untrained")) for record in alarms)
    batches = ", ".join(f"{record['step']:,}" for record in alarms)
    return [
        "Engine and learner disagreed about the probabilities of the same tokens: engine_kl exceeded "
        f"train.engine_kl_alarm ({threshold:g}) in batch {batches}. Not trained on: {untrained:,} of "
        f"{len(alarms):,}."
    ]


def _success_tables(data: RunData) -> str:
    """Success rates and totals of the summary, or of the run so far."""
    if data.summary:
        summary, after = data.summary, "after"
    else:
        last = data.evaluations[-1].step if data.evaluations else 0
        summary, after = _summary_so_far(data), f"after batch {last:,}" if last else "after"
    return table_html(("", "before", after, "change"), success_rows(summary)) + table_html(
        (), total_rows(summary)
    )


def _summary_so_far(data: RunData) -> dict[str, Any]:
    """The content of summary.json for an unfinished run: its first and its newest evaluation."""
    landmarks = {"base": dict(data.evaluations[0].by_set)} if data.evaluations else {}
    if len(data.evaluations) > 1:
        landmarks["base"], landmarks["final"] = over_same_tasks(
            landmarks["base"], data.evaluations[-1].by_set
        )
    batches = [record for record in data.metrics if record.get("step")]
    newest = batches[-1] if batches else {}
    groups = {
        total: sum(record.get(name) or 0 for record in batches)
        for total, name in (("total", "groups"), ("without_signal",) * 2, ("rescued",) * 2)
        if name in newest
    }
    return {
        "success": {
            when: {name: score.rate for name, score in sets.items()} for when, sets in landmarks.items()
        },
        "counts": {
            when: {name: (score.successes, score.episodes) for name, score in sets.items()}
            for when, sets in landmarks.items()
        },
        **({} if TRAIN in landmarks.get("base", {}) else {TRAINING_EPISODES: training_episodes(batches)}),
        "left_out": {name: sorted(score.left_out) for name, score in landmarks.get("final", {}).items()},
        "episodes": newest.get("episodes"),
        "failures": newest.get("failures"),
        "groups": groups,
    }


def _charts(data: RunData) -> list[tuple[str, Mapping[str, str]]]:
    """The charts at the top: (title, labels by metric)."""
    names = (name for record in data.metrics for name in record if name.startswith(EVALUATION))
    sets = in_order(name.removeprefix(EVALUATION) for name in names)
    evaluated = {f"{EVALUATION}{name}": set_label(name) for name in sets}
    return [("Success rate in evaluations", evaluated), *CHARTS]


def _chart(data: RunData, title: str, names: Mapping[str, str]) -> str:
    series = [Series(label=label, points=_points(data.metrics, name)) for name, label in names.items()]
    plotted = [name for name, one in zip(names, series, strict=True) if one.points]
    return line_chart(
        title,
        series,
        percent=all(metric is not None and metric.percent for metric in map(find_metric, names)),
        notes=[(name, _explain(name, data.config)) for name in plotted],
    )


def _explain(name: str, config: Config) -> str:
    if metric := find_metric(name):
        return metric.explanation
    callback = config.plugins.callback
    return (
        f"Returned by plugins.callback = {callback}." if callback else "Not a metric of this version of ARPO."
    )


def _points(metrics: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    """(step, value) of one metric. A value that was not finite is stored as None and left out."""
    return [(record["step"], record[name]) for record in metrics if record.get(name) is not None]


def _more_charts(data: RunData) -> str:
    """Charts of all metrics outside CHARTS."""
    above = {"step", *(name for _, names in _charts(data) for name in names)}
    names = dict.fromkeys(name for record in data.metrics for name in record if name not in above)
    titles = {name: metric.title if (metric := find_metric(name)) else name for name in names}
    charts = "".join(_chart(data, title, {name: name}) for name, title in titles.items())
    return (
        f'<details><summary>Other metrics</summary><div class="charts">{charts}</div></details>'
        if charts
        else ""
    )


def _all_pairs(chosen: Sequence[Shown]) -> bool:
    return bool(chosen) and all(len(shown) == 2 for shown in chosen)


def _episodes_note(chosen: Sequence[Shown], wanted: str, data: RunData) -> str:
    pruned = sum(not one.shown for one in data.played)
    deleted = "their screenshots were deleted (store.prune_every)"
    left_out = f"; {pruned:,} of {len(data.played):,} stored episodes cannot be shown: {deleted}"
    return _choice(chosen, wanted, data) + (left_out if pruned else "")


def _choice(chosen: Sequence[Shown], wanted: str, data: RunData) -> str:
    if wanted:
        return f"chosen with --episodes {wanted}"
    hint = f"choose others with arpo report {data.config.run.dir} --episodes failed:3,task:ID"
    if not chosen:
        return "none is stored with screenshots"
    return hint if _all_pairs(chosen) else f"no task was played in two phases yet; {hint}"


def _shown_html(shown: Shown, data: RunData, store: RunFolderReader, number: int) -> str:
    views = [_view(one, data, store) for one in shown]
    if len(views) == 2:
        return pair_html(*views, opened=number == 0)
    return episode_html(views[0], opened=number == 0)


def _view(one: Played, data: RunData, store: RunFolderReader) -> EpisodeView:
    reason, detail = data.end_of(one)
    sets = {task: name for evaluation in reversed(data.evaluations) for task, name in evaluation.sets.items()}
    batches = ", ".join(f"{batch:,}" for batch in one.replayed_in)
    return EpisodeView(
        trajectory=store.load_trajectory(one.id),
        instruction=data.instructions.get(one.task, ""),
        solved=one.solved,
        end=f"{reason}: {detail}" if detail else reason,
        when=phase_title(one.phase) + (f", replayed in batch {batches}" if batches else ""),
        facts=(f"task set: {LABELS.get(sets[one.task], sets[one.task])}",) if one.task in sets else (),
    )


def _load_tasks(config: Config, played: Iterable[str]) -> dict[str, Task]:
    """Tasks by id; of desk:fresh those with the ids in `played`. Skips task files that cannot be loaded."""
    made = (fresh_task(name) for name in played)
    found = {task.id: task for task in made if task is not None}
    heldout = split_sources(config.tasks.heldout)
    for source in filter(None, (config.tasks.overall, *heldout, config.tasks.train)):
        try:
            found.update((task.id, task) for task in load_tasks(source, config.tasks.examples))
        except UserError:
            continue
    return found
