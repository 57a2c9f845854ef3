"""The training loop on Desk: one step an episode and verdicts written here."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import verdicts
from arpo.config import Config
from arpo.errors import UserError
from arpo.learner import local
from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.reporting.display import Display, total_rows
from arpo.rollout.player import open_player
from arpo.storage.checkpoint import CHECKPOINTS
from arpo.storage.run_folder import RunFolder, RunFolderReader
from arpo.tasks.order import epoch_order
from arpo.tasks.sets import load_sets
from arpo.testing import Times
from arpo.training.checkpoints import check_folder
from arpo.training.run import Run
from arpo.training.trainer import Trainer, run_training
from trained import lines, train_to_end
from trajectories import all_updates
from verdicts import HELDOUT, A, B, C, Corrupting, D, Scripted, osworld_config, select, small_config

SHIPPED = Path(str(files("arpo"))) / "envs/desk/tasks"
HOT = ("--rollout.temperature=3", "--rollout.max_answer_tokens=16")  # so that no two answers are the same


def train(config: Config) -> Trainer:
    """Begin or go on, to the end."""
    return train_to_end(Trainer, config)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.run.learner.weights().handle.named_parameters()}


def test_replay_rescues_a_group_in_which_all_failed(tmp_path: Path) -> None:
    # Each list: the base evaluation, the two episodes of each of two batches, the final evaluation.
    Scripted.play({A: [0, 1, 0, 0, 0, 1], B: [1, 1, 1, 0, 0, 0]})
    config = small_config(tmp_path, [A, B], "--train.epochs=2", "--replay.capacity=2")
    trainer = train(config)
    base, first, second = lines(config, "metrics.jsonl")
    assert base == {"step": 0, "eval_train": 0.5, "eval_heldout": 0.0}
    counts = ("groups", "without_signal", "rescued", "all_success", "all_fail", "replay_size", "replay_age")
    assert [first[name] for name in counts] == [2, 1, 0, 1, 0, 3, 0.0]
    assert [second[name] for name in counts] == [2, 0, 2, 0, 2, 3, 1.0]
    # The failed episodes that replay put others in the place of are failures all the same.
    assert (first["success"], second["success"]) == (0.75, 0.0)
    assert (first["episodes"], second["episodes"]) == (4, 8)
    assert second["eval_train"] == 0.5 and "eval_train" not in first
    summary = trainer.run.records.summary()
    assert summary["groups"] == {"total": 4, "without_signal": 1, "rescued": 2}
    assert summary["success"] == {
        "base": {"train": 0.5, "heldout": 0.0},
        "final": {"train": 0.5, "heldout": 0.0},
    }
    assert (summary["episodes"], summary["failures"], summary["seed"]) == (8, 0, 0)
    assert trainer.run.progress.counts["final"] == {"train": (1.0, 2), "heldout": (0.0, 1)}
    _check_groups(config)


def _check_groups(config: Config) -> None:
    """Every batch of this run records its groups as they are after replay."""
    groups = lines(config, "groups.jsonl")
    assert [(line["step"], line["version"], line["group"]) for line in groups] == [
        (1, 0, "batch-1-0"), (1, 0, "batch-1-1"), (2, 1, "batch-2-0"), (2, 1, "batch-2-1")
    ]  # fmt: skip
    first = {line["task"]: line for line in groups if line["step"] == 1}
    assert (sorted(first[A]["rewards"]), sorted(first[A]["advantages"])) == ([0.0, 1.0], [-1.0, 1.0])
    assert (first[B]["rewards"], first[B]["advantages"], first[B]["rescues"]) == ([1.0, 1.0], [0.0, 0.0], [])
    for line in groups[2:]:
        [rescue] = line["rescues"]
        played, index = [f"{line['group']}-0", f"{line['group']}-1"], rescue["index"]
        assert rescue["replaced_episode"] == played[index]
        assert rescue["stored_episode"] in first[line["task"]]["episodes"] and rescue["age"] == 1
        played[index] = rescue["stored_episode"]
        assert line["episodes"] == played and line["versions"][index] == 0
        assert line["advantages"][index] == 1.0 == line["rewards"][index]


@pytest.mark.slow
def test_a_corrupt_screenshot_fails_its_own_episode_alone(tmp_path: Path) -> None:
    """Episodes that share its prefill go on; the fault counts against the task, not against the engine."""
    Corrupting.play({A: [0, 1] * 5, B: [1, 0] * 5})
    Corrupting.shown = 0
    settings = (
        "--rollout.group_size=16",
        "--train.epochs=2",
        "--env.attempts=1",
        "--env.quarantine_after=99",
    )
    config = small_config(tmp_path, [A, B], *settings, env="Corrupting")
    trainer = train(config)
    failures = lines(config, "failures.jsonl")
    assert len(failures) == Corrupting.shown // 11 >= 3
    assert {failure["kind"] for failure in failures} == {"EnvError"}
    assert all("damaged PNG" in failure["message"] for failure in failures)
    assert trainer.run.progress.failures == len(failures)


def test_every_evaluation_is_written_down_by_task(tmp_path: Path) -> None:
    # A: the base evaluation of both sets; two episodes, an evaluation; two episodes, the final evaluations.
    Scripted.play({A: [0, 1, 1, 0, 1, 1, 1, 1, 1], B: [1, 0.5], HELDOUT: [0, 1]})
    overall = select(tmp_path / "overall.json", "desk:pool", [A, B])
    settings = (f"--tasks.overall={overall}", "--eval.every=1", "--train.epochs=2")
    config = small_config(tmp_path, [A], *settings, "--train.tasks_per_batch=1", "--train.tasks_per_update=1")
    trainer = train(config)
    base, between, final = lines(config, "evaluations.jsonl")
    assert base == {
        "step": 0,
        "episodes": 0,
        "landmark": "base",
        "sets": {"train": {A: [0.0]}, "heldout": {HELDOUT: [0.0]}, "overall": {A: [1.0], B: [1.0]}},
        "failures": {"train": 0, "heldout": 0, "overall": 0},
        "without_verdict": {"train": [], "heldout": [], "overall": []},
    }
    assert (between["step"], between["episodes"], between["landmark"]) == (1, 2, "")
    assert between["sets"] == {"train": {A: [1.0]}, "heldout": {HELDOUT: [1.0]}}
    assert (final["step"], final["episodes"], final["landmark"]) == (2, 4, "final")
    assert final["sets"]["overall"] == {A: [1.0], B: [0.5]}
    assert trainer.run.progress.success["final"] == {"train": 1.0, "heldout": 0.0, "overall": 0.75}
    assert trainer.run.progress.counts["base"]["overall"] == (2.0, 2)
    assert [line.get("eval_overall") for line in lines(config, "metrics.jsonl")] == [1.0, None, 0.75]


def test_without_replay_it_is_exactly_grpo(tmp_path: Path) -> None:
    script = {A: [0, 1, 0, 0, 0, 0], B: [0, 0, 0, 1, 0, 0]}
    Scripted.play(script)
    config = small_config(tmp_path, [A, B], "--train.epochs=2", "--replay.enabled=false", *HOT)
    trainer = train(config)
    assert trainer.replay.state() == {}
    assert [line["rescued"] for line in lines(config, "metrics.jsonl")[1:]] == [0, 0]
    assert [line["without_signal"] for line in lines(config, "metrics.jsonl")[1:]] == [1, 1]

    Scripted.play({task: scores[1:] for task, scores in script.items()})
    by_hand = asyncio.run(grpo(config))
    trained, base = weights(trainer), dict(open_player(config).model.named_parameters())
    assert by_hand.keys() == trained.keys()
    assert all(torch.equal(by_hand[name], trained[name]) for name in trained)
    assert not any(torch.equal(base[name], trained[name]) for name in trained if name.endswith("proj.weight"))
    assert min(line["grad_norm"] for line in lines(config, "metrics.jsonl")[1:]) > 0.01


async def grpo(config: Config) -> dict[str, torch.Tensor]:
    """The same run as one would write it down: roll out, compare within groups, update."""
    player, tasks = open_player(config), load_sets(config)["train"]
    learner = LocalLearner(player.model, player.token_renderer, config)
    for batch in range(config.train.epochs):
        await player.scheduler.agent.engine.load(learner.weights())
        order = epoch_order(tasks, config.run.seed, batch)
        groups = await player.scheduler.run(f"batch-{batch + 1}", list(enumerate(order)), lambda *_: None)
        updates = all_updates(groups, config.loss, tasks_per_update=2, token_budget=16)
        learner.train(Batch(updates=updates))
    return dict(player.model.named_parameters())


def test_dynamic_sampling_plays_on_until_the_epochs_are_spent(tmp_path: Path) -> None:
    # A and B never teach anything, C and D always do; the first verdict is the base evaluation's.
    Scripted.play({C: [0, 1, 0, 1, 0], D: [0, 1, 0, 1, 0]})
    dynamic = ("--train.epochs=2", "--train.dynamic_sampling=true", "--replay.enabled=false")
    config = small_config(tmp_path, [A, B, C, D], *dynamic)
    trainer = train(config)
    metrics = lines(config, "metrics.jsonl")[1:]
    assert trainer.run.progress.groups == {"total": 8, "without_signal": 4, "rescued": 0}
    assert trainer.run.progress.episodes == metrics[-1]["episodes"] == 16
    assert sum(line["groups"] for line in metrics) == 8
    # A batch is full with two groups that teach, so the four of them are the first two batches.
    assert [line["samples"] for line in metrics if line["samples"]] == [4, 4]
    played = Counter(t["task_id"] for t in lines(config, "trajectories.jsonl") if "batch" in t["episode_id"])
    assert played == {A: 4, B: 4, C: 4, D: 4}
    recorded = Counter((line["task"], any(line["advantages"])) for line in lines(config, "groups.jsonl"))
    assert recorded == {(A, False): 2, (B, False): 2, (C, True): 2, (D, True): 2}
    # Over all that was played, not over what was kept: 4 successes in 16.
    assert sum(line["success"] * 2 * line["groups"] for line in metrics) == pytest.approx(4)


@pytest.mark.slow
def test_dynamic_sampling_gives_up_after_so_many_attempts(tmp_path: Path) -> None:
    Scripted.play({})
    dynamic = ("--train.epochs=5", "--train.dynamic_sampling=true")
    config = small_config(tmp_path, [A, B, C, D], *dynamic, "--replay.enabled=false")
    trainer = train(config)
    first, second = lines(config, "metrics.jsonl")[1:]
    assert [first["groups"], first["samples"], first["updates"]] == [10, 0, 0]
    assert [second["groups"], second["episodes"]] == [10, 40]
    trained, base = weights(trainer), dict(open_player(config).model.named_parameters())
    assert all(torch.equal(base[name], trained[name]) for name in base)


def test_every_epoch_has_every_task_and_the_last_batch_may_be_smaller(tmp_path: Path) -> None:
    Scripted.play({})
    config = small_config(tmp_path, [A, B, C], "--train.epochs=1", "--run.seed=3")
    train(config)
    assert [line.get("groups") for line in lines(config, "metrics.jsonl")] == [None, 2, 1]
    stored = lines(config, "trajectories.jsonl")
    order = [task.id for task in epoch_order(load_sets(config)["train"], 3, 0)]
    played = [episode["task_id"] for episode in stored if episode["episode_id"].startswith("batch")]
    assert played == [task for task in order for _ in range(2)]
    looked_at = [episode["episode_id"] for episode in stored if episode["episode_id"].startswith("eval")]
    assert looked_at == [
        *("eval0-train-0-0", "eval0-train-1-0", "eval0-train-2-0", "eval0-heldout-0-0"),
        *("eval2-train-0-0", "eval2-train-1-0", "eval2-train-2-0", "eval2-heldout-0-0"),
    ]


@pytest.mark.slow
def test_a_batch_may_hold_a_task_twice(tmp_path: Path) -> None:
    # A is of middle difficulty, so that two or three of four groups are A's, in one batch.
    config = small_config(tmp_path, [A, B, C, D], "--train.curriculum=middle", "--train.tasks_per_batch=4")
    counts = {task: {"successes": 8 if task == A else 0, "rollouts": 16} for task in (A, B, C, D)}
    Path(config.tasks.train).write_text(json.dumps({"source": "desk:pool", "tasks": counts}), "utf-8")
    Scripted.play({A: [0, 1, 0]})  # the base evaluation; the first group; then failures
    trainer = train(config)
    played = [t for t in lines(config, "trajectories.jsonl") if t["episode_id"].startswith("batch-1-")]
    tasks = [episode["task_id"] for episode in played[::2]]
    assert len(tasks) == 4 and tasks.count(A) in (2, 3)
    assert [episode["task_id"] for episode in played[1::2]] == tasks
    assert [episode["episode_id"] for episode in played] == [
        f"batch-1-{n}-{m}" for n in range(4) for m in (0, 1)
    ]
    # What one group of A solved rescues the others that come after it in the batch.
    first = tasks.index(A)
    assert trainer.replay.state() == {A: [f"batch-1-{first}-0"]}
    (metrics,) = lines(config, "metrics.jsonl")[1:]
    assert metrics["rescued"] == tasks.count(A) - 1
    assert (metrics["groups"], metrics["all_fail"], metrics["replay_age"]) == (4, 3, 0.0)


def test_a_curriculum_without_counts_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--train.curriculum=middle", "--tasks.train=desk:pool")
    with pytest.raises(UserError, match="desk:pool has no screening counts"):
        train(config)
    assert lines(config, "metrics.jsonl") == lines(config, "trajectories.jsonl") == []


def test_part_of_the_way_is_a_reward_and_no_success(tmp_path: Path) -> None:
    # The base evaluation, the two episodes of the batch, the final evaluation.
    Scripted.play({A: [0.2, 0.4, 0.0, 1.0], B: [0.2, 1.0, 0.2, 0.4]})
    config = small_config(tmp_path, [A, B])
    trainer = train(config)
    base, batch = lines(config, "metrics.jsonl")
    assert (base["eval_train"], batch["eval_train"]) == (pytest.approx(0.2), pytest.approx(0.7))
    assert (batch["success"], batch["reward"]) == (0.25, pytest.approx(0.4))
    assert (batch["without_signal"], batch["all_fail"], batch["replay_size"]) == (0, 1, 1)
    assert list(trainer.replay.state()) == [B]


@pytest.mark.slow
def test_the_base_model_of_the_kl_term_outlives_a_stop(tmp_path: Path) -> None:
    # The base evaluation, a batch, an evaluation, a batch, an evaluation.
    script = {A: [0, 1, 0, 0, 1, 0, 0], B: [0, 1, 0, 0, 1, 0, 0]}
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    Scripted.play(script)
    kl = ("--loss.kl=0.1", "--optim.lr=1e-3", "--eval.every=1", *HOT)
    whole = small_config(tmp_path / "whole", [A, B], *kl, "--train.epochs=2")
    train(whole)
    Scripted.play(script)
    for epochs in (1, 2):
        parts = small_config(tmp_path / "parts", [A, B], *kl, f"--train.epochs={epochs}")
        train(parts)
    assert lines(parts, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    assert lines(whole, "metrics.jsonl")[1]["base_kl"] == pytest.approx(0.0, abs=1e-9)
    assert lines(whole, "metrics.jsonl")[2]["base_kl"] > 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lora", "language", "bfloat16"])
def test_whatever_is_trained_a_stop_changes_nothing(tmp_path: Path, model: str) -> None:
    """Adapters beside a frozen model, the language model alone, and weights that are rounded by chance."""
    script = {A: [0, 1, 0, 0, 1, 0, 0], B: [0, 1, 0, 0, 1, 0, 0]}
    short = "--rollout.max_answer_tokens=4"  # many CPUs emulate bfloat16
    rounded = ("--model.dtype=bfloat16", "--optim.moments=bfloat16", short)
    trained = rounded if model == "bfloat16" else (f"--model.train={model}", "--model.lora_rank=4")
    settings = ("--optim.lr=1e-3", "--loss.kl=0.1", "--eval.every=1", *HOT, *trained)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    Scripted.play(script)
    whole = small_config(tmp_path / "whole", [A, B], *settings, "--train.epochs=2")
    assert run_training(whole) == 0
    Scripted.play(script)
    for epochs in (1, 2):
        parts = small_config(tmp_path / "parts", [A, B], *settings, f"--train.epochs={epochs}")
        assert run_training(parts) == 0
    assert lines(parts, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    last = lines(whole, "metrics.jsonl")[2]
    assert last["base_kl"] > 1e-6 and last["updates"] == 1 and last["grad_norm"] > 0
    for name in ("checkpoints/step-000002/learner/weights", "model/model"):
        files = [Path(config.run.dir) / f"{name}.safetensors" for config in (whole, parts)]
        assert files[0].read_bytes() == files[1].read_bytes()
    saved = load_file(Path(whole.run.dir) / "checkpoints/step-000002/learner/weights.safetensors")
    parameters = open_player(whole).model.named_parameters()
    if model == "lora":
        assert saved and all(".lora." in name for name in saved)
    else:
        assert saved.keys() == {n for n, _ in parameters if model == "bfloat16" or "visual" not in n}


def test_failed_episodes_are_counted_and_are_no_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.play({A: [1] * 9, B: [1] * 9})
    monkeypatch.setattr(verdicts.Chaos, "steps", Times(1))
    config = small_config(tmp_path, [A, B], "--env.attempts=1", env="failing_at_first")
    trainer = train(config)
    # The first of the two episodes of the base evaluation on training tasks failed; after that nothing did.
    base, first = lines(config, "metrics.jsonl")
    assert base == {"step": 0, "eval_train": 1.0, "eval_heldout": 0.0}
    assert (first["success"], first["eval_train"], first["failures"]) == (1.0, 1.0, 1)
    failures = lines(config, "failures.jsonl")
    assert [failure["episode_id"] for failure in failures] == ["eval0-train-0-0"]
    assert failures[0] | {"task_id": "", "episode_id": ""} == {
        "episode_id": "",
        "task_id": "",
        "kind": "EnvError",
        "where": "step",
        "message": "RuntimeError: chaos at step",
        "attempts": 1,
        "place": "",
        "host": "",
    }
    lost = failures[0]["task_id"]
    evaluated, final = lines(config, "evaluations.jsonl")
    assert evaluated["without_verdict"] == {"train": [lost], "heldout": []}
    assert final["without_verdict"] == {"train": [], "heldout": []}
    summary = trainer.run.records.summary()
    assert summary["counts"] == {name: {"train": (1.0, 1), "heldout": (0.0, 1)} for name in ("base", "final")}
    assert summary["left_out"] == {"train": (lost,), "heldout": ()}
    assert ("1 task without a verdict, not in the rates", lost) in total_rows(summary)


@pytest.mark.slow
def test_a_task_that_keeps_failing_is_set_aside_also_after_a_stop(tmp_path: Path) -> None:
    Scripted.play({B: [0, 1, 0, 1, 0, 1, 0]})
    settings = ("--env.attempts=1", "--env.quarantine_after=3")
    first = small_config(tmp_path, [A, B], *settings, "--train.epochs=1", env="Fragile")
    trainer = train(first)  # an evaluation, two concurrent episodes, an evaluation: three failures
    assert trainer.run.scheduler.pool.quarantine.tasks == {A}
    [_, metrics] = lines(first, "metrics.jsonl")
    assert (metrics["too_small"], metrics["groups"], metrics["samples"], metrics["failures"]) == (1, 2, 2, 3)
    assert (metrics["success"], metrics["reward"]) == (0.5, 0.5)

    trainer = train(small_config(tmp_path, [A, B], *settings, "--train.epochs=2", env="Fragile"))
    assert trainer.run.scheduler.pool.quarantine.tasks == {A}
    kinds = [
        (failure["task_id"], failure["kind"], failure["attempts"])
        for failure in lines(first, "failures.jsonl")
    ]
    assert kinds[:4] == [(A, "EnvError", 1)] * 4
    assert kinds[4:6] == [(A, "Quarantined", 0)] * 2
    assert kinds[6:] == [(A, "EnvError", 1)]  # an evaluation tries every task
    assert trainer.run.progress.failures == 7


@pytest.mark.slow
def test_a_task_whose_prompt_does_not_fit_costs_that_task_alone(tmp_path: Path) -> None:
    Scripted.play({B: [0, 1, 0, 1]})
    tasks = {task["id"]: task for task in json.loads((SHIPPED / "pool.json").read_text("utf-8"))}
    tasks[A]["instruction"] *= 200
    (tmp_path / "tasks.json").write_text(json.dumps([tasks[A], tasks[B]]), "utf-8")
    alone = (
        f"--tasks.train={tmp_path / 'tasks.json'}",
        "--train.tasks_per_batch=1",
        "--train.tasks_per_update=1",
    )
    config = small_config(tmp_path, [], *alone, "--rollout.max_context_tokens=1000", "--env.attempts=2")
    assert run_training(config) == 0
    base, *batches = lines(config, "metrics.jsonl")
    assert base["eval_train"] == 0 and sorted(line["samples"] for line in batches) == [0, 2]
    failures = lines(config, "failures.jsonl")
    assert {(line["task_id"], line["kind"], line["where"]) for line in failures[:3]} == {
        (A, "PromptTooLong", "generate")
    }
    assert "set it to " in failures[0]["message"]


def test_a_run_in_which_nothing_can_be_played_stops_and_says_why(tmp_path: Path) -> None:
    Scripted.play({})
    config = small_config(tmp_path, [A, B], "--env.attempts=1", "--train.epochs=2", env="lying")
    with pytest.raises(
        UserError, match=r"all 2 episodes failed. First failure: task \S+, evaluate: .*check-env"
    ):
        run_training(config)
    assert lines(config, "metrics.jsonl") == []
    assert [failure["where"] for failure in lines(config, "failures.jsonl")] == ["evaluate", "evaluate"]


@pytest.mark.slow
def test_a_run_that_goes_on_after_its_end_has_no_summary_until_it_ends_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.play({})
    summary = tmp_path / "run" / "summary.json"
    assert run_training(small_config(tmp_path, [A], "--train.epochs=1")) == 0
    first = json.loads(summary.read_text("utf-8"))

    async def stopped(trainer: Trainer) -> bool:
        return False

    longer = small_config(tmp_path, [A], "--train.epochs=2")
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train", stopped)
        assert run_training(longer) == 130
    assert not summary.exists()
    assert run_training(longer) == 0
    assert json.loads(summary.read_text("utf-8"))["episodes"] == 2 * first["episodes"]


@pytest.mark.slow
def test_skipped_updates_are_told_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A KL term that overflows once the policy differs from the base model."""
    kl_loss = local.kl_loss

    def overflowing(*given: Any) -> Any:
        kl, sums = kl_loss(*given)
        return kl * 1e38, sums

    monkeypatch.setattr(local, "kl_loss", overflowing)
    Scripted.play({A: [0, 1, 0, 1, 0]})  # the base evaluation, then two groups
    settings = ("--train.epochs=2", "--loss.kl=1", "--optim.lr=0.1", "--optim.warmup_updates=0")
    one_by_one = ("--train.tasks_per_batch=1", "--train.tasks_per_update=1")
    config = small_config(tmp_path, [A], *settings, *one_by_one, *HOT)
    assert run_training(config) == 0
    assert [line["skipped"] for line in lines(config, "metrics.jsonl")[1:]] == [0, 1]
    out = capsys.readouterr().out
    assert "1 of 1 updates were skipped: their loss or gradient was not finite" in out
    assert re.search(r"updates skipped +1", out)
    assert json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["skipped_updates"] == 1


