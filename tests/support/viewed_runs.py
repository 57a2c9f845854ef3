"""A small run with known numbers for the tests of `arpo view` in a browser.

Groups of two. Batch 1: pool-040 scores 1 and 0; pool-013 scores 0 and 0; pool-021 scores 1, and its second
episode could not be played. Batch 2: pool-040 scores 0 and 0, so replay rescues it with batch-1-0-0; pool-013
scores 1, and its second answer does not parse; pool-021 scores 1 and 1.
"""

from __future__ import annotations

import io
from contextlib import closing
from dataclasses import replace
from functools import cache
from pathlib import Path

from PIL import Image, ImageDraw

from arpo import actions as act
from arpo.algorithms.credit import Credit
from arpo.config import Config, LossConfig, ReplayConfig, TasksConfig
from arpo.storage.judgements import Vote, VoteLog
from arpo.storage.run_folder import RunFolder, RunFolderReader
from arpo.types import Completion, Failure, Group, Rescue, Screenshot, StopReason, Trajectory, Turn
from arpo.viewer.export import index_all
from arpo.viewer.library import Library

SIZE = (320, 240)
STEPS: tuple[tuple[str, str, act.Action], ...] = (
    ("Open the settings", "click(start_box='(60,200)')", act.Click(point=act.Point(60, 200))),
    ("Drag the window", "drag(start_box='(40,40)', end_box='(200,90)')",
     act.Drag(start=act.Point(40, 40), end=act.Point(200, 90))),
    ("Type the language", "type(content='Greek')", act.Type(text="Greek", submit=False)),
    ("The task is done", "finished()", act.Finished(content="")),
)  # fmt: skip

# Every view of a folder with the runs "first" and "second", with its heading.
VIEWS = {
    "/runs": "Runs",
    "/s/first/report": "first",
    "/s/first/batches": "Batches",
    "/s/first/batch/2": "Batch 2",
    "/s/first/group/batch-2-0": "Set the language to Greek",
    "/s/first/episodes": "Episodes",
    "/s/first/episode/batch-1-0-0?step=2": "Set the language to Greek",
    "/s/first/episode/batch-1-0-0?step=1&view=tokens": "Set the language to Greek",
    "/s/first/tasks": "Tasks",
    "/s/first/task/pool-040": "Set the language to Greek",
    "/s/first/faults": "Faults",
    "/s/first/timeline": "Timeline",
    "/s/first/recipe?changed=1": "Recipe",
    "/s/first/recipe?against=second": "Recipe",
    "/search?text=Greek": "Search",
}


@cache
def picture(name: str, step: int) -> Screenshot:
    """A different picture for each episode and step: a window that moves."""
    image = Image.new("RGB", SIZE, "#3d6f8e")
    draw = ImageDraw.Draw(image)
    left = 20 + 24 * step
    draw.rectangle((left, 30, left + 160, 170), "#f2f2f2", "#20242e")
    draw.rectangle((left, 30, left + 160, 50), "#2141a0")
    draw.text((left + 6, 34), name, "white")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return Screenshot.of(buffer.getvalue())


def answer(thought: str, call: str, version: int) -> Completion:
    return Completion(
        token_ids=(21, 22, 23, 2),
        logprobs=(-0.1, -2.3, -0.02, -0.001),
        text=f"Thought: {thought}\nAction: {call}",
        finish="stop",
        versions=(version,) * 4,
    )


def played(name: str, task: str, score: float, version: int = 0, thought: str = "") -> Trajectory:
    """An episode of four steps. `thought`: replaces the thought of the first step."""
    turns = []
    for number, (words, call, action) in enumerate(STEPS):
        shot = picture(name, number)
        turns.append(
            Turn(
                screenshot=shot,
                context=(1, 2, 3),
                images=(shot,),
                restart=number == 0,
                completion=answer(thought if thought and number == 0 else words, call, version),
                actions=(action,),
            )
        )
    return Trajectory(
        episode_id=name,
        task_id=task,
        turns=tuple(turns),
        final=picture(name, len(STEPS)),
        score=score,
        malformed=False,
        stop=StopReason.FINISHED,
    )


