"""Plays one episode: screenshot, answer, actions, until it ends; then the environment evaluates it.

The token sequence grows by the sampled tokens and by the rendered next prompt. It restarts when the
screenshot window slides. No answer is tokenised again. Errors pass through to the pool.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from arpo.actions import Action, CallUser, Fail, Finished, Point, resolve_pointer, up_to_terminal
from arpo.config import RolloutConfig
from arpo.dialects.base import Dialect, ParseError
from arpo.engines.base import Engine
from arpo.envs.base import Env, host_of
from arpo.errors import ContextTooLong, EngineError, PromptTooLong, boundary
from arpo.prompts.conversation import Conversation, PromptTemplate
from arpo.prompts.rendering import PromptRenderer, Rendered
from arpo.rollout.activity import Activity, Measure
from arpo.storage.codec import BATCH
from arpo.types import Completion, Prompt, Sampling, Screenshot, StopReason, Task, Trajectory, Turn

OnTurn = Callable[[Turn], None]
OnScreenshot = Callable[[Screenshot, Screenshot | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A playing policy: engine, renderer, prompt template, and the dialect of its answers."""

    engine: Engine
    renderer: PromptRenderer
    template: PromptTemplate
    dialect: Dialect
    positions: int | None = None  # context length of the model in tokens; None: unknown

    def parse(self, text: str, screenshot: Screenshot) -> tuple[Action, ...]:
        """The actions of an answer to this screenshot, in its pixels. Raises ParseError."""
        actions = up_to_terminal(self.dialect.parse(text).actions)
        sizes = self.renderer.model_size(screenshot), screenshot.size
        return tuple(self.dialect.coordinates.to_screen(action, *sizes) for action in actions)


async def run_episode(
    task: Task,
    env: Env,
    agent: Agent,
    *,
    episode_id: str,
    settings: RolloutConfig,
    seed: int,
    on_turn: OnTurn = lambda turn: None,
    on_screenshot: OnScreenshot = lambda screenshot, previous: None,
    activity: Activity | None = None,
) -> Trajectory:
    """Play one task in a fresh environment. The caller closes the environment.

    Calls `on_turn(turn)` after each answer, before its actions are done. Calls `on_screenshot(screenshot,
    previous)` when each distinct screenshot is taken; `previous` is the distinct one before it, None for the
    first. `activity` measures where time goes.
    Raises PromptTooLong if the task and its first screenshot leave no space for an answer.
    """
    try:
        with (activity or Activity()).episode(episode_id, host_of(env)) as measure:
            look = _once_each(on_screenshot)
            return await _play(task, env, agent, episode_id, settings, seed, on_turn, look, measure)
    finally:
        async with boundary(EngineError, "release"):
            await agent.engine.release(episode_id)


