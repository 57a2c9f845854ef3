"""Replay that starts with the successes of another folder, on Desk with verdicts written here."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.errors import UserError
from arpo.reporting.display import Display
from arpo.storage.run_folder import RunFolder, RunFolderReader
from arpo.training.collect import run_collection
from arpo.training.offline import open_source
from arpo.training.seeds import draw_seeds
from arpo.training.trainer import Trainer, run_training
from arpo.viewer.export import index_all
from arpo.viewer.library import Library
from trained import lines, train_to_end
from verdicts import A, B, C, Scripted, small_config


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A is solved three times in four, C once; B never."""
    folder = tmp_path_factory.mktemp("taught")
    Scripted.play({A: [1, 0, 1, 1], C: [0, 1]})
    config = small_config(folder, [A, B, C], "--train.epochs=2", "--env.parallel=1")
    assert run_collection(config) == 0
    return Path(config.run.dir)


def seeded(folder: Path, seeds: Path, tasks: list[str], *overrides: str) -> Config:
    folder.mkdir(exist_ok=True)
    return small_config(folder, tasks, f"--replay.seeds={seeds}", "--replay.capacity=2", *overrides)


def train(config: Config) -> Trainer:
    return train_to_end(Trainer, config)


def without_evaluations(config: Config) -> list[dict[str, object]]:
    batches = lines(config, "metrics.jsonl")
    return [{k: v for k, v in line.items() if not k.startswith("eval_")} for line in batches]


def test_a_run_starts_with_the_successes_of_a_folder_and_keeps_its_own_copies(
    taught: Path, tmp_path: Path
) -> None:
    """Every episode fails: A is rescued by a seed in each batch. The resumed run has lost the folder."""
    every = ("--store.prune_every=1", "--replay.ratio=behaviour")
    Scripted.play({})
    whole = seeded(tmp_path / "whole", taught, [A, B], "--train.epochs=3", *every)
    trainer = train(whole)
    assert trainer.replay.state() == {A: ["seed-collect-0-0", "seed-collect-6-0"]}
    for batch in lines(whole, "metrics.jsonl")[1:]:
        counts = ("success", "rescued", "seeded", "all_fail", "without_signal", "replay_size", "skipped")
        assert [batch[name] for name in counts] == [0, 1, 1, 2, 1, 2, 0]
        assert batch["grad_norm"] > 0 and batch["replay_age"] == batch["step"] - 1
    for line in lines(whole, "groups.jsonl"):
        assert [one["stored_episode"] in trainer.replay.state()[A] for one in line["rescues"]] == (
            [True] if line["task"] == A else []
        )
    copy, original = (
        RunFolderReader(folder).load_trajectory(name)
        for folder, name in ((Path(whole.run.dir), "seed-collect-0-0"), (taught, "collect-0-0"))
    )
    assert [turn.completion.logprobs for turn in copy.turns] == [()]
    assert [turn.completion.token_ids for turn in copy.turns] == [original.turns[0].completion.token_ids]
    assert copy.final == original.final  # not pruned

    moved = shutil.copytree(taught, tmp_path / "moved")
    for epochs in (1, 3):
        parts = seeded(tmp_path / "parts", moved, [A, B], f"--train.epochs={epochs}", *every)
        train(parts)
        shutil.rmtree(moved, ignore_errors=True)
    assert without_evaluations(parts) == without_evaluations(whole)
    assert lines(parts, "groups.jsonl") == lines(whole, "groups.jsonl")
    with closing(RunFolder(Path(whole.run.dir))) as store:
        store.write_recipe(whole)
    _check_viewer(store.folder)
    # What a method may learn from this run are its own episodes: the seeds have a folder of their own.
    source = ("--train.method=rft", f"--offline.source={whole.run.dir}")
    with pytest.raises(UserError, match="no successes among its 12 episodes of the training tasks"):
        open_source(small_config(tmp_path, [A, B], *source), Display())


def _check_viewer(folder: Path) -> None:
    with closing(Library([folder])) as library:
        index_all(library)
        [source] = library.answer(["sources"], {})["sources"]
        batch, episodes, tasks = (
            library.answer(["s", source["id"], *page], {})
            for page in (["batches", "2"], ["episodes"], ["tasks"])
        )
    [group] = [one for one in batch["groups"] if one["task"] == A]
    [stored] = [dot for dot in group["dots"] if dot["kind"] == "replayed"]
    assert (stored["phase"], stored["origin_batch"]) == ("seed", None)
    assert stored["episode"].startswith("seed-collect-")
    seeds = [one for one in episodes["phases"] if one["phase"] == "seed"]
    assert seeds == [{"phase": "seed", "title": "seeds", "episodes": 2}]
    [task] = [one for one in tasks["tasks"] if one["task"] == A]
    assert (task["trained"], task["solved"], task["rescued"]) == (6, 0, 3)


def test_asynchronous_training_uses_seeds_too(taught: Path, tmp_path: Path) -> None:
    Scripted.play({})
    settings = ("--train.epochs=2", "--train.max_staleness=1", "--loss.teacher=0.5")
    config = seeded(tmp_path, taught, [A, B], *settings)
    train(config)
    batches = lines(config, "metrics.jsonl")[1:]
    assert [batch["seeded"] for batch in batches] == [1, 1]
    assert batches[0]["teacher_loss"] > batches[1]["teacher_loss"] > 0


