"""The answers of a teacher as tokens of a student, for `arpo collect` with a chat server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from arpo.engines.base import Engine, Weights
from arpo.errors import EngineError
from arpo.prompts.rendering import Renderer
from arpo.types import Completion, Prompt, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherEngine:
    """Asks an engine that returns text, and tokenises each answer with the student's renderer.

    The student did not sample these tokens: they have no log-probabilities and no policy versions. An answer
    that is longer for the student than `Sampling.max_tokens` counts as cut.
    """

    teacher: Engine
    student: Renderer

    async def start(self) -> Sequence[str]:
        return await self.teacher.start()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Raises EngineError if the student's tokens do not give exactly the text of the answer."""
        answer = await self.teacher.generate(prompt, sampling)
        tokens = self.student.encode(answer.text)
        if self.student.decode(tokens) != answer.text:
            raise EngineError(
                "generate", "the tokenizer of model.path cannot represent the answer of the server exactly"
            )
        if answer.finish == "stop":
            tokens = (*tokens, self.student.end_of_turn_id)
        finish = answer.finish if len(tokens) <= sampling.max_tokens else "length"
        return replace(answer, token_ids=tokens, finish=finish)

    async def release(self, episode_id: str) -> None:
        await self.teacher.release(episode_id)

    async def load(self, weights: Weights) -> None:
        await self.teacher.load(weights)

    async def close(self) -> None:
        await self.teacher.close()
