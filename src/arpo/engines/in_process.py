"""Engine in this process: continuous batching over the layers of transformers, in one event loop, no threads.

Each episode keeps its keys and values in a slot across turns, so only new tokens are prefilled. Requests join
and leave at any token. If the prompt no longer matches the cached tokens (the window of screenshots slid),
the slot is rewound to their common prefix. An engine without episodes is in its initial state: slots, caches
and order start again, so a resumed run repeats an uninterrupted one. The engine does not measure time.

    engine = InProcessEngine(model, renderer, slots=8)
    completion = await engine.generate(prompt, Sampling(temperature=1.0, max_tokens=512, seed=0))
    await engine.release(prompt.episode_id)
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arpo.engines.base import Weights
from arpo.engines.cuda_graphs import DecodeGraphs
from arpo.engines.token_sampling import sample, uniforms
from arpo.errors import EngineError
from arpo.models.families import VisionLanguageModel
from arpo.models.forward import EmbeddedRows, TokenRow, embed_rows, features_by_sha256, hidden_states
from arpo.models.kv_cache import SlotCache
from arpo.png import BadPng, rgb
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.types import Completion, Prompt, Sampling, Screenshot

_IDLE_PASSES = 3  # event loop passes without a new request before the next step starts
_DECODING_PER_WAITING = 4  # decoding requests for each waiting one; if there are more, prefill is delayed
_PREFILL_TOKENS = 8192  # per pass, with padding: the mask has this many rows
_MAX_CACHED_FEATURES = 32768  # image tokens


@dataclass(slots=True)
class Stats:
    """Counters since the start of the engine."""

    prefilled_tokens: int = 0
    decoded_tokens: int = 0  # sampled tokens, including the end of turn
    images_encoded: int = 0


@dataclass(slots=True, eq=False)
class _Episode:
    """Contents of a slot: the tokens with cached keys, and the sha256 of their screenshots."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    images: list[str] = field(default_factory=list)


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


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Prefill:
    """A request with the uncached part of its prompt."""

    request: _Request
    episode: _Episode
    start: int  # number of cached tokens of the prompt
    images: tuple[Screenshot, ...]  # images in the rest of the prompt

    @property
    def width(self) -> int:
        return len(self.request.prompt.token_ids) - self.start


