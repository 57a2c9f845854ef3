"""Batches of lessons: full, reproducible, and never repeated after an interruption."""

from __future__ import annotations

import random
from itertools import islice
from typing import Any

import pytest
import torch

from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from tools.pretrain.batches import BATCHES_PER_CHUNK, Batches, LessonBatch, LessonLoader, collate
from tools.pretrain.lessons import LessonGenerator
from tools.pretrain.pages import random_page
from tools.pretrain.settings import Settings
from tools.pretrain.tiny import IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer

TOKENS = 1200
RENDERER = Renderer(desk_tokenizer(), IMAGE_SETTINGS)


def settings(**more: Any) -> Settings:
    return Settings(tokens_per_step=TOKENS, workers=2, **more)


@pytest.fixture(scope="module")
def chunks() -> list[list[LessonBatch]]:
    batches = Batches(settings())
    return [batches.chunk(number) for number in range(3)]


def test_batches_are_full_but_not_over(chunks: list[list[LessonBatch]]) -> None:
    for batch in (batch for chunk in chunks for batch in chunk):
        lessons, width = batch.tokens_BT.shape
        assert lessons == 1 or lessons * width <= TOKENS
        assert batch.positions_3BT.shape == (3, lessons, width)
        assert len(batch.slots_I) == 6 * 8 * len(batch.screens_NHW)
        tokens, slots, answers = batch.tokens_BT.flatten(), set(batch.slots_I.tolist()), batch.answers_A
        assert not slots & set(answers.tolist())
        assert not (tokens[answers] == RENDERER.pad_id).any()
        assert set((answers // width).tolist()) == set(range(lessons))


def test_many_screens_are_padded_and_some_are_labelled() -> None:
    """300 pages are padded to 320 screens, a multiple of 64. Every second page has labels."""
    rng = random.Random(0)
    generator = LessonGenerator(RENDERER, load_template("desk"))
    page = generator.sequence("Read the text", [random_page(rng)])
    batch = collate([page] * 300, RENDERER)
    assert len(batch.screens_NHW) == 320
    assert len(batch.slots_I) == 300 * 48
    screens = (batch.readable_R // 48).unique().tolist()
    assert screens == list(range(0, 300, 2))


def test_every_chunk_has_the_same_number_of_batches(chunks: list[list[LessonBatch]]) -> None:
    assert [len(chunk) for chunk in chunks] == [BATCHES_PER_CHUNK] * 3


def test_a_chunk_depends_on_its_number_and_the_seed(chunks: list[list[LessonBatch]]) -> None:
    again, other = Batches(settings()).chunk(1), Batches(settings(seed=1)).chunk(1)
    assert all(map(same, again, chunks[1]))
    assert not same(chunks[0][0], chunks[1][0])
    assert not same(other[0], chunks[1][0])


def test_the_last_stage_of_a_run_is_careless() -> None:
    """Chunk 8 holds updates 32 to 35: the last stage of 40 updates, the first of 4,000."""

    def chunk(steps: int, level: int) -> list[LessonBatch]:
        return Batches(settings(steps=steps, carelessness=level)).chunk(8)

    assert not all(map(same, chunk(40, 0), chunk(40, 5)))
    assert all(map(same, chunk(4000, 0), chunk(4000, 5)))


@pytest.mark.slow
def test_workers_continue_with_the_next_batch(chunks: list[list[LessonBatch]]) -> None:
    """A run that was interrupted after 6 updates continues with the third batch of the second chunk."""
    with LessonLoader(settings(), step=6) as batches:
        found = list(islice(batches, 4))
    assert all(map(same, found, [*chunks[1][2:], *chunks[2][:2]]))


def same(one: LessonBatch, other: LessonBatch) -> bool:
    return torch.equal(one.tokens_BT, other.tokens_BT) and torch.equal(one.screens_NHW, other.screens_NHW)
