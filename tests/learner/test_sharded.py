"""The sharded learner on two and three real processes gives the results of the local learner."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from arpo.errors import UserError
from arpo.learner.background import in_background
from arpo.learner.base import Batch, TokenStats
from arpo.learner.rank_commands import (
    Command,
    LoadCommand,
    LogprobsCommand,
    PublishCommand,
    SaveCommand,
    StartCommand,
    StopCommand,
    TrainCommand,
    encode_command,
    read_command,
)
from arpo.learner.sharded import RankLearner, ShardedLearner
from arpo.learner.sharded_model import filler_sample
from arpo.models.loading import load_model
from arpo.models.trainable import copy_trained, load_trained, set_trainable
from processes import descendants, wait_until
from rank_learners import (
    all_close,
    alone,
    batches,
    config,
    on_ranks,
    renderer_of,
    sample,
    tensors,
    train,
    weights,
)
from tiny_vlm import (
    QWEN2_5,
    QWEN3,
    QWEN3_5,
    QWEN3_5_MOE,
    save_folder,
    tiny_model,
    tiny_of,
    tiny_qwen3,
    tiny_renderer,
)

pytestmark = pytest.mark.slow

Stats = Sequence[Sequence[TokenStats]]


def poisoned(batch: Batch) -> Batch:
    """The batch with a NaN advantage in its first sample."""
    first, *rest = batch.updates
    return Batch(updates=((replace(first[0], advantage=math.nan), *first[1:]), *rest))


def with_teacher(batch: Batch) -> Batch:
    """The batch with a sample of a teacher at the end of each update."""
    taught = replace(
        batch.updates[0][0],
        behaviour_logprobs=(),
        advantage=0.0,
        weight=0.0,
        replayed=True,
        kl_weight=0.0,
        teacher_weight=0.1,
    )
    return replace(batch, updates=tuple((*update, replace(taught)) for update in batch.updates))


def assert_close_stats(ours: Stats, theirs: Stats) -> None:
    for update, expected in zip(ours, theirs, strict=True):
        for one, other in zip(update, expected, strict=True):
            assert one.entropy == pytest.approx(other.entropy, rel=1e-4)
            assert one.ratio == pytest.approx(other.ratio, rel=1e-4)
            assert one.clipped == other.clipped
    assert [len(update) for update in ours] == [4, 1]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        (QWEN2_5, {}),
        (QWEN2_5, {"ranks": 3, "kl": 0.3, "teacher": 0.5}),
        (QWEN3, {"kl": 0.3, "train": "lora"}),  # its deep features and, here, tied embeddings
        (QWEN2_5, {"kl": 0.3, "train": "language"}),
        (QWEN3_5, {"kl": 0.3}),
        (QWEN3_5_MOE, {"kl": 0.3, "train": "lora"}),
    ],
)
def test_ranks_learn_what_one_process_learns(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    save_folder(tiny_qwen3(tied=True) if family == QWEN3 else tiny_of(family), tmp_path)
    recipe = config(tmp_path, **settings)
    first, second = batches(renderer_of(recipe))
    if recipe.loss.teacher:
        first = with_teacher(first)
    given = [first, poisoned(second), second, Batch(updates=((),))]
    one = alone(recipe)
    with on_ranks(recipe) as several:
        before = weights(several)
        handle = several.weights().handle
        measured, wanted = train(several, *given), train(one, *given)
        assert several.weights().version == 4 and several.weights().handle is handle
        judged = [*first.updates[0], *second.updates[1]]
        for base in (False, True)[: 1 + recipe.compares_with_base]:
            found, right = (each.logprobs(judged, base=base) for each in (several, one))
            assert list(map(len, found)) == list(map(len, right))
            assert [*chain(*found)] == pytest.approx([*chain(*right)], rel=1e-4)
        train(several, second), train(one, second)
        assert_close_stats(several.token_stats(), one.token_stats())
    for ours, theirs in zip(measured, wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    assert [line["skipped"] for line in measured] == [0, 1, 0, 0]
    assert (measured[2]["updates"], measured[2]["samples"], measured[2]["tokens"] > 9) == (2, 5, True)
    assert bool(settings.get("kl")) == (measured[2]["base_kl"] > 1e-4)
    assert bool(settings.get("teacher")) == ("teacher_loss" in measured[0])
    after, expected = weights(several), weights(one)
    assert after.keys() == expected.keys()
    assert all_close(after, expected)
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved == {name for name, p in several.weights().handle.named_parameters() if p.requires_grad}


def test_ranks_learn_in_a_thread_while_an_engine_keeps_its_weights(tmp_path: Path) -> None:
    """As in asynchronous training: the engine's model is not the one whose memory the ranks free."""
    save_folder(tiny_model(), tmp_path)
    recipe = config(tmp_path, train="language")
    recipe = replace(recipe, train=replace(recipe.train, max_staleness=1))
    batch, _ = batches(renderer_of(recipe))
    engine_model: Any = load_model(recipe.model, 0)
    set_trainable(engine_model, recipe.model, 0)
    before = {name: p.detach().clone() for name, p in engine_model.named_parameters()}
    one = alone(recipe)
    with closing(ShardedLearner(copy_trained(engine_model), renderer_of(recipe), recipe)) as several:
        ours = asyncio.run(in_background(partial(several.train, batch)))
        assert all(torch.equal(p, before[name]) for name, p in engine_model.named_parameters())
        load_trained(engine_model, several.weights().handle)
    assert ours == pytest.approx(one.train(batch), rel=1e-4, abs=1e-6)
    assert all_close(dict(engine_model.named_parameters()), weights(one))


