"""One vLLM server: prompts in, sampled tokens out, and its weights.

A label names the weights of a server. vLLM reports it for every token. Full weights replace those of
the model while the requests on the server pause; then their caches are computed again. LoRA adapters are
loaded next to the older ones under their label, and each request names the label that it wants.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from arpo.engines.http_exchange import (
    HttpExchange,
    TransientError,
    first_line,
    one_line,
    parse_json,
    refusal,
)
from arpo.errors import EngineError
from arpo.prompts.rendering import Renderer
from arpo.storage.published_weights import PublishedWeights
from arpo.types import Prompt, Sampling, Screenshot

UNCHANGED = "default"  # vLLM's label of its first weights
NO_WEIGHTS = "none"  # our label after they were dropped
MAX_FLOAT = sys.float_info.max
MAX_TEMPERATURE = 2.0  # that vLLM accepts
_LOADING = "loading"  # label of a mixture of two versions
ANSWER_SECONDS = 600.0  # timeout of one answer
LOAD_SECONDS = 300.0  # timeout of loading new weights into a server
_STATE_SECONDS = 30.0  # timeout of questions about a server's state
_MAX_KNOWN_IMAGES = 10_000
_PROMPT_TOKENS = re.compile(r'"prompt_token_ids": ?\[')
_FIRST_TOKENS = 30  # characters, to find the separator
_BUSY = (404, 408, 409, 425, 429)  # 404: the server has restarted and lost the adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A sampled answer. `labels` name the weights of each token."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str  # stop | length
    labels: tuple[str, ...]
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The name of a server's model, and the length of its context in tokens."""

    name: str
    max_tokens: int


