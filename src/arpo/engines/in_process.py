"""The engine in this process: continuous batching over transformers' own layers, one event loop, no threads.

Each episode keeps its keys and values in a slot across turns, so only tokens that are new are ever prefilled.
Requests join and leave at any token. What was cached and no longer fits the prompt (the window of screenshots
slid) is rewound to where both still agree. An engine that holds no episode is as if new: slots, caches and
order begin again, so a resumed run repeats a run that was never stopped. It does not measure time.
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
from arpo.engines.sampling import sample, uniforms
from arpo.errors import EngineError
from arpo.models.families import VisionLanguageModel
from arpo.models.forward import Embedded, TokenRow, embed_rows, features_by_name, hidden_states
from arpo.models.kv_cache import SlotCache
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.types import Completion, Prompt, Sampling, Screenshot

_PATIENCE = 3  # passes of the event loop without a new request before the next step begins
_GATHER = 4  # a prefill waits until one request has gathered for so many that are decoding
_PREFILL_TOKENS = 8192  # of one pass, with padding: its mask is so many times all tokens before
_FEATURES_KEPT = 32768  # image tokens whose features are remembered


@dataclass(slots=True)
class Stats:
    prefilled_tokens: int = 0
    decoded_tokens: int = 0  # sampled, the end of turn included
    images_encoded: int = 0


@dataclass(slots=True, eq=False)
class _Episode:
    """What a slot holds: the tokens whose keys are cached, and the screenshots among them."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    images: list[str] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class _Request:
    prompt: Prompt
    sampling: Sampling
    future: asyncio.Future[Completion]
    row: TokenRow
    image_spans: list[tuple[int, int]]  # first token and the one after the last, of each image
    uniforms: NDArray[np.float64]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _Prefill:
    request: _Request
    episode: _Episode
    start: int  # tokens of the prompt that the slot already holds
    images: tuple[Screenshot, ...]  # those in the rest

    @property
    def width(self) -> int:
        return len(self.request.prompt.token_ids) - self.start


