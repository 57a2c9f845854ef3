"""Prompt templates: system text and task text, read from files and from packages of released models."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from arpo.config.recipe import PROJECT
from arpo.dialects.base import Layout
from arpo.errors import UserError
from arpo.prompts.source_texts import SourceTexts


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A system text, and a user text with the placeholder {instruction}.

    PromptTemplate(system="You use a computer.", user="Task: {instruction}")

    The user text may contain {history} for the steps without a screenshot (`Conversation`). {history|none}
    writes "none" if there are no such steps.
    """

    system: str
    user: str
    layout: Layout = Layout.TASK_FIRST

    def task(self, instruction: str, history: str = "") -> str:
        """The user text of a task. A history without a placeholder follows the text."""
        used = False

        def fill(found: re.Match[str]) -> str:
            nonlocal used
            if found["name"] == "instruction":
                return instruction
            used = True
            return history or found["otherwise"] or ""

        text = _TASK.sub(fill, self.user)
        return text if used or not history else f"{text}\n\nPrevious steps:\n{history}"


DESK = PromptTemplate(system="You use a computer.", user="{instruction}")
# The default system text of Qwen models, for templates without one.
QWEN_SYSTEM = "You are a helpful assistant."

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_TASK = re.compile(r"\{(?P<name>instruction|history)(?:\|(?P<otherwise>[^{}]*))?\}")


def load_template(spec: str, layout: Layout = Layout.TASK_FIRST) -> PromptTemplate:
    """The template of model.prompt: "desk", a text file, or an attribute of an installed package.

    The system text is Qwen's default. `system=` names another one: an attribute, or a second file. With "+"
    before it, it follows Qwen's default:

        task.txt,system=tools.txt

    A package's template may have more placeholders than {instruction}. Give their values after it: text, or
    the name of another attribute of the same module:

        ui_tars.prompt:COMPUTER_USE_DOUBAO,language=English

    For a package of another interpreter, give the path of the Python file. The file is parsed, not run
    (`source_texts`); a variable of a function has a dotted name. The path may contain * as a wildcard. A
    relative path is relative to the current folder, or else to the project's folder:

        .venv-osworld/lib/python3.*/site-packages/mm_agents/prompts.py:UITARS_USR_PROMPT_THOUGHT,language=English
    """
    if spec == "desk":
        return replace(DESK, layout=layout)
    source, _, rest = spec.partition(",")
    fills = dict(fill.split("=", 1) for fill in rest.split(",")) if _FILLS.fullmatch(rest) else {}
    named_values = not Path(source).is_file()  # in a package, the names of other texts are values
    if not named_values and (fills or not rest):
        find: _Find = partial(_text_of_file, spec=spec)
        user = _text_of_file(source, spec)
    elif named := _ATTRIBUTE.fullmatch(spec):
        place, attribute, _ = named.groups()
        find = (
            _texts_of_source(place, fills, spec) if place.endswith(".py") else _texts_of_module(place, spec)
        )
        user = find(attribute) or ""
        if not user:
            raise UserError(f"prompt {spec!r}: {place} has no string {attribute}")
    else:
        raise UserError(f"prompt {spec!r}: is not 'desk', a file, or package.module:ATTRIBUTE")
    system = _system_text(fills.pop("system", ""), find, spec)
    for placeholder, value in fills.items():
        text = find(value) if named_values and _is_name(value) else None
        user = user.replace("{" + placeholder + "}", text or value)
    _check_placeholders(user, spec)
    return PromptTemplate(system=system, user=user, layout=layout)


_Find = Callable[[str], str | None]
_FILLS = re.compile(r"\w+=[^,]*(?:,\w+=[^,]*)*")
_ATTRIBUTE = re.compile(r"(.+\.py|[\w.]+):([\w.]+)((?:,\w+=[^,]*)*)")


def _is_name(value: str) -> bool:
    """Whether a value may be the name of another text, and not text itself."""
    return re.fullmatch(r"[\w.]+", value) is not None


def _system_text(name: str, find: _Find, spec: str) -> str:
    if not name:
        return QWEN_SYSTEM
    text = find(name.removeprefix("+"))
    if text is None:
        raise UserError(f"prompt {spec!r}: found no system text {name.removeprefix('+')}")
    return QWEN_SYSTEM + text if name.startswith("+") else text


def _check_placeholders(user: str, spec: str) -> None:
    placeholders = set(_PLACEHOLDER.findall(user))
    if "instruction" not in placeholders:
        raise UserError(f"prompt {spec!r}: has no {{instruction}}. Add it where the task belongs")
    if missing := sorted(placeholders - {"instruction", "history"}):
        raise UserError(f"prompt {spec!r}: give values for {missing}, for example {spec},{missing[0]}=…")


def _text_of_file(path: str, spec: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompt {spec!r}: cannot read {path} as UTF-8 text: {error}") from error


def _texts_of_module(name: str, spec: str) -> _Find:
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise anything
        raise UserError(
            f"prompt {spec!r}: cannot import {name} ({error}). Is its package installed?"
        ) from error
    return {attribute: text for attribute, text in vars(module).items() if isinstance(text, str)}.get


def _texts_of_source(pattern: str, values: Mapping[str, str], spec: str) -> _Find:
    """The texts of a Python file."""
    root = Path(pattern).anchor
    folders = (Path(root),) if root else (Path(), PROJECT)
    found = [file for folder in folders for file in sorted(folder.glob(pattern.removeprefix(root)))]
    if not found:
        raise UserError(f"prompt {spec!r}: found no file {pattern}. Is its package installed there?")
    try:
        return SourceTexts.read(found[0], values).get
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"prompt {spec!r}: cannot parse {found[0]} as Python: {error}") from error
