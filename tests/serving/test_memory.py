"""Memory of a server: worked numbers for the tiny model, in float32."""

from dataclasses import replace

import pytest

from arpo.config import Config
from arpo.models.memory_plan import GIB, measure_dimensions, plan_memory, read_model_info
from arpo.serving.memory import SharedGpu, describe_server, run_need, server_memory
from arpo.serving.placement import Placement
from tiny_vlm import QWEN3_5, tiny_of


def config(gpus_per_server=1, **rollout):
    default = Config()
    engine = replace(default.engine, name="vllm", replicas=1, gpus_per_server=gpus_per_server)
    return replace(default, engine=engine, rollout=replace(default.rollout, **rollout))


def test_bytes_of_a_server():
    settings = config(max_context_tokens=1000)
    info = read_model_info(settings.model)
    dims, found = info.dims, server_memory(info, settings)
    assert found.weights == 4 * (dims.vision_parameters + dims.language_parameters)
    assert found.episode == 1000 * dims.layers * dims.key_width * 2 * 4  # keys and values, 4 bytes each
    assert found.total == found.weights + found.episode + found.passes + 2 * GIB


def test_an_episode_of_a_server_has_a_state_in_each_layer_with_linear_attention():
    """Worked numbers: one layer with keys of two heads; two with three inputs of 208 channels and a state."""
    settings = config(max_context_tokens=1000)
    info = read_model_info(settings.model)
    hybrid = replace(info, dims=measure_dimensions(tiny_of(QWEN3_5), 1))
    state = 4 * (3 * 208 + 4 * 32 * 20)
    assert server_memory(hybrid, settings).episode == 1000 * 2 * 2 * 24 * 4 + 2 * state


def test_adapters_are_served_twice_while_versions_change():
    settings = replace(config(), model=replace(config().model, train="lora"))
    info = read_model_info(settings.model)
    plain = server_memory(info, config())
    assert server_memory(info, settings).weights - plain.weights == 2 * 4 * info.dims.adapter_parameters


def test_a_server_on_two_gpus_has_half_on_each():
    info = read_model_info(config().model)
    one, half = (server_memory(info, config(gpus_per_server=number)) for number in (1, 2))
    assert (half.weights, half.episode) == (one.weights // 2, one.episode // 2)
    assert (half.passes, half.libraries) == (one.passes, one.libraries)


def test_a_shared_gpu_holds_both_in_turns():
    info = read_model_info(config().model)
    server, learner = server_memory(info, config()), plan_memory(info, config())
    assert SharedGpu().per_server(10 * GIB) == 9 * GIB
    assert SharedGpu(servers=2).per_server(10 * GIB) == 4.5 * GIB
    shared = SharedGpu(learner=learner)
    assert shared.per_server(10 * GIB) == int(9.5 * GIB) - learner.always
    awake, learning = (learner.always + server.total) / 0.95, learner.total + server.libraries
    assert shared.need(server) == pytest.approx(max(awake, learning), abs=2)
    assert shared.need(server) < learner.total + server.total
    assert SharedGpu(servers=2).need(server) == pytest.approx(2 * server.total / 0.9, abs=2)


def test_side_by_side_both_keep_their_memory():
    info = read_model_info(config().model)
    server, learner = server_memory(info, config()), plan_memory(info, config())
    shared = SharedGpu(learner=learner, in_turns=False)
    assert shared.per_server(10 * GIB) == int(9.5 * GIB) - learner.total
    assert shared.need(server) == pytest.approx((learner.total + server.total) / 0.95, abs=2)


@pytest.mark.parametrize(
    ("shared", "staleness", "where"),
    [
        (True, 0, "on the GPU of the learner; it sleeps while the learner learns"),
        (True, 1, "on the GPU of the learner; it samples while the learner learns"),
        (False, 0, "on its own GPU"),
    ],
)
def test_only_a_server_that_fits_has_a_cache(shared, staleness, where):
    settings = replace(config(), train=replace(config().train, max_staleness=staleness))
    info, placement = read_model_info(settings.model), Placement(gpus=("0",), shared=shared)
    for gigabytes in (1, 16):
        lines = describe_server(info, settings, placement, gigabytes * GIB)
        assert where in lines[0]
        assert ("cache" in lines[-1]) == (gigabytes == 16)


def test_the_need_of_a_run_depends_on_the_number_of_gpus():
    info = read_model_info(config().model)
    two_ranks = replace(config(), optim=replace(config().optim, ranks=2))
    assert run_need(info, two_ranks, 3) == run_need(info, two_ranks, None) < 16 * GIB
    assert run_need(info, two_ranks, 3) < run_need(info, two_ranks, 2) < 16 * GIB  # shared
    assert run_need(info, two_ranks, 1) > 2**60  # two ranks have no place on one GPU
