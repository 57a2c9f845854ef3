"""Pretrains the base model on `lessons`, on one GPU. An interrupted run resumes from its last checkpoint.

The output is a Hugging Face model folder with a card (`card`). The card's fingerprint covers everything the
weights depend on: screens, prompt and tokens.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from arpo.config import Config
from arpo.envs.desk.base_model.card import CARD, card
from arpo.envs.desk.base_model.lessons import Lesson, LessonGenerator
from arpo.envs.desk.base_model.tiny import IMAGE_SETTINGS, new_tiny_model, save_model_folder, tiny_config
from arpo.envs.desk.base_model.tokenizer import desk_tokenizer, special_ids
from arpo.envs.desk.canvas import LAYOUT_HEIGHT, LAYOUT_WIDTH, PALETTE
from arpo.envs.desk.random_tasks import rng_for
from arpo.errors import UserError
from arpo.models.forward import hidden_states
from arpo.models.loading import prepare, resolve_device
from arpo.prompts import vision
from arpo.prompts.conversation import load_template
from arpo.prompts.rendering import Renderer
from arpo.storage import checkpoint

_FRAMES_MULTIPLE = 64  # pads the screens of a batch to a multiple, to limit the number of tensor shapes
WEIGHTS, MOMENTS = "weights", ("exp_avg", "exp_avg_sq")  # files of a checkpoint
_QUEUE_TIMEOUT = 5.0  # seconds between checks for living workers
_REPORT_EVERY, _SAVE_EVERY = 100, 500
_BATCHES_PER_CHUNK = 4  # lessons of this many batches are sorted by length, to reduce padding


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonBatch:
    """Lessons padded to one width. `slots_BT` marks image tokens."""

    tokens_BT: Tensor
    mask_BT: Tensor
    slots_BT: Tensor
    positions_3BT: Tensor
    frames_NHW: Tensor  # palette indices


def collate(lessons: list[Lesson], renderer: Renderer) -> LessonBatch:
    width = max(len(lesson.token_ids) for lesson in lessons)
    tokens = np.full((len(lessons), width), renderer.pad_id, dtype=np.int32)
    mask = np.zeros((len(lessons), width), dtype=bool)
    slots = np.zeros((len(lessons), width), dtype=bool)
    positions = np.zeros((3, len(lessons), width), dtype=np.int32)
    grid = vision.grid(LAYOUT_WIDTH, LAYOUT_HEIGHT, renderer.settings)
    for row, lesson in enumerate(lessons):
        length, grids = len(lesson.token_ids), [grid] * len(lesson.frames)
        tokens[row, :length] = lesson.token_ids
        mask[row, :length] = lesson.mask
        slots[row, :length] = renderer.image_slots(lesson.token_ids, grids)
        positions[:, row, :length] = renderer.positions(lesson.token_ids, grids)
    frames = [frame for lesson in lessons for frame in lesson.frames]
    frames += [frames[0]] * (-len(frames) % _FRAMES_MULTIPLE)
    arrays = tokens, mask, slots, positions, np.stack(frames)
    tensors = [torch.from_numpy(array) for array in arrays]
    return LessonBatch(
        tokens_BT=tensors[0],
        mask_BT=tensors[1],
        slots_BT=tensors[2],
        positions_3BT=tensors[3],
        frames_NHW=tensors[4],
    )


def batches(rng: random.Random, renderer: Renderer, tokens_per_step: int) -> Iterator[LessonBatch]:
    """Endless batches of lessons. A batch holds lessons of similar length; the order of batches is random."""
    generator = LessonGenerator(renderer, load_template("desk"))
    while True:
        lessons: list[Lesson] = []
        while sum(len(lesson.token_ids) for lesson in lessons) < _BATCHES_PER_CHUNK * tokens_per_step:
            lessons.append(generator.lesson(rng))
        lessons.sort(key=lambda lesson: len(lesson.token_ids))
        chunk: list[list[Lesson]] = [[]]
        for lesson in lessons:
            if (len(chunk[-1]) + 1) * len(lesson.token_ids) > tokens_per_step:
                chunk.append([])
            chunk[-1].append(lesson)
        rng.shuffle(chunk)
        yield from (collate(batch, renderer) for batch in chunk)


def _run_worker(queue: Any, seed: int, tokens_per_step: int) -> None:
    torch.set_num_threads(1)
    mp.set_sharing_strategy("file_system")
    renderer = Renderer(desk_tokenizer(), IMAGE_SETTINGS)
    for batch in batches(rng_for("pretrain", seed), renderer, tokens_per_step):
        queue.put(batch)


def lesson_loss(model: Any, batch: LessonBatch, palette: Tensor) -> Tensor:
    """Mean cross-entropy over the tokens of the answers."""
    device = model.device
    tokens, slots = batch.tokens_BT.to(device).long(), batch.slots_BT.to(device)
    mask = batch.mask_BT.to(device)
    pixels = palette[batch.frames_NHW.to(device).long()]
    patches = vision.patchify_pixels(pixels, IMAGE_SETTINGS)
    grid = vision.grid(LAYOUT_WIDTH, LAYOUT_HEIGHT, IMAGE_SETTINGS)
    grids = torch.tensor([grid] * len(pixels), device=device)
    features = model.model.visual(patches.flatten(0, 1), grid_thw=grids).pooler_output
    words = model.model.language_model.embed_tokens(tokens)
    embeds = words.masked_scatter(slots[..., None], features[: int(batch.slots_BT.sum())].to(words.dtype))
    hidden = hidden_states(model, embeds, batch.positions_3BT.to(device).long())
    logits = model.lm_head(hidden[:, :-1][mask[:, 1:]])
    return cross_entropy(logits.float(), tokens[mask])


class Pretraining:
    """Model, optimiser and current step."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.tokenizer = desk_tokenizer()
        shape = tiny_config(
            self.tokenizer.get_vocab_size(), special_ids(self.tokenizer), hidden=config.pretrain.hidden,
            vision_hidden=config.pretrain.vision_hidden,
        )  # fmt: skip
        self.model = new_tiny_model(shape, config.run.seed).to(resolve_device(config.model.device))
        prepare(self.model)
        on_gpu = self.model.device.type == "cuda"
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), lr=config.pretrain.lr, weight_decay=0.01, betas=(0.9, 0.98), fused=on_gpu
        )
        self.step = 0
        self._parameter_names = [name for name, _ in self.model.named_parameters()]

    def update(self, batch: LessonBatch, palette: Tensor) -> Tensor:
        settings = self.config.pretrain
        left = 1 - self.step / settings.steps
        rate = settings.lr * min(1.0, (self.step + 1) / settings.warmup) * min(1.0, 2 * left + 0.01)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        # Many CPUs emulate bfloat16, which is far slower than float32.
        on_gpu = self.model.device.type == "cuda"
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=on_gpu):
            loss = lesson_loss(self.model, batch, palette)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        return loss.detach()

    def save(self) -> None:
        """Write a checkpoint to resume from, and the current model with its card."""
        moments = self.optimiser.state_dict()["state"]
        parts = {WEIGHTS: dict(self.model.named_parameters())}
        for key in MOMENTS:
            parts[key] = {name: moments[i][key] for i, name in enumerate(self._parameter_names)}

        def write(folder: Path) -> None:
            for part, tensors in parts.items():
                whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
                save_file(whole, folder / f"{part}.safetensors")

        checkpoint.save(self.folder / checkpoint.CHECKPOINTS, self.step, write, keep=1)
        save_model_folder(self.model, self.tokenizer, self.folder / "model")
        parameters = sum(p.numel() for p in self.model.parameters())
        arithmetic = f"{'bfloat16' if self.model.device.type == 'cuda' else 'float32'} arithmetic"
        text = card(self.config, self.step, parameters, arithmetic)
        (self.folder / "model" / CARD).write_text(text, encoding="utf-8")

    def resume(self) -> None:
        """Load the newest complete checkpoint, if there is one."""
        found, _ = checkpoint.latest(self.folder / checkpoint.CHECKPOINTS)
        if found is None:
            return
        parts = {part: load_file(found.path / f"{part}.safetensors") for part in (WEIGHTS, *MOMENTS)}
        self.model.load_state_dict(parts[WEIGHTS], strict=False)
        self.step = found.step
        moments = {
            i: {"step": torch.tensor(float(self.step)), **{key: parts[key][name] for key in MOMENTS}}
            for i, name in enumerate(self._parameter_names)
        }
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})


