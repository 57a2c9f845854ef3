"""GPU memory of a recipe, computed without loading the model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.config import Config, ModelConfig, OptimConfig
from arpo.config.recipe import load_config
from arpo.errors import BadSetting, UserError
from arpo.models.known_models import known_model
from arpo.models.kv_cache import SlotCache
from arpo.models.loading import load_model, read_config, resolve_model
from arpo.models.lora import attach
from arpo.models.memory_advice import advise, describe_fit, describe_parts, fit_into
from arpo.models.memory_plan import (
    GIB,
    MAX_LOGITS,
    MemoryPlan,
    ModelDimensions,
    ModelInfo,
    Workload,
    activations_to_keep,
    available_for_pool,
    block_bytes,
    key_value_bytes,
    layer_bytes,
    max_kept_activations,
    measure_dimensions,
    model_info,
    plan_memory,
    pool_tokens,
    product_bytes,
    read_model_info,
    sampling_bytes,
    slot_bytes,
    states_bytes,
    workload_of,
)
from arpo.models.recompute import KeptActivations
from arpo.models.token_pool import TokenPool, extent_size
from tiny_vlm import FAMILIES, LINEAR, QWEN2_5, QWEN3_5, tiny_of
from tools.pretrain.tiny import IMAGE_SETTINGS

SEVEN_B = ModelDimensions(
    vision_parameters=676_550_144,
    language_parameters=7_615_616_512,
    layer_parameters=233_057_792,
    non_layer_parameters=7_615_616_512 - 28 * 233_057_792,
    adapter_parameters=80_000_000,
    layers=28,
    hidden=3584,
    query_width=3584,
    key_width=512,
    intermediate=18944,
    vocabulary=152064,
    vision_layers=32,
    vision_full_layers=4,
    vision_hidden=1280,
    vision_intermediate=3420,
)
PARAMETERS = 676_550_144 + 7_615_616_512
OUTSIDE = 2 * 152064 * 3584 + 3584  # embeddings, head and the last norm
INFO = ModelInfo(dims=SEVEN_B, images=IMAGE_SETTINGS)
SETTINGS = ["--rollout.max_answer_tokens", "150", "--optim.moments", "bfloat16"]
FULL = load_config("osworld_128", SETTINGS)
SEQUENCE = 1024 + 15 * (2691 + 150)  # text, and 15 screenshots of 1932x1092 with their answers
GRADIENTS = 2 * PARAMETERS
GPU_SIZES = (24, 32, 48, 80, 141, 2000)


def changed(
    config: Config,
    ranks: int = 1,
    kl: float = 0.0,
    parallel: int = 1,
    microbatch: int = 32768,
    images: int = 15,
    **model: Any,
) -> Config:
    return replace(
        config,
        model=replace(config.model, **model),
        optim=replace(config.optim, ranks=ranks, tokens_per_microbatch=microbatch),
        loss=replace(config.loss, kl=kl),
        env=replace(config.env, parallel=parallel),
        rollout=replace(config.rollout, max_images=images),
    )


@pytest.fixture(scope="module")
def seven_b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration of a 7B model and no weights."""
    folder = tmp_path_factory.mktemp("models") / "seven_b"
    shutil.copytree(resolve_model("base"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = False
    config["text_config"] |= {
        **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "vocab_size": 152064},
        **{"num_attention_heads": 28, "num_key_value_heads": 4},
    }
    config["text_config"].pop("layer_types", None)
    config["vision_config"] |= {
        **{"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        **{"out_hidden_size": 3584},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def info(seven_b: Path) -> ModelInfo:
    return read_model_info(load_config("osworld_128", ["--model.path", str(seven_b)]).model)


def test_parameters_are_counted_without_weights() -> None:
    model = load_model(ModelConfig(device="cpu"), 0)
    dims = read_model_info(ModelConfig(lora_rank=4)).dims
    assert dims.vision_parameters + dims.language_parameters == sum(p.numel() for p in model.parameters())
    assert dims.layer_parameters == sum(p.numel() for p in model.model.language_model.layers[1].parameters())
    assert dims.adapter_parameters > 0
    assert dims.vision_full_layers == len(model.model.visual.fullatt_block_indexes)
    assert dims.linear is None and dims.key_layers == dims.layers


def test_linear_attention_has_no_keys_and_a_size_of_its_own() -> None:
    model = tiny_of(QWEN3_5)
    dims = measure_dimensions(model, lora_rank=4)
    language = model.model.language_model
    outside = (language.embed_tokens.weight, language.norm.weight, model.lm_head.weight)
    assert dims.non_layer_parameters == sum(weight.numel() for weight in outside)
    linear, full = (sum(p.numel() for p in layer.parameters()) for layer in language.layers[:2])
    assert dims.layer_parameters == max(linear, full) and linear != full
    assert (dims.layers, dims.key_layers) == (3, 1)
    assert key_value_bytes(dims, 4) == 4 * 2 * 2 * 24  # keys and values of two heads in one layer


@pytest.mark.parametrize("family", LINEAR)
def test_activations_of_linear_attention_are_as_large_as_planned(family: str) -> None:
    """Everything that autograd holds for one layer and 256 tokens, without the weights."""
    layer, held = tiny_of(family).model.language_model.layers[0], {}
    weights = {p.untyped_storage().data_ptr() for p in layer.parameters()}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hidden_1TD = torch.randn(1, 256, 64, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        layer(hidden_1TD, position_embeddings=None)
    size = sum(tensor.untyped_storage().nbytes() for tensor in held.values())
    planned = layer_bytes(measure_dimensions(tiny_of(family), lora_rank=1), 4, 256)
    assert size <= planned < 1.02 * size


def nine_b(*, kernels: bool) -> ModelInfo:
    """Qwen3.5-9B, on a machine with flash-linear-attention or without it."""
    known = known_model("Qwen3.5-9B")
    assert known is not None
    info = model_info(known.config, ModelConfig())
    assert info.dims.linear is not None
    return replace(info, dims=replace(info.dims, linear=replace(info.dims.linear, kernels=kernels)))


def test_a_layer_with_kernels_is_planned_as_measured_without_what_is_fused_now() -> None:
    """A layer of Qwen3.5-9B with flash-linear-attention 0.6, 32,768 tokens in bfloat16 on an H200.

    It kept 299,851 bytes per token before norms and convolution were fused, and needed 349,003 in its
    backward pass. What fused operations no longer keep is subtracted.
    """
    norms = 2 * (4 + 4) * 4096 - 2 * 4096  # two tensors in float32 each; now one input, besides the layer's
    gated_norm = (3 * 4 + 2 * 2) * 4096 - 2 * 2 * 4096  # now hidden values and gate
    convolution = 2 * 8192  # its output before SiLU
    kernels, plain = (nine_b(kernels=has).dims for has in (True, False))
    planned = layer_bytes(kernels, 2, 32768) // 32768
    assert planned == 177_152
    assert 299_851 - norms - gated_norm - convolution == 176_971 <= planned
    assert 2 * planned > 349_003  # the plan counts the layer twice while it is recomputed
    assert layer_bytes(plain, 2, 32768) == 542_720 * 32768  # with torch's own operations


def test_advice_names_the_kernels_that_need_less_memory() -> None:
    config = load_config("osworld_128", {"model.dtype": "bfloat16"})
    without = advise(nine_b(kernels=False), config, 140 * GIB)
    assert without[-1] == "with flash-linear-attention installed, the current settings need 132.9 GiB"
    assert advise(nine_b(kernels=True), config, 140 * GIB) == []


def test_weights_gradients_and_moments_of_the_7b_model() -> None:
    sizes = plan_memory(INFO, changed(FULL))
    assert sizes.weights == sizes.gradients == 2 * PARAMETERS
    assert sizes.moments == 4 * PARAMETERS
    assert sizes.base_model == sizes.gathered == sizes.sampling_model == sizes.sampling_weights == 0


def test_lora_trains_and_keeps_moments_of_its_adapters_alone() -> None:
    sizes = plan_memory(INFO, changed(FULL, train="lora"))
    assert (sizes.gradients, sizes.moments) == (4 * 80_000_000, 4 * 80_000_000)  # moments in bfloat16


def test_a_kl_term_needs_a_second_model_unless_adapters_can_be_switched_off() -> None:
    assert plan_memory(INFO, changed(FULL, kl=0.1)).base_model == 2 * 8_292_166_656
    assert plan_memory(INFO, changed(FULL, kl=0.1, train="lora")).base_model == 0


def test_the_second_model_shares_a_frozen_tower_but_not_among_ranks() -> None:
    assert plan_memory(INFO, changed(FULL, kl=0.1, train="language")).base_model == 2 * 7_615_616_512
    divided = plan_memory(INFO, changed(FULL, kl=0.1, train="language", ranks=2))
    assert divided.weights == 2 * 676_550_144 + 7_615_616_512
    assert divided.base_model == divided.weights + 2 * OUTSIDE  # gathered once, for all of it


def test_a_frozen_tower_keeps_no_activations() -> None:
    all_trained, language = (
        plan_memory(INFO, changed(FULL, train=train)).activations for train in ("all", "language")
    )
    assert all_trained - language >= 2 * 161460 * (32 + 4) * 1280  # inputs of all blocks, attention of four


def test_a_microbatch_is_one_long_trajectory_or_as_many_screenshots_as_its_tokens_hold() -> None:
    assert workload_of(INFO, changed(FULL)) == Workload(
        sequence=SEQUENCE, tokens=SEQUENCE, patches=15 * 78 * 138
    )
    packed = workload_of(INFO, changed(FULL, microbatch=65536))
    assert packed == Workload(sequence=SEQUENCE, tokens=65536, patches=24 * 78 * 138)


def test_slots_are_planned_with_their_real_capacity(seven_b: Path) -> None:
    text = read_config(seven_b).text_config
    cache = SlotCache(text, 3, torch.float32, torch.device("meta"))
    cache.reserve(SEQUENCE)
    assert cache.capacity == 65536
    held = sum(tensor.nbytes for tensor in (*cache.keys, *cache.values))
    sizes = plan_memory(INFO, changed(FULL, parallel=3, dtype="float32"))
    assert (sizes.slots, sizes.pool) == (held, 0)


def test_slots_are_planned_with_the_states_of_linear_attention() -> None:
    model = tiny_of(QWEN3_5)
    cache = SlotCache(model.config.text_config, 3, torch.bfloat16, torch.device("meta"))
    cache.reserve(100)
    held = (*cache.keys, *cache.values, *cache.linear.tensors)
    assert [len(tensors) for tensors in (cache.keys, cache.linear.tensors)] == [1, 4]
    assert 3 * slot_bytes(measure_dimensions(model, 1), 2, 100) == sum(tensor.nbytes for tensor in held)


def test_a_pool_is_planned_with_the_states_of_linear_attention() -> None:
    """Worked numbers: two layers; 3 windows of channels in 2 bytes, states in 4; one more row for padding."""
    model = tiny_of(QWEN3_5)
    pool = TokenPool(model.config.text_config, 512, 3, torch.bfloat16, torch.device("meta"))
    dims = measure_dimensions(model, 1)
    keys = 513 * key_value_bytes(dims, 2)
    assert dims.linear is not None
    states = 4 * 2 * (2 * dims.linear.window_values + 4 * dims.linear.state_values)
    assert (pool.nbytes, states_bytes(dims, 2, 3)) == (keys + states, states)


def test_a_pool_is_planned_for_one_episode_and_takes_what_is_left(seven_b: Path) -> None:
    """An episode of rollout.max_context_tokens. The number of environments does not matter."""
    text = read_config(seven_b).text_config
    pool = TokenPool(text, extent_size(65536 + 1), 16, torch.bfloat16, torch.device("meta"))
    token = 2 * 512 * 28 * 2
    sizes, many = (plan_memory(INFO, changed(FULL, parallel=parallel)) for parallel in (3, 256))
    assert many == sizes
    assert (sizes.slots, sizes.pool) == (0, pool.nbytes - token)  # the last token is for padding
    assert sizes.pool == 65_792 * token
    assert sizes.cached_episodes(sizes.always + sizes.passes + 5 * sizes.pool + 1) == 5


def test_the_size_of_the_cache_must_hold_an_episode_and_fit_into_the_gpu() -> None:
    """An episode of 65,536 tokens needs 3.51 GiB; without the cache an evaluation needs 22.1 GiB."""

    def fit(gigabytes: str, parallel: int = 16) -> Config:
        words = [*SETTINGS, "--engine.cache_gigabytes", gigabytes, "--env.parallel", str(parallel)]
        return fit_into(INFO, load_config("osworld_128", words), 48 * GIB, learning=False)

    for gigabytes in ("0", "3.52", "25.8"):
        assert fit(gigabytes).engine.cache_gigabytes == float(gigabytes)
    assert fit("100", parallel=4)  # more than four episodes can use
    for gigabytes in ("3.51", "25.81"):
        with pytest.raises(BadSetting) as refused:
            fit(gigabytes)
        assert str(refused.value) == (
            f"engine.cache_gigabytes: is {gigabytes}, must be between 3.52 (the longest episode, "
            "rollout.max_context_tokens = 65536) and 25.8 (the free memory); or set 0: the free memory"
        )
    holds = describe_fit(INFO, fit("25.8"), 160 * GIB)[-1]
    assert holds == "the cache holds at least 7 of 16 parallel episodes; others wait"
    assert "at least 1 of" in describe_fit(INFO, fit("3.52"), 160 * GIB)[-1]


@pytest.mark.parametrize("images", [1, 5, 15])
def test_a_gpu_with_room_for_the_plan_has_room_for_the_pool(images: int) -> None:
    """The engine asks for an episode of max_context_tokens; libraries take half a gigabyte."""
    config = changed(FULL, images=images)
    plan = plan_memory(INFO, config, learning=False)
    longest = extent_size(config.rollout.max_context_tokens + 1)
    free = plan.total - plan.weights - GIB // 2
    assert available_for_pool(SEVEN_B, 2, longest, free) >= longest * key_value_bytes(SEVEN_B, 2)


@pytest.mark.parametrize("family", [QWEN2_5, QWEN3_5])
def test_in_asynchronous_training_the_planned_pool_holds_an_episode(family: str) -> None:
    """On a GPU with room for the plan alone. States of linear attention lie beside the keys of the pool.

    There is one state for each environment, for four answers that check the engine, and for padding.
    """
    model = tiny_of(family).bfloat16()
    dims = measure_dimensions(model, 1)
    info = ModelInfo(dims=dims, images=IMAGE_SETTINGS)
    config = asynchronous(changed(Config(), parallel=3, dtype="bfloat16"))
    plan = plan_memory(info, config)
    fitted = fit_into(info, config, plan.total, learning=True)
    longest = extent_size(config.rollout.max_context_tokens + 1)
    tokens = pool_tokens(model, longest, 3 + 4, fitted.engine.cache_gigabytes)
    pool = TokenPool(model.config.text_config, tokens, 3 + 4, torch.bfloat16, torch.device("meta"))
    padding = key_value_bytes(dims, 2)
    assert pool.nbytes - padding == plan.pool + plan.passes - sampling_bytes(dims, 2)


def test_a_pool_leaves_four_gigabytes_where_it_can() -> None:
    passes, token = sampling_bytes(SEVEN_B, 2), key_value_bytes(SEVEN_B, 2)
    assert available_for_pool(SEVEN_B, 2, 256, passes + 60 * GIB) == 55 * GIB  # a tensor of 56 is for moves
    assert available_for_pool(SEVEN_B, 2, 256, passes + 4 * GIB) == 256 * token
    assert available_for_pool(SEVEN_B, 2, 256, passes + GIB // 4) == 0


def test_sampling_and_learning_take_turns() -> None:
    sizes = plan_memory(INFO, changed(FULL))
    assert sizes.always == 6 * PARAMETERS + sizes.reserve  # weights, and moments of two bytes
    assert sizes.reserve == GIB + (sizes.total - sizes.reserve) // 32
    assert sizes.total == sizes.always + sizes.gradients + sizes.activations
    alone = plan_memory(INFO, changed(FULL), learning=False)
    assert alone.total == 2 * PARAMETERS + alone.reserve + alone.pool + alone.passes


def test_the_published_recipes_fit_into_one_gpu_with_141_gibibytes() -> None:
    """An H200 has 139.8 GiB."""
    for recipe in ("osworld_128", "osworld_subset32"):
        assert plan_memory(INFO, load_config(recipe)).total <= 139 * GIB


def test_smaller_microbatches_are_chosen_and_anything_else_is_refused() -> None:
    config = changed(FULL, train="lora", microbatch=131072, images=2)
    small = plan_memory(INFO, changed(FULL, train="lora", microbatch=8192, images=2)).total
    assert fit_into(INFO, config, 140 * GIB, learning=True) == config
    fitted = fit_into(INFO, config, small, learning=True)
    assert fitted.optim.tokens_per_microbatch == 8192
    assert replace(fitted, optim=config.optim) == config
    with pytest.raises(UserError) as refused:
        fit_into(INFO, load_config("osworld_128"), 101 * GIB, learning=True)
    lines = str(refused.value).splitlines()
    assert lines[0] == "GPU memory:"
    assert "does not fit into a GPU of 101 GiB" in lines[-2]
    assert lines[-1] == "    --optim.ranks 2"
    assert fit_into(INFO, load_config("osworld_128"), 80 * GIB, learning=False)


def test_only_the_logits_computed_at_once_are_planned() -> None:
    config = changed(FULL, train="lora")
    few, many = (
        plan_memory(
            ModelInfo(dims=replace(SEVEN_B, vocabulary=size), images=IMAGE_SETTINGS), config
        ).activations
        for size in (1, 152064)
    )
    assert many - few == 4 * 4 * (MAX_LOGITS - SEQUENCE)


@pytest.mark.parametrize("room", GPU_SIZES[::2])
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        ("osworld_128", ""),
        ("osworld_128", "--model.dtype float32 --optim.ranks 4"),
        ("osworld_subset32", "--model.train lora"),
    ],
)
def test_advised_settings_fit_or_a_larger_gpu_is_requested(
    recipe: str, room: int, more: str, info: ModelInfo
) -> None:
    config = load_config(recipe, more.split())
    lines = advise(info, config, room * GIB)
    if not lines:
        assert plan_memory(info, config).total <= room * GIB
        return
    better = load_config(recipe, [*more.split(), *lines[1].split()])
    need = plan_memory(info, better).total
    assert need < plan_memory(info, config).total
    assert f" {need / GIB:.1f} GiB" in lines[0]
    assert (need > room * GIB) == ("a larger GPU is needed" in lines[0]) == (room == 24)


def test_each_advised_setting_is_needed(info: ModelInfo) -> None:
    config = load_config("osworld_128", ["--model.dtype", "float32"])
    words = advise(info, config, 48 * GIB)[1].split()
    settings = list(zip(words[::2], words[1::2], strict=True))
    assert len(settings) > 4
    for left_out in settings:
        rest = [word for setting in settings if setting != left_out for word in setting]
        need = plan_memory(info, load_config("osworld_128", ["--model.dtype", "float32", *rest])).total
        assert need > 48 * GIB or left_out[0] == "--optim.lr"


def test_more_gpus_are_advised_before_changes_of_training() -> None:
    full = load_config("osworld_128")
    assert advise(INFO, full, 101 * GIB)[1:] == ["    --optim.ranks 2"]
    assert advise(INFO, full, 80 * GIB)[1:] == ["    --optim.ranks 8"]
    lines = advise(INFO, full, 48 * GIB)
    assert "--optim.ranks 8" in lines[1] and "--model.train language" in lines[1]
    assert lines[2].startswith("this changes training results (rollout.max_answer_tokens, model.train")


def test_smaller_microbatches_are_advised_where_they_alone_help() -> None:
    config = changed(FULL, train="lora", microbatch=131072, images=2)
    small = plan_memory(INFO, changed(FULL, train="lora", microbatch=8192, images=2)).total
    assert advise(INFO, config, small)[1] == "    --optim.tokens_per_microbatch 8192"


def test_ranks_divide_weights_gradients_and_moments_and_rank_0_has_a_whole_copy() -> None:
    one, four = (plan_memory(INFO, changed(FULL, ranks=ranks)) for ranks in (1, 4))
    assert four == MemoryPlan(
        weights=PARAMETERS // 2,  # two bytes each, a quarter of them
        base_model=0,
        gradients=PARAMETERS // 2,
        moments=PARAMETERS,
        gathered=2 * (2 * OUTSIDE + 3 * 233_057_792) + 4 * 233_057_792,
        activations=one.activations,
        sampling_model=0,
        sampling_weights=2 * PARAMETERS,
        slots=0,
        pool=one.pool,
        passes=one.passes,
        reserve=GIB + (four.total - four.reserve) // 32,
    )
    assert four.other_ranks == 2 * PARAMETERS + four.gathered + one.activations + four.reserve
    assert four.total == four.other_ranks  # sampling alone needs less than learning


def test_adapters_are_divided_and_a_frozen_tower_is_not() -> None:
    sizes = plan_memory(INFO, changed(FULL, train="lora", ranks=8))
    assert sizes.weights == 2 * 676_550_144 + (2 * 7_615_616_512 + 4 * 80_000_000) // 8
    assert (sizes.gradients, sizes.moments) == (4 * 10_000_000, 4 * 10_000_000)
    assert sizes.gathered == 2 * (OUTSIDE + 2 * 233_057_792)
    assert sizes.sampling_model == 2 * PARAMETERS + 4 * 80_000_000


def asynchronous(config: Config) -> Config:
    return replace(config, train=replace(config.train, max_staleness=1))


def test_in_asynchronous_training_the_engine_has_weights_of_its_own_and_nothing_takes_turns() -> None:
    lock_step, plan = plan_memory(INFO, changed(FULL)), plan_memory(INFO, asynchronous(changed(FULL)))
    assert (lock_step.sampling_model, plan.sampling_model) == (0, 2 * PARAMETERS)
    assert plan.learning == lock_step.learning
    assert plan.sampling == lock_step.sampling
    assert plan.total == plan.always + plan.learning + plan.sampling
    assert plan.free_for_pool(plan.total) == plan.pool
    adapters = plan_memory(INFO, asynchronous(changed(FULL, train="lora")))
    assert adapters.sampling_model == 4 * 80_000_000
    ranks = plan_memory(INFO, asynchronous(changed(FULL, ranks=4)))
    assert (ranks.sampling_model, ranks.sampling_weights) == (2 * PARAMETERS, 2 * PARAMETERS)


def test_in_asynchronous_training_the_pool_leaves_the_learner_its_memory() -> None:
    config = asynchronous(changed(FULL, train="lora", microbatch=8192, parallel=64))
    plan = plan_memory(INFO, config)
    fitted = fit_into(INFO, config, plan.total + 3 * plan.pool, learning=True)
    assert fitted.engine.cache_gigabytes * GIB == pytest.approx(4 * plan.pool)
    assert fitted.optim == config.optim
    lines = describe_parts(INFO, config)
    assert not any("only while" in line for line in lines)


def test_with_servers_this_process_does_not_sample() -> None:
    for ranks in (1, 4):
        config = changed(FULL, ranks=ranks)
        config = asynchronous(replace(config, engine=replace(config.engine, name="vllm")))
        plan = plan_memory(INFO, config)
        assert plan.sampling == plan.sampling_model == plan.slots == 0
        assert plan.total == plan.always + plan.learning


def test_as_many_ranks_are_advised_as_are_needed() -> None:
    totals = {ranks: plan_memory(INFO, changed(FULL, ranks=ranks)).total for ranks in (1, 2, 4, 8)}
    assert totals[1] > totals[2] > totals[4] > totals[8]
    for fewer, ranks in ((1, 2), (2, 4), (4, 8)):
        first, settings = advise(INFO, changed(FULL), totals[fewer] - 1)
        assert first.endswith(f"it needs {totals[ranks] / GIB:.1f} GiB on each of {ranks} GPUs with")
        assert settings == f"    --optim.ranks {ranks}"


def test_with_adapters_a_whole_copy_on_rank_0_costs_more_than_ranks_save() -> None:
    alone, divided = changed(FULL, train="lora"), changed(FULL, train="lora", ranks=8)
    room = plan_memory(INFO, alone).total
    assert plan_memory(INFO, divided).total > room
    assert "--optim.ranks" not in advise(INFO, alone, room - 1)[1]
    assert advise(INFO, divided, room)[1] == "    --optim.ranks 1"


def test_if_servers_sample_all_ranks_need_the_same() -> None:
    config = changed(FULL, ranks=4)
    served = replace(config, engine=replace(config.engine, name="vllm", replicas=1))
    assert "these are for each of 4 ranks, on its own GPU" in describe_parts(INFO, served)


def test_the_description_includes_the_other_ranks() -> None:
    sizes = plan_memory(INFO, changed(FULL, ranks=4))
    lines = describe_parts(INFO, changed(FULL, ranks=4))
    assert f"sampling weights {2 * PARAMETERS / GIB:8.1f} GiB (only while sampling)" in lines
    assert lines[-2] == f"           total {sizes.total / GIB:8.1f} GiB, for sequences of {SEQUENCE:,} tokens"
    assert lines[-1] == (
        "these are for rank 0 of 4, which also samples; each other rank needs "
        f"{sizes.other_ranks / GIB:.1f} GiB on its own GPU"
    )
    assert not any(
        "rank" in line or "sampling weights" in line for line in describe_parts(INFO, changed(FULL))
    )


def test_an_evaluation_has_one_rank() -> None:
    """Also with the recipe of a run on several GPUs. The advice does not speak of training."""
    config = changed(FULL, ranks=4)
    assert not any("rank" in line for line in describe_parts(INFO, config, learning=False))
    assert advise(INFO, config, 24 * GIB, learning=False) == [
        "does not fit into a GPU of 24 GiB; it needs 23.9 GiB with",
        "    --rollout.max_context_tokens 32768",
        "this changes results (rollout.max_context_tokens)",
    ]


def test_without_possible_changes_a_larger_gpu_is_requested() -> None:
    config = load_config(
        "desk",
        [
            *("--model.train", "lora", "--model.dtype", "bfloat16", "--env.parallel", "1"),
            *("--optim.tokens_per_microbatch", "1024", "--rollout.max_images", "1"),
            *("--rollout.max_context_tokens", "2048", "--optim.moments", "bfloat16"),
        ],
    )
    assert advise(read_model_info(config.model), config, GIB) == [
        "does not fit into a GPU of 1 GiB; a larger GPU is needed: the minimum is 1.6 GiB with",
        "    the current settings",
    ]


def test_the_desk_recipe_fits_into_small_gpus() -> None:
    config = load_config("desk")
    info = read_model_info(config.model)
    sizes = plan_memory(info, config)
    assert sizes.total - sizes.reserve < 4 * GIB
    assert describe_fit(info, config, 16 * GIB)[-1] == "fits into a GPU of 16 GiB"


def test_a_folder_without_a_model_is_refused(tmp_path) -> None:
    config = replace(Config(), model=ModelConfig(path=str(tmp_path)), optim=OptimConfig())
    with pytest.raises(UserError, match=r"config\.json: not found"):
        read_model_info(config.model)


def test_a_whole_layer_of_the_7b_model_keeps_six_gigabytes_of_a_long_trajectory() -> None:
    assert layer_bytes(SEVEN_B, 2, 43045) == 2 * 43045 * (6 * 3584 + 2 * 512 + 3 * 18944)
    assert layer_bytes(SEVEN_B, 4, 43045) == 4 * 43045 * (6 * 3584 + 2 * 3584 + 3 * 18944)
    assert round(layer_bytes(SEVEN_B, 2, 43045) / GIB, 1) == 6.4


def test_free_memory_goes_to_products_then_whole_layers_then_the_tower() -> None:
    """With 15 screenshots, the products of a layer take 3.7 GiB, a layer 6.4, a block of the tower 6.2."""
    tokens, patches = 43150, 15 * 10764

    def kept(gigabytes: int, pending_gradients: int = 0) -> tuple[int, int, int]:
        found = max_kept_activations(SEVEN_B, 2, tokens, patches, gigabytes * GIB, pending_gradients)
        return found.product_layers, found.whole_layers, found.vision_blocks

    assert product_bytes(SEVEN_B, 2, tokens) == 2 * tokens * (2 * 3584 + 2 * 512 + 2 * 18944)
    assert block_bytes(SEVEN_B, 2, patches) == 2 * patches * (8 * 1280 + 3 * 3420)
    sizes = (
        product_bytes(SEVEN_B, 2, tokens),
        layer_bytes(SEVEN_B, 2, tokens),
        block_bytes(SEVEN_B, 2, patches),
    )
    assert [round(size / GIB, 1) for size in sizes] == [3.7, 6.4, 6.2]
    assert kept(0) == kept(50) == (0, 0, 0)
    assert kept(93, pending_gradients=GRADIENTS) == (9, 0, 0)
    assert kept(180, pending_gradients=GRADIENTS)[0] + kept(180, pending_gradients=GRADIENTS)[1] == 28
    assert kept(180, pending_gradients=GRADIENTS)[2] == 0
    assert kept(2000) == (0, 28, 32)


def test_the_tower_keeps_less_where_gradients_will_be() -> None:
    """With one screenshot, the layers keep 13.4 GiB; in the tower's backward pass, gradients take 15.4."""
    tokens, patches = 3250, 10764
    alone, with_gradients = (
        max_kept_activations(SEVEN_B, 2, tokens, patches, 30 * GIB, n) for n in (0, GRADIENTS)
    )
    assert (alone.whole_layers, alone.vision_blocks) == (28, 13)
    assert (with_gradients.whole_layers, with_gradients.vision_blocks) == (28, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tower_whose_blocks_are_frozen_has_nothing_to_keep(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if later layers have adapters. The GPU has 2,000 GiB of free memory."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2000 * GIB, 2000 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    model = tiny_of(family)
    layers, vision_blocks = len(model.model.language_model.layers), len(model.model.visual.blocks)
    assert activations_to_keep(model, 3250, 10764) == KeptActivations(
        whole_layers=layers, vision_blocks=vision_blocks
    )
    attach(model, rank=4, seed=0)
    assert any(parameter.requires_grad for parameter in model.model.visual.parameters())
    assert activations_to_keep(model, 3250, 10764) == KeptActivations(whole_layers=layers)