@pytest.mark.slow
def test_the_teachers_loss_trains_batches_without_signal_and_resumes(taught: Path, tmp_path: Path) -> None:
    """Every episode fails, without replay. Each of the three seeds fits two updates in three."""
    Scripted.play({})
    settings = ("--replay.enabled=false", "--loss.teacher=0.5", "--store.prune_every=1", "--optim.lr=1e-3")
    whole = seeded(tmp_path / "whole", taught, [A, C], "--train.epochs=3", *settings)
    trainer = train(whole)
    assert trainer.replay.state() == {}
    batches = lines(whole, "metrics.jsonl")[1:]
    for batch in batches:
        names = ("success", "without_signal", "rescued", "seeded", "replay_size", "tokens", "updates")
        assert [batch[name] for name in names] == [0, 2, 0, 0, 0, 0, 1]
        assert batch["samples"] == 2 and batch["grad_norm"] > 0
        assert batch["loss"] == pytest.approx(0.5 * batch["teacher_loss"])
    assert batches[0]["teacher_loss"] > batches[2]["teacher_loss"]
    for epochs in (1, 3):
        parts = seeded(tmp_path / "parts", taught, [A, C], f"--train.epochs={epochs}", *settings)
        train(parts)
    assert without_evaluations(parts) == without_evaluations(whole)


def test_each_update_draws_its_own_seeds_and_a_resumed_run_the_same() -> None:
    names = [f"seed-{number}" for number in range(9)]
    drawn = [draw_seeds(names, 4, seed, batch, update) for seed, batch, update in product(range(2), repeat=3)]
    assert len({*map(tuple, drawn)}) == 8
    assert all(len({*one}) == 4 and {*one} <= {*names} for one in drawn)
    assert draw_seeds(names, 4, 1, 1, 1) == drawn[-1]
    assert sorted(draw_seeds(names[:3], 4, 0, 0, 0)) == names[:3]
    assert draw_seeds([], 4, 0, 0, 0) == []


def refused(config: Config) -> str:
    with pytest.raises(UserError) as caught:
        run_training(config)
    return str(caught.value)


def test_a_folder_without_a_usable_seed_is_refused(taught: Path, tmp_path: Path) -> None:
    assert "nowhere: not found. Name a folder" in refused(seeded(tmp_path, tmp_path / "nowhere", [A]))
    assert "run is run.dir. Choose another --run.dir" in refused(seeded(tmp_path, tmp_path / "run", [A]))
    assert "none of its 12 episodes belongs to tasks.train" in refused(seeded(tmp_path, taught, ["pool-002"]))
    assert "no usable success among its 4 episodes of the training tasks. Collect" in refused(
        seeded(tmp_path, taught, [B])
    )
    no_model = seeded(tmp_path, tmp_path / "nowhere", [A], f"--model.path={tmp_path}")
    with pytest.raises(UserError, match="nowhere: not found"):
        train(no_model)  # found before the model is loaded
    (tmp_path / "prompt.txt").write_text("Do this: {instruction}")
    other = f"--model.prompt={tmp_path}/prompt.txt"
    assert (
        f"{taught}: 4 of its 4 episodes have other prompts or tokens than this run. Its recipe has "
        'model.prompt = "auto": set the same, or collect again'
    ) in refused(seeded(tmp_path, taught, [A], other))


def test_seeds_with_other_later_prompts_are_refused(tmp_path: Path) -> None:
    """Two steps: with one screenshot at a time, the second prompt has no room for the first one."""
    Scripted.play({A: [1, 1]})
    config = small_config(tmp_path, [A], "--rollout.max_steps=2", "--rollout.max_images=1")
    assert run_collection(config) == 0
    folder = Path(config.run.dir)
    message = "2 of its 2 episodes have other prompts or tokens than this run. Its recipe has rollout.max_"
    assert message in refused(seeded(tmp_path / "seeded", folder, [A], "--rollout.max_images=2"))
    source = ("--train.method=sft", f"--offline.source={folder}", "--rollout.max_images=2")
    assert message in refused(small_config(tmp_path / "seeded", [A], *source))


def test_seeds_of_another_text_of_the_task_are_left_out_and_counted(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task file has another instruction for A than when its episodes were collected."""
    config = seeded(tmp_path, taught, [A, C], "--eval.rollouts=0", "--tasks.heldout=")
    [tasks] = tmp_path.glob("train-tasks.json")
    a, c = json.loads(tasks.read_text("utf-8"))
    tasks.write_text(json.dumps([{**a, "instruction": "Do nothing"}, c]), "utf-8")
    assert run_training(config) == 0
    said = capsys.readouterr().out
    assert f"{taught}: 4 episodes are left out: their prompts or tokens are not those of this run" in said
    assert f"replay starts with 1 seed of 1 task, from {taught}" in said
    seeded_groups = sum(batch["seeded"] for batch in lines(config, "metrics.jsonl")[1:])
    assert re.search(rf"of these by a seed +{seeded_groups} *$", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("--replay.enabled=false",), "replay.seeds: is 'x', must be empty with replay.enabled = false"),
        (("--train.method=sft",), "replay.seeds: is 'x', must be empty with train.method = sft"),
        (("--train.dynamic_sampling=true",), "train.dynamic_sampling: is true, must be false with replay"),
        (
            ("--tasks.train=desk:fresh", "--train.tasks=8"),
            "replay.enabled: is true, must be false with tasks.train = desk:fresh: no task is played twice",
        ),
    ],
)
def test_what_has_no_use_for_seeds_refuses_them(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        load_config(None, ["--replay.seeds=x", *settings])


def test_a_teachers_loss_needs_seeds_and_online_training() -> None:
    with pytest.raises(UserError, match=re.escape("loss.teacher: is 0.1, must be 0 without replay.seeds")):
        load_config("desk", ["--loss.teacher=0.1"])
    with pytest.raises(UserError, match=re.escape("loss.teacher: is 0.1, must be 0 with train.method = sft")):
        load_config(None, ["--loss.teacher=0.1", "--train.method=sft"])
