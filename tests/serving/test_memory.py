"""Memory of a server: worked numbers for the tiny model, in float32."""

from dataclasses import replace

import pytest

from arpo.config import Config
from arpo.models.memory_plan import GIB, plan_memory, read_model_info
from arpo.serving.memory import describe_server, fits, free_for_server, server_memory


def config(**rollout):
    default = Config()
    engine = replace(default.engine, name="vllm", replicas=1)
    return replace(default, engine=engine, rollout=replace(default.rollout, **rollout))


def test_bytes_of_a_server():
    settings = config(max_context_tokens=1000)
    info = read_model_info(settings.model)
    dims, found = info.dims, server_memory(info, settings.model, settings.rollout)
    assert found.weights == 4 * (dims.vision_parameters + dims.language_parameters)
    assert found.episode == 1000 * dims.layers * dims.key_width * 2 * 4  # keys and values, 4 bytes each
    assert found.total == found.weights + found.episode + found.passes + 2 * GIB


def test_adapters_are_served_twice_while_versions_change():
    settings = replace(config(), model=replace(config().model, train="lora"))
    info = read_model_info(settings.model)
    plain = server_memory(info, config().model, config().rollout)
    assert (
        server_memory(info, settings.model, settings.rollout).weights - plain.weights
        == 2 * 4 * info.dims.adapter_parameters
    )


def test_a_shared_gpu_holds_both_in_turns():
    info = read_model_info(config().model)
    server = server_memory(info, config().model, config().rollout)
    learner = plan_memory(info, config())
    assert free_for_server(None, 10 * GIB) == 9 * GIB
    assert free_for_server(learner, 10 * GIB) == int(9.5 * GIB) - learner.always
    awake, learning = (learner.always + server.total) / 0.95, learner.total + server.libraries
    smallest = round(max(awake, learning))
    assert fits(server, learner, smallest + 2)
    assert not fits(server, learner, smallest - 2)
    assert smallest < learner.total + server.total


@pytest.mark.parametrize(
    ("shared", "where"), [(True, "on the GPU of the learner"), (False, "on its own GPU")]
)
def test_a_server_that_does_not_fit(shared, where):
    lines = describe_server(read_model_info(config().model), config(), GIB, shared=shared)
    assert where in lines[0]
    assert lines[-1].startswith("does not fit into a GPU of 1 GiB: ")
    assert lines[-1].endswith("lower rollout.max_context_tokens")
