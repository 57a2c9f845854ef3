"""Plays one episode: screenshot, answer, actions, until it ends; then the environment evaluates it.

The token sequence grows by the sampled tokens and by the rendered next prompt. It restarts when old
screenshots leave the prompt. No answer is tokenised again. Errors pass through to the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from arpo.actions import Point, resolve_pointer
from arpo.config import RolloutConfig
from arpo.envs.base import Env, host_of
from arpo.errors import ContextTooLong, EngineError, PromptTooLong, boundary
from arpo.prompts.conversation import Conversation
from arpo.prompts.rendering import PromptRenderer, Rendered
from arpo.rollout.activity import Activity
from arpo.rollout.agent import (
    Agent,
    OnScreenshot,
    OnTurn,
    Playing,
    draw_seed,
    joined,
    parse_actions,
    sample_answer,
    stop_after,
)
from arpo.rollout.program import play_program
from arpo.types import Completion, Prompt, Sampling, Screenshot, StopReason, Task, Trajectory, Turn


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
            playing = Playing(
                task=task,
                env=env,
                agent=agent,
                episode_id=episode_id,
                settings=settings,
                seed=seed,
                on_turn=on_turn,
                look=_once_each(on_screenshot),
                measure=measure,
            )
            return await (_play if agent.program is None else play_program)(playing)
    finally:
        async with boundary(EngineError, "release"):
            await agent.engine.release(episode_id)


async def _play(playing: Playing) -> Trajectory:
    task, env, agent, settings = playing.task, playing.env, playing.agent, playing.settings
    measure = playing.measure
    sequence = Rendered(token_ids=(), images=())
    turns: list[Turn] = []
    stop: StopReason | None = None
    with measure("start"):
        first = await env.start(task)
    instruction = first.instruction or task.instruction
    conversation = agent.begin(instruction, settings)
    screenshot = first.screenshot
    width, height = screenshot.size
    pointer = Point(width // 2, height // 2)  # its position on a new desktop
    while stop is None:
        playing.look(screenshot)
        conversation = conversation.look(screenshot)
        sampling = Sampling(
            temperature=settings.temperature,
            max_tokens=settings.max_answer_tokens,
            seed=draw_seed(playing.seed, task.id, playing.episode_id, len(turns)),
            alternatives=settings.alternatives,
        )
        try:
            with measure("engine"):
                asked, completion = await _ask(
                    agent, conversation, sequence, playing.episode_id, sampling, settings
                )
        except ContextTooLong as limit:
            if not turns:
                raise PromptTooLong(limit.where, limit.message) from limit
            stop = StopReason.MAX_STEPS
            break
        conversation = asked.conversation.answer(completion)
        sequence = joined(asked.sequence, Rendered(token_ids=completion.token_ids, images=()))

        actions, error = parse_actions(completion, agent, screenshot, settings)
        actions, pointer = resolve_pointer(actions, pointer)
        turns.append(
            Turn(
                screenshot=screenshot,
                context=asked.context.token_ids,
                images=asked.context.images,
                restart=asked.restart,
                completion=completion,
                actions=actions,
                error=error,
            )
        )
        playing.on_turn(turns[-1])
        if error:
            stop = StopReason.LENGTH if completion.finish == "length" else StopReason.PARSE_ERROR
        else:
            with measure("step"):
                result = await env.step(actions)
            screenshot = result.observation.screenshot
            stop = stop_after(actions, result.terminated, last=len(turns) == settings.max_steps)

    playing.look(screenshot)
    with measure("evaluate"):
        score = await env.evaluate()
    return Trajectory(
        episode_id=playing.episode_id,
        task_id=task.id,
        turns=tuple(turns),
        final=screenshot,
        score=score,
        malformed=stop in (StopReason.PARSE_ERROR, StopReason.LENGTH),
        stop=stop,
        instruction="" if instruction == task.instruction else instruction,
    )


def _once_each(on_screenshot: OnScreenshot) -> Callable[[Screenshot], None]:
    """A function that reports each distinct screenshot once."""
    seen: dict[str, Screenshot] = {}

    def look(screenshot: Screenshot) -> None:
        if screenshot.sha256 not in seen:
            on_screenshot(screenshot, next(reversed(seen.values()), None))
            seen[screenshot.sha256] = screenshot

    return look


def repeats_prompts(
    trajectory: Trajectory, conversation: Conversation, renderer: PromptRenderer, settings: RolloutConfig
) -> bool:
    """Whether the built-in loop would ask for each answer of a stored episode with the same prompt.

    `conversation` is that of the task, before its first screenshot.
    """
    sequence = Rendered(token_ids=(), images=())
    for turn in trajectory.turns:
        asked = _question(renderer, conversation.look(turn.screenshot), sequence)
        needed = len(asked.sequence.token_ids) + settings.max_answer_tokens
        while needed > settings.max_context_tokens and (folded := asked.conversation.folded()):
            asked = _question(renderer, folded, sequence)
            needed = len(asked.sequence.token_ids) + settings.max_answer_tokens
        stored = Rendered(token_ids=turn.context, images=turn.images)
        if turn.after or (turn.restart, stored) != (asked.restart, asked.context):
            return False
        conversation = asked.conversation.answer(turn.completion)
        sequence = joined(asked.sequence, Rendered(token_ids=turn.completion.token_ids, images=()))
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A prompt: its conversation, its tokens since the last answer, and all of them."""

    conversation: Conversation
    restart: bool
    context: Rendered
    sequence: Rendered


def _question(renderer: PromptRenderer, conversation: Conversation, sequence: Rendered) -> _Question:
    """The prompt about the newest screenshot. `sequence` has the tokens up to the last answer."""
    restart = conversation.slid or not conversation.answers
    context = _context(renderer, conversation, restart)
    return _Question(
        conversation=conversation,
        restart=restart,
        context=context,
        sequence=context if restart else joined(sequence, context),
    )


async def _ask(
    agent: Agent,
    conversation: Conversation,
    sequence: Rendered,
    episode_id: str,
    sampling: Sampling,
    settings: RolloutConfig,
) -> tuple[_Question, Completion]:
    """Sample one answer. Folds too long a prompt; raises ContextTooLong if it stays too long."""
    while True:
        asked = _question(agent.renderer, conversation, sequence)
        prompt = Prompt(
            episode_id=episode_id,
            token_ids=asked.sequence.token_ids,
            images=asked.sequence.images,
            messages=conversation.messages(),
            instruction=conversation.instruction,
        )
        try:
            return asked, await sample_answer(agent, prompt, sampling, settings)
        except ContextTooLong:
            folded = conversation.folded()
            if folded is None:
                raise
            conversation = folded


def _context(renderer: PromptRenderer, conversation: Conversation, restart: bool) -> Rendered:
    """The tokens between the last answer and the next: the whole prompt after a restart."""
    messages = conversation.messages()
    if restart:
        return renderer.render(messages)
    answer, message = messages[-2:]
    return renderer.continuation(message, answer.token_ids)