@pytest.mark.slow
def test_pruning_frees_screenshots_that_replay_does_not_need_and_changes_nothing_else(tmp_path: Path) -> None:
    script = {A: [1, 0, 1, 0, 0, 0, 0, 1], B: [0, 0, 0, 0, 0, 1, 0, 0]}
    ends = []
    for name, every in (("all", 0), ("pruned", 1)):
        (tmp_path / name).mkdir()
        Scripted.play(script)
        config = small_config(tmp_path / name, [A, B], f"--store.prune_every={every}", "--train.epochs=2")
        trainer = train(config)
        ends.append((lines(config, "metrics.jsonl"), trainer.replay.state()))
        stored = RunFolderReader(Path(config.run.dir))
        whole = {episode.episode_id for episode in stored.episodes() if stored.has_screenshots(episode)}
        named = {episode for episodes in trainer.replay.state().values() for episode in episodes}
        assert named and named <= whole
        assert (whole == set(stored.episode_ids())) == (every == 0)
    assert ends[0] == ends[1]
    longer = small_config(tmp_path / "pruned", [A, B], "--store.prune_every=1", "--train.epochs=3")
    assert train(longer).run.progress.batch == 3


def test_a_heldout_task_that_is_trained_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--tasks.heldout=desk:32", "--tasks.train=desk:pool")
    with pytest.raises(UserError, match="is also training task"):
        run_training(config)


