"""Files of a learner's tensors: what the safetensors library reads from them, and a full disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arpo.learner import saved_state
from arpo.learner.saved_state import load_tensors, save_tensors

NAME = "weights.safetensors"


def test_the_library_reads_every_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 100 bytes: tensors of less than one, of several, and of none."""
    monkeypatch.setattr(saved_state, "_CHUNK_BYTES", 100)
    torch.manual_seed(0)
    tensors = {
        "half": torch.randn(3, dtype=torch.float16),
        "odd": torch.randn(7, 11).bfloat16(),
        "wide": torch.randn(40, 3),
        "turned": torch.randn(6, 9).T,
        "step": torch.tensor(3.0),
        "none": torch.zeros(0, 4),
        "weight": torch.nn.Parameter(torch.randn(5, 5)),
    }
    save_tensors(tensors, tmp_path / NAME)
    for loaded in (load_file(tmp_path / NAME), load_tensors(tmp_path, NAME)):
        assert loaded.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor), name


def test_tensors_are_aligned(tmp_path: Path) -> None:
    save_tensors({"a": torch.zeros(1).bfloat16(), "b": torch.zeros(3)}, tmp_path / NAME)
    data = (tmp_path / NAME).read_bytes()
    length = int.from_bytes(data[:8], "little")
    begin = {name: entry["data_offsets"][0] for name, entry in json.loads(data[8 : 8 + length]).items()}
    assert begin == {"b": 0, "a": 12} and (8 + length) % 8 == 0


def test_no_tensors_are_one_file(tmp_path: Path) -> None:
    save_tensors({}, tmp_path / NAME)
    assert load_tensors(tmp_path, NAME) == {}


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_state, "_CHUNK_BYTES", 64)
    write = os.pwrite

    def pwrite(file: int, data: memoryview, offset: int) -> int:
        if offset > 300:
            raise OSError(28, "No space left on device")
        return write(file, data[:10], offset)  # a part, as writing to some disks does

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / NAME}'"):
        save_tensors({"a": torch.zeros(100)}, tmp_path / NAME)
    save_tensors({"a": torch.arange(40.0)}, tmp_path / NAME)
    assert load_tensors(tmp_path, NAME)["a"].tolist() == list(range(40))


def test_loaded_tensors_are_saved_to_their_own_file(tmp_path: Path) -> None:
    save_tensors({"a": torch.arange(9.0), "b": torch.ones(3)}, tmp_path / NAME)
    loaded = load_tensors(tmp_path, NAME)
    save_tensors(loaded, tmp_path / NAME)
    assert load_tensors(tmp_path, NAME)["a"].tolist() == loaded["a"].tolist() == list(range(9))


def test_the_parts_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(9)}, tmp_path / NAME, metadata={"parts": "2"})
    with pytest.raises(FileNotFoundError):
        load_tensors(tmp_path, NAME)
    save_file({"b": torch.ones(9)}, tmp_path / "weights.part1.safetensors")
    assert {name: tensor.sum() for name, tensor in load_tensors(tmp_path, NAME).items()} == {"a": 0, "b": 9}
