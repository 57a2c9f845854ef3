"""Batches of lessons, made by worker processes.

Lessons depend on the settings and the chunk number alone; a chunk makes `BATCHES_PER_CHUNK` batches. So the
batch of an update does not depend on the number of workers, and a resumed run repeats no lesson.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, islice
from queue import Empty
from typing import Any, TypeVar

import numpy as np
import torch
import torch.multiprocessing as mp
from numpy.typing import NDArray
from torch import Tensor

from arpo.envs.desk.canvas import COLUMNS, LAYOUT_HEIGHT, LAYOUT_WIDTH, ROWS
from arpo.envs.desk.random_tasks import rng_for
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from tools.pretrain.ladder import stage_at
from tools.pretrain.language import LANGUAGES
from tools.pretrain.lessons import Lesson, LessonGenerator
from tools.pretrain.reading import Rectangle
from tools.pretrain.settings import Settings
from tools.pretrain.tiny import IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer
from tools.pretrain.word_canvas import NO_WORD, WordCanvas

_Cell = TypeVar("_Cell", bound=np.generic)
CELLS_PER_TOKEN = 8
TOKENS_PER_SCREEN = ROWS * COLUMNS // CELLS_PER_TOKEN
BATCHES_PER_CHUNK = 4  # lessons of this many batches are sorted by length, to reduce padding
_SEEDS = 10_000_000  # chunks per seed
_SCREENS_MULTIPLE = 64  # pads the screens of a batch to a multiple, to limit the number of tensor shapes
_LABELLED_SCREENS = 256  # of a batch at most, evenly chosen
_QUEUE_TIMEOUT = 5.0  # seconds between checks for living workers
_QUEUED_BATCHES = 2  # per worker; they are in shared memory


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonBatch:
    """Lessons padded to one width.

    Places in the batch are numbers, not masks: a mask makes the CPU wait until the GPU has counted it.
    """

    tokens_BT: Tensor
    positions_3BT: Tensor
    slots_I: Tensor  # places of the image tokens in the flat `tokens_BT`
    answers_A: Tensor  # places of the learned tokens there
    screens_NHW: Tensor  # palette indices
    readable_R: Tensor  # image tokens of `screens_NHW` with a word
    words_W3: Tensor  # (index in `readable_R`, cell of the image token, word) of each cell with a word
    target_tokens_T: Tensor  # image tokens of the lessons that tell their targets
    targets_TC: Tensor  # 1 for their cells that belong to a target, else 0
    state_tokens_S: Tensor  # image tokens of the lessons that tell which elements are on
    states_SC: Tensor  # 1 for their cells that belong to an element that is on, else 0

    def to(self, device: torch.device) -> LessonBatch:
        return LessonBatch(**{each.name: getattr(self, each.name).to(device) for each in fields(self)})


def collate(lessons: list[Lesson], renderer: Renderer) -> LessonBatch:
    width = max(len(lesson.token_ids) for lesson in lessons)
    tokens = np.full((len(lessons), width), renderer.pad_id, dtype=np.int32)
    mask = np.zeros((len(lessons), width), dtype=bool)
    slots = np.zeros((len(lessons), width), dtype=bool)
    positions = np.zeros((3, len(lessons), width), dtype=np.int32)
    grid = vision.grid(LAYOUT_WIDTH, LAYOUT_HEIGHT, renderer.settings)
    for row, lesson in enumerate(lessons):
        length, grids = len(lesson.token_ids), [grid] * len(lesson.screens)
        tokens[row, :length] = lesson.token_ids
        mask[row, :length] = lesson.mask
        slots[row, :length] = renderer.image_slots(lesson.token_ids, grids)
        positions[:, row, :length] = renderer.positions(lesson.token_ids, grids)
    screens = [screen for lesson in lessons for screen in lesson.screens]
    pixels = [screen.pixels for screen in screens]
    if len(pixels) > _SCREENS_MULTIPLE:
        pixels += [pixels[0]] * (-len(pixels) % _SCREENS_MULTIPLE)
    readable, words = _words(screens)
    target_tokens, targets = _marked_cells(lessons, [lesson.targets for lesson in lessons])
    state_tokens, states = _marked_cells(lessons, [lesson.on for lesson in lessons])
    return LessonBatch(
        tokens_BT=torch.from_numpy(tokens),
        positions_3BT=torch.from_numpy(positions),
        slots_I=torch.from_numpy(np.flatnonzero(slots)),
        answers_A=torch.from_numpy(np.flatnonzero(mask)),
        screens_NHW=torch.from_numpy(np.stack(pixels)),
        readable_R=torch.from_numpy(readable),
        words_W3=torch.from_numpy(words),
        target_tokens_T=torch.from_numpy(target_tokens),
        targets_TC=torch.from_numpy(targets),
        state_tokens_S=torch.from_numpy(state_tokens),
        states_SC=torch.from_numpy(states),
    )


def _words(screens: Sequence[WordCanvas]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`readable_R` and `words_W3` of a batch."""
    every = -(-len(screens) // _LABELLED_SCREENS)
    words_NIC = _by_token(np.stack([screen.words_RC for screen in screens[::every]]))
    screen, token, cell = np.nonzero(words_NIC != NO_WORD)
    readable, row = np.unique(every * screen * TOKENS_PER_SCREEN + token, return_inverse=True)
    return readable, np.stack((row, cell, words_NIC[screen, token, cell]), axis=-1)


def _marked_cells(
    lessons: Sequence[Lesson], marked: Sequence[Sequence[Rectangle] | None]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Image tokens of the lessons with rectangles, and for each of their cells whether one covers it."""
    first_screens = np.cumsum([0, *(len(lesson.screens) for lesson in lessons)])
    found = [(first, some) for first, some in zip(first_screens, marked, strict=False) if some is not None]
    cells_NRC = np.zeros((len(found), ROWS, COLUMNS), dtype=np.float32)
    for cells_RC, (_, rectangles) in zip(cells_NRC, found, strict=True):
        for row, column, rows, columns in rectangles:
            cells_RC[row : row + rows, column : column + columns] = 1
    tokens_NI = np.array([first for first, _ in found], dtype=np.int64)[:, None] * TOKENS_PER_SCREEN
    tokens_NI = tokens_NI + np.arange(TOKENS_PER_SCREEN)
    return tokens_NI.reshape(-1), _by_token(cells_NRC).reshape(-1, CELLS_PER_TOKEN)


def _by_token(cells_NRC: NDArray[_Cell]) -> NDArray[_Cell]:
    """The cells of each image token: it covers two rows of four cells."""
    blocks = cells_NRC.reshape(-1, ROWS // 2, 2, COLUMNS // 4, 4).transpose(0, 1, 3, 2, 4)
    return blocks.reshape(-1, TOKENS_PER_SCREEN, CELLS_PER_TOKEN)


class Batches:
    """The batches of a run, by chunk."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        language = LANGUAGES[settings.dialect]
        self._last = language.last
        self._renderer = Renderer(desk_tokenizer(language.phrases), IMAGE_SETTINGS)
        self._generator = LessonGenerator(
            self._renderer, load_template("desk"), level=settings.carelessness, write=language.write
        )

    def chunk(self, number: int) -> list[LessonBatch]:
        """`BATCHES_PER_CHUNK` batches with lessons of similar length each, in random order."""
        settings = self._settings
        rng = rng_for("pretrain", settings.seed * _SEEDS + number)
        stage = stage_at(number * BATCHES_PER_CHUNK / settings.steps, self._last)
        lessons: list[Lesson] = []
        tokens = 0
        while tokens < BATCHES_PER_CHUNK * settings.tokens_per_step:
            more = self._generator.lessons(rng, stage)
            tokens += sum(min(len(lesson.token_ids), settings.tokens_per_step) for lesson in more)
            lessons += more
        packed = _pack(lessons, settings.tokens_per_step)
        rng.shuffle(packed)
        return [collate(batch, self._renderer) for batch in packed[:BATCHES_PER_CHUNK]]


def _pack(lessons: list[Lesson], tokens_per_batch: int) -> list[list[Lesson]]:
    """Sorted by length and divided: a batch has at most this many tokens, padding included."""
    batches: list[list[Lesson]] = [[]]
    for lesson in sorted(lessons, key=lambda lesson: len(lesson.token_ids)):
        if batches[-1] and (len(batches[-1]) + 1) * len(lesson.token_ids) > tokens_per_batch:
            batches.append([])
        batches[-1].append(lesson)
    return batches


def _run_worker(queue: Any, settings: Settings, first: int, step: int) -> None:
    torch.set_num_threads(1)
    mp.set_sharing_strategy("file_system")
    batches = Batches(settings)
    for number in count(first, step):
        for batch in batches.chunk(number):
            queue.put(batch)


class LessonLoader:
    """The batches from update `step` on. Worker i of n makes every n-th chunk."""

    def __init__(self, settings: Settings, step: int) -> None:
        mp.set_sharing_strategy("file_system")
        context = mp.get_context("spawn")
        workers = settings.workers or max(1, (os.cpu_count() or 2) - 1)
        self._first, self._skipped = divmod(step, BATCHES_PER_CHUNK)
        self._queues = [context.Queue(_QUEUED_BATCHES) for _ in range(workers)]
        self._workers = [
            context.Process(target=_run_worker, args=(queue, settings, self._first + i, workers), daemon=True)
            for i, queue in enumerate(self._queues)
        ]

    def __enter__(self) -> Iterator[LessonBatch]:
        for worker in self._workers:
            worker.start()
        return islice(self._all_batches(), self._skipped, None)

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.terminate()

    def _all_batches(self) -> Iterator[LessonBatch]:
        for number in count():
            for _ in range(BATCHES_PER_CHUNK):
                yield self._wait(number % len(self._workers))

    def _wait(self, number: int) -> LessonBatch:
        """The next batch of a worker; RuntimeError if it has died."""
        while True:
            try:
                batch: LessonBatch = self._queues[number].get(timeout=_QUEUE_TIMEOUT)
                return batch
            except Empty:
                if not self._workers[number].is_alive():
                    raise RuntimeError("a lesson worker has died; its error is above") from None