def test_stochastic_rounding_is_the_same_on_ranks(tmp_path: Path) -> None:
    """Some gradients differ in the last bit; for equal gradients, rounding is equal."""
    save_folder(tiny_model(), tmp_path)
    recipe = config(tmp_path, dtype="bfloat16")
    (batch, _) = batches(renderer_of(recipe))
    one = alone(recipe)
    with on_ranks(recipe) as several:
        [ours], [theirs] = train(several, batch), train(one, batch)
        after, expected = weights(several), weights(one)
    assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-3)
    values = sum(weight.numel() for weight in expected.values())
    assert sum((after[name] != expected[name]).sum().item() for name in expected) < 0.15 * values


def test_a_checkpoint_passes_from_two_ranks_to_one_and_back(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path / "model")
    recipe = config(tmp_path / "model")
    first, second = batches(renderer_of(recipe))
    straight, one = alone(recipe), alone(recipe)
    wanted = train(straight, first, second)
    with on_ranks(recipe) as two:
        train(two, first)
        two.save(tmp_path / "two")
        names = sorted(path.name for path in (tmp_path / "two").iterdir())
        parts = ("optimiser-0", "optimiser-1", "weights-0", "weights-1")
        assert names == ["learner.json", *(f"{part}.safetensors" for part in parts)]
        sizes = [(tmp_path / "two" / f"weights-{rank}.safetensors").stat().st_size for rank in (0, 1)]
        assert max(sizes) < 1.1 * min(sizes)

        one.load(tmp_path / "two")
        assert all(torch.equal(weights(one)[name], weight) for name, weight in weights(two).items())
        one.save(tmp_path / "one")
        assert tensors(tmp_path / "one") == tensors(tmp_path / "two")
        assert one.weights().version == 1
        [ours] = train(one, second)
        assert ours == pytest.approx(wanted[1], rel=1e-4, abs=1e-6)

        train(two, second)  # change the weights after saving
        two.load(tmp_path / "one")
        two.save(tmp_path / "again")
        assert tensors(tmp_path / "again") == tensors(tmp_path / "one")
        [ours] = train(two, second)
        assert ours == pytest.approx(wanted[1], rel=1e-4, abs=1e-6)
        assert all_close(weights(two), weights(straight))

        (tmp_path / "one" / "learner.json").write_text('{"version": 1}')
        with pytest.raises(UserError, match="one: damaged, or not a checkpoint of this model"):
            two.load(tmp_path / "one")
        (tmp_path / "two" / "weights-1.safetensors").unlink()
        with pytest.raises(UserError, match=r"weights-1\.safetensors"):
            two.load(tmp_path / "two")
        assert all_close(weights(two), weights(straight))


