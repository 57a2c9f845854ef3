"""All goal families by name, their JSON form, and the solver for a list of goals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from arpo.actions import Finished
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.goals.base import Goal, Step
from arpo.envs.desk.goals.conf import (
    SetLanguage,
    SetTextSize,
    SetTheme,
    SetUserName,
    SetVolume,
    TurnMissingSwitch,
    TurnSwitch,
)
from arpo.envs.desk.goals.files import (
    DeleteFile,
    DeleteMissingFile,
    MakeFolder,
    MoveFile,
    RenameFile,
    ReplaceText,
    WriteNote,
)
from arpo.envs.desk.goals.mail import (
    AnswerMail,
    DeleteMail,
    DeleteMissingMail,
    FlagMail,
    SendFileText,
    SendMail,
)
from arpo.envs.desk.goals.sheet import ClearCell, CopyValue, PutValue, SumColumn
from arpo.envs.desk.goals.web import PlaceOrder

FEASIBLE: dict[str, type[Any]] = {
    family.__name__: family
    for family in (
        TurnSwitch, SetTheme, SetTextSize, SetLanguage, SetVolume, SetUserName,
        DeleteFile, MoveFile, RenameFile, MakeFolder, WriteNote, ReplaceText,
        SendMail, AnswerMail, DeleteMail, FlagMail, SendFileText,
        PutValue, ClearCell, SumColumn, CopyValue, PlaceOrder,
    )
}  # fmt: skip
INFEASIBLE: dict[str, type[Any]] = {
    family.__name__: family for family in (TurnMissingSwitch, DeleteMissingFile, DeleteMissingMail)
}
_AREA = {"File": "files", "Note": "files", "Mail": "mail", "Calc": "calc", "Web": "web"}
FAMILIES: dict[str, type[Any]] = FEASIBLE | INFEASIBLE


def compatible(families: Sequence[type[Any]]) -> bool:
    """Whether one task may combine these families: no goal can undo another."""
    areas = [_AREA.get(family.app, family.__name__) for family in families]
    return len(set(areas)) == len(areas) and (len(areas) == 1 or SendFileText not in families)


def combinations_of(families: Sequence[str], number: int) -> list[tuple[str, ...]]:
    """All sets of so many families that one task may combine. An infeasible goal is always alone."""
    return [
        names
        for names in combinations(families, number)
        if (number == 1 or not INFEASIBLE.keys() & set(names))
        and compatible([FAMILIES[name] for name in names])
    ]


def to_json(goals: Sequence[Goal]) -> list[dict[str, Any]]:
    return [{"family": type(goal).__name__, **asdict(goal)} for goal in goals]  # type: ignore[call-overload]


def from_json(rows: Sequence[dict[str, Any]]) -> list[Goal]:
    return [FAMILIES[row["family"]](**{k: v for k, v in row.items() if k != "family"}) for row in rows]


def next_step(desktop: Desktop, goals: Sequence[Goal]) -> Step:
    """The next step of the first unreached goal, or `Finished` if all are reached."""
    for goal in goals:
        if step := goal.next_step(desktop):
            return step
    return Step("Done", Finished())
