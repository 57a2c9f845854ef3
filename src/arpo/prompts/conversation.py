"""An episode as the model sees it: the instruction, then looks and answers, in a window of screenshots.

The window is policy and lives here; what the messages look like as tokens does not.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from arpo.errors import UserError
from arpo.types import Completion, Message, Screenshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """The words around a task: a system text, and a user text that holds {instruction}."""

    system: str
    user: str


DESK = PromptTemplate(system="You use a computer.", user="{instruction}")
# What Qwen models are given where a template names no system text of its own.
QWEN_SYSTEM = "You are a helpful assistant."

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def load_template(spec: str) -> PromptTemplate:
    """The template that a recipe names: "desk", a text file, or an attribute of an installed package.

    A package's template may have more places than {instruction}; they are filled after it, by another
    attribute of the same module or by the words themselves:

        ui_tars.prompt:COMPUTER_USE_DOUBAO,language=English

    A package that another interpreter has is named by its file, which is read and not run; * in the path
    stands for what is not known of it:

        .venv-osworld/lib/python3.*/site-packages/mm_agents/prompts.py:UITARS_USR_PROMPT_THOUGHT,language=English
    """
    if spec == "desk":
        return DESK
    if Path(spec).is_file():
        try:
            user = Path(spec).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"prompt {spec!r}: cannot be read as UTF-8 text: {error}") from error
    elif named := re.fullmatch(r"(.+\.py|[\w.]+):(\w+)((?:,\w+=[^,]*)*)", spec):
        source, attribute, fills = named.groups()
        texts = _texts_of_file(source, spec) if source.endswith(".py") else _texts_of_module(source, spec)
        user = _filled(texts, attribute, fills, spec)
    else:
        raise UserError(f"prompt {spec!r}: neither 'desk', nor a file, nor package.module:ATTRIBUTE")
    places = set(PLACEHOLDER.findall(user))
    if "instruction" not in places:
        raise UserError(f"prompt {spec!r}: no {{instruction}} in it, so the model would not learn its task")
    if unfilled := sorted(places - {"instruction"}):
        raise UserError(f"prompt {spec!r}: fill {unfilled}, as in {spec},{unfilled[0]}=…")
    return PromptTemplate(system=QWEN_SYSTEM, user=user)


def _texts_of_module(name: str, spec: str) -> dict[str, str]:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # importing runs the module, which may raise anything
        raise UserError(
            f"prompt {spec!r}: {name} cannot be imported ({error}); is its package installed?"
        ) from error
    return {attribute: text for attribute, text in vars(module).items() if isinstance(text, str)}


def _texts_of_file(pattern: str, spec: str) -> dict[str, str]:
    """The texts that a Python file's own lines give names to: NAME = "…"."""
    root = Path(pattern).anchor
    found = sorted(Path(root or ".").glob(pattern.removeprefix(root)))
    if not found:
        raise UserError(f"prompt {spec!r}: there is no file {pattern}; is its package installed there?")
    try:
        module = ast.parse(found[0].read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"prompt {spec!r}: {found[0]} cannot be read as Python: {error}") from error
    return {
        target.id: line.value.value
        for line in module.body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name) and isinstance(line.value.value, str)
    }


def _filled(texts: Mapping[str, str], attribute: str, fills: str, spec: str) -> str:
    if attribute not in texts:
        raise UserError(f"prompt {spec!r}: {spec.partition(':')[0]} has no text {attribute}")
    text = texts[attribute]
    for fill in fills.split(",")[1:]:
        place, _, value = fill.partition("=")
        text = text.replace("{" + place + "}", texts.get(value, value))
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One episode's messages so far. Each step gives a new conversation; the old one stays as it was.

    At most `max_images` screenshots are shown. When a look pushes the oldest out, the answer to it stays, and
    `slid` says that the messages are no longer a continuation of the ones before.
    """

    max_images: int
    history: tuple[Message, ...]
    slid: bool

    @classmethod
    def begin(cls, template: PromptTemplate, instruction: str, max_images: int) -> Conversation:
        if max_images < 1:
            raise ValueError(f"a conversation needs at least one screenshot, not max_images = {max_images}")
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
        """The completion as it was sampled; one without tokens, from a text server, as its text."""
        message = Message(role="assistant", text=completion.text, token_ids=completion.token_ids or None)
        return replace(self, history=(*self.history, message))

    def messages(self) -> tuple[Message, ...]:
        return self.history
