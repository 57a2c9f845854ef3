"""Files of a learner's tensors, split into parts."""

from pathlib import Path

import pytest
import torch

from arpo.learner.saved_state import load_tensors, save_tensors


def test_tensors_are_split_into_files_of_limited_size(tmp_path: Path) -> None:
    tensors = {name: torch.full((10,), float(value)) for value, name in enumerate("abcde")}  # 40 bytes each
    save_tensors(tensors, tmp_path / "weights.safetensors", part_bytes=100)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "weights.part1.safetensors",
        "weights.part2.safetensors",
        "weights.safetensors",
    ]
    loaded = load_tensors(tmp_path, "weights.safetensors")
    values = {name: tensor[0].item() for name, tensor in loaded.items()}
    assert values == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}


def test_a_tensor_above_the_limit_has_its_own_file(tmp_path: Path) -> None:
    tensors = {"small": torch.zeros(1), "large": torch.ones(100), "last": torch.zeros(1)}
    save_tensors(tensors, tmp_path / "weights.safetensors", part_bytes=100)
    assert len(list(tmp_path.iterdir())) == 3
    assert load_tensors(tmp_path, "weights.safetensors").keys() == tensors.keys()


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    save_tensors({"a": torch.zeros(9), "b": torch.zeros(9)}, tmp_path / "weights.safetensors", part_bytes=40)
    (tmp_path / "weights.part1.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path, "weights.safetensors")


def test_no_tensors_are_one_file(tmp_path: Path) -> None:
    save_tensors({}, tmp_path / "weights.safetensors")
    assert load_tensors(tmp_path, "weights.safetensors") == {}
