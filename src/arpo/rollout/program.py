"""Plays one episode with an agent program of the user (rollout.agent).

The program is started with the addresses of the model and of the environment (`endpoint.py`). It ends the
episode with a terminal action or with exit code 0; then the environment evaluates it. A program that crashes,
hangs or never asks the model is a fault (AgentError): it costs its own episode and never becomes a reward.
`arpo collect` also records programs that answer without the model: teachers.
If the program ends because a limit refused its call, the episode was played to that limit.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from aiohttp import web

from arpo.actions import Action, Point, action_from_json, resolve_pointer, up_to_terminal
from arpo.dialects import pyautogui_code
from arpo.dialects.base import ParseError, checked_actions
from arpo.engines.teacher import tokenise
from arpo.errors import AgentError, ContextTooLong, EnvError, PromptTooLong, boundary
from arpo.processes.child import Child, describe_exit
from arpo.processes.environment import without_secrets
from arpo.prompts.rendering import Renderer
from arpo.rollout.agent import (
    AgentProgram,
    Playing,
    draw_seed,
    parse_actions,
    require_space,
    sample_answer,
    stop_after,
)
from arpo.rollout.endpoint import Refused, serving
from arpo.rollout.model_calls import ModelCalls
from arpo.types import (
    Completion,
    Message,
    Observation,
    Prompt,
    Sampling,
    Screenshot,
    StopReason,
    Trajectory,
    Turn,
)

EXIT_SECONDS = 5.0  # for a program to exit after the end of its episode
GRACE_SECONDS = 1.0  # after SIGTERM
TICK_SECONDS = 1.0  # between two checks of a running program
MAX_LOG_BYTES = 1 << 20  # of one episode; a longer log loses its beginning
SHOWN_CHARACTERS = 200  # of an answer that does not parse
MAX_LOGS = 100  # files of programs that have ended; the newest stay
# Actions of desktop-env's agents without code.
_WORDS = {
    "DONE": "computer.terminate(status='success')",
    "FAIL": "computer.terminate(status='failure')",
    "WAIT": "time.sleep(2)",
}


async def play_program(playing: Playing) -> Trajectory:
    program, env, measure = playing.agent.program, playing.env, playing.measure
    assert program is not None
    with measure("start"):
        first = await env.start(playing.task)
    episode = _Episode(playing, first)
    async with serving(episode) as url, episode.starting:
        await episode.starting.enter_async_context(program.starts())
        async with _running(program, url, playing.episode_id) as child:
            stop = await episode.played(child, program)
    with measure("evaluate"):
        score = await env.evaluate()
    return episode.trajectory(stop, score)


class _Episode:
    """The state of one episode. Its endpoint calls `task`, `screenshot`, `step` and `answer`."""

    def __init__(self, playing: Playing, first: Observation) -> None:
        task, agent, look = playing.task, playing.agent, playing.look
        self._task, self._env, self._agent, self._id = task, playing.env, agent, playing.episode_id
        self._settings, self._seed, self._measure = playing.settings, playing.seed, playing.measure
        self._on_turn, self._look = playing.on_turn, look
        self._instruction = first.instruction or task.instruction
        self._screenshot = first.screenshot
        width, height = first.screenshot.size
        self._pointer = Point(width // 2, height // 2)
        self._calls = ModelCalls(agent.renderer)
        self._own = agent.begin(self._instruction, playing.settings)  # the answers of the program itself
        self._turns: list[Turn] = []
        self._shown = 0  # turns already given to `on_turn`
        self._seen: list[Screenshot | None] = []  # the last picture of the call of each turn
        self._current = -1  # index of the turn that the newest answer or step belongs to
        self._steps = self._sampled = self._read = 0  # tokens sampled; tokens of prompts that were new
        self._limit: ContextTooLong | None = None  # why the last call was refused
        self._lock = asyncio.Lock()  # an engine answers one call of an episode at a time
        self._ended: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self.starting = AsyncExitStack()  # closed at the first call
        self._called = self._working = False  # working: the engine or the environment answers a call
        self._refusal = ""
        self._progress = asyncio.get_running_loop().time()  # of the last answer or step
        look(first.screenshot)

    def task(self) -> dict[str, Any]:
        template, settings = self._agent.template, self._settings
        width, height = self._screenshot.size
        return {
            "id": self._task.id,
            "instruction": self._instruction,
            "system": template.system,
            "prompt": template.task(self._instruction),
            "layout": template.layout,
            "width": width,
            "height": height,
            "max_steps": settings.max_steps,
            "max_images": settings.max_images,
            "max_answer_tokens": settings.max_answer_tokens,
        }

    def refused(self, reason: str) -> None:
        self._refusal = f"Its last refused call: {reason}. "

    def screenshot(self) -> Screenshot:
        return self._screenshot

    async def guarded(self, call: Awaitable[web.Response]) -> web.Response:
        """Run a call of the program. Any exception ends the episode."""
        if not self._called:
            self._called, self._progress = True, asyncio.get_running_loop().time()
            await self.starting.aclose()
        try:
            async with boundary(AgentError, "agent"):  # those of the engine and of the environment pass
                return await call
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            raise Refused("the episode has failed", status=410) from error

    @contextmanager
    def _progressing(self) -> Iterator[None]:
        """The program does not hang during the block, nor because of the time until its end.

        Calls that change nothing, such as those for the screenshot, are no progress: a program that repeats
        them would never end.
        """
        self._working = True
        try:
            yield
            self._progress = asyncio.get_running_loop().time()
        finally:
            self._working = False

    async def answer(self, messages: tuple[Message, ...], max_tokens: int | None) -> tuple[Completion, int]:
        async with self._lock:
            self._require_running()
            settings = self._settings
            if (shown := sum(len(message.images) for message in messages)) > settings.max_images:
                raise Refused(
                    f"messages: {shown} images, must be at most {settings.max_images} (rollout.max_images)"
                )
            call = self._calls.begin(messages)
            left = settings.max_steps * settings.max_answer_tokens - self._sampled
            sampling = Sampling(
                temperature=settings.temperature,
                max_tokens=min(max_tokens or settings.max_answer_tokens, settings.max_answer_tokens, left),
                seed=draw_seed(self._seed, self._task.id, self._id, len(self._turns)),
                alternatives=settings.alternatives,
            )
            prompt = Prompt(
                episode_id=self._id,
                token_ids=call.prompt.token_ids,
                images=call.prompt.images,
                messages=call.messages,
                instruction=self._instruction,
            )
            try:
                self._require_tokens(len(call.context.token_ids))
                with self._measure("engine"), self._progressing():
                    completion = await sample_answer(self._agent, prompt, sampling, settings)
            except ContextTooLong as limit:
                self._limit = limit
                raise Refused(limit.message, code="context_length_exceeded") from limit
            self._limit = None
            self._show_turns()
            for image in call.context.images:
                self._look(image)
            self._add_turn(self._calls.end(call, completion, self._screenshot), call.prompt.images[-1:])
            self._read += len(call.context.token_ids)
            self._sampled += max(1, len(completion.token_ids))  # a chat server returns no tokens
            return completion, len(prompt.token_ids)

    def _require_tokens(self, read: int) -> None:
        """Raise ContextTooLong if the episode has sampled all of its tokens, or has no `read` tokens left."""
        settings = self._settings
        for verb, used, setting, each in (
            ("sampled", self._sampled + 1, "max_answer_tokens", settings.max_answer_tokens),
            ("read", self._read + read, "max_context_tokens", settings.max_context_tokens),
        ):
            if used > (total := settings.max_steps * each):
                raise ContextTooLong(
                    "generate",
                    f"the episode has {verb} all of its {total} tokens (rollout.max_steps x "
                    f"rollout.{setting}): raise one of them, or call the model less often",
                )

    async def step(self, body: dict[str, Any]) -> dict[str, Any]:
        async with self._lock:
            self._require_running()
            if self._agent.student is not None and not self._model_answered:
                body = self._written(body)
                text = body.get("answer")
                if isinstance(text, str) and (error := self._record_own(text, self._agent.student)):
                    self.refused(f"the answer does not parse ({error}): {text[:SHOWN_CHARACTERS]!r}")
                    return {"finished": False, "error": error}
            self._current = self._turn_of(body)
            actions, error = self._actions(body)
            if error:
                self._change_turn(error=error)
                return {"finished": False, "error": error}
            actions, self._pointer = resolve_pointer(actions, self._pointer)
            if self._turns:
                self._change_turn(actions=(*self._turns[self._current].actions, *actions), error="")
            self._show_turns()
            self._steps += 1
            stop = await self._act(actions)
            if stop is not None and not self._ended.done():
                self._ended.set_result(stop)
            return {"finished": stop is not None, "error": ""}

    @property
    def _model_answered(self) -> bool:
        """Whether the step is about an answer of the model: itself, or what the program made of it."""
        return self._shown < len(self._turns) and not self._turns[-1].error

    def _turn_of(self, body: dict[str, Any]) -> int:
        """The index of the turn that a step belongs to: an answer may come after calls about other things."""
        if isinstance(text := body.get("answer"), str):
            for index, turn in reversed(list(enumerate(self._turns))):
                if not turn.actions and not turn.error and turn.completion.text.strip() == text.strip():
                    return index
        return self._current

    def _add_turn(self, turn: Turn, seen: tuple[Screenshot, ...]) -> None:
        self._current = len(self._turns)
        self._turns.append(turn)
        self._seen.append(seen[-1] if seen else None)

    def _change_turn(self, **changes: Any) -> None:
        if self._turns:
            self._turns[self._current] = replace(self._turns[self._current], **changes)

    def _written(self, body: dict[str, Any]) -> dict[str, Any]:
        """A step in actions or code as a text of the dialect: what is stored is what is done.

        Unless the program asks the model: then its own steps belong to the answer before them.
        """
        if "answer" in body or self._sampled:
            return body
        actions, error = self._actions(body)
        if error:
            raise Refused(error)
        thought = body.get("thought", "")
        if not isinstance(thought, str):
            raise Refused('"thought" must be a text')
        try:
            resolved, _ = resolve_pointer(actions, self._pointer)
            return {"answer": self._agent.write(resolved, thought, self._screenshot)}
        except ParseError as fault:
            raise Refused(str(fault)) from fault

    def _record_own(self, text: str, student: Renderer) -> str:
        """Store an answer that the program gives without the model, as a turn of the built-in loop.

        Returns why it does not parse, or "": nobody should learn such an answer, so it is not stored.
        """
        room = self._settings.max_answer_tokens
        answer = tokenise(text, "stop", student, room)
        if error := parse_actions(answer, self._agent, self._screenshot, self._settings)[1]:
            return error
        own = self._own.look(self._screenshot)
        call = self._calls.begin(own.messages())
        try:
            require_space(self._agent, len(call.prompt.token_ids), room, self._settings)
        except ContextTooLong as limit:
            self._limit = limit
            raise Refused(limit.message, code="context_length_exceeded") from limit
        self._show_turns()
        self._add_turn(self._calls.end(call, answer, self._screenshot), (self._screenshot,))
        self._own = own.answer(answer)
        return ""

    async def _act(self, actions: tuple[Action, ...]) -> StopReason | None:
        try:
            async with boundary(EnvError, "step"):
                with self._measure("step"), self._progressing():
                    result = await self._env.step(actions)
        except asyncio.CancelledError as error:
            raise AgentError("agent", "the program disconnected during a step") from error
        self._screenshot = result.observation.screenshot
        self._look(self._screenshot)
        return stop_after(actions, result.terminated, last=self._steps == self._settings.max_steps)

    def _actions(self, body: dict[str, Any]) -> tuple[tuple[Action, ...], str]:
        """The actions in screen pixels and "", or no actions and why the answer does not parse."""
        match body:
            case {"answer": str(text)}:
                given = self._turns[self._current].completion if self._turns else None
                if given is None or given.text.strip() != text.strip():
                    given = Completion(token_ids=(), logprobs=(), text=text, finish="stop", versions=())
                seen = self._seen[self._current] if self._turns else None
                return parse_actions(given, self._agent, self._screenshot, self._settings, seen)
            case {"pyautogui": str(code)}:
                code = _WORDS.get(code, code)
                try:
                    return up_to_terminal(pyautogui_code.parse(f"```python\n{code}\n```").actions), ""
                except ParseError as error:
                    return (), str(error)
            case {"actions": [_, *_] as given}:
                try:
                    read = [action_from_json(one, f"actions[{index}]") for index, one in enumerate(given)]
                    return up_to_terminal(checked_actions(read, self._screenshot.size)), ""
                except ValueError as error:
                    raise Refused(str(error)) from error
        raise Refused('a step needs "answer" (a text), "actions" (a list that is not empty) or "pyautogui"')

    def _require_running(self) -> None:
        if self._ended.done():
            raise Refused("the episode has ended", status=410)

    def _show_turns(self) -> None:
        """Report the turns whose actions are known: all so far."""
        for turn in self._turns[self._shown :]:
            self._on_turn(turn)
        self._shown = len(self._turns)

    async def played(self, child: Child, program: AgentProgram) -> StopReason:
        """Wait for the end of the episode. Raises AgentError for a program that failed."""
        self._progress = asyncio.get_running_loop().time()  # it starts now
        exited = asyncio.ensure_future(_exit(child))
        try:
            while not self._ended.done() and not exited.done():
                await asyncio.wait(
                    (self._ended, exited), timeout=TICK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                _bound_log(child)
                self._require_calls(child, program)
            if self._ended.done():
                stop = self._ended.result()
                await asyncio.wait((exited,), timeout=EXIT_SECONDS)
            else:
                stop = self._stop_of(child, exited.result())
        finally:
            exited.cancel()
            self._ended.cancel()  # if it is not done: further calls are refused
        async with self._lock:  # a call may have begun before the end
            self._show_turns()
        if not self._turns:
            taught = self._agent.student is not None and self._refusal
            fault = "the program gave no usable answer" if taught else "the program never asked the model"
            raise AgentError("agent", f"{fault}. {self._refusal}{_output(child)}")
        return stop

    def _require_calls(self, child: Child, program: AgentProgram) -> None:
        """Raise AgentError if the program hangs."""
        limit = program.call_seconds if self._called else program.start_seconds
        idle = asyncio.get_running_loop().time() - self._progress
        if not self._working and not self._ended.done() and idle > limit:
            setting = "env.step_seconds" if self._called else "env.start_seconds"
            lacking = "got no answer and took no step" if self._called else "made no call"
            fault = f"the program {lacking} for {limit:g} s (limit: {setting}). {self._refusal}"
            raise AgentError("agent", fault + _output(child))

    def _stop_of(self, child: Child, code: int) -> StopReason:
        """Why the episode ended, after the program has exited."""
        if self._limit is not None:
            if not self._turns:
                raise PromptTooLong(self._limit.where, self._limit.message) from self._limit
            return StopReason.MAX_STEPS
        if code:
            fault = f"the program ended with {describe_exit(code)}. {self._refusal}"
            raise AgentError("agent", fault + _output(child))
        if self._turns and (last := self._turns[self._current]).error:
            return StopReason.LENGTH if last.completion.finish == "length" else StopReason.PARSE_ERROR
        return StopReason.FINISHED

    def trajectory(self, stop: StopReason, score: float) -> Trajectory:
        return Trajectory(
            episode_id=self._id,
            task_id=self._task.id,
            turns=tuple(self._turns),
            final=self._screenshot,
            score=score,
            malformed=stop in (StopReason.PARSE_ERROR, StopReason.LENGTH),
            stop=stop,
            instruction="" if self._instruction == self._task.instruction else self._instruction,
        )


@asynccontextmanager
async def _running(program: AgentProgram, url: str, episode_id: str) -> AsyncIterator[Child]:
    """The program during the block. All of its processes end after it."""
    log = program.logs / f"{episode_id}.log"
    log.unlink(missing_ok=True)  # of an earlier attempt
    program.running.add(log)
    try:
        child = Child(
            program.command, env=_environment(url), log=log, guarded=True, grace_seconds=GRACE_SECONDS
        )
    except OSError as error:
        program.running.discard(log)
        raise AgentError("agent", f"cannot start the program: {error}") from error
    try:
        yield child
    finally:
        await asyncio.to_thread(child.end)
        program.running.discard(log)
        _bound_log(child)
        with suppress(OSError):
            if not log.stat().st_size:
                log.unlink()
                program.logs.rmdir()  # fails if it has other logs
        _remove_old_logs(program)


def _environment(url: str) -> dict[str, str]:
    """All variables of the user except secrets of ARPO, and the addresses. No proxy is between them."""
    own = without_secrets()
    direct = {
        name: ",".join(filter(None, (own.get(name, ""), "127.0.0.1"))) for name in ("NO_PROXY", "no_proxy")
    }
    return {
        **own,
        **direct,
        "ARPO_ENV_URL": url,
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "unused",
        "PYTHONUNBUFFERED": "1",
    }


async def _exit(child: Child) -> int:
    """The exit code, when the program has ended."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    number = os.pidfd_open(child.process.pid)
    try:
        loop.add_reader(number, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(number)
        os.close(number)
    return child.process.wait()


def _output(child: Child) -> str:
    return f"Its last output: {child.last_output}; all of it: {child.log}"


def _bound_log(child: Child) -> None:
    assert child.log is not None
    with suppress(OSError):  # it was deleted
        if (size := child.log.stat().st_size) > MAX_LOG_BYTES:
            with child.log.open("r+b") as file:
                file.seek(size - MAX_LOG_BYTES // 2)
                kept = file.read(MAX_LOG_BYTES)
                # The program appends: it goes on behind what is kept. What it wrote since the read is lost.
                file.truncate(0)
            with child.log.open("ab") as file:
                file.write(kept[-MAX_LOG_BYTES // 2 :])


def _remove_old_logs(program: AgentProgram) -> None:
    with suppress(OSError):  # another episode removes one
        ended = [file for file in program.logs.glob("*.log") if file not in program.running]
        for old in sorted(ended, key=lambda file: file.stat().st_mtime)[:-MAX_LOGS]:
            old.unlink()
