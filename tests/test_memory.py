"""What a recipe needs of a GPU, counted without loading it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from arpo.config import Config, ModelConfig, OptimConfig
from arpo.errors import UserError
from arpo.models.loading import load_model, resolve_model
from arpo.models.memory import (
    GIB,
    RESERVE,
    Plan,
    Shape,
    Work,
    advice,
    describe,
    layer_values,
    memory,
    read_shape,
    read_work,
)
from arpo.recipe import load_config

SEVEN_B = Shape(
    vision=676_550_144,
    language=7_615_616_512,
    layer=233_057_792,
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
PARAMETERS = 676_550_144 + 7_615_616_512
OUTSIDE = 2 * 152064 * 3584 + 3584  # embeddings, head and the last norm
LONG = Work(shape=SEVEN_B, sequence=43045, patches=161460)
SHORT = Work(shape=SEVEN_B, sequence=100, patches=0)
FULL = load_config("osworld_full", ["--model.dtype", "bfloat16", "--optim.moments", "bfloat16"])


def changed(config: Config, ranks: int = 1, kl: float = 0.0, parallel: int = 1, **model: Any) -> Config:
    return replace(
        config,
        model=replace(config.model, **model),
        optim=replace(config.optim, ranks=ranks),
        loss=replace(config.loss, kl=kl),
        env=replace(config.env, parallel=parallel),
    )


def test_parameters_are_counted_without_weights() -> None:
    folder = resolve_model("base")
    model = load_model(ModelConfig(device="cpu"), 0)
    shape = read_shape(folder, lora_rank=4)
    assert shape.vision + shape.language == sum(p.numel() for p in model.parameters())
    assert shape.layer == sum(p.numel() for p in model.model.language_model.layers[1].parameters())
    assert shape.adapters > 0


def test_weights_gradients_and_moments_of_the_7b_model() -> None:
    sizes = memory(LONG, FULL)
    assert sizes.weights == sizes.gradients == 2 * PARAMETERS
    assert sizes.moments == 4 * PARAMETERS
    assert sizes.base_model == sizes.gathered == sizes.whole_copy == 0


def test_lora_trains_and_keeps_moments_of_its_adapters_alone() -> None:
    sizes = memory(LONG, changed(FULL, train="lora"))
    assert (sizes.gradients, sizes.moments) == (4 * 80_000_000, 8 * 80_000_000)


def test_a_kl_term_needs_a_second_model_unless_adapters_can_be_switched_off() -> None:
    assert memory(SHORT, changed(FULL, kl=0.1)).base_model == 2 * 8_292_166_656
    assert memory(SHORT, changed(FULL, kl=0.1, train="lora")).base_model == 0


def test_the_second_model_shares_a_frozen_tower_but_not_among_ranks() -> None:
    assert memory(SHORT, changed(FULL, kl=0.1, train="language")).base_model == 2 * 7_615_616_512
    divided = memory(SHORT, changed(FULL, kl=0.1, train="language", ranks=2))
    assert divided.weights == 2 * 676_550_144 + 7_615_616_512
    assert divided.base_model == divided.weights + 2 * OUTSIDE  # gathered once, for all of it


def test_a_frozen_tower_keeps_no_activations() -> None:
    whole, language = (
        memory(replace(LONG, sequence=100), config).activations
        for config in (FULL, changed(FULL, train="language"))
    )
    assert whole - language >= 2 * 161460 * 32 * 1280


def test_advice_names_settings_that_help_and_is_silent_when_all_fits() -> None:
    small = changed(FULL)
    assert advice(LONG, small, 141 * GIB) == ""
    assert "--model.train lora" in advice(LONG, small, 80 * GIB)
    assert "--env.parallel 64" in advice(LONG, FULL, 141 * GIB)


def test_ranks_divide_weights_gradients_and_moments_and_rank_0_has_a_whole_copy() -> None:
    one, four = (memory(LONG, changed(FULL, ranks=ranks)) for ranks in (1, 4))
    assert four == Plan(
        weights=PARAMETERS // 2,  # two bytes each, a quarter of them
        base_model=0,
        gradients=PARAMETERS // 2,
        moments=PARAMETERS,
        gathered=2 * (2 * OUTSIDE + 3 * 233_057_792) + 4 * 233_057_792,
        activations=one.activations,
        whole_copy=2 * PARAMETERS,
        rollouts=one.rollouts,
        reserve=RESERVE,
    )
    assert four.other_ranks == 2 * PARAMETERS + four.gathered + one.activations + RESERVE
    assert four.total - four.other_ranks == 2 * PARAMETERS + one.rollouts


def test_adapters_are_divided_and_a_frozen_tower_is_not() -> None:
    sizes = memory(LONG, changed(FULL, train="lora", ranks=8))
    assert sizes.weights == 2 * 676_550_144 + (2 * 7_615_616_512 + 4 * 80_000_000) // 8
    assert (sizes.gradients, sizes.moments) == (4 * 10_000_000, 8 * 10_000_000)
    assert sizes.gathered == 2 * (OUTSIDE + 2 * 233_057_792)
    assert sizes.whole_copy == 2 * PARAMETERS + 4 * 80_000_000


def test_as_many_ranks_are_advised_as_are_needed_and_none_where_they_do_not_help() -> None:
    config = changed(FULL)
    totals = {ranks: memory(LONG, changed(FULL, ranks=ranks)).total for ranks in (1, 2, 4, 8)}
    assert totals[1] > totals[2] > totals[4] > totals[8]
    assert "--optim.ranks 2 (each with a GPU)" in advice(LONG, config, totals[2])
    assert "--optim.ranks 8 (each with a GPU)" in advice(LONG, config, totals[4] - 1)
    assert "--optim.ranks 8 (each with a GPU)" in advice(LONG, config, totals[8] - 1)
    assert "--optim.ranks" not in advice(LONG, changed(FULL, ranks=8), totals[8] - 1)


def test_with_adapters_a_whole_copy_on_rank_0_costs_more_than_ranks_save() -> None:
    alone, divided = changed(FULL, train="lora"), changed(FULL, train="lora", ranks=8)
    room = memory(LONG, alone).total
    assert memory(LONG, divided).total > room
    assert "--optim.ranks" not in advice(LONG, alone, room - 1)
    assert "--optim.ranks 1" in advice(LONG, divided, room)


def test_each_rank_is_told_what_it_needs() -> None:
    sizes = memory(LONG, changed(FULL, ranks=4))
    lines = describe(LONG, changed(FULL, ranks=4), None)
    assert f"  whole copy {2 * PARAMETERS / GIB:8.1f} GiB" in lines
    assert lines[-3] == f"      in all {sizes.total / GIB:8.1f} GiB, for sequences of 43,045 tokens"
    assert lines[-2] == (
        "this is rank 0 of 4, which also samples; every other one needs "
        f"{sizes.other_ranks / GIB:.1f} GiB of a GPU of its own"
    )
    assert not any("rank" in line or "copy" in line for line in describe(LONG, changed(FULL), None))


def test_the_laptop_recipe_fits_anywhere() -> None:
    config = load_config("desk")
    work = read_work(config)
    sizes = memory(work, config)
    assert sizes.total - sizes.reserve < 4 * GIB
    assert describe(work, config, 16 * GIB)[-1] == "fits into the 16 GiB of this GPU"


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    config = replace(Config(), model=ModelConfig(path=str(tmp_path)), optim=OptimConfig())
    with pytest.raises(UserError, match=r"config\.json: not found"):
        read_work(config)


def test_a_whole_layer_of_the_7b_model_keeps_six_gigabytes_of_a_long_trajectory() -> None:
    assert 2 * layer_values(SEVEN_B, 43045) == 2 * 43045 * (6 * 3584 + 2 * 512 + 3 * 18944)
    assert round(2 * layer_values(SEVEN_B, 43045) / GIB, 1) == 6.4
