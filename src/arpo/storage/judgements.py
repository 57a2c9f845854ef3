"""judgements.jsonl in a run folder: one vote of a judge per line, in the order in which they arrived.

It is written beside the run, so it has a lock of its own. A later line replaces an earlier one with the same
`key`.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.storage.files import damage, naming, read_lines, write_all
from arpo.storage.from_json import from_json
from arpo.storage.run_folder import JUDGEMENTS, open_log


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """`success` is None if the judge gave no verdict; `reason` then says why."""

    episode: str
    final: str  # sha256 of its last screenshot: a resumed run may play another episode under this name
    model: str
    mark: str  # of the question
    planted: bool
    number: int  # of the vote, counted from 0
    success: bool | None
    reason: str

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.episode, self.model, self.mark, self.number


def read_vote(record: Mapping[str, Any]) -> Vote:
    """Raises ValueError if a value is missing or has another type."""
    return from_json(record, Vote)


class VoteLog:
    """The votes of a run by key. Locked against other judges until `close`."""

    def __init__(self, folder: Path) -> None:
        path = self._path = folder / JUDGEMENTS
        path.touch()
        self._file = open_log(path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UserError(f"{path}: another process is judging this run: wait for it") from None
        self.votes: dict[tuple[str, str, str, int], Vote] = {}
        remedy = "remove the file: all votes are asked for again"
        for number, record in enumerate(read_lines(path, remedy), 1):
            with damage(f"{path}: line {number}", remedy):
                vote = read_vote(record)
            self.votes[vote.key] = vote

    def add(self, vote: Vote) -> None:
        self.votes[vote.key] = vote
        with naming(self._path):
            self._file.truncate()
            write_all(self._file, (json.dumps(asdict(vote), separators=(",", ":")) + "\n").encode())

    def close(self) -> None:
        self._file.close()