def test_a_folder_belongs_to_one_recipe_once_it_has_a_checkpoint(tmp_path: Path) -> None:
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    check_folder(store, small_config(tmp_path, [A]))
    store.write_recipe(small_config(tmp_path, [A]))
    (tmp_path / CHECKPOINTS).mkdir()
    may_change = ("--train.epochs=9", "--run.threads=2", "--store.keep_checkpoints=7", "--run.dir=elsewhere")
    others = ("--train.tasks=9",)
    check_folder(store, small_config(tmp_path, [A], *may_change, *others))
    with pytest.raises(UserError, match=r"must keep loss\.kl = .*; optim\.lr = .* choose another --run\.dir"):
        check_folder(store, small_config(tmp_path, [A], "--optim.lr=1", "--loss.kl=1"))
    with pytest.raises(UserError, match=r"train\.tasks_per_batch = 2, train\.tasks_per_update = 2 \("):
        check_folder(
            store, small_config(tmp_path, [A], "--train.tasks_per_batch=12", "--train.tasks_per_update=6")
        )
    store.close()


class Noting(Display):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


REMEDIES = {
    "optim.tokens_per_microbatch": "512",
    "env.parallel": "1",
    "env.start_seconds": "9.0",
    "env.step_seconds": "8.0",
    "env.evaluate_seconds": "7.0",
    "env.outage_seconds": "60.0",
    "env.attempts": "2",
    "env.quarantine_after": "5",
    "train.epochs": "3",
    "train.engine_kl_alarm": "0.5",
    "train.engine_kl_skip": "true",
    "model.float32_head": "true",
    "model.device": '"cpu"',
    "engine.cache_gigabytes": "1.0",
    "eval.every": "2",
    "store.checkpoint_every": "2",
    "store.token_stats": "true",
    "run.threads": "2",
}


