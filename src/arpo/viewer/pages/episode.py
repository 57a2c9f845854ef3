"""Page "Episode": one episode with its steps, and why it ended."""

from __future__ import annotations

from arpo.config import RolloutConfig
from arpo.prompts.judge_question import decide
from arpo.reporting.numbers import format_count
from arpo.storage.codec import StoredEpisode
from arpo.types import StopReason
from arpo.viewer.animation import animate_episode
from arpo.viewer.pages.episodes import Episode, episode_json, find_episode
from arpo.viewer.pages.groups import episode_credit
from arpo.viewer.pages.tasks import read_evaluations, task_sets
from arpo.viewer.pages.timeline import add_times
from arpo.viewer.pictures import changed_areas
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json, Source


def episode_page(source: Source, name: str) -> Json:
    one = find_episode(source, name)
    steps, final = source.steps(name)
    page = {
        **episode_json(source, one),
        **_neighbours(source, name),
        **dict.fromkeys(("reward", "advantage", "replaced_by", "task_set")),
        "end": one.stop,
        "end_detail": "",
        "final": final,
        "judged": [],
        "steps_list": steps,
    }
    if not isinstance(source, RunSource):
        return page
    page |= _run_details(source, one, steps)
    page["judged"] = _judged(source, name, final["shot"]) if final else []
    return page | _unfinished(source) if source.is_partial() else page


def _unfinished(run: RunSource) -> Json:
    """What is different while an episode is played, and after it was interrupted."""
    end = "it is being played" if run.facts()["live"] else "interrupted: only the steps before that are known"
    return {"score": None, "solved": None, "end": end, "end_detail": "", "final": None}


def _run_details(run: RunSource, one: Episode, steps: list[Json]) -> Json:
    infeasible = run.texts.is_infeasible(one.task)
    end, detail = describe_end(one, solved=one.solved, infeasible=infeasible, limits=run.config.rollout)
    return {
        **episode_credit(run, one),
        "end": end,
        "end_detail": detail,
        "task_set": task_sets(read_evaluations(run)).get(one.task),
        **add_times(run, one.episode, steps),
    }


def _judged(run: RunSource, name: str, final: str) -> list[Json]:
    """The votes of each judge on an episode, in the answers to its newest question, and their majority."""
    asked: dict[tuple[str, str], dict[int, Json]] = {}
    for row in run.judgements.rows:
        if (row["episode"], row["final"], row["planted"]) == (name, final, False):
            question = row["model"], row["mark"]
            asked[question] = {**asked.pop(question, {}), row["number"]: row}  # the newest is the last one
    newest = {model: [votes[number] for number in sorted(votes)] for (model, _), votes in asked.items()}
    return [
        {
            "model": model,
            "success": decide([vote["success"] for vote in votes]),
            "votes": [{"success": vote["success"], "reason": vote["reason"]} for vote in votes],
        }
        for model, votes in newest.items()
    ]


def changes_page(source: Source, before: str, now: str) -> Json:
    """Where two screenshots differ: the share of changed pixels, and areas [left, top, width, height]."""
    share, areas = changed_areas(source.pixels(before), source.pixels(now))
    return {"share": share, "areas": areas}


def episode_gif(source: Source, name: str) -> bytes:
    """The episode as a GIF with its score and its end below the final screenshot."""
    page = episode_page(source, name)
    score = "" if page["score"] is None else f"score {page['score']:g}: "
    return animate_episode(source, name, f"{score}{page['end']}")


def _neighbours(source: Source, name: str) -> dict[str, str | None]:
    """The episodes before and after one, in the order of the run."""
    found = {}
    for key, sign, order in (("previous", "<", "DESC"), ("next", ">", "ASC")):
        other = source.index.row(
            f"SELECT id FROM episodes WHERE n {sign} (SELECT n FROM episodes WHERE id = ?) "
            f"ORDER BY n {order} LIMIT 1",
            (name,),
        )
        found[key] = other["id"] if other else None
    return found


def describe_end(
    episode: Episode | StoredEpisode, *, solved: bool | None, infeasible: bool, limits: RolloutConfig
) -> tuple[str, str]:
    """Reason and detail, for example ("the answer was not in the action language", "no Action: line").

    `solved` is None if the task has no evaluator. `infeasible`: the right answer to the task is error_env().
    The detail may be empty.
    """
    ending = _ending(episode, limits)
    detail = episode.error if episode.stop == StopReason.PARSE_ERROR else ""
    if episode.stop == StopReason.FAIL:
        judged = "" if solved is None else "correctly " if solved else "wrongly "
        return f"{judged}judged infeasible: the model called error_env()", ""
    if solved is None:
        return ending, detail
    if solved:
        return f"solved: {ending}", detail
    if infeasible and not episode.malformed:
        return f"{ending}, but the task is infeasible: error_env() is the right answer", ""
    if episode.stop in (StopReason.FINISHED, StopReason.TERMINATED):
        return f"{ending}, but the goal was not reached", ""
    return ending, detail


def _ending(episode: Episode | StoredEpisode, limits: RolloutConfig) -> str:
    match episode.stop:
        case StopReason.FINISHED if limits.agent:
            return "the agent program ended the episode"
        case StopReason.FINISHED:
            return "the model called finished()"
        case StopReason.CALL_USER:
            return "the model called call_user() instead of doing the task"
        case StopReason.TERMINATED:
            return "the environment ended the episode"
        case StopReason.MAX_STEPS if episode.steps < limits.max_steps:
            limit = format_count(limits.max_context_tokens)
            return f"the conversation no longer fitted into rollout.max_context_tokens ({limit})"
        case StopReason.MAX_STEPS:
            return f"ran out of steps ({format_count(limits.max_steps)})"
        case StopReason.PARSE_ERROR:
            return "the answer was not in the action language"
        case StopReason.LENGTH:
            return f"the answer was cut at {format_count(limits.max_answer_tokens)} tokens"
    return episode.stop
