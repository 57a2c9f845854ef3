"""Texts in the source code of another package, read without running it.

Agents of released models build their prompts in Python: from constants, f-strings, `+`, `.strip()`,
`"\\n".join([…])` and `json.dumps({…})`. This module evaluates such expressions as data. A variable of a
function has a dotted name:

    SourceTexts.read(path, {"coordinate_type": "relative"}).get("Qwen3VLAgent.predict.system_prompt")
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_DEPTH = 100


class _Unknown(Exception):
    """The expression needs values that are known only at run time."""


@dataclass(frozen=True, slots=True)
class SourceTexts:
    """The texts of one file. `values` are attributes of `self`, for choices: `a if self.x == 1 else b`."""

    module: ast.Module
    values: Mapping[str, str]

    @classmethod
    def read(cls, path: Path, values: Mapping[str, str]) -> SourceTexts:
        """Raises OSError, ValueError or SyntaxError."""
        return cls(ast.parse(path.read_text(encoding="utf-8")), values)

    def get(self, name: str) -> str | None:
        """The text of a variable. A name in an f-string that is not known becomes a {placeholder}.

        None if there is no such variable, or if it is no text or depends on more than literals.
        """
        *scopes, variable = name.split(".")
        bodies: list[Sequence[ast.stmt]] = [self.module.body]
        for scope in scopes:
            inner = next((node for node in bodies[0] if getattr(node, "name", None) == scope), None)
            if not isinstance(inner, ast.ClassDef | ast.FunctionDef):
                return None
            bodies.insert(0, inner.body)
        try:
            value = _Evaluation(bodies, self.values).variable(variable)
        except _Unknown:
            return None
        return value if isinstance(value, str) else None


class _Evaluation:
    def __init__(self, bodies: Sequence[Sequence[ast.stmt]], values: Mapping[str, str]) -> None:
        self._bodies = bodies  # the innermost scope first
        self._values = values
        self._depth = 0

    def variable(self, name: str) -> Any:
        """The value of the last assignment, in the innermost scope that has one."""
        for body in self._bodies:
            for statement in reversed(body):
                match statement:
                    case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                        return self.value(value)
        raise _Unknown

    def value(self, node: ast.expr) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Unknown
        try:
            return self._value(node)
        finally:
            self._depth -= 1

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.JoinedStr(values=parts):
                return "".join(map(self._part, parts))
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._text(left) + self._text(right)
            case ast.List(elts=items) | ast.Tuple(elts=items):
                return [self.value(item) for item in items]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self.value(key): self.value(value)
                    for key, value in zip(keys, values, strict=True)
                    if key is not None
                }
            case ast.Name(id=name):
                return self.variable(name)
            case ast.IfExp(test=test, body=body, orelse=other):
                return self.value(body if self._holds(test) else other)
            case ast.Call(func=ast.Attribute(value=owner, attr=method), args=arguments, keywords=[]):
                return self._call(owner, method, arguments)
        raise _Unknown

    def _call(self, owner: ast.expr, method: str, arguments: Sequence[ast.expr]) -> str:
        match owner, method, arguments:
            case ast.Name(id="json"), "dumps", [what]:
                return json.dumps(self.value(what))
            case _, "strip", []:
                return self._text(owner).strip()
            case _, "join", [listed]:
                texts = self.value(listed)
                if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
                    return self._text(owner).join(texts)
        raise _Unknown

    def _text(self, node: ast.expr) -> str:
        value = self.value(node)
        if not isinstance(value, str):
            raise _Unknown
        return value

    def _part(self, part: ast.expr) -> str:
        match part:
            case ast.FormattedValue(value=ast.Name(id=name), format_spec=None):
                try:
                    return str(self.variable(name))
                except _Unknown:
                    return "{" + name + "}"
            case ast.Constant(value=str() as text):
                return text
        raise _Unknown

    def _holds(self, test: ast.expr) -> bool:
        match test:
            case ast.Compare(
                left=ast.Attribute(value=ast.Name(id="self"), attr=name),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=value)],
            ) if name in self._values:
                return self._values[name] == value
        raise _Unknown
