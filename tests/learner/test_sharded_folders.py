"""Files are written by the ranks that see the folder of rank 0."""

from __future__ import annotations

from pathlib import Path

import pytest

from arpo.learner import rank_processes
from arpo.learner.sharded import marked
from rank_learners import alone, batches, config, on_ranks, renderer_of, tensors, train
from tiny_vlm import save_folder, tiny_model

pytestmark = pytest.mark.slow


def test_rank_0_writes_everything_if_no_other_rank_sees_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_processes, "RANK_MODULE", "blind_rank")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "support"))
    save_folder(tiny_model(), tmp_path / "model")
    recipe = config(tmp_path / "model")
    batch, _ = batches(renderer_of(recipe))
    with on_ranks(recipe) as two:
        train(two, batch)
        two.save(tmp_path / "saved")
        (tmp_path / "published").mkdir()
        two.publish(tmp_path / "published")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "learner.json",
        "optimiser-0.safetensors",
        "weights-0.safetensors",
    ]
    assert sorted(path.name for path in (tmp_path / "published").iterdir()) == [
        "checksums-0.json",
        "model-0.safetensors",
    ]
    one = alone(recipe)
    one.load(tmp_path / "saved")
    one.save(tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(tmp_path / "saved")
    published = tensors(tmp_path / "published")
    assert {name: published[name] for name, _ in one.weights().handle.named_parameters()} == published


def test_a_marker_is_in_the_folder_during_the_block_only(tmp_path: Path) -> None:
    with marked(tmp_path) as name:
        assert [path.name for path in tmp_path.iterdir()] == [name]
    assert list(tmp_path.iterdir()) == []