class InProcessEngine:
    """`slots` is the number of cached episodes; requests of further episodes wait for a free slot."""

    def __init__(
        self, model: VisionLanguageModel, renderer: Renderer, *, version: int = 0, slots: int
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._version = version
        self._slots = slots
        self.stats = Stats()
        self._waiting: list[_Request] = []
        self._running: dict[int, _Request] = {}  # by slot
        self._runner: asyncio.Task[None] | None = None
        self._graphs: DecodeGraphs | None = None
        self._reset()

    def _reset(self, discard_cache: bool = False) -> None:
        """Return to the initial state.

        CUDA graphs refer to the memory of the cache, so it stays allocated unless it may hold NaNs.
        """
        if self._graphs is None or discard_cache:
            self._cache = SlotCache(
                self._model.config.text_config, self._slots, self._model.dtype, self._model.device
            )
            on_gpu = self._model.device.type == "cuda"
            self._graphs = DecodeGraphs(self._model, self._cache) if on_gpu else None
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()  # least recently used first
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self._lengths, self._tokens, self._positions = np.zeros((3, self._slots), dtype=np.int64)

    async def start(self) -> Sequence[str]:
        return ()

    async def close(self) -> None:
        """Nothing to free: the model belongs to the caller."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one answer. Raises `EngineError` if another request of the episode is unfinished.

        Waits for `_run`, which runs while requests exist and resolves every future, also on failure.
        """
        if any(request.prompt.episode_id == prompt.episode_id for request in self._unfinished()):
            raise EngineError(
                "generate",
                f"episode {prompt.episode_id} has an unfinished request; send one request at a time",
            )
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(self._request(prompt, sampling, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
        return await future

    async def release(self, episode_id: str) -> None:
        for request in self._unfinished():
            if request.prompt.episode_id == episode_id:
                request.future.cancel()
        self._prune()
        self._episodes.pop(episode_id, None)
        if not self._episodes:
            self._reset()

    async def load(self, weights: Weights) -> None:
        """Serve another version. Copies the weights unless the handle is the module of this engine.

        Raises `EngineError` while requests are unfinished.
        """
        if unfinished := len(self._unfinished()):
            raise EngineError("load", f"{unfinished} requests are unfinished; load between batches")
        if not isinstance(weights.handle, nn.Module):
            raise EngineError(
                "load", f"weights.handle is a {type(weights.handle).__name__}; pass a torch module"
            )
        if weights.handle is not self._model:
            self._model.load_state_dict(weights.handle.state_dict())
        self._version = weights.version
        self._reset()

    def _unfinished(self) -> list[_Request]:
        self._prune()
        return [*self._waiting, *self._running.values()]

    def _prune(self) -> None:
        """Forget requests of cancelled callers."""
        self._waiting = [request for request in self._waiting if not request.future.done()]
        self._running = {
            slot: request for slot, request in self._running.items() if not request.future.done()
        }

    def _request(self, prompt: Prompt, sampling: Sampling, future: asyncio.Future[Completion]) -> _Request:
        row = TokenRow.of(prompt.token_ids, prompt.images, self._renderer)
        counts = [
            vision.image_tokens(self._renderer.grid(shot), self._renderer.settings) for shot in prompt.images
        ]
        image_positions = np.flatnonzero(row.image_mask_T).tolist()
        return _Request(
            prompt=prompt,
            sampling=sampling,
            future=future,
            row=row,
            image_spans=[
                (image_positions[end - count], image_positions[end - 1] + 1)
                for end, count in zip(accumulate(counts), counts, strict=True)
            ],
            uniforms=uniforms(sampling.seed, sampling.max_tokens),
        )

    async def _run(self) -> None:
        """Schedule, run, postprocess, until no request is left. Other tasks run between steps."""
        try:
            while True:
                await self._wait_for_requests()
                self._prune()
                if not self._waiting and not self._running:
                    return
                if batch := self._schedule():
                    for part in _split_by_width(batch):
                        try:
                            logits_BV = self._prefill(part)
                        except BadPng:
                            self._fail_undecodable(part)
                        else:
                            self._postprocess([prefill.request for prefill in part], logits_BV)
                else:
                    running = [self._running[slot] for slot in sorted(self._running)]
                    self._postprocess(running, self._decode())
        except BaseException as error:
            for request in self._unfinished():
                request.future.set_exception(EngineError("generate", f"{type(error).__name__}: {error}"))
            self._waiting, self._running = [], {}
            if not isinstance(error, Exception):
                raise  # cancelled between two steps: the cache is still valid
            self._reset(discard_cache=True)

    async def _wait_for_requests(self) -> None:
        """Let episodes with new answers act and send the next request: these then share one prefill."""
        idle = 0
        while idle < _IDLE_PASSES:
            waiting = len(self._waiting)
            await asyncio.sleep(0)
            idle = idle + 1 if len(self._waiting) == waiting else 0

    def _schedule(self) -> list[_Prefill]:
        """The requests to prefill now; none while few wait and others can decode."""
        ready = [request for request in self._waiting if self._assign_slot(request.prompt.episode_id)]
        if not ready and not self._running:
            # Every slot belongs to an idle episode. The least recently used one loses its cache.
            self._episodes.popitem(last=False)
            return self._schedule()
        if len(ready) * _DECODING_PER_WAITING < len(self._running):
            return []
        self._waiting = [request for request in self._waiting if request not in ready]
        return [self._start_request(request) for request in ready]

    def _assign_slot(self, episode_id: str) -> bool:
        """Give the episode a slot. Returns false if all are in use."""
        if episode_id not in self._episodes:
            used = {episode.slot for episode in self._episodes.values()}
            if len(used) == self._slots:
                return False
            slot = min(set(range(self._slots)) - used)
            self._episodes[episode_id] = _Episode(slot)
        return True

    def _start_request(self, request: _Request) -> _Prefill:
        """Rewind the slot to the cached prefix of the prompt."""
        episode = self._episodes[request.prompt.episode_id]
        self._episodes.move_to_end(request.prompt.episode_id)
        start, images = _cached_prefix(episode, request)
        del episode.tokens[start:], episode.images[images:]
        self._running[episode.slot] = request
        return _Prefill(request=request, episode=episode, start=start, images=request.prompt.images[images:])

    def _fail_undecodable(self, part: Sequence[_Prefill]) -> None:
        """Fail the requests whose screenshots cannot be decoded; the others wait for the next prefill."""
        for prefill in part:
            request = self._running.pop(prefill.episode.slot)
            try:
                for image in prefill.images:
                    rgb(image)
            except BadPng as error:
                request.future.set_exception(EngineError("generate", str(error)))
            else:
                self._waiting.append(request)

    @torch.no_grad()
    def _prefill(self, batch: Sequence[_Prefill]) -> Tensor:
        """Run the new tokens of these requests; returns the logits after the last token of each."""
        rows = [prefill.request.row.suffix(prefill.start) for prefill in batch]
        features = self._image_features([image for prefill in batch for image in prefill.images])
        embedded = embed_rows(self._model, rows, features, self._renderer.pad_id)
        slots_B = [prefill.episode.slot for prefill in batch]
        starts_B, widths_B = [prefill.start for prefill in batch], [prefill.width for prefill in batch]
        hidden_BTD = self._hidden(slots_B, starts_B, widths_B, embedded)
        for prefill, row in zip(batch, rows, strict=True):
            prefill.episode.tokens.extend(row.token_ids)
            prefill.episode.images.extend(image.sha256 for image in prefill.images)
            self._lengths[prefill.episode.slot] = len(prefill.episode.tokens)
            self._positions[prefill.episode.slot] = row.positions_3T[:, -1].max()
            self.stats.prefilled_tokens += prefill.width
        last_BD = torch.stack(
            [hidden_TD[width - 1] for width, hidden_TD in zip(widths_B, hidden_BTD, strict=True)]
        )
        logits_BV: Tensor = self._model.lm_head(last_BD)
        return logits_BV

    def _hidden(
        self, slots_B: list[int], starts_B: list[int], widths_B: list[int], embedded: EmbeddedRows
    ) -> Tensor:
        """Hidden states of new tokens. A row too long for one pass comes alone and runs in parts."""
        if max(widths_B) > _PREFILL_TOKENS:
            (start,), (width,) = starts_B, widths_B
            self._cache.reserve(1 + start + width)
            edges = [*range(0, width, _PREFILL_TOKENS), width]
            parts = [
                self._hidden(slots_B, [start + first], [end - first], embedded.slice_tokens(first, end))
                for first, end in pairwise(edges)
            ]
            return torch.cat(parts, 1)
        step = self._cache.step(slots_B, starts_B, widths_B)
        return hidden_states(
            self._model,
            embedded.embeds_BTD,
            embedded.positions_3BT,
            step.mask(),
            step,
            embedded.deepstack,
        )

    @torch.no_grad()
    def _decode(self) -> Tensor:
        """Run the last sampled token of every running request; returns logits in slot order.

        If most slots of a range are running, the idle ones run too: the cache is then read without a copy.
        Their writes lie beyond their length.
        """
        running = sorted(self._running)
        if self._graphs is not None:
            return self._decode_with_graphs(self._graphs, running)
        slots_B = list(range(running[0], running[-1] + 1))
        if len(slots_B) > 2 * len(running):
            slots_B = running
        tokens_B1 = torch.tensor(self._tokens[slots_B][:, None], device=self._model.device)
        positions_B1 = torch.tensor(self._positions[slots_B][:, None], device=self._model.device)
        embeds_B1D = self._model.model.language_model.embed_tokens(tokens_B1)
        starts_B = self._lengths[slots_B].tolist()
        step = self._cache.step(slots_B, starts_B, [1] * len(slots_B))
        positions_3B1 = positions_B1.expand(3, -1, -1)
        hidden_B1D = hidden_states(self._model, embeds_B1D, positions_3B1, step.mask(), step)
        self._record_decoded(running)
        rows = [slot - slots_B[0] for slot in running] if len(slots_B) > len(running) else slice(None)
        logits_BV: Tensor = self._model.lm_head(hidden_B1D[rows, 0])
        return logits_BV

    def _decode_with_graphs(self, graphs: DecodeGraphs, running: list[int]) -> Tensor:
        inputs_3S = np.stack((self._tokens, self._positions, self._lengths))
        logits_SV = graphs.logits(inputs_3S, running[-1] + 1, int(self._lengths[running].max()))
        self._record_decoded(running)
        return logits_SV[running]

    def _record_decoded(self, running: list[int]) -> None:
        for slot in running:
            self._episodes[self._running[slot].prompt.episode_id].tokens.append(int(self._tokens[slot]))
        self._lengths[running] += 1

    def _image_features(self, images: Sequence[Screenshot]) -> list[Tensor]:
        """Features of these screenshots in order. The model encodes only those not in the cache."""
        missing = [image for image in images if image.sha256 not in self._features]
        encoded = features_by_sha256(self._model, missing, self._renderer)
        self.stats.images_encoded += len(encoded)
        self._features.update(encoded)
        for image in images:
            self._features.move_to_end(image.sha256)
        features = [self._features[image.sha256] for image in images]
        while sum(map(len, self._features.values())) > _MAX_CACHED_FEATURES:
            self._features.popitem(last=False)
        return features

    def _postprocess(self, requests: Sequence[_Request], logits_BV: Tensor) -> None:
        temperatures = [request.sampling.temperature for request in requests]
        draws = [request.uniforms[len(request.tokens)] for request in requests]
        device = logits_BV.device
        token_B, logp_B = sample(
            logits_BV, torch.tensor(temperatures, device=device), torch.tensor(draws, device=device)
        )
        self.stats.decoded_tokens += len(requests)
        for request, token, logp in zip(requests, token_B.tolist(), logp_B.tolist(), strict=True):
            request.tokens.append(token)
            request.logprobs.append(logp)
            slot = self._episodes[request.prompt.episode_id].slot
            self._tokens[slot] = token
            self._positions[slot] += 1
            if token in self._renderer.end_ids:
                self._finish(slot, "stop")
            elif len(request.tokens) == request.sampling.max_tokens:
                self._finish(slot, "length")

    def _finish(self, slot: int, finish: str) -> None:
        request = self._running.pop(slot)
        completion = Completion(
            token_ids=tuple(request.tokens),
            logprobs=tuple(request.logprobs),
            text=self._renderer.decode(request.tokens),
            finish=finish,
            policy_version=self._version,
        )
        request.future.set_result(completion)


def _cached_prefix(episode: _Episode, request: _Request) -> tuple[int, int]:
    """Number of tokens and images of the prompt already in the slot.

    The last token always runs again. An image is never split: its tokens do not identify its content.
    """
    prompt = request.prompt
    limit = min(len(episode.tokens), len(prompt.token_ids) - 1)
    equal = np.asarray(episode.tokens[:limit]) == np.asarray(prompt.token_ids[:limit])
    tokens = limit if equal.all() else int(equal.argmin())
    images = 0
    for shot, cached_sha256, (first, end) in zip(
        prompt.images, episode.images, request.image_spans, strict=False
    ):
        if shot.sha256 != cached_sha256 or end > tokens:
            tokens = min(tokens, int(first))
            break
        images += 1
    return tokens, images


def _split_by_width(batch: Sequence[_Prefill]) -> Iterator[list[_Prefill]]:
    """Parts of similar width, to limit padding, and of at most `_PREFILL_TOKENS` tokens."""
    part: list[_Prefill] = []
    for prefill in sorted(batch, key=lambda prefill: prefill.width):
        if part and (prefill.width > 2 * part[0].width or prefill.width * (len(part) + 1) > _PREFILL_TOKENS):
            yield part
            part = []
        part.append(prefill)
    yield part