class VllmClient:
    """A server at `url`. Methods raise TransientError if it does not answer as it should.

    `lora`: new weights are adapters. `trains_vision`: they change the features of screenshots.
    """

    def __init__(
        self,
        url: str,
        http: HttpExchange,
        renderer: Renderer,
        *,
        lora: bool,
        trains_vision: bool,
        answer_seconds: float = ANSWER_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        self.url = url
        self._http, self._renderer = http, renderer
        self._answer_seconds, self._load_seconds = answer_seconds, load_seconds
        self._lora, self._trains_vision = lora, trains_vision
        self._known_images: set[str] = set()  # probably in the server's cache

    async def model(self) -> ServedModel:
        first = (await self._models())[0]
        if not isinstance(first.get("max_model_len"), int):
            raise TransientError(f"{self.url}: /v1/models did not answer like vLLM")
        return ServedModel(name=one_line(first["id"]), max_tokens=first["max_model_len"])

    async def accepts_adapters(self) -> bool:
        """Whether the server was started for LoRA: it then refuses an adapter without a name."""
        nameless = json.dumps({"lora_name": "", "lora_path": ""}).encode()
        url = self.url + "/v1/load_lora_adapter"
        status, _, _ = await self._http.request("POST", url, nameless, _STATE_SECONDS)
        return status != 404

    async def has_weights(self, label: str) -> bool:
        """Whether the server serves these weights now. Asks its engine process, so a hanging one is found."""
        found = await self._call("GET", "/weight_info", None, _STATE_SECONDS)
        paused = await self._call("GET", "/is_paused", None, _STATE_SECONDS)
        if not isinstance(found, dict) or not isinstance(paused, dict):
            raise TransientError(f"{self.url}: /weight_info did not answer like vLLM")
        if paused.get("is_paused"):
            return False
        if self._lora and label != UNCHANGED:
            return label in [model["id"] for model in await self._models()]
        return bool(found.get("weight_version") == label)

    async def load(self, published: PublishedWeights, label: str) -> None:
        """Load published weights, and compare their checksums.

        After a failure the weights are unknown, and requests stay paused. Adapters are unloaded then.
        Raises UserError if the folder has no checksums.
        """
        load, sums = self._load_adapter if self._lora else self._load_full, published.checksums()
        await load(published, label, sums)

    async def _load_full(self, published: PublishedWeights, label: str, sums: Mapping[str, int]) -> None:
        await self._change("/pause?mode=keep&clear_cache=false")
        await self._change("/update_weight_version", {"new_version": _LOADING})
        await self._check_sums("load_published_weights", published, sums)
        # Running requests compute their keys and values again. The processed images stay cached: they do not
        # depend on weights.
        reset = await self._change("/reset_prefix_cache?reset_running_requests=true")
        if reset != {"success": True}:
            raise TransientError(f"{self.url}: the prefix cache was not reset")
        if self._trains_vision:
            await self._change("/reset_encoder_cache")
        await self._change("/update_weight_version", {"new_version": label})
        await self._change("/resume")

    async def _load_adapter(self, published: PublishedWeights, label: str, sums: Mapping[str, int]) -> None:
        folder = str(published.folder)
        await self._change("/v1/load_lora_adapter", {"lora_name": label, "lora_path": folder})
        try:
            await self._check_sums("adapter_checksums", published, sums)
        except TransientError:
            await self._change("/v1/unload_lora_adapter", {"lora_name": label})
            raise
        adapters = [model["id"] for model in await self._models() if model.get("parent")]
        for old in adapters[:-2]:  # running requests may still use the previous one
            await self._change("/v1/unload_lora_adapter", {"lora_name": old})

    async def _check_sums(self, method: str, published: PublishedWeights, sums: Mapping[str, int]) -> None:
        """Call a method of all workers, which return checksums. Raises TransientError if one is wrong."""
        answer = await self._change("/collective_rpc", {"method": method, "args": [str(published.folder)]})
        try:
            different = different_tensors(sums, chain(*answer["results"]))
        except (KeyError, TypeError, ValueError) as error:
            raise TransientError(f"{self.url}: returned no checksums of its weights: {error}") from error
        if different:
            raise TransientError(
                f"{self.url}: after loading version {published.version}, {len(different)} tensors differ "
                f"from the learner's, such as {different[0]}"
            )

    async def sleep(self) -> None:
        """Release the memory of the GPU. Without adapters, the weights are dropped: `load` must follow.

        With adapters, the weights move to CPU memory, which takes some seconds.
        """
        if not self._lora:
            await self._change("/update_weight_version", {"new_version": NO_WEIGHTS})
        await self._change(f"/sleep?level={1 if self._lora else 2}")

    async def wake(self) -> None:
        await self._change("/wake_up")

    async def generate(self, prompt: Prompt, sampling: Sampling, label: str) -> Answer:
        """Sample an answer. Raises EngineError if the server reads the prompt in another way than we do."""
        parameters = {
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            "logprobs": sampling.alternatives and sampling.alternatives + 1,  # the first is the sampled token
            "ignore_eos": True,  # exactly our end tokens end an answer
            "stop_token_ids": sorted(self._renderer.end_ids),
            "detokenize": False,
        }
        seconds = self._answer_seconds
        response = await self._ask(prompt.token_ids, prompt.images, parameters, label, seconds)
        try:
            return self._answer(response, sampling, label)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise TransientError(f"{self.url}: status 200, but without an answer: {error}") from error

    async def score(
        self, token_ids: Sequence[int], images: Sequence[Screenshot], label: str
    ) -> tuple[float, ...]:
        """Log-probabilities of all tokens but the first, at temperature 1."""
        parameters = {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 1.0, "detokenize": False}
        response = await self._ask(token_ids, images, parameters, label, self._load_seconds)
        try:
            found = response["prompt_logprobs"][1:]
            pairs = zip(token_ids[1:], found, strict=True)
            return tuple(_logprob(place[str(token)]["logprob"]) for token, place in pairs)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TransientError(f"{self.url}: status 200, but without log-probabilities: {error}") from error

    async def _ask(
        self,
        token_ids: Sequence[int],
        images: Sequence[Screenshot],
        parameters: dict[str, Any],
        label: str,
        seconds: float,
    ) -> dict[str, Any]:
        """The response to a prompt. Known images are sent by their hash; after a miss, all in full."""
        names = {image.sha256 for image in images}
        known = names & self._known_images
        tokens_T = np.fromiter(token_ids, np.int64, len(token_ids))  # asarray takes twice as long
        body = {
            "token_ids": self._one_token_per_image(tokens_T, images),
            "sampling_params": parameters,
            "return_token_ids": True,
            **({"model": label} if self._lora and label != UNCHANGED else {}),
        }
        status, text = await self._generate(body, images, known, seconds)
        if status != 200 and known:
            self._known_images -= names
            status, text = await self._generate(body, images, set(), seconds)
        if status != 200:
            detail = f"{self.url}: status {status}: {first_line(text)}"
            if status in _BUSY or status >= 500:
                raise TransientError(detail)
            raise refusal(status, text)("generate", detail, host=self.url)
        if len(self._known_images) > _MAX_KNOWN_IMAGES:
            self._known_images.clear()
        self._known_images |= names
        text, same = cut_prompt(text, tokens_T)
        response = self._object(text)
        if not isinstance(read := response.get("prompt_token_ids"), list):
            raise TransientError(f"{self.url}: status 200, but without the tokens of the prompt")
        if read != ([] if same else list(token_ids)):
            raise EngineError(
                "generate",
                f"{self.url}: the server reads the prompt as other tokens. Start it with the same model, "
                "model.min_pixels and model.max_pixels, or with `arpo serve`",
                host=self.url,
            )
        return response

    async def _generate(
        self, body: dict[str, Any], images: Sequence[Screenshot], known: set[str], seconds: float
    ) -> tuple[int, str]:
        parts = b", ".join(_content_part(image, known=image.sha256 in known) for image in images)
        encoded = b'%b, "content_parts": [%b]}' % (json.dumps(body).encode().removesuffix(b"}"), parts)
        status, text, _ = await self._http.request(
            "POST", self.url + "/inference/v1/generate", encoded, seconds
        )
        return status, text

    def _one_token_per_image(self, tokens_T: NDArray[np.int64], images: Sequence[Screenshot]) -> list[int]:
        """vLLM expands each image token to as many as the image has."""
        slots = self._renderer.image_slots(tokens_T, [self._renderer.grid(image) for image in images])
        repeated = slots & np.concatenate(([False], slots[:-1]))
        return tokens_T[~repeated].tolist()

    def _answer(self, response: dict[str, Any], sampling: Sampling, label: str) -> Answer:
        """Raises ValueError or the like if something is missing or contradicts itself."""
        (choice,) = response["choices"]
        tokens, finish = choice["token_ids"], choice["finish_reason"]
        content = choice["logprobs"]["content"]
        if [entry["token_id"] for entry in content] != tokens or not all(type(t) is int for t in tokens):
            raise ValueError("its log-probabilities are of other tokens")
        ends = [token in self._renderer.end_ids for token in tokens]
        stopped = ends == [*[False] * (len(tokens) - 1), True]
        cut = len(tokens) == sampling.max_tokens and not any(ends)
        if not (stopped if finish == "stop" else finish == "length" and cut):
            raise ValueError(f"{len(tokens)} tokens end with {one_line(str(finish))!r}")
        if self._lora and label != UNCHANGED:
            labels = [response["model"]] * len(tokens)
        else:
            labels = _spread(choice["weight_versions"], len(tokens))
        return Answer(
            token_ids=tuple(tokens),
            logprobs=tuple(_logprob(entry["logprob"]) for entry in content),
            finish=finish,
            labels=tuple(labels),
            alternatives=tuple(map(_others, content)) if sampling.alternatives else (),
        )

    async def _models(self) -> list[dict[str, Any]]:
        found = await self._call("GET", "/v1/models", None, _STATE_SECONDS)
        models = found.get("data") if isinstance(found, dict) else None
        if not models or not all(
            isinstance(model, dict) and isinstance(model.get("id"), str) for model in models
        ):
            raise TransientError(f"{self.url}: /v1/models did not answer like vLLM")
        return models

    async def _change(self, route: str, body: dict[str, Any] | None = None) -> Any:
        return await self._call("POST", route, body, self._load_seconds)

    async def _call(self, method: str, route: str, body: dict[str, Any] | None, seconds: float) -> Any:
        encoded = None if body is None else json.dumps(body).encode()
        status, text, _ = await self._http.request(method, self.url + route, encoded, seconds)
        if status != 200:
            raise TransientError(f"{self.url}{quote(route, '/?=&')}: status {status}: {first_line(text)}")
        try:
            return parse_json(text)
        except ValueError:
            return None  # some routes answer with a word or nothing

    def _object(self, text: str) -> dict[str, Any]:
        try:
            value = parse_json(text)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise TransientError(f"{self.url}: status 200, but without an answer: {first_line(text)}")
        return value


def different_tensors(expected: Mapping[str, int], found: Iterable[tuple[str, str, int]]) -> list[str]:
    """Names of the tensors that are missing or have another checksum.

    `found` has the name, region and sum of each part. Regions that several workers hold count once.

    >>> different_tensors({"a": 5, "b": 7}, [("a", "0", 2), ("a", "1", 3), ("b", "0", 7), ("b", "0", 7)])
    []
    """
    regions: dict[str, dict[str, set[int]]] = {}
    for name, region, total in found:
        regions.setdefault(name, {}).setdefault(region, set()).add(int(total))
    return [
        name
        for name, total in expected.items()
        if name not in regions
        or any(len(sums) > 1 for sums in regions[name].values())
        or sum(chain(*regions[name].values())) != total
    ]


def _spread(spans: Sequence[dict[str, Any]], tokens: int) -> list[str]:
    """The label of each token, from spans {"version": "a", "start": 0, "end": 3}."""
    labels: list[str] = []
    for span in spans:
        if span["start"] != len(labels) or not 0 <= span["end"] - span["start"] <= tokens:
            raise ValueError("its weight versions have a gap")
        labels += [str(span["version"])] * (span["end"] - span["start"])
    if len(labels) != tokens:
        raise ValueError(f"{len(labels)} weight versions for {tokens} tokens")
    return labels


def _others(entry: dict[str, Any]) -> tuple[tuple[int, float], ...]:
    """The candidates of a sampled token other than itself."""
    found = ((one["token_id"], _logprob(one["logprob"])) for one in entry["top_logprobs"])
    return tuple((int(token), logprob) for token, logprob in found if token != entry["token_id"])


def _logprob(value: Any) -> float:
    if type(value) not in (int, float) or not -MAX_FLOAT <= value <= 1e-3:
        raise ValueError(f"{one_line(str(value))!r} is no log-probability")
    return float(value)


def _content_part(image: Screenshot, *, known: bool) -> bytes:
    """An image of a request as JSON; a known one without its pixels.

    Base64 has nothing to escape. json.dumps would look for it: 5 ms for a screenshot of 640 kB.
    """
    url = b"null" if known else b'"data:image/png;base64,%b"' % base64.b64encode(image.png)
    return b'{"type": "image_url", "url": %b, "uuid": "%b"}' % (url, image.sha256.encode())


def cut_prompt(text: str, tokens_T: NDArray[np.int64]) -> tuple[str, bool]:
    """If the list `prompt_token_ids` is exactly these tokens, the text with an empty list, and True.

    A prompt with 15 screenshots has 43,000 tokens. To parse them blocks the event loop for 4 ms; to compare
    them as text takes less than half of it.

    >>> cut_prompt('{"prompt_token_ids":[7,9,9],"choices":[]}', np.array([7, 9, 9]))
    ('{"prompt_token_ids":[],"choices":[]}', True)
    """
    if (found := _PROMPT_TOKENS.search(text)) is None:
        return text, False
    start = found.end()
    separator = ", " if ", " in text[start : start + _FIRST_TOKENS] else ","
    own = _as_text(tokens_T, separator)
    if not text.startswith(f"{own}]", start):
        return text, False
    return text[:start] + text[start + len(own) :], True


def _as_text(tokens_T: NDArray[np.int64], separator: str) -> str:
    """Runs of equal tokens (images) are repeated as text."""
    edges = np.flatnonzero(np.diff(tokens_T)) + 1
    starts = np.concatenate(([0], edges))
    counts = np.diff(starts, append=len(tokens_T)).tolist()
    runs = zip(tokens_T[starts].tolist(), counts, strict=True)
    return "".join([f"{token}{separator}" * count for token, count in runs]).removesuffix(separator)