async def _play(
    task: Task,
    env: Env,
    agent: Agent,
    episode_id: str,
    settings: RolloutConfig,
    seed: int,
    on_turn: OnTurn,
    look: Callable[[Screenshot], None],
    measure: Measure,
) -> Trajectory:
    sequence = Rendered(token_ids=(), images=())
    turns: list[Turn] = []
    stop: StopReason | None = None
    with measure("start"):
        first = await env.start(task)
    instruction = first.instruction or task.instruction
    conversation = Conversation.begin(agent.template, instruction, settings.max_images)
    screenshot = first.screenshot
    width, height = screenshot.size
    pointer = Point(width // 2, height // 2)  # its position on a new desktop
    while stop is None:
        look(screenshot)
        conversation = conversation.look(screenshot)
        restart = conversation.slid or not turns
        context = _context(agent.renderer, conversation, restart)
        sequence = context if restart else _joined(sequence, context)
        prompt = Prompt(
            episode_id=episode_id,
            token_ids=sequence.token_ids,
            images=sequence.images,
            messages=conversation.messages(),
        )
        sampling = Sampling(
            temperature=settings.temperature,
            max_tokens=settings.max_answer_tokens,
            seed=draw_seed(seed, task.id, episode_id, len(turns)),
        )
        try:
            with measure("engine"):
                completion = await _answer(agent, prompt, sampling, settings)
        except ContextTooLong as limit:
            if not turns:
                raise PromptTooLong(limit.where, limit.message) from limit
            stop = StopReason.MAX_STEPS
            break
        conversation = conversation.answer(completion)
        sequence = _joined(sequence, Rendered(token_ids=completion.token_ids, images=()))

        actions, error = _parse_actions(completion, agent, screenshot, settings)
        actions, pointer = resolve_pointer(actions, pointer)
        turns.append(
            Turn(
                screenshot=screenshot,
                context=context.token_ids,
                images=context.images,
                restart=restart,
                completion=completion,
                actions=actions,
                error=error,
            )
        )
        on_turn(turns[-1])
        if error:
            stop = StopReason.LENGTH if completion.finish == "length" else StopReason.PARSE_ERROR
        else:
            with measure("step"):
                result = await env.step(actions)
            screenshot = result.observation.screenshot
            stop = _stop(actions, result.terminated, last=len(turns) == settings.max_steps)

    look(screenshot)
    with measure("evaluate"):
        score = await env.evaluate()
    return Trajectory(
        episode_id=episode_id,
        task_id=task.id,
        turns=tuple(turns),
        final=screenshot,
        score=score,
        malformed=stop in (StopReason.PARSE_ERROR, StopReason.LENGTH),
        stop=stop,
    )


def _once_each(on_screenshot: OnScreenshot) -> Callable[[Screenshot], None]:
    """A function that reports each distinct screenshot once."""
    seen: dict[str, Screenshot] = {}

    def look(screenshot: Screenshot) -> None:
        if screenshot.sha256 not in seen:
            on_screenshot(screenshot, next(reversed(seen.values()), None))
            seen[screenshot.sha256] = screenshot

    return look


def draw_seed(seed: int, task_id: str, episode_id: str, turn: int) -> int:
    """The 63-bit seed for sampling one answer. It depends only on these arguments.

    The key of batch-4-0-1 is batch3-0-1, as before ids counted batches from 1: a seed keeps its results.
    """
    place = re.sub(rf"{BATCH}-(\d+)-", lambda match: f"{BATCH}{int(match[1]) - 1}-", episode_id)
    key = "\0".join((str(seed), task_id, place, str(turn)))
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


async def _answer(agent: Agent, prompt: Prompt, sampling: Sampling, settings: RolloutConfig) -> Completion:
    """Sample one answer. A chat server checks the length of its prompt itself."""
    need = len(prompt.token_ids) + sampling.max_tokens
    if need > settings.max_context_tokens:
        raise ContextTooLong("generate", _too_long(need, sampling.max_tokens, settings, agent.positions))
    async with boundary(EngineError, "generate"):
        return await agent.engine.generate(prompt, sampling)


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


def _context(renderer: PromptRenderer, conversation: Conversation, restart: bool) -> Rendered:
    """The tokens between the last answer and the next: the whole prompt after a restart."""
    messages = conversation.messages()
    if restart:
        return renderer.render(messages)
    answer, message = messages[-2:]
    return renderer.continuation(message, answer.token_ids)


def _joined(sequence: Rendered, more: Rendered) -> Rendered:
    return Rendered(token_ids=sequence.token_ids + more.token_ids, images=sequence.images + more.images)


def _parse_actions(
    completion: Completion, agent: Agent, screenshot: Screenshot, settings: RolloutConfig
) -> tuple[tuple[Action, ...], str]:
    """The actions in screen pixels and "", or no actions and the parse error."""
    if completion.finish == "length":
        return (), f"the answer was cut at {settings.max_answer_tokens} tokens"
    try:
        return agent.parse(completion.text, screenshot), ""
    except ParseError as error:
        return (), str(error)


def _stop(actions: tuple[Action, ...], terminated: bool, last: bool) -> StopReason | None:
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
