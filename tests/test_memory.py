"""What a recipe needs of a GPU, counted without loading it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from arpo.config import Config, ModelConfig, OptimConfig
from arpo.errors import UserError
from arpo.models.loading import load_model, resolve_model
from arpo.models.memory import GIB, Shape, advice, describe, layer_values, memory, plan, read_shape
from arpo.recipe import load_config

SEVEN_B = Shape(
    vision=676_550_144,
    language=7_615_616_512,
    adapters=80_000_000,
    layers=28,
    hidden=3584,
    heads=3584,
    keys=512,
    intermediate=18944,
    vocabulary=152064,
    vision_layers=32,
    vision_hidden=1280,
    vision_intermediate=3420,
)
FULL = load_config("osworld_full", ["--model.dtype", "bfloat16", "--optim.moments", "bfloat16"])


def test_parameters_are_counted_without_weights() -> None:
    folder = resolve_model("base")
    model = load_model(ModelConfig(device="cpu"), 0)
    shape = read_shape(folder, lora_rank=4)
    assert shape.vision + shape.language == sum(p.numel() for p in model.parameters())
    assert shape.adapters > 0


def test_weights_gradients_and_moments_of_the_7b_model() -> None:
    sizes = memory(SEVEN_B, FULL, sequence=43045, patches=161460)
    parameters = 676_550_144 + 7_615_616_512
    assert sizes.weights == sizes.gradients == 2 * parameters
    assert sizes.moments == 4 * parameters
    assert sizes.base_model == 0


def test_lora_trains_and_keeps_moments_of_its_adapters_alone() -> None:
    lora = replace(FULL, model=replace(FULL.model, train="lora"))
    sizes = memory(SEVEN_B, lora, sequence=43045, patches=161460)
    assert (sizes.gradients, sizes.moments) == (4 * 80_000_000, 8 * 80_000_000)


def test_a_kl_term_needs_a_second_model_unless_adapters_can_be_switched_off() -> None:
    with_kl = replace(FULL, loss=replace(FULL.loss, kl=0.1))
    lora = replace(with_kl, model=replace(FULL.model, train="lora"))
    assert memory(SEVEN_B, with_kl, sequence=100, patches=0).base_model == 2 * 8_292_166_656
    assert memory(SEVEN_B, lora, sequence=100, patches=0).base_model == 0


def test_a_frozen_tower_keeps_no_activations() -> None:
    frozen = replace(FULL, model=replace(FULL.model, train="language"))
    whole, language = (memory(SEVEN_B, c, sequence=100, patches=161460).activations for c in (FULL, frozen))
    assert whole - language >= 2 * 161460 * 32 * 1280


def test_advice_names_settings_that_help_and_is_silent_when_all_fits() -> None:
    small = replace(FULL, env=replace(FULL.env, parallel=1))
    sizes = memory(SEVEN_B, small, sequence=43045, patches=161460)
    assert advice(sizes, small, 141 * GIB) == ""
    assert "--model.train lora" in advice(sizes, small, 80 * GIB)
    wide = memory(SEVEN_B, FULL, sequence=43045, patches=161460)
    assert "--env.parallel 64" in advice(wide, FULL, 141 * GIB)


def test_the_laptop_recipe_fits_anywhere() -> None:
    config = load_config("desk")
    sizes = plan(config)
    assert sizes.total - sizes.reserve < 4 * GIB
    assert describe(sizes, config, 16 * GIB)[-1] == "fits into the 16 GiB of this GPU"


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    config = replace(Config(), model=ModelConfig(path=str(tmp_path)), optim=OptimConfig())
    with pytest.raises(UserError, match=r"config\.json: not found"):
        plan(config)


def test_a_whole_layer_of_the_7b_model_keeps_six_gigabytes_of_a_long_trajectory() -> None:
    assert 2 * layer_values(SEVEN_B, 43045) == 2 * 43045 * (6 * 3584 + 2 * 512 + 3 * 18944)
    assert round(2 * layer_values(SEVEN_B, 43045) / GIB, 1) == 6.4