class HFEngine:
    """`slots` is how many episodes are kept at once; requests of others wait for one to be released."""

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
        self._driver: asyncio.Task[None] | None = None
        self._graphs: DecodeGraphs | None = None
        self._reset()

    def _reset(self, spoilt: bool = False) -> None:
        """Hold nothing. Recorded graphs know the cache by its place, so it stays unless it may hold NaNs."""
        if self._graphs is None or spoilt:
            self._cache = SlotCache(
                self._model.config.text_config, self._slots, self._model.dtype, self._model.device
            )
            on_gpu = self._model.device.type == "cuda"
            self._graphs = DecodeGraphs(self._model, self._cache) if on_gpu else None
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()  # the longest unused first
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self._lengths, self._tokens, self._positions = np.zeros((3, self._slots), dtype=np.int64)

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Waits for the driver, which runs while anything waits and sets every future, also when it fails."""
        if any(request.prompt.episode_id == prompt.episode_id for request in self._unfinished()):
            raise EngineError("generate", f"episode {prompt.episode_id} already waits for an answer")
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(self._request(prompt, sampling, future))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
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
        """Serve another version: of the very module that runs here, or of one whose weights are copied."""
        if unfinished := len(self._unfinished()):
            raise EngineError("load", f"{unfinished} requests are unfinished; load between batches")
        if not isinstance(weights.handle, nn.Module):
            raise EngineError("load", f"a module is needed, not {type(weights.handle).__name__}")
        if weights.handle is not self._model:
            self._model.load_state_dict(weights.handle.state_dict())
        self._version = weights.version
        self._reset()

    def _unfinished(self) -> list[_Request]:
        self._prune()
        return [*self._waiting, *self._running.values()]

    def _prune(self) -> None:
        """Forget requests whose caller is gone."""
        self._waiting = [request for request in self._waiting if not request.future.done()]
        self._running = {
            slot: request for slot, request in self._running.items() if not request.future.done()
        }

    def _request(self, prompt: Prompt, sampling: Sampling, future: asyncio.Future[Completion]) -> _Request:
        row = TokenRow.of(prompt.token_ids, prompt.images, self._renderer)
        counts = [
            vision.image_tokens(self._renderer.grid(shot), self._renderer.settings) for shot in prompt.images
        ]
        places = np.flatnonzero(row.slots_T).tolist()
        return _Request(
            prompt=prompt,
            sampling=sampling,
            future=future,
            row=row,
            image_spans=[
                (places[end - count], places[end - 1] + 1)
                for end, count in zip(accumulate(counts), counts, strict=True)
            ],
            uniforms=uniforms(sampling.seed, sampling.max_tokens),
        )

    async def _drive(self) -> None:
        """Schedule, run, postprocess, until nothing is left. Between steps everyone else gets a turn."""
        try:
            while True:
                await self._gather()
                self._prune()
                if not self._waiting and not self._running:
                    return
                if batch := self._schedule():
                    for part in _ragged(batch):
                        self._postprocess([one.request for one in part], self._prefill(part))
                else:
                    running = [self._running[slot] for slot in sorted(self._running)]
                    self._postprocess(running, self._decode())
        except BaseException as error:
            for request in self._unfinished():
                request.future.set_exception(EngineError("generate", f"{type(error).__name__}: {error}"))
            self._waiting, self._running = [], {}
            if not isinstance(error, Exception):
                raise  # cancelled between two steps: what is cached is still sound
            self._reset(spoilt=True)

    async def _gather(self) -> None:
        """Let episodes whose answers are ready act and ask again: their requests then share one prefill."""
        quiet = 0
        while quiet < _PATIENCE:
            waiting = len(self._waiting)
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == waiting else 0

    def _schedule(self) -> list[_Prefill]:
        """The requests to prefill now; none while few wait and others can decode meanwhile."""
        seated = [request for request in self._waiting if self._seat(request.prompt.episode_id)]
        if not seated and not self._running:
            # Every slot is held by an episode that is away. The one away longest gives up its cache.
            self._episodes.popitem(last=False)
            return self._schedule()
        if len(seated) * _GATHER < len(self._running):
            return []
        self._waiting = [request for request in self._waiting if request not in seated]
        return [self._admit(request) for request in seated]

    def _seat(self, episode_id: str) -> bool:
        if episode_id not in self._episodes:
            taken = {episode.slot for episode in self._episodes.values()}
            if len(taken) == self._slots:
                return False
            slot = min(set(range(self._slots)) - taken)
            self._episodes[episode_id] = _Episode(slot)
        return True

    def _admit(self, request: _Request) -> _Prefill:
        episode = self._episodes[request.prompt.episode_id]
        self._episodes.move_to_end(request.prompt.episode_id)
        start, images = _agreement(episode, request)
        del episode.tokens[start:], episode.images[images:]
        self._running[episode.slot] = request
        return _Prefill(request=request, episode=episode, start=start, images=request.prompt.images[images:])

    @torch.no_grad()
    def _prefill(self, batch: Sequence[_Prefill]) -> Tensor:
        """Run the new tokens of these requests; logits after the last of each."""
        rows = [one.request.row.after(one.start) for one in batch]
        features = self._image_features([image for one in batch for image in one.images])
        embedded = embed_rows(self._model, rows, features, self._renderer.pad_id)
        slots_B = [one.episode.slot for one in batch]
        starts_B, widths_B = [one.start for one in batch], [one.width for one in batch]
        hidden_BTD = self._hidden(slots_B, starts_B, widths_B, embedded)
        for one, row in zip(batch, rows, strict=True):
            one.episode.tokens.extend(row.token_ids)
            one.episode.images.extend(image.sha256 for image in one.images)
            self._lengths[one.episode.slot] = len(one.episode.tokens)
            self._positions[one.episode.slot] = row.positions_3T[:, -1].max()
            self.stats.prefilled_tokens += one.width
        last_BD = torch.stack(
            [hidden_TD[width - 1] for width, hidden_TD in zip(widths_B, hidden_BTD, strict=True)]
        )
        logits_BV: Tensor = self._model.lm_head(last_BD)
        return logits_BV

    def _hidden(
        self, slots_B: list[int], starts_B: list[int], widths_B: list[int], embedded: Embedded
    ) -> Tensor:
        """Hidden states of new tokens. A row that is too long for one pass is alone, and run in parts."""
        if max(widths_B) > _PREFILL_TOKENS:
            (start,), (width,) = starts_B, widths_B
            self._cache.reserve(1 + start + width)
            edges = [*range(0, width, _PREFILL_TOKENS), width]
            parts = [
                self._hidden(slots_B, [start + first], [end - first], embedded.between(first, end))
                for first, end in pairwise(edges)
            ]
            return torch.cat(parts, 1)
        cached = self._cache.step(slots_B, starts_B, widths_B)
        return hidden_states(
            self._model,
            embedded.embeds_BTD,
            embedded.positions_3BT,
            cached.mask(),
            cached,
            embedded.deepstack,
        )

    @torch.no_grad()
    def _decode(self) -> Tensor:
        """Run the last sampled token of every running request; logits of each, in the order of slots.

        Where most slots of a range run, the idle ones between them run along, and the cache is read in place:
        what that writes lies beyond their length.
        """
        running = sorted(self._running)
        if self._graphs is not None:
            return self._replay(self._graphs, running)
        slots_B = list(range(running[0], running[-1] + 1))
        if len(slots_B) > 2 * len(running):
            slots_B = running
        tokens_B1 = torch.tensor(self._tokens[slots_B][:, None], device=self._model.device)
        positions_B1 = torch.tensor(self._positions[slots_B][:, None], device=self._model.device)
        embeds_B1D = self._model.model.language_model.embed_tokens(tokens_B1)
        starts_B = self._lengths[slots_B].tolist()
        cached = self._cache.step(slots_B, starts_B, [1] * len(slots_B))
        positions_3B1 = positions_B1.expand(3, -1, -1)
        hidden_B1D = hidden_states(self._model, embeds_B1D, positions_3B1, cached.mask(), cached)
        self._decoded(running)
        places = [slot - slots_B[0] for slot in running] if len(slots_B) > len(running) else slice(None)
        logits_BV: Tensor = self._model.lm_head(hidden_B1D[places, 0])
        return logits_BV

    def _replay(self, graphs: DecodeGraphs, running: list[int]) -> Tensor:
        inputs_3S = np.stack((self._tokens, self._positions, self._lengths))
        logits_SV = graphs.logits(inputs_3S, running[-1] + 1, int(self._lengths[running].max()))
        self._decoded(running)
        return logits_SV[running]

    def _decoded(self, running: list[int]) -> None:
        for slot in running:
            self._episodes[self._running[slot].prompt.episode_id].tokens.append(int(self._tokens[slot]))
        self._lengths[running] += 1

    def _image_features(self, images: Sequence[Screenshot]) -> list[Tensor]:
        """Features of these screenshots in order; the model sees only those that it has not seen lately."""
        unseen = [image for image in images if image.sha256 not in self._features]
        encoded = features_by_name(self._model, unseen, self._renderer)
        self.stats.images_encoded += len(encoded)
        self._features.update(encoded)
        for image in images:
            self._features.move_to_end(image.sha256)
        features = [self._features[image.sha256] for image in images]
        while sum(map(len, self._features.values())) > _FEATURES_KEPT:
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
            if token == self._renderer.end_of_turn_id:
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


def _agreement(episode: _Episode, request: _Request) -> tuple[int, int]:
    """How many tokens and images of the prompt the slot already holds.

    At least the last token is left to run, and no image is cut: its tokens alone do not say what it shows.
    """
    prompt = request.prompt
    limit = min(len(episode.tokens), len(prompt.token_ids) - 1)
    same = np.asarray(episode.tokens[:limit]) == np.asarray(prompt.token_ids[:limit])
    tokens = limit if same.all() else int(same.argmin())
    images = 0
    for shot, cached, (first, end) in zip(prompt.images, episode.images, request.image_spans, strict=False):
        if shot.sha256 != cached or end > tokens:
            tokens = min(tokens, int(first))
            break
        images += 1
    return tokens, images


def _ragged(batch: Sequence[_Prefill]) -> Iterator[list[_Prefill]]:
    """Parts whose widths are alike, so that little of a prefill is padding, and which are not too large."""
    part: list[_Prefill] = []
    for one in sorted(batch, key=lambda one: one.width):
        if part and (one.width > 2 * part[0].width or one.width * (len(part) + 1) > _PREFILL_TOKENS):
            yield part
            part = []
        part.append(one)
    yield part
