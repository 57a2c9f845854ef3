"""An episode as the model sees it: the instruction, then looks and answers, in a window of screenshots.

The window is policy and lives here; what the messages look like as tokens does not.
"""

from __future__ import annotations

import importlib
import re
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
    """
    if spec == "desk":
        return DESK
    if Path(spec).is_file():
        try:
            user = Path(spec).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"prompt {spec!r}: cannot be read as UTF-8 text: {error}") from error
    elif re.fullmatch(r"[\w.]+:\w+(,\w+=[^,]*)*", spec):
        user = _from_package(spec)
    else:
        raise UserError(f"prompt {spec!r}: neither 'desk', nor a file, nor package.module:ATTRIBUTE")
    places = set(PLACEHOLDER.findall(user))
    if "instruction" not in places:
        raise UserError(f"prompt {spec!r}: no {{instruction}} in it, so the model would not learn its task")
    if unfilled := sorted(places - {"instruction"}):
        raise UserError(f"prompt {spec!r}: fill {unfilled}, as in {spec},{unfilled[0]}=…")
    return PromptTemplate(system=QWEN_SYSTEM, user=user)


def _from_package(spec: str) -> str:
    target, *fills = spec.split(",")
    name, attribute = target.split(":")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # importing runs the module, which may raise anything
        raise UserError(
            f"prompt {spec!r}: {name} cannot be imported ({error}); is its package installed?"
        ) from error
    text = getattr(module, attribute, None)
    if not isinstance(text, str):
        raise UserError(f"prompt {spec!r}: {name} has no text {attribute}")
    for fill in fills:
        place, value = fill.split("=", 1)
        found = getattr(module, value, None)
        text = text.replace("{" + place + "}", found if isinstance(found, str) else value)
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
