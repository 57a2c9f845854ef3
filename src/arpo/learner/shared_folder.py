"""The ranks that can write into a folder of rank 0: all on one machine or with shared storage, else some."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """Name of a file that rank 0 keeps in the folder during the block. Ranks that see it see the folder."""
    marker = folder / f"shared-{secrets.token_hex(8)}"
    marker.touch()
    try:
        yield marker.name
    finally:
        marker.unlink(missing_ok=True)


def find_writers(marker: Path, device: torch.device) -> list[int]:
    """Numbers of the ranks that see this file. Every rank calls it."""
    seen = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    seen[dist.get_rank()] = int(marker.is_file())
    dist.all_reduce(seen)
    return [rank for rank, sees in enumerate(seen.tolist()) if sees]
