"""The answers of a teacher become tokens of the student, or the episode fails."""

from __future__ import annotations

import asyncio

import pytest
from tokenizers import Tokenizer
from tokenizers.normalizers import NFC

from arpo.engines.teacher import TeacherEngine
from arpo.errors import EngineError
from arpo.prompts.rendering import Renderer
from arpo.testing import ScriptedEngine
from arpo.types import Completion, Prompt, Sampling
from tiny_vlm import TOKENIZER, tiny_renderer

ASKED = Prompt(episode_id="e", token_ids=(), images=(), messages=())


class Server(ScriptedEngine):
    """Returns text without tokens, as a chat server."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        said = await super().generate(prompt, sampling)
        return Completion(token_ids=(), logprobs=(), text=said.text, finish=said.finish, versions=())


def taught(text: str, *, room: int = 100, cut: bool = False, student: Renderer | None = None) -> Completion:
    server = Server([text], lambda text: () if not cut else (1,) * room, end=0)
    engine = TeacherEngine(teacher=server, student=student or tiny_renderer())
    return asyncio.run(engine.generate(ASKED, Sampling(temperature=1.0, max_tokens=room, seed=0)))


def test_an_answer_gets_the_students_tokens_and_nothing_that_is_not_known() -> None:
    renderer, text = tiny_renderer(), "open the file: naïve ☃"
    answer = taught(text)
    assert answer.token_ids == (*renderer.encode(text), renderer.end_of_turn_id)
    assert (renderer.decode(answer.token_ids), answer.text, answer.finish) == (text, text, "stop")
    assert (answer.logprobs, answer.versions, answer.policy_version) == ((), (), 0)


def test_a_cut_answer_has_no_end() -> None:
    answer = taught("open", cut=True)
    assert (answer.token_ids, answer.finish) == (tiny_renderer().encode("open"), "length")


def test_an_answer_that_is_too_long_for_the_student_counts_as_cut() -> None:
    tokens = len(tiny_renderer().encode("open the file")) + 1
    assert taught("open the file", room=tokens).finish == "stop"
    assert taught("open the file", room=tokens - 1).finish == "length"


def test_an_answer_that_the_student_cannot_write_is_a_fault() -> None:
    """Tokenizers of Qwen write é as one character, also if the answer has two."""
    tokenizer = Tokenizer.from_str(TOKENIZER.to_str())
    tokenizer.normalizer = NFC()
    student = Renderer(tokenizer, tiny_renderer().settings)
    assert taught("caf\xe9", student=student).text == "caf\xe9"
    with pytest.raises(EngineError, match=r"tokenizer of model\.path cannot represent the answer"):
        taught("cafe\u0301", student=student)
