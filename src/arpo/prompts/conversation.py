"""The conversation of an episode: the task, then screenshots and answers in turn.

This module decides which screenshots are shown, and what is left of older steps. `rendering` turns messages
into tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from arpo.dialects.base import History, Layout, one_line
from arpo.prompts.templates import PromptTemplate
from arpo.types import Completion, Message, Screenshot

KEPT_LINES = 20  # lines of old steps: worth more than one more screenshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages of one episode so far. Immutable: each step returns a new conversation.

    It shows at most `max_images` screenshots, the newest ones. `history` decides what is left of the steps
    before them. `summary` turns an answer into the one line of a folded step. If `slid` is true, the messages
    do not continue the previous ones.
    """

    template: PromptTemplate
    instruction: str
    max_images: int
    history: History = History.ANSWERS
    summary: Callable[[str], str] = one_line
    looks: tuple[Screenshot, ...] = ()
    answers: tuple[Message, ...] = ()
    shown: int = 0  # number of the first step with its screenshot, from 0
    listed: int = 0  # number of the first step with a line
    slid: bool = False

    def __post_init__(self) -> None:
        if self.max_images < 1:
            raise ValueError(f"max_images = {self.max_images}: a conversation needs at least one screenshot")

    def look(self, screenshot: Screenshot) -> Conversation:
        """The conversation with a new screenshot. Older ones may leave it."""
        looks = (*self.looks, screenshot)
        after = replace(self, looks=looks, shown=self._shown(len(looks)))
        before = self.messages()
        return replace(after, slid=after.messages()[: len(before)] != before)

    def answer(self, completion: Completion) -> Conversation:
        """Append the sampled tokens, or the text if a chat server returned no tokens."""
        message = Message(role="assistant", text=completion.text, token_ids=completion.token_ids or None)
        return replace(self, answers=(*self.answers, message))

    def folded(self) -> Conversation | None:
        """A shorter conversation about the same screenshot. None if nothing can be shortened.

        Many lines become fewer; then half of the screenshots become lines; then the last lines go. Old
        answers that stay in full are never shortened.
        """
        lines, newest = self.shown - self.listed, len(self.looks) - 1
        if self.history is History.ANSWERS:
            return None
        if lines > KEPT_LINES:
            return replace(self, listed=self.shown - max(KEPT_LINES, lines // 2), slid=True)
        if self.shown < newest:
            return replace(self, shown=(self.shown + newest + 1) // 2, slid=True)
        return replace(self, listed=self.shown - lines // 2, slid=True) if lines else None

    def _shown(self, looks: int) -> int:
        if looks - self.shown <= self.max_images:
            return self.shown
        kept = (self.max_images + 1) // 2 if self.history is History.BLOCKS else self.max_images
        return looks - kept

    def messages(self) -> tuple[Message, ...]:
        system = Message(role="system", text=self.template.system)
        return (system, *_WRITE[self.template.layout](self))

    def answered(self, number: int) -> tuple[Message, ...]:
        """The answer of a step; empty before it."""
        return self.answers[number : number + 1]

    def task(self, lines: Sequence[str] = ()) -> str:
        return self.template.task(self.instruction, "\n".join(lines))

    def folded_task(self) -> str:
        """The task, with a line for each step without a screenshot, unless their answers stay."""
        return self.task(self.lines(self.shown) if self.history is not History.ANSWERS else ())

    def lines(self, end: int) -> list[str]:
        """One line for each step before `end`. After many steps, the oldest ones are only counted."""
        steps = enumerate(self.answers[self.listed : end], self.listed + 1)
        left_out = [f"({self.listed} earlier steps)"] if self.listed else []
        return left_out + [f"Step {number}: {self.summary(answer.text)}" for number, answer in steps]

    def old_answers(self) -> tuple[Message, ...]:
        """The answers without screenshots, if they stay."""
        return self.answers[: self.shown] if self.history is History.ANSWERS else ()

    def shown_turns(self) -> list[Message]:
        """The screenshots in turn with the answers to them."""
        steps = enumerate(self.looks[self.shown :], self.shown)
        return [
            message
            for number, look in steps
            for message in (Message(role="user", screenshot=look), *self.answered(number))
        ]


def _task_first(talk: Conversation) -> Sequence[Message]:
    return [Message(role="user", text=talk.folded_task()), *talk.old_answers(), *talk.shown_turns()]


def _task_with_first_screenshot(talk: Conversation) -> Sequence[Message]:
    if not talk.looks:
        return []
    first, *rest = talk.shown_turns()
    if old := talk.old_answers():
        return [Message(role="user", text=talk.task()), *old, first, *rest]
    return [replace(first, text=talk.folded_task(), image_first=True), *rest]


def _task_with_newest_screenshot(talk: Conversation) -> Sequence[Message]:
    """Answers are shortened to "# Step 2:\n## Action:\n…\n", unless they stay."""
    if not talk.looks:
        return []

    def step(number: int) -> Message:
        text = f"# Step {number + 1}:\n## Action:\n{talk.summary(talk.answers[number].text)}\n"
        return Message(role="assistant", text=text)

    newest = len(talk.looks) - 1
    messages = list(talk.old_answers())
    if talk.shown and not messages:
        folded = "\n".join(step(number).text for number in range(talk.listed, talk.shown))
        messages.append(Message(role="assistant", text=folded))
    for number in range(talk.shown, newest):
        stays = talk.history is History.ANSWERS
        answer = talk.answers[number] if stays else step(number)
        messages += [Message(role="user", screenshot=talk.looks[number]), answer]
    task = Message(role="user", text=talk.task(), screenshot=talk.looks[newest], image_first=True)
    return [*messages, task, *talk.answered(newest)]


def _task_and_newest_screenshot_alone(talk: Conversation) -> Sequence[Message]:
    if not talk.looks:
        return []
    newest = len(talk.looks) - 1
    lines = [f"{line}\n" for line in talk.lines(newest)]
    text = talk.template.task(talk.instruction, "".join(lines)) + "Current screenshot:\n"
    return [Message(role="user", text=text, screenshot=talk.looks[newest]), *talk.answered(newest)]


_WRITE: dict[Layout, Callable[[Conversation], Sequence[Message]]] = {
    Layout.TASK_FIRST: _task_first,
    Layout.WITH_FIRST_SCREENSHOT: _task_with_first_screenshot,
    Layout.WITH_NEWEST_SCREENSHOT: _task_with_newest_screenshot,
    Layout.NEWEST_SCREENSHOT_ALONE: _task_and_newest_screenshot_alone,
}
