"""A vLLM server that only waits: the routes that the engine uses, and the time of a GPU behind them.

A GPU does one thing at a time. It prefills one prompt after the other. When no prompt waits, it decodes all
sequences together, slower the more there are. Prompts are cached by episode: only new tokens are prefilled.
New weights empty the cache, and running answers are prefilled again, as in vLLM.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from arpo.engines.http_exchange import TransientError
from arpo.engines.vllm_client import UNCHANGED
from arpo.prompts.rendering import Renderer
from arpo.prompts.vision import image_tokens
from arpo.types import Screenshot
from simulation.clock import Clock, Meter
from simulation.service_times import ServiceTimes

MODEL, MAX_TOKENS = "base", 65_536
PROBE_LOGPROB = -0.5
_EPSILON = 1e-9


@dataclass(slots=True, eq=False)
class EpisodeOf:
    """An episode as the servers see it: they end it after `answers` answers."""

    random: Random
    answers: int
    answered: int = 0
    sampled: int = 0  # tokens


EPISODE: ContextVar[EpisodeOf] = ContextVar("EPISODE")  # of the current task; the environment sets it


@dataclass(slots=True, eq=False)
class Request:
    """An answer in progress. The prompt is prefilled first."""

    prompt: int  # tokens
    prefill: float  # seconds left
    tokens: float  # left to decode
    done: asyncio.Future[None]
    spans: list[tuple[str, float]] = field(default_factory=list)  # label, tokens decoded with it
    finish: float = 0.0  # progress of the GPU at which it is decoded


class Gpu:
    """The time of one GPU. `busy` integrates its use, `requests` the number of requests."""

    def __init__(self, clock: Clock, times: ServiceTimes, busy: Meter, requests: Meter) -> None:
        self._clock, self._times, self._busy, self._requests = clock, times, busy, requests
        self._waiting: deque[Request] = deque()  # the first one is prefilled
        self._decoding: list[tuple[float, int, Request]] = []  # a heap
        self._order = count()
        self._progress = 0.0  # tokens that a sequence would have decoded since the start
        self._last, self._paused, self._works = clock.now(), False, False
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, request: Request) -> None:
        """Returns when the last token is decoded."""
        self._advance()
        self._waiting.append(request)
        self._plan()
        with self._requests:
            try:
                await request.done
            finally:
                if not request.done.done() or request.done.cancelled():
                    self._remove(request)

    def pause(self, paused: bool) -> None:
        self._advance()
        self._paused = paused
        self._plan()

    def fail(self, error: Exception) -> None:
        """All requests end with this error."""
        for request in (*self._waiting, *(request for _, _, request in self._decoding)):
            if not request.done.done():
                request.done.set_exception(error)
        self._waiting, self._decoding = deque(), []
        self.pause(False)

    def restart(self, label: str) -> None:
        """Prefill all running requests again. They were decoded with the weights of `label` so far."""
        self._advance()
        for _, _, request in self._decoding:
            left = request.finish - self._progress
            request.spans.append((label, request.tokens - left))
            request.tokens = left
            request.prefill = request.prompt * self._times.prefill_token
            self._waiting.append(request)
        self._decoding = []
        self._plan()

    def _remove(self, request: Request) -> None:
        self._advance()
        self._waiting = deque(one for one in self._waiting if one is not request)
        self._decoding = [entry for entry in self._decoding if entry[2] is not request]
        heapq.heapify(self._decoding)
        self._plan()

    def _advance(self) -> None:
        """Do the work of the time since the last change. A timer may be late: no time is lost by it."""
        now = self._clock.now()
        left, self._last = now - self._last, now
        if self._paused:
            return
        self._finish()
        while left > 0 and (self._waiting or self._decoding):
            passed = min(left, max(_EPSILON, self._next()))
            if self._waiting:
                self._waiting[0].prefill -= passed
            else:
                self._progress += passed / self._times.decode(len(self._decoding))
            left -= passed
            self._finish()

    def _finish(self) -> None:
        while self._waiting and self._waiting[0].prefill <= _EPSILON:
            request = self._waiting.popleft()
            request.finish = self._progress + request.tokens
            heapq.heappush(self._decoding, (request.finish, next(self._order), request))
        while not self._waiting and self._decoding and self._decoding[0][0] <= self._progress + 1e-6:
            request = heapq.heappop(self._decoding)[2]
            if not request.done.done():
                request.done.set_result(None)

    def _next(self) -> float:
        """Seconds until a prompt is prefilled or an answer is decoded."""
        if self._waiting:
            return self._waiting[0].prefill
        left = self._decoding[0][0] - self._progress
        return left * self._times.decode(len(self._decoding))

    def _plan(self) -> None:
        """Set the timer for the next change."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._paused:
            self._finish()
        works = not self._paused and bool(self._waiting or self._decoding)
        if works != self._works:
            self._works = works
            self._busy.add(1 if works else -1)
        if works:
            self._timer = self._clock.call_later(self._next(), self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._advance()
        self._plan()


class AnswerTexts:
    """Answers of a given length, as vLLM writes them. All prompts contain the same screenshot.

    `compact`: a tenth of the tokens, which takes less CPU time and the same simulated time.
    """

    def __init__(self, renderer: Renderer, shot: Screenshot, *, compact: bool) -> None:
        self._part = 10 if compact else 1
        self._image = renderer.image_token_id
        self._image_tokens = image_tokens(renderer.grid(shot), renderer.settings)
        self._image_text = ", ".join([str(self._image)] * self._image_tokens)
        self._filler = renderer.encode("ok")[:1]
        self._ends = {
            last: (*renderer.encode(f"\nAction: {call}()"), renderer.end_of_turn_id)
            for last, call in ((False, "wait"), (True, "finished"))
        }

    def answer(
        self, token_ids: Sequence[int], tokens: int, spans: Sequence[tuple[str, float]], *, last: bool
    ) -> str:
        """JSON. The tokens of a screenshot are a ready text: the servers take little of the measured time."""
        end = self._ends[last]
        sampled = [*self._filler * max(1, tokens // self._part - len(end)), *end]
        choice = {
            "token_ids": sampled,
            "finish_reason": "stop",
            "logprobs": {"content": [{"token_id": one, "logprob": -0.5} for one in sampled]},
            "weight_versions": _whole_tokens(spans, len(sampled)),
        }
        prompt = ", ".join(self._image_text if one == self._image else str(one) for one in token_ids)
        return f'{{"prompt_token_ids": [{prompt}], "choices": [{json.dumps(choice)}]}}'

    def probe(self, token_ids: Sequence[int]) -> dict[str, Any]:
        prompt = self._expanded(token_ids)
        places = [{str(token): {"logprob": PROBE_LOGPROB}} for token in prompt]
        return {"prompt_token_ids": prompt, "prompt_logprobs": [None, *places[1:]]}

    def _expanded(self, token_ids: Sequence[int]) -> list[int]:
        """Every image has one token in a request, and all of its tokens in the response."""
        image = [self._image] * self._image_tokens
        return [one for token in token_ids for one in (image if token == self._image else (token,))]


class Server:
    """One vLLM server. It answers as vLLM does."""

    def __init__(self, clock: Clock, times: ServiceTimes, answers: AnswerTexts, gpu: Gpu) -> None:
        self._clock, self._times, self._answers, self._gpu = clock, times, answers, gpu
        self._kills, self._up_at = 0, 0.0
        self._start()

    def _start(self) -> None:
        self._version, self._paused = UNCHANGED, False
        self._weights = UNCHANGED  # label of the next token
        self._cache: OrderedDict[EpisodeOf, int] = OrderedDict()  # tokens by episode, oldest first
        self._cached = 0

    def kill(self, seconds: float) -> None:
        """All requests fail. The server is back after so many seconds, without loaded weights."""
        self._kills += 1
        self._up_at = self._clock.now() + seconds
        self._gpu.fail(TransientError("server disconnected"))
        self._start()

    async def answer(self, route: str, body: Mapping[str, Any]) -> Any:
        """The response, or a function that makes it as JSON. Raises TransientError after a kill."""
        kills = self._kills
        if self._clock.now() < self._up_at:
            raise TransientError("cannot connect")
        answer = await self._answer(route, body)
        if self._kills != kills:
            raise TransientError("server disconnected")
        return answer

    async def _answer(self, route: str, body: Mapping[str, Any]) -> Any:
        match route.partition("?")[0]:
            case "/inference/v1/generate" if "prompt_logprobs" in body["sampling_params"]:
                return self._answers.probe(body["token_ids"])
            case "/inference/v1/generate":
                return await self._generate(body["token_ids"], len(body["content_parts"]))
            case "/v1/models":
                return {"data": [{"id": MODEL, "max_model_len": MAX_TOKENS}]}
            case "/weight_info":
                return {"weight_version": self._version}
            case "/is_paused":
                return {"is_paused": self._paused}
            case "/pause" | "/resume" as change:
                self._paused = change == "/pause"
                self._gpu.pause(self._paused)
                self._weights = self._weights if self._paused else self._version
            case "/update_weight_version":
                self._version = body["new_version"]
            case "/collective_rpc":
                await self._clock.sleep(self._times.load)
                return {"results": [[]]}  # checksums of no tensors
            case "/reset_prefix_cache":
                self._gpu.restart(self._weights)
                self._cache.clear()
                self._cached = 0
                return {"success": True}
            case "/sleep" | "/wake_up":
                await self._clock.sleep(self._times.sleep)
        return None

    async def _generate(self, token_ids: Sequence[int], images: int) -> Callable[[], str]:
        episode, times = EPISODE.get(), self._times
        prompt = images * times.screenshot_tokens + episode.sampled
        tokens = times.answer_tokens(episode.random)
        new = prompt - self._cache.get(episode, 0)
        request = Request(
            prompt=prompt,
            prefill=new * times.prefill_token,
            tokens=float(tokens),
            done=asyncio.get_running_loop().create_future(),
        )
        self._keep(episode, prompt + tokens)
        await self._gpu.run(request)
        episode.answered += 1
        episode.sampled += tokens
        spans = [*request.spans, (self._weights, request.tokens)]
        last = episode.answered >= episode.answers
        return partial(self._answers.answer, token_ids, tokens, spans, last=last)

    def _keep(self, episode: EpisodeOf, tokens: int) -> None:
        """Cache the prompt and the answer. Episodes that were not used for long make space."""
        self._cached += tokens - self._cache.pop(episode, 0)
        self._cache[episode] = tokens
        while self._cached > self._times.cache_tokens:
            self._cached -= self._cache.popitem(last=False)[1]


def _whole_tokens(spans: Sequence[tuple[str, float]], tokens: int) -> list[dict[str, Any]]:
    """Spans of whole tokens, in proportion to `spans`.

    >>> _whole_tokens([("a", 5.4), ("b", 14.6)], 10)
    [{'version': 'a', 'start': 0, 'end': 3}, {'version': 'b', 'start': 3, 'end': 10}]
    """
    total, done, start, found = sum(length for _, length in spans), 0.0, 0, []
    for label, length in spans:
        done += length
        end = round(tokens * done / total)
        found.append({"version": label, "start": start, "end": end})
        start = end
    return found
