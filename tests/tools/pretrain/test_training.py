"""Pretraining: the loss, the learning rate, resuming, and two steps of a tiny model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoTokenizer

from arpo.envs.desk.canvas import PALETTE
from arpo.errors import UserError
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from tools.pretrain.batches import Batches, LessonBatch, collate
from tools.pretrain.language import LANGUAGES
from tools.pretrain.lessons import LessonGenerator
from tools.pretrain.settings import Settings
from tools.pretrain.tiny import FAMILIES, IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer
from tools.pretrain.training import (
    BEFORE_LAST_STAGE,
    Pretraining,
    _load_parts,
    _save_parts,
    answer_loss,
    run_pretraining,
    screen_features,
)
from tools.pretrain.word_canvas import WordCanvas, readable_words

pytestmark = pytest.mark.slow

TOKENS = 1200
RENDERER = Renderer(desk_tokenizer(), IMAGE_SETTINGS)


def settings(**more: Any) -> Settings:
    tiny: dict[str, Any] = {"hidden": 64, "vision_hidden": 32, "tokens_per_step": TOKENS}
    pace = {"steps": 2, "warmup": 1, "workers": 1, "device": "cpu"}
    return Settings(**tiny | pace | more)


@pytest.fixture(scope="module")
def some() -> list[LessonBatch]:
    return Batches(settings()).chunk(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_transformers_own(family: str, some: list[LessonBatch], tmp_path: Path) -> None:
    """Compares with the saved model in plain transformers, one lesson at a time."""
    training = Pretraining(settings(family=family), tmp_path)
    palette = torch.from_numpy(PALETTE)
    batch = min(some, key=lambda batch: batch.tokens_BT.numel())
    loss, _ = answer_loss(training.model, batch, screen_features(training.model, batch, palette))
    training.model.save_pretrained(tmp_path / "plain")
    stock = AutoModelForImageTextToText.from_pretrained(tmp_path / "plain", dtype=torch.float32)
    screens = iter(batch.screens_NHW)
    mask_BT = torch.zeros_like(batch.tokens_BT, dtype=torch.bool)
    mask_BT.view(-1)[batch.answers_A] = True
    grid = vision.grid(224, 168, IMAGE_SETTINGS)
    losses = []
    for tokens, mask in zip(batch.tokens_BT.long(), mask_BT, strict=True):
        tokens, mask = tokens[tokens != RENDERER.pad_id], mask[tokens != RENDERER.pad_id]
        count = int((tokens == RENDERER.image_token_id).sum()) // (6 * 8)
        pixels = palette[torch.stack([next(screens) for _ in range(count)]).long()]
        with torch.no_grad():
            logits = stock(
                input_ids=tokens[None],
                mm_token_type_ids=(tokens == RENDERER.image_token_id).int()[None],
                pixel_values=vision.patchify_pixels(pixels, IMAGE_SETTINGS).flatten(0, 1),
                image_grid_thw=torch.tensor([grid] * count),
            ).logits[0]
        logp_TV = logits[:-1].log_softmax(-1)[mask[1:]]
        losses += [-float(logp_V[token]) for logp_V, token in zip(logp_TV, tokens[1:][mask[1:]], strict=True)]
    assert len(losses) == len(batch.answers_A)
    assert loss.item() == pytest.approx(np.mean(losses), abs=1e-4)


def test_image_tokens_tell_the_words_in_their_cells(tmp_path: Path) -> None:
    """Row 0, column 5 is cell 1 of image token 1; row 3, column 30 is cell 6 of token 15."""
    empty, screen = WordCanvas(), WordCanvas()
    screen.words_RC[0, 5] = screen.words_RC[0, 6] = 7
    screen.words_RC[3, 30] = 11
    generator = LessonGenerator(RENDERER, load_template("desk"))
    lesson, other = (generator.sequence("Read", [(each, "milk")]) for each in (empty, screen))
    batch = collate([lesson, other], RENDERER)
    assert batch.readable_R.tolist() == [48 + 1, 48 + 15]
    assert batch.words_W3.tolist() == [[0, 1, 7], [0, 2, 7], [1, 6, 11]]
    places = [(1, 1), (1, 2), (15, 6)]
    training = Pretraining(settings(), tmp_path)
    head, words = training.head, readable_words()
    features = torch.randn(len(batch.screens_NHW) * 48, 64)
    with torch.no_grad():
        head.scale.weight.copy_(torch.rand(64) + 0.5)
        loss = head.word_loss(training.model, batch, features).item()
        expected = []
        for (token, cell), word in zip(places, (7, 7, 11), strict=True):
            feature = features[48 + token]
            in_cell = head.cells(feature).view(8, len(words))[cell].log_softmax(0)[word]
            scaled = feature / feature.square().mean().add(torch.finfo(torch.float32).eps).sqrt()
            similar = training.model.lm_head(scaled * head.scale.weight).log_softmax(0)
            with_space, without = (RENDERER.encode(f"{space}{words[word]}") for space in (" ", ""))
            assert len(with_space) == len(without) == 1
            expected.append(-in_cell - (similar[with_space[0]] + similar[without[0]]) / 2)
        assert loss == pytest.approx(float(sum(expected)) / 3, abs=1e-4)
        assert head.word_loss(training.model, collate([lesson], RENDERER), features).item() == 0


def test_image_tokens_tell_their_places(tmp_path: Path) -> None:
    head = Pretraining(settings(), tmp_path).head
    features = torch.randn(2 * 48, 64)
    logp = head.places(features).log_softmax(-1)
    expected = -torch.stack([logp[48 * screen + place, place] for screen in (0, 1) for place in range(48)])
    assert head.place_loss(features).item() == pytest.approx(expected.mean().item(), abs=1e-5)


def test_image_tokens_tell_the_cells_of_targets_and_states(tmp_path: Path) -> None:
    """Cells (3, 30) and (3, 31) are cells 6 and 7 of token 15; the first lesson tells nothing."""
    generator = LessonGenerator(RENDERER, load_template("desk"))
    silent = generator.sequence("Read", [(WordCanvas(), "milk")])
    telling = replace(silent, targets=((3, 30, 1, 2),), on=())
    batch = collate([silent, telling], RENDERER)
    assert batch.target_tokens_T.tolist() == batch.state_tokens_S.tolist() == list(range(48, 96))
    assert batch.targets_TC.nonzero().tolist() == [[15, 6], [15, 7]]
    assert batch.states_SC.sum() == 0
    head = Pretraining(settings(), tmp_path).head
    images = torch.randn(96, 64)
    with torch.no_grad():
        p_TC = head.targets(images[48:]).sigmoid()
        marked = torch.zeros(48, 8, dtype=torch.bool)
        marked[15, 6:] = True
        expected = -(8 * p_TC[marked].log().sum() + (1 - p_TC[~marked]).log().sum()) / (48 * 8)
        assert head.target_loss(batch, images).item() == pytest.approx(expected.item(), abs=1e-5)
        off = -(1 - head.states(images[48:]).sigmoid()).log().mean()
        assert head.state_loss(batch, images).item() == pytest.approx(off.item(), abs=1e-5)
        assert head.target_loss(collate([silent], RENDERER), images).item() == 0


def test_the_last_stage_can_be_repeated_alone(tmp_path: Path) -> None:
    training = Pretraining(Settings(device="cpu", steps=1000), tmp_path)
    training.begin_last_stage()
    assert (training.step, training.stage) == (770, "careless")
    stored = load_file(BEFORE_LAST_STAGE)
    assert all(torch.equal(weight, stored[name].float()) for name, weight in training._parameters().items())


def test_the_last_stage_in_another_dialect_adds_embeddings_to_the_stored_ones(tmp_path: Path) -> None:
    training = Pretraining(Settings(device="cpu", dialect="tool_calls"), tmp_path)
    training.begin_last_stage()
    embedding = training.model.model.language_model.embed_tokens.weight
    [name] = [each for each in load_file(BEFORE_LAST_STAGE) if "embed_tokens" in each]
    stored = load_file(BEFORE_LAST_STAGE)[name].float()
    assert len(embedding) == len(stored) + len(LANGUAGES["tool_calls"].phrases)
    assert torch.equal(embedding[: len(stored)], stored)
    click, call = "\nAction: click(start_box='(", next(iter(LANGUAGES["tool_calls"].phrases))
    assert '"left_click"' in call
    assert torch.equal(
        embedding[training.tokenizer.encode(call).ids], stored[RENDERER.encode(click)[0]][None]
    )


def test_a_resumed_run_equals_an_uninterrupted_one(some: list[LessonBatch], tmp_path: Path) -> None:
    palette = torch.from_numpy(PALETTE)
    whole = Pretraining(settings(), tmp_path / "whole")
    losses = [whole.update(batch, palette).tolist() for batch in some[:2]]

    first = Pretraining(settings(), tmp_path / "parts")
    assert first.update(some[0], palette).tolist() == losses[0]
    first.save()
    second = Pretraining(settings(seed=9), tmp_path / "parts")
    second.resume()
    assert second.step == 1
    assert second.update(some[1], palette).tolist() == losses[1]
    for (name, one), other in zip(whole._parameters().items(), second._parameters().values(), strict=True):
        assert torch.equal(one, other), name


def test_weights_without_a_gradient_yet_are_saved_with_moments_of_zero(tmp_path: Path) -> None:
    """The first lessons may have no question about a state, for example."""
    Pretraining(settings(), tmp_path).save()
    resumed = Pretraining(settings(seed=9), tmp_path)
    resumed.resume()
    state = resumed.optimiser.state_dict()["state"]
    assert len(state) == len(resumed._parameters())
    assert not any(moments[key].any() for moments in state.values() for key in ("exp_avg", "exp_avg_sq"))


def test_the_learning_rate_warms_up_and_falls_as_a_cosine(tmp_path: Path) -> None:
    """Ten updates, two of them warm-up, peak 0.001: half at update 6, (1 + cos(7π/8)) / 2 at the last."""
    paced = settings(steps=10, warmup=2, lr=0.001)
    training = Pretraining(paced, tmp_path)
    rates = []
    for step in (0, 1, 2, 6, 9):
        training.step = step
        rates.append(training.learning_rate)
    assert rates == pytest.approx([0.0005, 0.001, 0.001, 0.0005, 0.0000381], abs=1e-7)


def test_a_checkpoint_of_another_size_is_refused(some: list[LessonBatch], tmp_path: Path) -> None:
    training = Pretraining(settings(), tmp_path)
    training.update(min(some, key=lambda batch: batch.tokens_BT.numel()), torch.from_numpy(PALETTE))
    training.save()
    with pytest.raises(UserError, match="step-000001: the checkpoint has a model of another size"):
        Pretraining(settings(layers=2), tmp_path).resume()


def test_the_files_of_a_checkpoint_are_small(tmp_path: Path) -> None:
    """Three tensors of 4 MB need two files of at most 8 MB."""
    tensors = {name: torch.full((1_000_000,), float(i)) for i, name in enumerate("abc")}
    _save_parts(tensors, tmp_path / "weights")
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == [
        "0.safetensors",
        "1.safetensors",
    ]
    found = _load_parts(tmp_path / "weights")
    assert {name: float(tensor[-1]) for name, tensor in found.items()} == {"a": 0, "b": 1, "c": 2}


def test_learning_the_same_lessons_again_lowers_the_loss(some: list[LessonBatch], tmp_path: Path) -> None:
    training = Pretraining(settings(steps=50, lr=0.003), tmp_path)
    palette = torch.from_numpy(PALETTE)
    losses = [float(training.update(some[0], palette)[0]) for _ in range(3)]
    assert losses[2] < losses[0] - 0.2


def test_two_steps_leave_a_model_that_plain_transformers_loads(tmp_path: Path) -> None:
    messages: list[str] = []
    assert run_pretraining(settings(), tmp_path, messages.append)
    assert messages == [f"{tmp_path}: step 2 of 2 saved"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000002"]
    model = AutoModelForImageTextToText.from_pretrained(tmp_path / "model")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float16}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    text = "Thought: Click Save\nAction: click(start_box='(105,77)')"
    assert tokenizer(text)["input_ids"] == list(RENDERER.encode(text))
    assert len(tokenizer) == model.config.text_config.vocab_size
