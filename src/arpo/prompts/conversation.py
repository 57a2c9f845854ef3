"""The conversation of an episode: the instruction, then screenshots and answers in turn.

This module decides which screenshots are shown (a sliding window). `rendering` turns messages into tokens.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from arpo.config.recipe import PROJECT
from arpo.errors import UserError
from arpo.types import Completion, Message, Screenshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A system text, and a user text with the placeholder {instruction}.

    PromptTemplate(system="You use a computer.", user="Task: {instruction}")
    """

    system: str
    user: str


DESK = PromptTemplate(system="You use a computer.", user="{instruction}")
# The default system text of Qwen models, for templates without one.
QWEN_SYSTEM = "You are a helpful assistant."

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def load_template(spec: str) -> PromptTemplate:
    """The template of model.prompt: "desk", a text file, or an attribute of an installed package.

    A package's template may have more placeholders than {instruction}. Give their values after it: text, or
    the name of another attribute of the same module:

        ui_tars.prompt:COMPUTER_USE_DOUBAO,language=English

    For a package of another interpreter, give the path of the Python file. The file is parsed, not run. The
    path may contain * as a wildcard. A relative path is relative to the current folder, or else to the
    project's folder:

        .venv-osworld/lib/python3.*/site-packages/mm_agents/prompts.py:UITARS_USR_PROMPT_THOUGHT,language=English
    """
    if spec == "desk":
        return DESK
    if Path(spec).is_file():
        try:
            user = Path(spec).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"prompt {spec!r}: cannot read it as UTF-8 text: {error}") from error
    elif named := re.fullmatch(r"(.+\.py|[\w.]+):(\w+)((?:,\w+=[^,]*)*)", spec):
        source, attribute, fills = named.groups()
        texts = _texts_of_file(source, spec) if source.endswith(".py") else _texts_of_module(source, spec)
        user = _fill(texts, attribute, fills, spec)
    else:
        raise UserError(f"prompt {spec!r}: is not 'desk', a file, or package.module:ATTRIBUTE")
    placeholders = set(PLACEHOLDER.findall(user))
    if "instruction" not in placeholders:
        raise UserError(f"prompt {spec!r}: has no {{instruction}}. Add it where the task belongs")
    if missing := sorted(placeholders - {"instruction"}):
        raise UserError(f"prompt {spec!r}: give values for {missing}, for example {spec},{missing[0]}=…")
    return PromptTemplate(system=QWEN_SYSTEM, user=user)


def _texts_of_module(name: str, spec: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise anything
        raise UserError(
            f"prompt {spec!r}: cannot import {name} ({error}). Is its package installed?"
        ) from error
    return {attribute: text for attribute, text in vars(module).items() if isinstance(text, str)}


def _texts_of_file(pattern: str, spec: str) -> dict[str, str]:
    """The string constants at the top level of a Python file: NAME = "…"."""
    root = Path(pattern).anchor
    folders = (Path(root),) if root else (Path(), PROJECT)
    found = [file for folder in folders for file in sorted(folder.glob(pattern.removeprefix(root)))]
    if not found:
        raise UserError(f"prompt {spec!r}: found no file {pattern}. Is its package installed there?")
    try:
        module = ast.parse(found[0].read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"prompt {spec!r}: cannot parse {found[0]} as Python: {error}") from error
    return {
        target.id: line.value.value
        for line in module.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name) and isinstance(line.value.value, str)
    }


def _fill(texts: Mapping[str, str], attribute: str, fills: str, spec: str) -> str:
    if attribute not in texts:
        raise UserError(f"prompt {spec!r}: {spec.partition(':')[0]} has no string {attribute}")
    text = texts[attribute]
    for fill in fills.split(",")[1:]:
        placeholder, _, value = fill.partition("=")
        text = text.replace("{" + placeholder + "}", texts.get(value, value))
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages of one episode so far. Immutable: each step returns a new conversation.

    It shows at most `max_images` screenshots. When a new screenshot pushes the oldest one out, the answer to
    the oldest stays. Then `slid` is true: the messages do not continue the previous ones.
    """

    max_images: int
    history: tuple[Message, ...]
    slid: bool

    @classmethod
    def begin(cls, template: PromptTemplate, instruction: str, max_images: int) -> Conversation:
        if max_images < 1:
            raise ValueError(f"max_images = {max_images}: a conversation needs at least one screenshot")
        opening = (
            Message(role="system", text=template.system),
            Message(role="user", text=template.user.replace("{instruction}", instruction)),
        )
        return cls(max_images=max_images, history=opening, slid=False)

    def look(self, screenshot: Screenshot) -> Conversation:
        history = (*self.history, Message(role="user", screenshot=screenshot))
        shown = [message for message in history if message.screenshot is not None]
        slid = len(shown) > self.max_images
        if slid:
            history = tuple(message for message in history if message is not shown[0])
        return replace(self, history=history, slid=slid)

    def answer(self, completion: Completion) -> Conversation:
        """Append the sampled tokens, or the text if a chat server returned no tokens."""
        message = Message(role="assistant", text=completion.text, token_ids=completion.token_ids or None)
        return replace(self, history=(*self.history, message))

    def messages(self) -> tuple[Message, ...]:
        return self.history
