"""The answers of a teacher as tokens of a student, for `arpo collect`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from arpo.engines.base import Engine, Weights
from arpo.errors import NotInTokens
from arpo.prompts.rendering import Renderer
from arpo.types import Completion, Prompt, Sampling


def tokenise(text: str, finish: str, student: Renderer, max_tokens: int) -> Completion:
    """The text as an answer of the student. It has no log-probabilities and no policy versions.

    An answer of more than `max_tokens` counts as cut. Raises NotInTokens if the student's tokens do not give
    exactly this text.
    """
    tokens = student.encode(text)
    if student.decode(tokens) != text:
        raise NotInTokens("generate", "the tokenizer of model.path cannot represent the answer exactly")
    if finish == "stop":
        tokens = (*tokens, student.end_of_turn_id)
    finish = finish if len(tokens) <= max_tokens else "length"
    return Completion(token_ids=tokens, logprobs=(), text=text, finish=finish, versions=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherEngine:
    """Asks an engine that returns text, and tokenises each answer."""

    teacher: Engine
    student: Renderer

    async def start(self) -> Sequence[str]:
        return await self.teacher.start()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        answer = await self.teacher.generate(prompt, sampling)
        return tokenise(answer.text, answer.finish, self.student, sampling.max_tokens)

    async def release(self, episode_id: str) -> None:
        await self.teacher.release(episode_id)

    async def load(self, weights: Weights) -> None:
        await self.teacher.load(weights)

    async def close(self) -> None:
        await self.teacher.close()
