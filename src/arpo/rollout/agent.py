"""A playing policy, and the parts of an episode that the built-in loop and agent programs share."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from arpo.actions import Action, CallUser, Fail, Finished, up_to_terminal
from arpo.config import RolloutConfig
from arpo.dialects.base import Dialect, History, ParseError
from arpo.engines.base import Engine
from arpo.envs.base import Env
from arpo.envs.slots import Slots
from arpo.errors import ContextTooLong, EngineError, boundary
from arpo.prompts.conversation import Conversation
from arpo.prompts.rendering import PromptRenderer, Rendered, Renderer
from arpo.prompts.templates import PromptTemplate
from arpo.rollout.activity import Measure
from arpo.storage.codec import BATCH
from arpo.types import Completion, Prompt, Sampling, Screenshot, StopReason, Task, Turn

STARTS_PER_CORE = 2  # agent programs that start at the same time

OnTurn = Callable[[Turn], None]
OnScreenshot = Callable[[Screenshot, Screenshot | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProgram:
    """The program of rollout.agent. It starts once per episode; `logs` is the folder of its output.

    It may take `start_seconds` until its first call of the model or the environment, and `call_seconds`
    between two calls. It starts in one of the slots `starts`: many starts at once would all take too long.
    """

    command: tuple[str, ...]
    logs: Path
    start_seconds: float
    call_seconds: float
    starts: Slots = field(default_factory=lambda: Slots(STARTS_PER_CORE * (os.cpu_count() or 1)))
    running: set[Path] = field(default_factory=set)  # logs of programs that run now


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A playing policy: engine, renderer, prompt template, and the dialect of its answers."""

    engine: Engine
    renderer: PromptRenderer
    template: PromptTemplate
    dialect: Dialect
    positions: int | None = None  # context length of the model in tokens; None: unknown
    program: AgentProgram | None = None  # None: the built-in loop
    student: Renderer | None = (
        None  # `arpo collect`: the program may answer itself, in tokens of this renderer
    )

    def begin(self, instruction: str, settings: RolloutConfig) -> Conversation:
        return begin(self.template, self.dialect, instruction, settings)

    def parse(self, text: str, screenshot: Screenshot, seen: Screenshot | None = None) -> tuple[Action, ...]:
        """The actions of an answer to this screenshot, in its pixels. Raises ParseError.

        `seen` is what the model saw instead: an agent program may show it in another size.
        """
        actions = up_to_terminal(self.dialect.parse(text).actions)
        sizes = self.renderer.model_size(seen or screenshot), screenshot.size
        return tuple(self.dialect.coordinates.to_screen(action, *sizes) for action in actions)

    def write(self, actions: Sequence[Action], thought: str, screenshot: Screenshot) -> str:
        """The answer to this screenshot with these actions, in its pixels. Raises ParseError."""
        return self.dialect.answer(actions, thought, self.renderer.model_size(screenshot), screenshot.size)


def begin(
    template: PromptTemplate, dialect: Dialect, instruction: str, settings: RolloutConfig
) -> Conversation:
    """The conversation about a task, before its first screenshot."""
    return Conversation(
        template=template,
        instruction=instruction,
        max_images=settings.max_images,
        history=dialect.history if settings.history == "auto" else History(settings.history),
        summary=dialect.summary,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """One episode to be played: what the built-in loop and an agent program need alike."""

    task: Task
    env: Env
    agent: Agent
    episode_id: str
    settings: RolloutConfig
    seed: int
    on_turn: OnTurn
    look: Callable[[Screenshot], None]  # reports a distinct screenshot once
    measure: Measure


def draw_seed(seed: int, task_id: str, episode_id: str, turn: int) -> int:
    """The 63-bit seed for sampling one answer. It depends only on these arguments.

    The key of batch-4-0-1 is batch3-0-1, as before ids counted batches from 1: a seed keeps its results.
    """
    place = re.sub(rf"{BATCH}-(\d+)-", lambda match: f"{BATCH}{int(match[1]) - 1}-", episode_id)
    key = "\0".join((str(seed), task_id, place, str(turn)))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


async def sample_answer(
    agent: Agent, prompt: Prompt, sampling: Sampling, settings: RolloutConfig
) -> Completion:
    """Sample one answer. A chat server checks the length of its prompt itself."""
    require_space(agent, len(prompt.token_ids), sampling.max_tokens, settings)
    async with boundary(EngineError, "generate"):
        return await agent.engine.generate(prompt, sampling)


def require_space(agent: Agent, prompt: int, answer: int, settings: RolloutConfig) -> None:
    """Raise ContextTooLong if a prompt and an answer of so many tokens exceed rollout.max_context_tokens."""
    if prompt + answer > settings.max_context_tokens:
        raise ContextTooLong("generate", _too_long(prompt + answer, answer, settings, agent.positions))


def _too_long(need: int, answer: int, settings: RolloutConfig, positions: int | None) -> str:
    """What does not fit, and the remedy: raise the limit if the model allows it, otherwise shorten."""
    fault = (
        f"rollout.max_context_tokens = {settings.max_context_tokens} is too small: prompt and answer need "
        f"{need - answer} + {answer} tokens"
    )
    shorten = "lower model.max_pixels or rollout.max_answer_tokens, or shorten the instruction"
    if positions is not None and need > positions:
        return f"{fault}, and the model has {positions} positions: {shorten}"
    return f"{fault}: set it to {need} or more, {shorten}"


def joined(sequence: Rendered, more: Rendered) -> Rendered:
    return Rendered(token_ids=sequence.token_ids + more.token_ids, images=sequence.images + more.images)


def parse_actions(
    completion: Completion,
    agent: Agent,
    screenshot: Screenshot,
    settings: RolloutConfig,
    seen: Screenshot | None = None,
) -> tuple[tuple[Action, ...], str]:
    """The actions in screen pixels and "", or no actions and the parse error."""
    if completion.finish == "length":
        return (), f"the answer was cut at {settings.max_answer_tokens} tokens"
    try:
        return agent.parse(completion.text, screenshot, seen), ""
    except ParseError as error:
        return (), str(error)


def stop_after(actions: tuple[Action, ...], terminated: bool, last: bool) -> StopReason | None:
    match actions[-1]:
        case Finished():
            return StopReason.FINISHED
        case Fail():
            return StopReason.FAIL
        case CallUser():
            return StopReason.CALL_USER
    if terminated:
        return StopReason.TERMINATED
    return StopReason.MAX_STEPS if last else None
