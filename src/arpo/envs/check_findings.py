"""The findings of `arpo check-env`: grouped by cause, one line each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

_EXCEPTION = re.compile(r"\w+: \w+(?=: )")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the result: a rule that holds or was skipped, or a finding.

    >>> print(Check(mark="FAIL", text="my_env.py:14: step: KeyError: 'room' (in 3 of 10 checks)"))
    FAIL  my_env.py:14: step: KeyError: 'room' (in 3 of 10 checks)
    """

    mark: Literal["ok", "skip", "warn", "FAIL"]
    text: str

    @property
    def ok(self) -> bool:
        return self.mark in ("ok", "skip")

    @property
    def required(self) -> bool:
        return self.mark != "warn"

    def __str__(self) -> str:
        return f"{self.mark:4}  {self.text}"


class CheckFailed(Exception):
    """The environment violates a rule. If it is not `required`, the finding is a warning."""

    def __init__(self, what: str, place: str, *, required: bool = True) -> None:
        super().__init__(what)
        self.what, self.place, self.required = what, place, required


@dataclass(slots=True, kw_only=True)
class _Finding:
    what: str
    place: str
    required: bool
    rules: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)


class Findings:
    """Collects findings, each cause once, with a count.

    The same cause: text and place are equal, or the call, the type of the exception and the place.
    """

    def __init__(self, rules: Sequence[str], tasks: Sequence[str]) -> None:
        self._rules, self._tasks = rules, tasks
        self._found: dict[tuple[str, str], _Finding] = {}
        self._skipped: dict[str, str] = {}

    def add(
        self, rule: str, what: str, place: str, *, required: bool = True, task: str = "", action: str = ""
    ) -> None:
        new = _Finding(what=what, place=place, required=required)
        finding = self._found.setdefault((_cause(what, place), place), new)
        finding.required |= required
        for value, values in ((rule, finding.rules), (task, finding.tasks), (action, finding.actions)):
            if value and value not in values:
                values.append(value)

    def known(self, what: str, place: str) -> bool:
        return (_cause(what, place), place) in self._found

    def skip(self, rule: str, reason: str) -> None:
        self._skipped[rule] = reason

    def checks(self) -> list[Check]:
        """In the order of the rules. A rule broken only by causes of earlier rules has no line of its own."""
        return [line for rule in self._rules for line in self.lines(rule)]

    def lines(self, rule: str) -> list[Check]:
        """The lines of one rule, after its check."""
        lines = [self._line(one) for one in self._found.values() if one.rules[0] == rule]
        if rule in self._skipped:
            lines.append(Check(mark="skip", text=f"{rule}: {self._skipped[rule]}"))
        elif not any(rule in finding.rules for finding in self._found.values()):
            lines.append(Check(mark="ok", text=rule))
        return lines

    def _line(self, finding: _Finding) -> Check:
        notes = []
        if finding.actions and len(finding.rules) == 1:
            notes.append(f"at {_first(finding.actions)}")
        if finding.tasks and len(finding.tasks) < len(self._tasks):
            notes.append(f"task {_first(finding.tasks)}")
        if len(finding.rules) > 1:
            notes.append(f"in {len(finding.rules)} of {len(self._rules)} checks")
        place = f"{finding.place}: " if finding.place else ""
        note = f" ({'; '.join(notes)})" if notes else ""
        return Check(mark="FAIL" if finding.required else "warn", text=f"{place}{finding.what}{note}")


def _cause(what: str, place: str) -> str:
    """For example "step: TypeError": one line of code may fail with another message for each action."""
    raised = _EXCEPTION.match(what)
    return raised[0] if raised and place else what


def _first(names: Sequence[str]) -> str:
    others = len(names) - 1
    return f"{names[0]} and {others} other{'s' if others > 1 else ''}" if others else names[0]
