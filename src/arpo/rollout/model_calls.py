"""Builds the training sequences of an agent program from its model calls. No answer is tokenised again.

A call whose prompt begins with the tokens of an earlier call and its answer continues that sequence:

    call 1: system, task                         sequence 1: prompt, answer 1
    call 2: system, task, answer 1, screenshot   sequence 1: …, screenshot, answer 2
    call 3: system, task, answer 1, another      sequence 2: prompt (answer 1 included), answer 3

A sampled token is trained once: in a second sequence, answer 1 is a part of the prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from arpo.prompts.rendering import PromptRenderer, Rendered
from arpo.rollout.agent import joined
from arpo.types import Completion, Message, Screenshot, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """A prompt, and its part that is new: `after` is the number of the turn that it continues, 0 for none."""

    messages: tuple[Message, ...]
    prompt: Rendered
    context: Rendered
    after: int


class ModelCalls:
    """The calls of one episode, one turn each."""

    def __init__(self, renderer: PromptRenderer) -> None:
        self._renderer = renderer
        self._answers: list[Completion] = []
        self._places: dict[str, list[int]] = defaultdict(list)  # of answers, by their text
        self._ends: dict[int, Rendered] = {}  # the sequences, by the number of their last turn

    def begin(self, messages: Sequence[Message]) -> ModelCall:
        """The prompt of the next call. Messages that repeat a sampled answer get its tokens."""
        own = self._with_tokens(messages)
        prompt = self._renderer.render(own)
        fitting = [number for number, end in self._ends.items() if _begins(prompt, end)]
        after = max(fitting, key=lambda number: len(self._ends[number].token_ids), default=0)
        context = prompt
        if after:
            tokens, images = len(self._ends[after].token_ids), len(self._ends[after].images)
            context = Rendered(token_ids=prompt.token_ids[tokens:], images=prompt.images[images:])
        return ModelCall(messages=own, prompt=prompt, context=context, after=after)

    def end(self, call: ModelCall, completion: Completion, screenshot: Screenshot) -> Turn:
        """The turn of an answered call."""
        number = len(self._answers) + 1
        self._places[completion.text.strip()].append(number - 1)
        self._answers.append(completion)
        self._ends.pop(call.after, None)
        answer = Rendered(token_ids=completion.token_ids, images=())
        self._ends[number] = joined(call.prompt, answer)
        return Turn(
            screenshot=screenshot,
            context=call.context.token_ids,
            images=call.context.images,
            restart=not call.after,
            completion=completion,
            actions=(),
            after=0 if call.after == number - 1 else call.after,
        )

    def _with_tokens(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """From the last message back: an answer comes before those that follow it, if several are equal."""
        found: list[Message] = []
        limit = len(self._answers)
        for message in reversed(messages):
            places = self._places.get(message.text.strip(), []) if message.role == "assistant" else []
            if places:
                limit = places[bisect_left(places, limit) - 1]  # the newest one if all are later
                message = replace(message, token_ids=self._answers[limit].token_ids or None)
            found.append(message)
        return tuple(reversed(found))


def _begins(prompt: Rendered, end: Rendered) -> bool:
    """Whether a prompt begins with a sequence, and continues it."""
    tokens, images = len(end.token_ids), len(end.images)
    return prompt.token_ids[:tokens] == end.token_ids and prompt.images[:images] == end.images