@pytest.mark.parametrize(
    ("how", "ranks", "seconds", "message"),
    [
        (signal.SIGKILL, 3, 120.0, "rank 2 of the learner ended: killed by SIGKILL"),
        (signal.SIGSTOP, 2, 10.0, "the ranks of the learner timed out: they waited 10 s"),
    ],
    ids=["killed", "stopped"],
)
def test_a_lost_rank_is_an_error_that_names_it(
    how: signal.Signals,
    ranks: int,
    seconds: float,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_folder(tiny_model(), tmp_path)
    monkeypatch.setattr("arpo.learner.ranks.RANK_SECONDS", seconds)
    recipe = config(tmp_path, ranks=ranks)
    before = descendants(os.getpid())
    with on_ranks(recipe) as learner:
        last = max(descendants(os.getpid()) - before, key=number_of)
        strike = threading.Timer(0.2, os.kill, (last, how))
        strike.start()
        with pytest.raises(UserError, match=message):
            train(learner, *batches(renderer_of(recipe)) * 50)
        strike.join()
    assert wait_until(lambda: not descendants(os.getpid()) - before)


def number_of(process: int) -> int:
    """The command line of a rank ends with its number and the address of the store."""
    return int(Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[-3])


def test_the_last_output_of_a_failed_rank_is_shown(tmp_path: Path) -> None:
    recipe = config(save_folder(tiny_model(), tmp_path / "model"))
    model, renderer = load_model(recipe.model, 0), renderer_of(recipe)
    shutil.rmtree(tmp_path / "model")
    with pytest.raises(
        UserError, match=r"(?s)rank 1 .* ended: exit code 1.*model: not found; model\.path needs"
    ):
        ShardedLearner(model, renderer, recipe)


STUCK = """
import os, sys, time
from pathlib import Path
from arpo.learner import ranks
from rank_learners import config, on_ranks

if __name__ == "__main__":
    ranks._DETECTION_SECONDS = 0.5
    with on_ranks(config(Path(sys.argv[1]))) as learner, learner._ranks.collective():
        print("collective", flush=True)
        time.sleep(1000)
"""


def test_a_stuck_call_ends_after_a_rank_is_lost(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path / "model")
    (tmp_path / "stuck.py").write_text(STUCK)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "stuck.py", tmp_path / "model"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "collective\n"
    (rank,) = descendants(process.pid)
    os.kill(rank, signal.SIGKILL)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 2
    assert output.startswith("arpo: error: rank 1 of the learner ended: killed by SIGKILL")


def test_commands_survive_encoding() -> None:
    rng, renderer = Random(0), tiny_renderer()
    same = sample(rng, renderer)
    twice = (same, replace(same, advantage=math.inf, replayed=True, kl_weight=0.0))
    commands: list[Command] = [
        StartCommand(recipe="[optim]\nranks = 2\n"),
        TrainCommand(updates=[[twice, ()], [(), (sample(rng, renderer),)]], lr_scales=[1.0, 0.1]),
        LogprobsCommand(updates=[[twice]], base=True, temperature=None, first=2, count=4),
        SaveCommand(folder="/somewhere/ü", marker="shared-1"),
        PublishCommand(folder="/somewhere/else", marker="shared-2"),
        LoadCommand(version=3, steps=2, skipped=1, parameter_steps={"layer.weight": 2.0}),
        StopCommand(),
    ]
    sent = [b"".join(encode_command(command)) for command in commands]
    assert sent[1].count(same.images[0].png) == 1
    stream = io.BytesIO(b"".join(sent))
    assert [read_command(stream) for _ in commands] == commands
    assert read_command(stream) is None
    assert json.loads(sent[3][8:])["do"] == "SaveCommand"


def test_the_filler_has_one_small_image_and_one_token() -> None:
    sample = filler_sample(tiny_renderer())
    assert (len(sample.images), sum(sample.mask), sample.weight) == (1, 1, 0.0)
    assert len(sample.token_ids) < 30


def test_the_sampling_model_has_no_memory_while_the_ranks_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_folder(tiny_model(), tmp_path)
    recipe = config(tmp_path)
    sizes: list[int] = []
    train_on = RankLearner.train_on

    def measured(learner: RankLearner, command: TrainCommand) -> Any:
        sizes.append(sum(map(Tensor.numel, several.weights().handle.parameters())))
        return train_on(learner, command)

    monkeypatch.setattr(RankLearner, "train_on", measured)
    with on_ranks(recipe) as several:
        before = weights(several)
        train(several, batches(renderer_of(recipe))[0])
    assert sizes == [0]
    assert {name: w.shape for name, w in weights(several).items()} == {n: w.shape for n, w in before.items()}