def malformed(name: str, task: str) -> Trajectory:
    """An episode whose second answer does not parse."""
    whole = played(name, task, 0.0, 1)
    broken = replace(
        whole.turns[1], actions=(), error="unknown action: jump()", completion=answer("Jump", "jump()", 1)
    )
    return replace(
        whole,
        turns=(whole.turns[0], broken),
        malformed=True,
        stop=StopReason.PARSE_ERROR,
        final=picture(name, 2),
    )


def evaluation(step: int, landmark: str, train: dict[str, list[int]], heldout: dict[str, list[int]]) -> dict:
    return {
        "step": step,
        "episodes": 0,
        "landmark": landmark,
        "sets": {"train": train, "heldout": heldout},
        "failures": {"train": 0, "heldout": 0},
    }


def timing(rollout: float, learn: float) -> dict[str, float]:
    shares = {"env_start": 0.1, "env_step": 0.2, "env_evaluate": 0.05, "env_engine": 0.4, "env_idle": 0.25}
    return {**shares, "rollout": rollout, "learn": learn, "engine_busy": 0.6}


def config(*, replay: bool = True) -> Config:
    return Config(tasks=TasksConfig(train="desk:pool"), replay=ReplayConfig(enabled=replay))


def make_run(folder: Path, *, replay: bool = True) -> None:
    store = RunFolder(folder)
    store.write_recipe(config(replay=replay))
    store.log_metrics(0, {"eval_train": 0.25, "eval_heldout": 0.5})
    store.log_evaluation(
        evaluation(0, "base", {"pool-040": [0, 0], "pool-013": [0, 1]}, {"heldout-006": [1, 0]})
    )
    store.add_trajectory(played("eval0-train-0-0", "pool-040", 0.0))
    add_group(store, 1, played("batch-1-0-0", "pool-040", 1.0), played("batch-1-0-1", "pool-040", 0.0))
    add_group(store, 1, played("batch-1-1-0", "pool-013", 0.0), played("batch-1-1-1", "pool-013", 0.0))
    add_group(store, 1, played("batch-1-2-0", "pool-021", 1.0))
    store.add_failure(failure("batch-1-2-1", "pool-021"))
    store.log_metrics(
        1,
        {
            "episodes": 6,
            "success": 0.4,
            "reward": 0.4,
            "groups": 3,
            "rescued": 0,
            "without_signal": 1,
            "loss": 0.1,
        },
    )
    store.log_timing(1, timing(3.0, 1.0))
    add_times(store)
    add_token_stats(store)
    add_second_batch(store, replay=replay)
    store.log_evaluation(
        evaluation(2, "final", {"pool-040": [1, 1], "pool-013": [0, 1]}, {"heldout-006": [0, 0]})
    )
    store.add_trajectory(played("eval2-train-0-0", "pool-040", 1.0, 2))
    success = {
        "base": {"train": 0.25, "heldout": 0.5},
        "final": {"train": 0.75, "heldout": 0.0},
    }
    store.write_summary({"success": success, "episodes": 12})
    store.close()


def add_votes(folder: Path, name: str, votes: tuple[bool | None, ...]) -> None:
    """Votes of the judge "judge-vlm" on an episode, each with its number as the reason."""
    with closing(RunFolderReader(folder)) as reader, closing(VoteLog(folder)) as log:
        final = reader.load_outline(name).final.sha256
        for number, success in enumerate(votes):
            vote = Vote(
                episode=name, final=final, model="judge-vlm", mark="1", planted=False, number=number,
                success=success, reason=f"reason {number}",
            )  # fmt: skip
            log.add(vote)


def add_group(store: RunFolder, step: int, *episodes: Trajectory, stored: Trajectory | None = None) -> None:
    """A played and trained group. `stored`: the success that replaces its last episode."""
    for episode in episodes:
        store.add_trajectory(episode)
    credit, members = Credit(LossConfig()), episodes
    rescues: tuple[Rescue, ...] = ()
    if stored is not None:
        members, version = (*episodes[:-1], stored), episodes[-1].policy_version
        rescue = Rescue(
            index=len(members) - 1,
            replaced_episode=episodes[-1].episode_id,
            stored_episode=stored.episode_id,
            age=version - stored.policy_version,
        )
        rescues = (rescue,)
    group = Group(index=0, task_id=episodes[0].task_id, trajectories=members, rescues=rescues)
    rewards = [credit.reward(member) for member in members]
    store.log_group(step, step - 1, group, rewards, credit.advantages(group))