class LessonLoader:
    """Generates batches in worker processes. Seeds depend on the first step: a resumed run draws new ones."""

    def __init__(self, config: Config, step: int) -> None:
        mp.set_sharing_strategy("file_system")
        context = mp.get_context("spawn")
        self._queue = context.Queue(32)
        count = config.pretrain.workers or max(1, (os.cpu_count() or 2) - 1)
        arguments = [(self._queue, step * 1000 + i, config.pretrain.tokens_per_step) for i in range(count)]
        self._workers = [context.Process(target=_run_worker, args=args, daemon=True) for args in arguments]

    def __enter__(self) -> LessonLoader:
        for worker in self._workers:
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()

    def next_batch(self) -> LessonBatch:
        """Wait for a batch; RuntimeError if all workers have died."""
        while any(worker.is_alive() for worker in self._workers):
            try:
                return self._queue.get(timeout=_QUEUE_TIMEOUT)
            except Empty:
                continue
        raise RuntimeError("all lesson workers have died; their errors are above")


def run_pretraining(config: Config, out: Path, log: Callable[[str], None] = print) -> int:
    """Train until `pretrain.steps` or `pretrain.minutes` is reached. The same command resumes."""
    settings = config.pretrain
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot create the folder: {error.strerror}") from error
    training = Pretraining(config, out)
    training.resume()
    device = training.model.device
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    palette = torch.from_numpy(PALETTE).to(device)
    start, first = time.monotonic(), training.step
    losses: list[Tensor] = []
    with LessonLoader(config, training.step) as lessons:
        try:
            while training.step < settings.steps:
                losses.append(training.update(lessons.next_batch(), palette))
                seconds = time.monotonic() - start
                if training.step % _REPORT_EVERY == 0:
                    mean = torch.stack(losses).mean().item()
                    losses.clear()
                    rate = (training.step - first) / seconds
                    done = f"step {training.step}/{settings.steps}"
                    log(f"{done} loss {mean:.4f} {rate:.1f} steps/s {seconds:.0f} s")
                if training.step % _SAVE_EVERY == 0:
                    training.save()
                if settings.minutes and seconds > settings.minutes * 60:
                    break
        finally:
            if training.step > first:
                training.save()
    log(f"{out}: step {training.step} of {settings.steps} saved")
    return 0
