"""Engine in this process: continuous batching over the layers of transformers, in one event loop.

Each episode keeps its keys and values across turns, so only new tokens are prefilled. Requests join and leave
at any token. If the prompt no longer matches the cached tokens (the window of screenshots slid), the cache is
rewound to their common prefix; a state of linear attention starts again instead. Requests wait if the cache
is full. If every cached episode is idle, the least recently used one loses its cache; if decoding itself
needs room, the latest request starts again later. An engine without episodes is in its initial state: caches
and order start again, so a resumed run repeats an uninterrupted one. The engine does not measure time.

In lock step, engine and learner share one module. In asynchronous training (`in_flight`) the engine has
weights of its own, and `load` copies new ones into them between two steps. Running requests go on with their
caches: keys and values of older weights stay, and each token records the version that sampled it.

    engine = InProcessEngine(model, renderer, SlotPasses(model, renderer.pad_id, slots=8))
    completion = await engine.generate(prompt, Sampling(temperature=1.0, max_tokens=512, seed=0))
    await engine.release(prompt.episode_id)
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arpo.engines.base import Weights
from arpo.engines.cached_episodes import CachedEpisode, NewTokens, Passes, cached_prefix
from arpo.engines.token_sampling import likely_others, sample, uniforms
from arpo.errors import ContextTooLong, EngineError
from arpo.models.checksums import different_parameters
from arpo.models.families import VisionLanguageModel
from arpo.models.forward import TokenRow, batch_by_patches, features_by_sha256
from arpo.models.image_loader import ImageLoader
from arpo.models.memory_plan import MAX_ENCODED_PATCHES
from arpo.models.trainable import load_trained
from arpo.png import BadPng, rgb
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.types import Completion, Prompt, Sampling, Screenshot

_IDLE_PASSES = 3  # event loop passes without a new request before the next step starts
_DECODING_PER_WAITING = 4  # decoding requests for each waiting one; if there are more, prefill is delayed
_MAX_CACHED_FEATURES = 32768  # image tokens
_MIN_PREFETCHED_PIXELS = 2**18


@dataclass(slots=True)
class Stats:
    """Counters since the start of the engine."""

    prefilled_tokens: int = 0
    decoded_tokens: int = 0  # sampled tokens, including the end of turn
    images_encoded: int = 0


@dataclass(slots=True, eq=False, kw_only=True)
class _Request:
    """A prompt and the tokens sampled so far."""

    prompt: Prompt
    sampling: Sampling
    future: asyncio.Future[Completion]
    row: TokenRow
    image_spans: list[tuple[int, int]]  # (start, end) token of each image
    uniforms: NDArray[np.float64]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    alternatives: list[tuple[tuple[int, float], ...]] = field(default_factory=list)


class InProcessEngine:
    """`passes` run the model and cache keys and values."""

    def __init__(
        self,
        model: VisionLanguageModel,
        renderer: Renderer,
        passes: Passes,
        *,
        version: int = 0,
        in_flight: bool = False,
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._passes = passes
        self._version = version
        self._in_flight = in_flight
        self.stats = Stats()
        self._waiting: list[_Request] = []
        self._running: dict[str, _Request] = {}  # by episode id, in the order of their start
        self._runner: asyncio.Task[None] | None = None
        on_gpu = model.device.type == "cuda"
        self._loader = ImageLoader(renderer.settings) if on_gpu else None
        self._weight_addresses = _addresses(model)
        self._reset()

    def _reset(self, discard: bool = False) -> None:
        """Return to the initial state. `discard`: the cache may hold NaNs, or the weights have moved."""
        self._passes.reset(discard=discard)
        self._episodes: OrderedDict[str, CachedEpisode] = OrderedDict()  # least recently used first
        self._drop_features()
        if self._loader is not None:
            self._loader.clear()

    def _drop_features(self) -> None:
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self._feature_tokens = 0

    async def start(self) -> Sequence[str]:
        return ()

    async def close(self) -> None:
        """Nothing to free: the model belongs to the caller."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one answer. Raises `EngineError` if another request of the episode is unfinished.

        Raises `ContextTooLong` if prompt and answer do not fit into the whole cache. Waits for `_run`, which
        runs while requests exist and resolves every future, also on failure.
        """
        if any(request.prompt.episode_id == prompt.episode_id for request in self._unfinished()):
            raise EngineError(
                "generate",
                f"episode {prompt.episode_id} has an unfinished request; send one request at a time",
            )
        if not self._passes.fits(len(prompt.token_ids) + sampling.max_tokens):
            raise ContextTooLong(
                "generate",
                f"prompt and answer need {len(prompt.token_ids)} + {sampling.max_tokens} tokens, more than "
                "the cache was made for: raise rollout.max_context_tokens",
            )
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(self._request(prompt, sampling, future))
        self._prefetch_images(prompt)
        if self._runner is None or self._runner.done() or self._runner.get_loop() is not future.get_loop():
            self._runner = asyncio.create_task(self._run())  # a copy of this process has a loop of its own
        return await future

    async def release(self, episode_id: str) -> None:
        for request in self._unfinished():
            if request.prompt.episode_id == episode_id:
                request.future.cancel()
        self._prune()
        self._forget(episode_id)
        if not self._episodes:
            self._reset()

    def _forget(self, episode_id: str) -> None:
        if episode := self._episodes.pop(episode_id, None):
            self._passes.free(episode, self._episodes.values())

    async def load(self, weights: Weights) -> None:
        """Serve another version. Copies the weights unless the handle is the module of this engine.

        Unless the engine is `in_flight`, this drops all caches, and raises `EngineError` while requests are
        unfinished.
        """
        if not self._in_flight and (unfinished := len(self._unfinished())):
            raise EngineError("load", f"{unfinished} requests are unfinished; load between batches")
        if not isinstance(weights.handle, nn.Module):
            raise EngineError(
                "load", f"weights.handle is a {type(weights.handle).__name__}; pass a torch module"
            )
        if weights.handle is not self._model:
            load_trained(self._model, weights.handle)
            if different := different_parameters(self._model, weights.handle):
                raise EngineError("load", f"{different[0]} differs from the learner's after it was copied")
        self._version = weights.version
        if self._in_flight:
            self._drop_features()  # of screenshots not used by any request yet
            return
        addresses = _addresses(self._model)
        self._reset(discard=addresses != self._weight_addresses)
        self._weight_addresses = addresses

    def _unfinished(self) -> list[_Request]:
        self._prune()
        return [*self._waiting, *self._running.values()]

    def _prune(self) -> None:
        """Forget requests of cancelled callers."""
        self._waiting = [request for request in self._waiting if not request.future.done()]
        self._running = {
            episode_id: request for episode_id, request in self._running.items() if not request.future.done()
        }

    def _request(self, prompt: Prompt, sampling: Sampling, future: asyncio.Future[Completion]) -> _Request:
        row = TokenRow.of(prompt.token_ids, prompt.images, self._renderer)
        counts = [
            vision.image_tokens(self._renderer.grid(shot), self._renderer.settings) for shot in prompt.images
        ]
        image_positions = np.flatnonzero(row.image_mask_T)
        return _Request(
            prompt=prompt,
            sampling=sampling,
            future=future,
            row=row,
            image_spans=[
                (int(image_positions[end - count]), int(image_positions[end - 1]) + 1)
                for end, count in zip(accumulate(counts), counts, strict=True)
            ],
            uniforms=uniforms(sampling.seed, sampling.max_tokens),
        )

    def _prefetch_images(self, prompt: Prompt) -> None:
        """Decode new large screenshots in threads, while others decode tokens."""
        if self._loader is None:
            return
        cached = self._episodes.get(prompt.episode_id)
        known = {*self._features, *(cached.images if cached else ())}
        encoded = getattr(self._model.model.visual, "feature_cache", ())  # only a frozen tower has one
        new = (shot for shot in prompt.images if shot.sha256 not in known and shot.sha256 not in encoded)
        self._loader.prefetch(shot for shot in new if _is_large(shot))

    async def _run(self) -> None:
        """Schedule, run, postprocess, until no request is left. Other tasks run between steps."""
        try:
            while True:
                await self._wait_for_requests()
                self._prune()
                if not self._waiting and not self._running:
                    return
                if batch := self._schedule():
                    for part in self._passes.split(batch):
                        self._prefill(part)
                elif self._running:
                    self._decode()
                else:
                    await self._wait_for_images()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            if isinstance(error, EngineError):
                message = error.message
            for request in self._unfinished():
                request.future.set_exception(EngineError("generate", message))
            self._waiting, self._running = [], {}
            if not isinstance(error, Exception):
                raise  # cancelled between two steps: the cache is still valid
            self._reset(discard=True)

    async def _wait_for_requests(self) -> None:
        """Let episodes with new answers act and send the next request: these then share one prefill."""
        idle = 0
        while idle < _IDLE_PASSES:
            waiting = len(self._waiting)
            await asyncio.sleep(0)
            idle = idle + 1 if len(self._waiting) == waiting else 0

    async def _wait_for_images(self) -> None:
        """Wait until a screenshot of a waiting request is decoded."""
        assert self._loader is not None, "without a loader no request waits for images"
        await self._loader.wait_for_any()

    def _schedule(self) -> list[NewTokens]:
        """The requests to prefill now; none while few wait and others can decode, or while images load."""
        loaded = [request for request in self._waiting if self._has_images(request)]
        ready = [request for request in loaded if self._make_room(request)]
        if loaded and not ready and not self._running:
            # Idle episodes fill the cache. The least recently used one loses it.
            self._forget(next(iter(self._episodes)))
            return self._schedule()
        if len(ready) * _DECODING_PER_WAITING < len(self._running):
            return []
        self._waiting = [request for request in self._waiting if request not in ready]
        return [self._start_request(request) for request in ready]

    def _has_images(self, request: _Request) -> bool:
        return self._loader is None or self._loader.is_ready(request.prompt.images)

    def _make_room(self, request: _Request) -> bool:
        """Reserve room for the prompt and one token. Returns false if there is none."""
        episode_id = request.prompt.episode_id
        episode = self._episodes.get(episode_id)
        if episode is None:
            used = {other.slot for other in self._episodes.values()}
            episode = CachedEpisode(episode_id, min(set(range(len(used) + 1)) - used))
        if not self._passes.reserve(episode, len(request.prompt.token_ids) + 1):
            return False
        self._episodes.setdefault(episode_id, episode)
        return True

    def _start_request(self, request: _Request) -> NewTokens:
        """Rewind the cache to the cached prefix of the prompt."""
        episode = self._episodes[request.prompt.episode_id]
        self._episodes.move_to_end(request.prompt.episode_id)
        start, images = cached_prefix(
            episode, request.prompt, request.image_spans, rewinds=self._passes.rewinds
        )
        del episode.tokens[start:], episode.images[images:]
        self._running[request.prompt.episode_id] = request
        return NewTokens(
            episode=episode,
            start=start,
            row=request.row.suffix(start),
            images=request.prompt.images[images:],
        )

    def _prefill(self, part: Sequence[NewTokens]) -> None:
        """Run new tokens and sample the first token of each answer."""
        try:
            features = self._image_features([image for new in part for image in new.images])
        except BadPng:
            self._fail_undecodable(part)
            return
        logits_BV = self._passes.prefill(part, features)
        for new in part:
            new.episode.tokens.extend(new.row.token_ids)
            new.episode.images.extend(image.sha256 for image in new.images)
            new.episode.position = int(new.row.positions_3T[:, -1].max())
            self.stats.prefilled_tokens += new.width
        self._postprocess([self._running[new.episode.name] for new in part], logits_BV)

    def _fail_undecodable(self, part: Sequence[NewTokens]) -> None:
        """Fail the requests whose screenshots cannot be decoded; the others wait for the next prefill."""
        for new in part:
            request = self._running.pop(new.episode.name)
            try:
                for image in new.images:
                    rgb(image)
            except BadPng as error:
                request.future.set_exception(EngineError("generate", str(error)))
            else:
                self._waiting.append(request)

    def _decode(self) -> None:
        """Run the last sampled token of every running request and sample the next one."""
        running = sorted(self._running.values(), key=self._slot_of)
        for request in running:
            self._grow(request)
        running = [request for request in running if request.prompt.episode_id in self._running]
        episodes = [self._episodes[request.prompt.episode_id] for request in running]
        tokens = [request.tokens[-1] for request in running]
        logits_BV = self._passes.decode(episodes, tokens)
        for episode, token in zip(episodes, tokens, strict=True):
            episode.tokens.append(token)
        self._postprocess(running, logits_BV)

    def _slot_of(self, request: _Request) -> int:
        return self._episodes[request.prompt.episode_id].slot

    def _grow(self, request: _Request) -> None:
        """Make room for one more token. Others lose their cache if necessary, the request itself at last.

        First go idle episodes, the least recently used one first. Then the latest request goes:
        it starts again later and samples the same tokens, because its seed is the same.
        """
        episode_id = request.prompt.episode_id
        while episode_id in self._running:
            episode = self._episodes[episode_id]
            if self._passes.reserve(episode, len(episode.tokens) + 1):
                return
            idle = next((name for name in self._episodes if name not in self._running), None)
            self._forget(idle or self._postpone_latest())

    def _postpone_latest(self) -> str:
        """Let the latest running request wait again. Returns its episode."""
        episode_id, request = self._running.popitem()
        self.stats.decoded_tokens -= len(request.tokens)
        request.tokens.clear()
        request.logprobs.clear()
        request.versions.clear()
        request.alternatives.clear()
        self._waiting.insert(0, request)
        return episode_id

    def _image_features(self, images: Sequence[Screenshot]) -> list[Tensor]:
        """Features of these screenshots in order. The model encodes only those not in the cache."""
        missing = {image.sha256: image for image in images if image.sha256 not in self._features}
        encoded = self._encode(list(missing.values()))
        self.stats.images_encoded += len(encoded)
        self._features.update(encoded)
        self._feature_tokens += sum(map(len, encoded.values()))
        for image in images:
            self._features.move_to_end(image.sha256)
        features = [self._features[image.sha256] for image in images]
        while self._feature_tokens > _MAX_CACHED_FEATURES:
            self._feature_tokens -= len(self._features.popitem(last=False)[1])
        return features

    @torch.no_grad()
    def _encode(self, images: Sequence[Screenshot]) -> dict[str, Tensor]:
        encoded: dict[str, Tensor] = {}
        for batch in batch_by_patches(images, self._renderer, MAX_ENCODED_PATCHES):
            loader = self._loader if _is_large(batch[0]) else None
            encoded |= features_by_sha256(self._model, batch, self._renderer, loader)
        return encoded

    def _postprocess(self, requests: Sequence[_Request], logits_BV: Tensor) -> None:
        temperatures = [request.sampling.temperature for request in requests]
        draws = [request.uniforms[len(request.tokens)] for request in requests]
        tokens, logps = sample(logits_BV, temperatures, draws)
        if count := max(request.sampling.alternatives for request in requests):
            others = likely_others(logits_BV, temperatures, tokens, count)
            for request, found in zip(requests, others, strict=True):
                request.alternatives.append(found[: request.sampling.alternatives])
        self.stats.decoded_tokens += len(requests)
        for request, token, logp in zip(requests, tokens, logps, strict=True):
            request.tokens.append(token)
            request.logprobs.append(logp)
            request.versions.append(self._version)
            self._episodes[request.prompt.episode_id].position += 1
            if token in self._renderer.end_ids:
                self._finish(request, "stop")
            elif len(request.tokens) == request.sampling.max_tokens:
                self._finish(request, "length")

    def _finish(self, request: _Request, finish: str) -> None:
        del self._running[request.prompt.episode_id]
        completion = Completion(
            token_ids=tuple(request.tokens),
            logprobs=tuple(request.logprobs),
            text=self._renderer.decode(request.tokens),
            finish=finish,
            versions=tuple(request.versions),
            alternatives=tuple(request.alternatives) if request.sampling.alternatives else (),
        )
        request.future.set_result(completion)


def _addresses(model: nn.Module) -> list[int]:
    """Captured graphs read the weights there."""
    return [parameter.data_ptr() for parameter in model.parameters()]


def _is_large(screenshot: Screenshot) -> bool:
    """Whether a thread should decode the screenshot. For small ones, a thread costs more than it saves."""
    width, height = screenshot.size
    return width * height >= _MIN_PREFETCHED_PIXELS
