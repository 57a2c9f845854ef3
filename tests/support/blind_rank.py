"""`python -m blind_rank NUMBER STORE`: a rank on a node without the folders of rank 0."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from arpo.learner import sharded

_find_writers = sharded.find_writers


def find_writers(marker: Path, device: torch.device) -> list[int]:
    return _find_writers(marker.with_name("not on this node"), device)


if __name__ == "__main__":
    sharded.find_writers = find_writers
    sharded.main(int(sys.argv[1]), sys.argv[2])
