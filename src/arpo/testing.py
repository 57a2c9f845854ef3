"""Fakes for tests of environments and engines, for this project and for users.

A fake environment, a scripted engine, and wrappers to make an environment fail, hang or return invalid
scores. They are deterministic, and need no screen, no model and no clock.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

from arpo.actions import Action
from arpo.engines.base import Weights
from arpo.envs.base import Env, EnvFactory
from arpo.types import Completion, Observation, Prompt, Sampling, Screenshot, StepResult, Task


def screenshot(shade: int, size: tuple[int, int] = (56, 56)) -> Screenshot:
    """A plain grey image. shade: 0 (black) to 255 (white); size: (width, height) in pixels."""
    width, height = size
    rows = (b"\0" + bytes([shade]) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    png = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return Screenshot.of(b"\x89PNG\r\n\x1a\n" + png)


def task(name: str, instruction: str = "do it") -> Task:
    return Task(id=name, instruction=instruction, snapshot="fake", config=(), evaluator={"func": "fake"})


class FakeEnv:
    """Shows grey images with the shades 0, 1, 2, …, one per step.

    It records calls and actions. `score` computes the score from all actions. After `ends_after` steps the
    environment ends the episode (None: never).

    >>> env = FakeEnv(score=lambda actions: float(Wait() in actions))
    """

    def __init__(
        self,
        score: Callable[[tuple[Action, ...]], float] = lambda actions: 0.0,
        size: tuple[int, int] = (56, 56),
        ends_after: int | None = None,
    ) -> None:
        self.steps: list[tuple[Action, ...]] = []
        self.calls: list[str] = []
        self._score = score
        self._size = size
        self._ends_after = ends_after

    async def start(self, task: Task) -> Observation:
        self.calls.append("start")
        return self._observe()

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        self.calls.append("step")
        self.steps.append(actions)
        return StepResult(observation=self._observe(), terminated=len(self.steps) == self._ends_after)

    async def evaluate(self) -> float:
        self.calls.append("evaluate")
        return self._score(tuple(action for actions in self.steps for action in actions))

    async def close(self) -> None:
        self.calls.append("close")

    def _observe(self) -> Observation:
        return Observation(screenshot=screenshot(len(self.steps) % 256, self._size))


class ScriptedEngine:
    """Answers from a script: one text per turn, or a function of prompt and sampling.

    Tokens of an answer: `encode(text)`, then `end`, cut at Sampling.max_tokens.

    >>> engine = ScriptedEngine(["Action: wait()", "Action: finished()"], str.encode, end=0)
    """

    def __init__(
        self,
        script: Sequence[str] | Callable[[Prompt, Sampling], str],
        encode: Callable[[str], Sequence[int]],
        end: int,
    ) -> None:
        self.prompts: list[Prompt] = []
        self.samplings: list[Sampling] = []
        self.released: list[str] = []
        self.version = 0
        self._script = script
        self._encode = encode
        self._end = end
        self._turns: Counter[str] = Counter()

    async def start(self) -> Sequence[str]:
        return ()

    async def close(self) -> None: ...

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        self.prompts.append(prompt)
        self.samplings.append(sampling)
        text = self._text(prompt, sampling)
        self._turns[prompt.episode_id] += 1
        await asyncio.sleep(0)
        token_ids = (*self._encode(text), self._end)[: sampling.max_tokens]
        return Completion(
            token_ids=token_ids,
            logprobs=(-0.5,) * len(token_ids),
            text=text,
            finish="stop" if token_ids[-1] == self._end else "length",
            versions=(self.version,) * len(token_ids),
        )

    async def release(self, episode_id: str) -> None:
        self.released.append(episode_id)
        del self._turns[episode_id]

    async def load(self, weights: Weights) -> None:
        self.version = weights.version

    def _text(self, prompt: Prompt, sampling: Sampling) -> str:
        if callable(self._script):
            return self._script(prompt, sampling)
        return self._script[self._turns[prompt.episode_id]]


class _Wrapped:
    """Calls `before(name)` before each call of the inner environment."""

    def __init__(self, inner: Env) -> None:
        self.inner = inner

    async def before(self, call: str) -> None: ...

    async def start(self, task: Task) -> Observation:
        await self.before("start")
        return await self.inner.start(task)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        await self.before("step")
        return await self.inner.step(actions)

    async def evaluate(self) -> float:
        await self.before("evaluate")
        return await self.inner.evaluate()

    async def close(self) -> None:
        await self.before("close")
        await self.inner.close()


class Times:
    """A counter of remaining faults, shared by all environments of a factory."""

    def __init__(self, left: int) -> None:
        self.left = left

    def once_more(self) -> bool:
        self.left -= 1
        return self.left >= 0


class FailingEnv(_Wrapped):
    """Raises RuntimeError in the call `at`, as often as `times` allows."""

    def __init__(self, inner: Env, at: str, times: Times) -> None:
        super().__init__(inner)
        self._at = at
        self._times = times

    async def before(self, call: str) -> None:
        if call == self._at and self._times.once_more():
            raise RuntimeError(f"chaos at {call}")


class HangingEnv(FailingEnv):
    """Never returns from the call `at`, as often as `times` allows."""

    async def before(self, call: str) -> None:
        if call == self._at and self._times.once_more():
            await asyncio.Event().wait()


class LyingEnv(_Wrapped):
    """Returns an invalid score, for example None, NaN or 7."""

    def __init__(self, inner: Env, score: object) -> None:
        super().__init__(inner)
        self._score = score

    async def evaluate(self) -> float:
        return self._score  # type: ignore[return-value]


def failing(factory: EnvFactory, at: str, times: int) -> EnvFactory:
    """A factory of environments; they raise in the first `times` calls of `at`, counted over all of them."""
    left = Times(times)
    return lambda: FailingEnv(factory(), at, left)


def hanging(factory: EnvFactory, at: str, times: int) -> EnvFactory:
    """A factory of environments; they hang in the first `times` calls of `at`, counted over all of them."""
    left = Times(times)
    return lambda: HangingEnv(factory(), at, left)


def lying(factory: EnvFactory, score: object) -> EnvFactory:
    """A factory of environments with a constant score, for example None."""
    return lambda: LyingEnv(factory(), score)