def answer_of(config: Config, *parts: str) -> dict:
    """The answer of `arpo view` about a run, completely indexed. Writes its recipe, as `arpo train` does."""
    folder = Path(config.run.dir)
    with closing(RunFolder(folder)) as store:
        store.write_recipe(config)
    library = Library([folder])
    try:
        index_all(library)
        (name,) = library.sources
        return library.answer(["s", name, *parts], {})
    finally:
        library.close()


def failure(episode: str, task: str) -> Failure:
    return Failure(
        episode_id=episode,
        task_id=task,
        kind="EnvTimeout",
        where="step",
        message="no answer within 60 s",
        attempts=3,
    )


def calls_of(began: float, steps: int = len(STEPS), last: str = "evaluate") -> list[tuple[str, float, float]]:
    """Start 0.5 s, answers of 0.2 s, actions of 0.1 s, evaluation 0.05 s."""
    calls, at = [("start", began, 0.5)], began + 0.5
    for _ in range(steps):
        calls += [("engine", at, 0.2), ("step", at + 0.2, 0.1)]
        at += 0.3
    return [*calls, (last, at, 0.05)]


def add_times(store: RunFolder) -> None:
    """Two environments: batch 1 until second 3, learning until 4; batch 2 until 6, learning until 8."""
    played_at = {
        "batch-1-0-0": 0.0, "batch-1-0-1": 0.0, "batch-1-1-0": 1.75, "batch-1-1-1": 1.8,
        "batch-2-0-0": 4.0, "batch-2-0-1": 4.1,
    }  # fmt: skip
    for name, began in played_at.items():
        store.log_calls({"episode": name, "host": "", "fault": ""}, calls_of(began))
    store.log_calls({"episode": "batch-2-1-1", "host": "", "fault": ""}, calls_of(5.8, 2)[:4])
    hung = {"episode": "batch-1-2-1", "host": "http://10.0.0.7:8700", "fault": "EnvTimeout"}
    store.log_calls(hung, [("start", 6.0, 0.1)])
    for step in (1, 2):
        rollout, learn = (3.0, 1.0) if step == 1 else (2.0, 2.0)
        began = 4.0 * (step - 1)
        store.log_calls({"step": step}, [("rollout", began, rollout), ("learn", began + rollout, learn)])


def add_token_stats(store: RunFolder) -> None:
    """The first answer of batch-1-0-0: trained in batch 1, replayed in batch 2, second token clipped."""
    line = {"update": 1, "episode": "batch-1-0-0", "turn": 1, "entropy": [0.5, 2.0, 0.1, 0.0]}
    store.log_token_stats({**line, "step": 1, "replayed": False, "ratio": [1.0] * 4, "clipped": [0] * 4})
    replayed = {"ratio": [1.0, 1.5, 0.9, 1.0], "clipped": [0, 1, 0, 0]}
    store.log_token_stats({**line, "step": 2, "replayed": True, **replayed})


def add_second_batch(store: RunFolder, *, replay: bool = True) -> None:
    failed = played("batch-2-0-0", "pool-040", 0.0, 1), played("batch-2-0-1", "pool-040", 0.0, 1)
    add_group(store, 2, *failed, stored=played("batch-1-0-0", "pool-040", 1.0) if replay else None)
    add_group(store, 2, played("batch-2-1-0", "pool-013", 1.0, 1), malformed("batch-2-1-1", "pool-013"))
    add_group(store, 2, played("batch-2-2-0", "pool-021", 1.0, 1), played("batch-2-2-1", "pool-021", 1.0, 1))
    store.log_metrics(
        2,
        {
            "episodes": 12,
            "success": 0.5,
            "reward": 0.33,
            "groups": 3,
            "rescued": 1,
            "without_signal": 1,
            "eval_train": 0.75,
        },
    )
    store.log_timing(2, timing(2.0, 2.0))