@pytest.mark.slow
def test_a_run_resumes_with_remedies_and_notes_them(tmp_path: Path) -> None:
    """One batch an epoch."""
    Scripted.play({A: [0, 1] * 9, B: [1, 0] * 9})
    config = small_config(tmp_path, [A, B])
    assert run_training(config, Noting()) == 0
    settings = [f"--{key}={value.strip(chr(34))}" for key, value in REMEDIES.items()]
    changed, display = small_config(tmp_path, [A, B], *settings), Noting()
    assert run_training(changed, display) == 0
    changes = json.loads((Path(config.run.dir) / "changes.json").read_text("utf-8"))["changes"]
    assert {change["key"]: change["after"] for change in changes} == REMEDIES
    assert {change["batch"] for change in changes} == {2}
    assert "changed setting: env.parallel = 1 from batch 2 (before: 32)" in display.texts
    metrics = lines(config, "metrics.jsonl")
    assert [line["step"] for line in metrics if "eval_train" in line] == [0, 1, 2, 3]
    assert [line["episodes"] for line in metrics[1:]] == [4, 8, 12]
    assert {line["step"] for line in lines(config, "token_stats.jsonl")} == {2, 3}
    summary = json.loads((Path(config.run.dir) / "summary.json").read_text("utf-8"))
    assert summary["changes"] == changes
    assert ("changed setting", "env.attempts = 2 from batch 2 (before: 3)") in total_rows(summary)


