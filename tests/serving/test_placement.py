from dataclasses import replace

import pytest

from arpo.config import Config
from arpo.errors import BadSetting
from arpo.serving.placement import Placement, parse_gpus, place_on_cpu, place_on_gpus


def config(gpus="", ranks=1, gpus_per_server=1):
    default = Config()
    return replace(
        default,
        engine=replace(default.engine, name="vllm", gpus=gpus, gpus_per_server=gpus_per_server),
        optim=replace(default.optim, ranks=ranks),
    )


def placed(settings, replicas, count, learning=True, **environ):
    return place_on_gpus(settings, replicas, count, learning=learning, environ=environ)


@pytest.mark.parametrize(
    ("text", "gpus"), [("", []), ("3", [3]), ("0,2-4", [0, 2, 3, 4]), ("1, 1-2", [1, 1, 2])]
)
def test_lists_of_gpus(text, gpus):
    assert parse_gpus(text) == gpus


@pytest.mark.parametrize("text", ["a", "3-1", "-1", "1-", "0-99999", "0-1024", "1.5"])
def test_bad_lists_of_gpus(text):
    with pytest.raises(BadSetting, match="is neither a number nor a range: use for example 0,2-7"):
        parse_gpus(text)


def test_servers_get_the_gpus_that_no_learner_uses():
    assert placed(config(ranks=2), 3, 8) == Placement(gpus=("2", "3", "4"))
    assert placed(config(ranks=2), 3, 8, learning=False) == Placement(gpus=("0", "1", "2"))


def test_a_single_gpu_is_shared_with_the_learner():
    assert placed(config(), 1, 1) == Placement(gpus=("0",), shared=True)
    assert placed(config(gpus="0-1"), 2, 2) == Placement(gpus=("0", "1"), shared=True)
    assert placed(config(), 1, 1, learning=False) == Placement(gpus=("0",))


def test_several_servers_on_one_gpu():
    assert placed(config(gpus="1,1"), 0, 2) == Placement(gpus=("1", "1"), servers_per_gpu=2)
    assert placed(config(gpus="0,0"), 2, 1) == Placement(gpus=("0", "0"), shared=True, servers_per_gpu=2)


def test_several_gpus_for_one_server():
    assert placed(config(gpus_per_server=2), 3, 8) == Placement(gpus=("1,2", "3,4", "5,6"))
    assert placed(config(gpus_per_server=2), 1, 2) == Placement(gpus=("0,1",), shared=True)
    assert placed(config(gpus="0-3", gpus_per_server=2), 0, 4, learning=False).gpus == ("0,1", "2,3")
    two = placed(config(gpus_per_server=2), 1, 3, CUDA_VISIBLE_DEVICES="5,6,7")
    assert two == Placement(gpus=("6,7",))
    with pytest.raises(BadSetting, match=r"engine\.replicas: is 4, must be at most 3"):
        placed(config(gpus_per_server=2), 4, 8)
    with pytest.raises(BadSetting, match=r"engine\.gpus: one server cannot use GPU 0 twice"):
        placed(config(gpus="0,0", gpus_per_server=2), 1, 1)


def test_the_number_of_servers():
    assert placed(config(gpus="0-3"), 0, 8, learning=False).gpus == ("0", "1", "2", "3")
    assert placed(config(), 0, 8, learning=False).gpus == ("0",)
    with pytest.raises(BadSetting, match=r"engine\.replicas: is 9, must be at most 8"):
        placed(config(), 9, 8, learning=False)
    with pytest.raises(BadSetting, match=r"engine\.gpus: names GPU 8, this machine has 8"):
        placed(config(gpus="7-8"), 0, 8)


def test_gpus_are_those_that_this_process_sees():
    assert placed(config(), 2, 3, CUDA_VISIBLE_DEVICES="5,6,GPU-7").gpus == ("6", "GPU-7")


def test_cpu_servers():
    assert place_on_cpu(config().engine, 2) == Placement(gpus=("", ""))
    assert place_on_cpu(config().engine, 0) == Placement(gpus=("",))
    with pytest.raises(BadSetting, match="this vLLM is a CPU build: leave it empty"):
        place_on_cpu(config(gpus="0").engine, 1)
