"""Why engine and learner disagree (`arpo doctor --gap RUN`).

The engine's log-probabilities of sampled tokens are stored with the episodes. The learner's weights at that
time are in a checkpoint. This module scores stored answers with these weights, first as the recipe says, then
with one thing changed at a time: another temperature, other pictures, another prompt, other weights, another
dtype. A change that makes the learner agree with the engine is what the engine does differently.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arpo.algorithms.losses import k3
from arpo.algorithms.samples import scored_answer
from arpo.config import Config
from arpo.config.recipe import load_recorded_model
from arpo.errors import UserError
from arpo.learner.saved_state import read_counters
from arpo.models.forward import sampled_logprobs
from arpo.models.loading import DTYPES, load_model, load_renderer, resolve_model
from arpo.models.lora import adapters_disabled
from arpo.models.trainable import set_trainable
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.reporting.gap import DTYPE, PICTURES, SAMPLING, TEMPLATE, WEIGHTS, Gap, TokenGap, Tried
from arpo.storage.checkpoint import CHECKPOINTS, LEARNER, Checkpoint, intact_checkpoints
from arpo.storage.codec import EVALUATED, SEED
from arpo.storage.run_folder import GAP, RECIPE, RunFolderReader, write_atomically
from arpo.training.export import fill_from_checkpoint
from arpo.types import Sample, Screenshot, Trajectory

MIN_TOKENS = 192  # that are compared, if there are as many
MAX_EPISODES = 64  # that are read for them
WORST = 8  # shown tokens
LARGEST = 1e9  # JSON has no infinity
TEMPERATURES = (0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """A stored answer with its prompt. `logprobs` are the engine's."""

    episode: str
    step: int
    question: tuple[int, ...]
    images: tuple[Screenshot, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    def sample(self) -> Sample:
        return scored_answer(self.question, self.images, self.tokens, self.logprobs)


_Change = Callable[[_Answer], _Answer | None]  # None: it cannot be changed in this way


def find_gap(folder: Path) -> Gap:
    """Measure the disagreement in a run folder and try to explain it. Also stores it there, for the viewer.

    Loads the model of the run in this process. Raises UserError if no checkpoint has the weights of a stored
    episode.
    """
    if not (folder / RECIPE).is_file():
        raise UserError(f"{folder}: not a run folder: {RECIPE} is missing: give the folder of a run")
    config = load_recorded_model(folder / RECIPE)
    reader = RunFolderReader(folder)
    try:
        checkpoints = intact_checkpoints(folder / CHECKPOINTS)
        checkpoint, answers, temperature = _choose(reader, checkpoints, config)
        others = [one for one in checkpoints if one is not checkpoint]
        gap = _Comparison(config, checkpoint, answers, temperature).explain(others)
    finally:
        reader.close()
    write_atomically(folder / GAP, json.dumps(asdict(gap)) + "\n")
    return gap


def _choose(
    reader: RunFolderReader, checkpoints: Sequence[Checkpoint], config: Config
) -> tuple[Checkpoint, list[_Answer], float]:
    """A checkpoint, answers that its weights have sampled, and their temperature. Training episodes first."""
    stored = [
        one
        for one in reader.episodes()
        if one.has_tokens and reader.has_screenshots(one) and not one.episode_id.startswith(f"{SEED}-")
    ]
    for evaluated, temperature in ((False, config.rollout.temperature), (True, config.eval.temperature)):
        for checkpoint in checkpoints:
            version = read_counters(checkpoint.path / LEARNER).version
            found = [
                reader.load_trajectory(one.episode_id)
                for one in stored
                if one.policy_version == version and one.episode_id.startswith(EVALUATED) == evaluated
            ][:MAX_EPISODES]
            if found and temperature > 0 and (answers := _answers(found, version)):
                return checkpoint, answers, temperature
    raise UserError(
        f"{reader.folder}: no stored answer was sampled with the weights of a checkpoint in {CHECKPOINTS}: "
        "train one more batch, or keep more of them (store.keep_checkpoints)"
    )


def _answers(episodes: Sequence[Trajectory], version: int) -> list[_Answer]:
    """Answers until there are enough tokens: the last one of each episode, then the others."""
    by_episode = [list(_answers_of(one, version))[::-1] for one in episodes]
    longest = max(map(len, by_episode))
    in_turn = (found[index] for index in range(longest) for found in by_episode if index < len(found))
    chosen: list[_Answer] = []
    for answer in in_turn:
        if sum(len(one.tokens) for one in chosen) >= MIN_TOKENS:
            break
        chosen.append(answer)
    return chosen


def _answers_of(episode: Trajectory, version: int) -> Iterator[_Answer]:
    """The answers of an episode up to the first one of other weights."""
    sequences: dict[int, tuple[list[int], list[Screenshot]]] = {}
    for own in episode.sequences():
        sequences.update(dict.fromkeys(own, ([], [])))
    for number, turn in enumerate(episode.turns, 1):
        if set(turn.completion.versions) != {version}:
            return
        tokens, images = sequences[number - 1]
        tokens += turn.context
        images += turn.images
        yield _Answer(
            episode=episode.episode_id,
            step=number,
            question=tuple(tokens),
            images=tuple(images),
            tokens=turn.completion.token_ids,
            logprobs=turn.completion.logprobs,
        )
        tokens += turn.completion.token_ids


class _Comparison:
    """The learner's model with the weights of a checkpoint, and the answers to score with it."""

    def __init__(
        self, config: Config, checkpoint: Checkpoint, answers: Sequence[_Answer], temperature: float
    ) -> None:
        self._config, self._checkpoint, self._answers = config, checkpoint, answers
        self._temperature = temperature
        self._renderer = load_renderer(config.model)
        self._model: Any = load_model(config.model, config.run.seed)
        set_trainable(self._model, config.model, config.run.seed)
        if hasattr(self._model.model.visual, "feature_cache"):
            del self._model.model.visual.feature_cache  # features depend on what is tried
        self._base = {name: p.detach().cpu().clone() for name, p in self._trained()}
        self._fill(checkpoint)

    def explain(self, others: Sequence[Checkpoint]) -> Gap:
        learner = self._score(self._answers)
        kl = _disagreement(self._answers, learner)
        tried = [*self._samplings(), *self._pictures(), *self._templates(), *self._weights(others)]
        tried += self._dtypes()  # last: the model is converted
        best = {one.part: one for one in sorted(tried, key=lambda one: -one.kl)}
        return Gap(
            version=read_counters(self._checkpoint.path / LEARNER).version,
            answers=len(self._answers),
            tokens=sum(len(one.tokens) for one in self._answers),
            kl=kl,
            limit=self._config.engine_kl_limit(_surprise(learner)),
            tried=tuple(sorted(best.values(), key=lambda one: one.kl)),
            worst=self._worst(learner),
        )

    def _samplings(self) -> Iterator[Tried]:
        for temperature in TEMPERATURES:
            if temperature != self._temperature:
                what = f"the engine uses temperature {temperature:g}, the learner {self._temperature:g}"
                yield self._try(SAMPLING, what, temperature=temperature)

    def _pictures(self) -> Iterator[Tried]:
        with _zeroed_pictures(self._model):
            yield self._try(PICTURES, "the engine sees no pixels")
        several = [one for one in self._answers if len(one.images) > 1]
        if several:
            yield self._try(PICTURES, "the engine sees the pictures in reverse order", _reversed)
            yield self._try(PICTURES, "the engine sees the first picture again and again", _first_picture)
        for what, renderer in self._other_sizes():
            yield self._try(PICTURES, what, self._resized(renderer), renderer=renderer)

    def _other_sizes(self) -> Iterator[tuple[str, Renderer]]:
        """Renderers with other limits of pixels: those of the model folder, half and twice the size."""
        model, folder = self._config.model, resolve_model(self._config.model.path)
        own = vision.ImageSettings.from_folder(folder)
        width, height = self._renderer.model_size(self._answers[0].images[0])
        pixels = width * height
        limits = {
            "of the model folder": (own.min_pixels, own.max_pixels),
            "half": (min(model.min_pixels, pixels // 2), pixels // 2),
            "twice": (2 * pixels, max(model.max_pixels, 4 * pixels)),
        }
        for name, (low, high) in limits.items():
            renderer = Renderer.from_folder(folder, low, high)
            size = renderer.model_size(self._answers[0].images[0])
            if size != (width, height):
                what = f"the engine resizes pictures to {size[0]}x{size[1]}, the learner to {width}x{height}"
                yield f"{what} (limits: {name})", renderer

    def _resized(self, renderer: Renderer) -> _Change:
        """Replace the image tokens of the prompt by those of another size."""

        def change(answer: _Answer) -> _Answer:
            grids = [self._renderer.grid(shot) for shot in answer.images]
            slots_T = self._renderer.image_slots(answer.question, grids)
            counts = iter(
                [vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in answer.images]
            )
            left, tokens = 0, list[int]()
            old = iter([vision.image_tokens(grid, self._renderer.settings) for grid in grids])
            for token, is_image in zip(answer.question, slots_T, strict=True):
                if not is_image:
                    tokens.append(token)
                elif left:
                    left -= 1
                else:
                    left = next(old) - 1
                    tokens += [token] * next(counts)
            return replace(answer, question=tuple(tokens))

        return change

    def _templates(self) -> Iterator[Tried]:
        header = len(self._renderer.answer_header)
        for count, what in ((1, "the last token"), (header, "the start of the answer")):

            def cut(answer: _Answer, count: int = count) -> _Answer:
                return replace(answer, question=answer.question[:-count])

            yield self._try(TEMPLATE, f"the engine's prompt lacks {what}", cut)
        if self._first_message(self._answers[0]) is not None:
            yield self._try(TEMPLATE, "the engine's prompt lacks the first message", self._first_message)

    def _first_message(self, answer: _Answer) -> _Answer | None:
        """Without the first message, if it has no picture."""
        start = self._renderer.answer_header[0]
        second = next((n for n, token in enumerate(answer.question) if n and token == start), None)
        if second is None or self._renderer.image_token_id in answer.question[:second]:
            return None
        return replace(answer, question=answer.question[second:])

    def _weights(self, others: Sequence[Checkpoint]) -> Iterator[Tried]:
        with adapters_disabled(self._model), self._with_weights(self._base):
            yield self._try(WEIGHTS, "the engine has the weights before training")
        for other in others:
            with self._restored():
                self._fill(other)
                version = read_counters(other.path / LEARNER).version
                yield self._try(WEIGHTS, f"the engine has version {version:,} of the weights")
        for number, layer in enumerate(self._model.model.language_model.layers):
            with _without(layer):
                yield self._try(WEIGHTS, f"the engine lacks the weights of language layer {number}")

    def _dtypes(self) -> Iterator[Tried]:
        own = self._config.model.dtype
        for name, dtype in DTYPES.items():
            if name != own:
                self._convert(dtype)
                yield self._try(DTYPE, f"the engine computes in {name}, the learner in {own}")

    @torch.no_grad()
    def _convert(self, dtype: torch.dtype) -> None:
        """Many CPUs emulate bfloat16, which takes minutes: there only the weights are rounded."""
        if self._model.device.type != "cpu" or dtype == torch.float32:
            self._model.to(dtype)
            return
        for parameter in self._model.parameters():
            parameter.copy_(parameter.to(dtype))

    def _try(
        self,
        part: str,
        what: str,
        change: _Change = lambda answer: answer,
        *,
        temperature: float | None = None,
        renderer: Renderer | None = None,
    ) -> Tried:
        answers = [changed for one in self._answers if (changed := change(one)) is not None]
        scores = self._score(answers, temperature, renderer)
        return Tried(part=part, what=what, kl=_disagreement(answers, scores))

    @torch.no_grad()
    def _score(
        self, answers: Sequence[_Answer], temperature: float | None = None, renderer: Renderer | None = None
    ) -> list[list[float]]:
        """The learner's log-probabilities of the tokens of each answer."""
        return [
            sampled_logprobs(
                self._model, [one.sample()], renderer or self._renderer, temperature or self._temperature
            )[0].tolist()
            for one in answers
        ]

    def _worst(self, learner: Sequence[Sequence[float]]) -> tuple[TokenGap, ...]:
        gaps = [
            (abs(engine - own), answer, index, engine, own)
            for answer, owns in zip(self._answers, learner, strict=True)
            for index, (engine, own) in enumerate(zip(answer.logprobs, owns, strict=True))
        ]
        gaps.sort(key=lambda gap: -gap[0])
        return tuple(
            TokenGap(
                episode=answer.episode,
                step=answer.step,
                token=index + 1,
                text=self._renderer.decode(answer.tokens[index : index + 1]) or "end of the answer",
                engine=math.exp(engine),
                learner=math.exp(own),
            )
            for _, answer, index, engine, own in gaps[:WORST]
        )

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self._model.named_parameters() if p.requires_grad)

    def _fill(self, checkpoint: Checkpoint) -> None:
        fill_from_checkpoint(self._model, checkpoint.path / LEARNER)

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """After the block, the weights of the checkpoint again."""
        try:
            yield
        finally:
            self._fill(self._checkpoint)

    @contextmanager
    def _with_weights(self, weights: dict[str, Tensor]) -> Iterator[None]:
        with self._restored(), torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(weights[name])
            yield


def _disagreement(answers: Sequence[_Answer], scores: Sequence[Sequence[float]]) -> float:
    """As the metric engine_kl, at most LARGEST; also if nothing could be compared."""
    engine, learner = (
        torch.tensor([*chain(*values)], dtype=torch.float64)
        for values in ((one.logprobs for one in answers), scores)
    )
    found = k3(engine, learner).mean().item() if len(engine) else math.inf
    return min(found, LARGEST) if math.isfinite(found) else LARGEST


def _surprise(scores: Sequence[Sequence[float]]) -> float:
    """As the metric engine_surprise."""
    logprobs = [*chain(*scores)]
    return -sum(logprobs) / len(logprobs) if logprobs else 1.0


def _reversed(answer: _Answer) -> _Answer | None:
    same = len({shot.size for shot in answer.images}) == 1  # else their tokens do not fit
    return replace(answer, images=answer.images[::-1]) if same else None


def _first_picture(answer: _Answer) -> _Answer | None:
    same = len({shot.size for shot in answer.images}) == 1
    return replace(answer, images=answer.images[:1] * len(answer.images)) if same else None


@contextmanager
def _zeroed_pictures(model: Any) -> Iterator[None]:
    """Within this block the features of all pictures are 0."""
    handle = model.model.visual.register_forward_hook(lambda module, inputs, output: _zeroed(output))
    try:
        yield
    finally:
        handle.remove()


def _zeroed(output: Any) -> Any:
    if isinstance(output, Tensor):
        return torch.zeros_like(output)
    if isinstance(output, dict):  # an output class of transformers
        return type(output)(**{name: _zeroed(value) for name, value in output.items()})
    return type(output)(map(_zeroed, output)) if isinstance(output, list | tuple) else output


@contextmanager
@torch.no_grad()
def _without(layer: nn.Module) -> Iterator[None]:
    """Within this block the layer changes nothing: all its weights are 0."""
    kept = [(p, p.detach().clone()) for p in layer.parameters()]
    for parameter, _ in kept:
        parameter.zero_()
    try:
        yield
    finally:
        for parameter, weight in kept:
            parameter.copy_(weight)