class Stopping(Display):
    """Asks its run to stop when the first batch is trained, as Ctrl-C does."""

    run: Run

    def batch(self, number: int, metrics: Mapping[str, float]) -> None:
        self.run.stopping = True


@pytest.mark.slow
def test_a_rate_that_decays_survives_a_stop_and_fixes_the_number_of_epochs(tmp_path: Path) -> None:
    rate = ("--optim.schedule=linear", "--optim.lr=0.001", "--optim.warmup_updates=1")
    settings = (*rate, "--train.tasks_per_update=1", "--train.epochs=2", *HOT)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, parts = (small_config(tmp_path / name, [A, B], *settings) for name in ("whole", "parts"))
    script = {A: [0, 1, 0, 0, 1], B: [0, 1, 0, 0, 1]}  # the base evaluation and two batches
    Scripted.play(script)
    train(whole)
    Scripted.play(script)
    display = Stopping()
    with closing(RunFolder(Path(parts.run.dir))) as store:
        store.write_recipe(parts)
        stopped = Trainer(parts, store, display)
        display.run = stopped.run
        assert not asyncio.run(stopped.train())
    train(parts)
    # Four updates of one task: a warm-up, then 3/3, 2/3 and 1/3 of the rate. A batch reports its last one.
    assert [line["lr"] for line in lines(whole, "metrics.jsonl")[1:]] == pytest.approx([1e-3, 1e-3 / 3])
    assert lines(parts, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    longer = small_config(tmp_path / "whole", [A, B], *settings, "--train.epochs=3")
    with closing(RunFolder(Path(whole.run.dir))) as store:
        store.write_recipe(whole)
        with pytest.raises(UserError, match=r"must keep train\.epochs = 2"):
            check_folder(store, longer)


def test_the_tasks_of_these_tests_are_shipped(tmp_path: Path) -> None:
    sets = load_sets(small_config(tmp_path, [A, B, C, D]))
    assert [task.id for task in sets["train"]] == [A, B, C, D] and sets["heldout"][0].id == HELDOUT


@pytest.mark.slow
def test_a_run_keeps_to_the_tasks_that_could_run_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.play({})
    config = osworld_config(monkeypatch, tmp_path, {A: "os", B: "vscode"}, "--train.epochs=2")
    trainer = train(config)
    assert trainer.run.progress.tasks == 2
    assert trainer.run.progress.counts["final"] == {"train": (0.0, 1), "heldout": (0, 0)}
    skipped = tmp_path / "run" / "skipped.json"
    assert json.loads(skipped.read_text("utf-8")).keys() == {B}

    more = osworld_config(monkeypatch, tmp_path, {A: "os", B: "vscode"}, "--train.epochs=3")
    assert train(more).run.progress.tasks == 3
    more = osworld_config(monkeypatch, tmp_path, {A: "os", B: "os"}, "--train.epochs=4")
    with pytest.raises(UserError, match=f"runnable tasks has changed .*{B}"):
        train(more)
    assert skipped.exists()


def test_a_refused_resume_opens_no_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted.play({})
    train(small_config(tmp_path, [A], "--train.epochs=2"))
    opened: list[str] = []
    monkeypatch.setattr("arpo.training.run.open_trackers", lambda *_: opened.append("tracker"))
    with pytest.raises(UserError, match=r"train\.epochs = 1: the run in .* has already done 2"):
        run_training(small_config(tmp_path, [A], "--train.epochs=1"))
    assert opened == []
