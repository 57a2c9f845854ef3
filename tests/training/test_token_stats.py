"""token_stats.jsonl of whole runs on Desk: one step an episode, verdicts written here."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from arpo.config import Config
from arpo.learner.base import TokenStats
from arpo.storage.run_folder import RunFolder
from arpo.training.reporting import token_lines
from arpo.training.trainer import Trainer
from arpo.types import Answer
from trained import lines, train_to_end
from verdicts import A, B, Scripted, small_config

ON = ("--store.token_stats=true", "--rollout.max_answer_tokens=16")
# The base evaluation, two batches of two episodes, the final evaluation.
SCRIPT = {A: [0, 1, 0, 0, 0, 0], B: [0, 1, 0, 0, 0, 0]}
TWO_UPDATES = ("--train.epochs=2", "--train.tasks_per_update=1")


def test_a_line_has_the_rounded_values_of_one_answer() -> None:
    """A sample of two answers in the second update; the gradient of the other token was infinite."""
    answers = tuple(Answer(episode_id="batch4-0-1", turn=turn, tokens=3 - turn) for turn in (1, 2))
    stats = TokenStats(
        answers=answers,
        replayed=True,
        entropy=(0.123456, 1.0, 2.5),
        ratio=(1.00004, float("inf"), 0.5),
        clipped=(False, True, False),
    )
    found = list(token_lines(5, [[], [stats]]))
    same = {"step": 5, "update": 2, "episode": "batch4-0-1", "replayed": True}
    assert found == [
        {**same, "turn": 1, "entropy": [0.1235, 1.0], "ratio": [1.0, None], "clipped": [0, 1]},
        {**same, "turn": 2, "entropy": [2.5], "ratio": [0.5], "clipped": [0]},
    ]


def counted(config: Config) -> dict[tuple[int, int], list[tuple[str, bool]]]:
    """The episodes of each batch and update, and whether they were replayed."""
    found: dict[tuple[int, int], list[tuple[str, bool]]] = {}
    for line in lines(config, "token_stats.jsonl"):
        found.setdefault((line["step"], line["update"]), []).append((line["episode"], line["replayed"]))
    return found


def answer_lengths(config: Config) -> dict[str, int]:
    return {
        episode["episode_id"]: len(episode["turns"][0]["completion"]["logprobs"])
        for episode in lines(config, "trajectories.jsonl")
    }


def test_every_trained_answer_has_a_line_and_nothing_else_changes(tmp_path: Path) -> None:
    """Two updates a batch. In the second batch, all fail: each group gets the success of its task."""
    configs = []
    for name, settings in (("with", ON), ("without", ON[1:])):
        (tmp_path / name).mkdir()
        Scripted.play(SCRIPT)
        configs.append(small_config(tmp_path / name, [A, B], *TWO_UPDATES, *settings))
        train_to_end(Trainer, configs[-1])
    recorded, plain = configs
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        assert lines(recorded, name) == lines(plain, name)
    last = "checkpoints/step-000002/learner/weights.safetensors"
    ours, theirs = (load_file(Path(config.run.dir) / last) for config in configs)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert lines(plain, "token_stats.jsonl") == []

    found = counted(recorded)
    assert {place: len(trained) for place, trained in found.items()} == {
        (1, 1): 2,
        (1, 2): 2,
        (2, 1): 2,
        (2, 2): 2,
    }
    replayed = [episode for update in ((2, 1), (2, 2)) for episode, again in found[update] if again]
    assert len(replayed) == 2 and all(name.startswith("batch0-") for name in replayed)
    lengths = answer_lengths(recorded)
    written = lines(recorded, "token_stats.jsonl")
    for line in written:
        assert {len(line[name]) for name in ("entropy", "ratio", "clipped")} == {lengths[line["episode"]]}
    first = lines(recorded, "metrics.jsonl")[1]
    tokens = [line for line in written if line["step"] == 1]
    for name in ("entropy", "ratio"):
        values = [value for line in tokens for value in line[name]]
        assert sum(values) / len(values) == pytest.approx(first[name], abs=1e-4)
    assert all(set(line["ratio"]) == {1.0} for line in tokens if line["update"] == 1)  # π_θ is π_old


def test_a_resumed_run_has_the_lines_of_an_uninterrupted_one(tmp_path: Path) -> None:
    configs: dict[str, Config] = {}
    for name, epochs in (("whole", (2,)), ("parts", (1, 2))):
        (tmp_path / name).mkdir()
        Scripted.play({task: [0, 1, 0, 0, 1, 0, 0] for task in (A, B)})
        for number in epochs:
            settings = (*ON, "--eval.every=1", f"--train.epochs={number}")
            configs[name] = small_config(tmp_path / name, [A, B], *settings)
            train_to_end(Trainer, configs[name])
            if (name, number) == ("parts", 1):  # written after the last checkpoint, before a kill
                log = Path(configs[name].run.dir) / "token_stats.jsonl"
                log.write_bytes(log.read_bytes() + b'{"step":2,"update":1}\n{"step":2,')
    whole, parts = (lines(configs[name], "token_stats.jsonl") for name in ("whole", "parts"))
    assert parts == whole and {line["step"] for line in whole} == {1, 2}


def test_asynchronous_training_has_the_lines_of_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner's thread writes them: rollouts do not wait."""
    threads, write = set(), RunFolder.log_token_stats

    def watched(store: RunFolder, line: Mapping[str, Any]) -> None:
        threads.add(threading.current_thread().name)
        write(store, line)

    monkeypatch.setattr(RunFolder, "log_token_stats", watched)
    Scripted.play({A: [0, 1] * 9, B: [1, 0] * 9})
    settings = ("--train.max_staleness=1", "--env.parallel=4", "--train.epochs=2")
    config = small_config(tmp_path, [A, B], *settings, *ON)
    train_to_end(Trainer, config)
    assert threads == {"learner_0"}
    batches: dict[int, set[str]] = {}
    for line in lines(config, "groups.jsonl"):
        batches.setdefault(line["step"], set()).add(line["group"])
    trained: dict[int, set[str]] = {step: set() for step in batches}
    for line in lines(config, "token_stats.jsonl"):
        trained[line["step"]].add(line["episode"].rpartition("-")[0])
    live = {
        record["step"]: record["groups"] - record["without_signal"]
        for record in lines(config, "metrics.jsonl")[1:]
    }
    assert {step: len(groups) for step, groups in trained.items()} == live
    assert all(groups <= batches[step] for step, groups in trained.items()) and any(live.values())
