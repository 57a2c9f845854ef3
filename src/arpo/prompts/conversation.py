"""The conversation of an episode: the instruction, then screenshots and answers in turn.

This module decides which screenshots are shown (a sliding window). `rendering` turns messages into tokens.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from arpo.config.recipe import PROJECT
from arpo.errors import UserError
from arpo.prompts.source_texts import SourceTexts
from arpo.types import Completion, Message, Screenshot


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTemplate:
    """A system text, and a user text with the placeholder {instruction}.

    PromptTemplate(system="You use a computer.", user="Task: {instruction}")

    `image_first`: the user text stands in one message with the first screenshot, after it. Otherwise it is a
    message of its own, before the screenshots.
    """

    system: str
    user: str
    image_first: bool = False


DESK = PromptTemplate(system="You use a computer.", user="{instruction}")
# The default system text of Qwen models, for templates without one.
QWEN_SYSTEM = "You are a helpful assistant."

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


def load_template(spec: str, *, image_first: bool = False) -> PromptTemplate:
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
        return DESK
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
    return PromptTemplate(system=system, user=user, image_first=image_first)


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
    placeholders = set(PLACEHOLDER.findall(user))
    if "instruction" not in placeholders:
        raise UserError(f"prompt {spec!r}: has no {{instruction}}. Add it where the task belongs")
    if missing := sorted(placeholders - {"instruction"}):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages of one episode so far. Immutable: each step returns a new conversation.

    It shows at most `max_images` screenshots. When a new screenshot pushes the oldest one out, the answer to
    the oldest stays. Then `slid` is true: the messages do not continue the previous ones.
    """

    max_images: int
    history: tuple[Message, ...]
    slid: bool
    task: str = ""  # text that stands with the next screenshot

    @classmethod
    def begin(cls, template: PromptTemplate, instruction: str, max_images: int) -> Conversation:
        if max_images < 1:
            raise ValueError(f"max_images = {max_images}: a conversation needs at least one screenshot")
        task = template.user.replace("{instruction}", instruction)
        system = Message(role="system", text=template.system)
        if template.image_first:
            return cls(max_images=max_images, history=(system,), slid=False, task=task)
        return cls(max_images=max_images, history=(system, Message(role="user", text=task)), slid=False)

    def look(self, screenshot: Screenshot) -> Conversation:
        newest = Message(role="user", text=self.task, screenshot=screenshot, image_first=bool(self.task))
        history = (*self.history, newest)
        shown = [message for message in history if message.screenshot is not None]
        slid = len(shown) > self.max_images
        if slid:
            kept = (replace(shown[0], screenshot=None),) if shown[0].text else ()
            history = tuple(
                other for message in history for other in (kept if message is shown[0] else (message,))
            )
        return replace(self, history=history, slid=slid, task="")

    def answer(self, completion: Completion) -> Conversation:
        """Append the sampled tokens, or the text if a chat server returned no tokens."""
        message = Message(role="assistant", text=completion.text, token_ids=completion.token_ids or None)
        return replace(self, history=(*self.history, message))

    def messages(self) -> tuple[Message, ...]:
        return self.history
