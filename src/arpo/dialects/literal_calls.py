"""Python calls with literal arguments, read as data: the code is parsed with `ast` and never run.

>>> read_calls("pyautogui.click(x=105, y=63)")
[LiteralCall(name='pyautogui.click', positional=(), named={'x': 105, 'y': 63})]
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arpo.dialects.base import MAX_CALLS, ParseError, clipped, quoted
from arpo.dialects.tool_calls import MAX_DEPTH, depth

MAX_CODE = 20_000  # characters
_MODULES = ("pyautogui", "time", "pyperclip")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteralCall:
    """`name` is dotted. Values are texts, numbers, booleans, None, and lists of them."""

    name: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    def bound(self, *parameters: str) -> dict[str, Any]:
        """The arguments by name. `parameters` are the positional ones in order. Raises ParseError."""
        if len(self.positional) > len(parameters):
            raise ParseError(f"{self.name}() takes {len(parameters)} arguments, got {len(self.positional)}")
        values = dict(zip(parameters, self.positional, strict=False))
        if twice := values.keys() & self.named.keys():
            raise ParseError(f"{self.name}() has {min(twice)} twice")
        return values | dict(self.named)


def read_calls(code: str) -> list[LiteralCall]:
    """The calls of a program: one per line, without other statements than imports. Raises ParseError."""
    if len(code) > MAX_CODE:
        raise ParseError(f"the code has {len(code)} characters, at most {MAX_CODE}")
    if depth(code) > MAX_DEPTH:
        raise ParseError(f"the code is nested more than {MAX_DEPTH} times")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes such as "\d" in the model's text
            body = ast.parse(code).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else type(error).__name__
        raise ParseError(f"the code is not Python ({clipped(str(reason))}): {quoted(code)}") from None
    calls = [_call(statement, code) for statement in body if not _is_import(statement)]
    if len(calls) > MAX_CALLS:
        raise ParseError(f"the answer has more than {MAX_CALLS} calls")
    return calls


def _is_import(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Import) and all(
        alias.name in _MODULES and alias.asname is None for alias in statement.names
    )


def _call(statement: ast.stmt, code: str) -> LiteralCall:
    match statement:
        case ast.Expr(value=ast.Call(func=function, args=args, keywords=keywords)):
            named: dict[str, Any] = {}
            for keyword in keywords:
                if keyword.arg is None:
                    raise ParseError("the code must not use **")
                named[keyword.arg] = _literal(keyword.value)
            return LiteralCall(
                name=_dotted(function), positional=tuple(_literal(arg) for arg in args), named=named
            )
    raise ParseError(f"expected a call, got {quoted(_source(statement, code))}")


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    raise ParseError("expected the name of a function, such as pyautogui.click")


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(
            op=ast.USub() | ast.UAdd() as sign, operand=ast.Constant(value=int() | float() as value)
        ):
            return -value if isinstance(sign, ast.USub) else value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
    raise ParseError(f"arguments must be plain values, got {type(node).__name__}")


def _source(statement: ast.stmt, code: str) -> str:
    lines = code.splitlines()
    return lines[statement.lineno - 1] if 0 < statement.lineno <= len(lines) else code
