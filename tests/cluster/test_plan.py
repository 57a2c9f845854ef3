"""The plan of a cluster: times that can be computed by hand, and a simulation of the same cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulation.cluster import Cluster, simulate

from arpo.cluster.plan import (
    Load,
    answer_seconds,
    driver_cores,
    estimate,
    improvements,
    load_of,
    makespan,
)
from arpo.cluster.service_times import LIGHT_BOOT, LORA, ServiceTimes
from arpo.config.recipe import load_config
from arpo.errors import BadSetting
from constant_times import TIMES

SMALL = Load(environments=4, replicas=1, ranks=1, groups=2, group_size=2, groups_per_update=1, times=TIMES)


def test_in_lock_step_the_parts_of_a_batch_add_up() -> None:
    """Four episodes at once, four seconds of learning, one second each for writing and reading weights."""
    found = estimate(SMALL)
    assert (found.rollouts, found.learning, found.weights) == pytest.approx((23, 4, 2))
    assert found.seconds == pytest.approx(29)
    assert found.bottleneck == "environments"
    assert found.per_hour(SMALL) == pytest.approx(4 * 3600 / 29)
    assert estimate(replace(SMALL, environments=2)).rollouts == pytest.approx(46)


def test_shared_servers_sleep_and_wake() -> None:
    assert estimate(replace(SMALL, shared=True)).weights == pytest.approx(2 + 6)
    assert estimate(replace(SMALL, shared=True, servers=False)).weights == 0


def test_the_learner_is_the_bottleneck_of_many_environments() -> None:
    slow = replace(SMALL, times=replace(TIMES, learning_scale=10.0))
    assert estimate(slow).bottleneck == "learner"
    assert estimate(replace(slow, max_staleness=4)).bottleneck == "learner cycle"
    assert estimate(replace(slow, max_staleness=4)).seconds == pytest.approx(40 + 2)
    assert estimate(replace(slow, max_staleness=4, replicas=8)).weights == pytest.approx(1 + 4)  # four waves


def test_asynchronous_periods() -> None:
    """Environments: 4 * 23 / 4 s. Staleness: (23 + 4 + 2) / 1.5 s with S = 1."""
    assert estimate(replace(SMALL, max_staleness=1)).seconds == pytest.approx(23)
    many = replace(SMALL, environments=64, max_staleness=1)
    assert estimate(many).seconds == pytest.approx(29 / 1.5)
    assert estimate(many).bottleneck == "staleness"


def test_answers_slow_down_with_the_requests_of_a_server() -> None:
    assert answer_seconds(SMALL) == pytest.approx(1.0)
    busy = replace(SMALL, times=replace(TIMES, decode_sequence=0.01))
    # With n requests an answer takes 1 + n s; n = 4 * 2 * answer / (21 + 2 * answer)
    answer = answer_seconds(busy)
    assert answer == pytest.approx(1 + max(1, 8 * answer / (21 + 2 * answer)), rel=1e-6)
    assert answer_seconds(replace(busy, replicas=4)) == pytest.approx(2.0)  # one request each


def test_new_weights_make_the_servers_read_all_prompts_again() -> None:
    """Without decoding, an answer takes its prefill divided by the rest of the server's time.

    A prompt has 1 s of prefill per answer. One episode per server, weights every 4 s: half of two answers is
    prefilled again, while the episode is not idle.
    """
    one = replace(SMALL, environments=1, max_staleness=1)
    times = replace(TIMES, decode_step=0.0, prefill_token=1 / (2700 + 100))
    answer = answer_seconds(replace(one, times=times), period=4.0)
    episode = 15 + 2 * (3 + answer)
    share = 2 / episode + (1 - 15 / episode) / 4
    assert answer == pytest.approx(1 / (1 - share), rel=1e-3)
    assert answer_seconds(replace(one, times=times)) < answer


def test_servers_are_the_bottleneck_if_answers_take_longer_than_the_desktops() -> None:
    assert estimate(replace(SMALL, times=replace(TIMES, decode_step=0.2))).bottleneck == "servers"


def test_makespan() -> None:
    assert makespan([3, 1, 1, 2], environments=2) == 4
    assert makespan([3, 1], environments=8) == 3


def test_driver_cores() -> None:
    """3,600 episodes per hour of two screenshots."""
    assert driver_cores(SMALL, 3600) == pytest.approx(0.066 + 2 * 0.15)


def test_changes_are_named_if_they_help() -> None:
    words = {change: found.seconds for change, _, found in improvements(replace(SMALL, environments=1))}
    assert words["--env.parallel 2"] == pytest.approx(52)
    assert words["--train.max_staleness 1"] == pytest.approx(92)
    idle = replace(SMALL, environments=64, max_staleness=4, times=replace(TIMES, learning_scale=100.0))
    assert [words for words, _, _ in improvements(idle)] == []  # two GPUs: no other split, nothing helps
    eight = replace(idle, replicas=4, ranks=4, groups=16, groups_per_update=16)
    assert improvements(eight)[0][0] == "--engine.replicas 1 --optim.ranks 7"


def test_shared_gpus_are_split_for_asynchronous_training() -> None:
    shared = replace(SMALL, replicas=8, ranks=8, shared=True)
    assert improvements(shared)[0][0] == "--engine.replicas 4 --optim.ranks 4 --train.max_staleness 1"
    assert not any("replicas" in words for words, _, _ in improvements(replace(shared, servers=False)))


@pytest.mark.parametrize("staleness", [0, 2])
def test_the_plan_agrees_with_the_simulation(staleness: int) -> None:
    """Without hanging machines: in few batches their number is luck."""
    sizes: dict[str, Any] = {
        "environments": 16,
        "replicas": 2,
        "groups": 4,
        "group_size": 4,
        "max_staleness": staleness,
    }
    times = ServiceTimes(hangs=0.0)
    load = Load(**sizes, ranks=2, groups_per_update=4, times=times)
    cluster = Cluster(**sizes, learner_gpus=2, updates=1, batches=4, times=times)
    assert estimate(load).per_hour(load) == pytest.approx(simulate(cluster).per_hour, rel=0.15)


def test_the_published_run_on_64_gpus() -> None:
    """A batch of 256 episodes. The simulation has 1.9 minutes with S = 2."""
    load = load_of(load_config("osworld_full"), nodes=8, gpus=8)
    assert (load.replicas, load.ranks, load.environments, load.episodes) == (32, 32, 256, 256)
    assert not load.shared and load.servers
    assert estimate(load).seconds / 60 == pytest.approx(5.5, abs=0.05)
    assert estimate(replace(load, max_staleness=2)).seconds / 60 == pytest.approx(1.7, abs=0.05)


def test_the_headers_of_the_recipes_have_the_minutes_of_the_plan() -> None:
    node = load_of(load_config("osworld_node"), nodes=1, gpus=8)
    assert estimate(node).seconds / 60 == pytest.approx(7.0, abs=0.05)
    words = ["--engine.replicas", "8", "--optim.ranks", "8", "--train.max_staleness", "0"]
    shared = load_of(load_config("osworld_node", words), nodes=1, gpus=8)
    assert shared.shared
    assert estimate(shared).seconds / 60 == pytest.approx(11.9, abs=0.05)
    subset = load_of(load_config("osworld_subset32"), nodes=1, gpus=1)
    assert not subset.servers
    assert estimate(subset).seconds / 60 == pytest.approx(4.1, abs=0.05)
    one = load_of(load_config("osworld_128", ["--env.parallel", "32"]), nodes=1, gpus=1)
    assert estimate(one).seconds / 60 == pytest.approx(37, abs=0.5)


def test_times_of_light_desktops_and_adapters() -> None:
    words = ["--osworld.provider", "local", "--model.train", "lora", "--rollout.max_steps", "2"]
    times = load_of(load_config("osworld_subset32", words), nodes=1, gpus=1).times
    assert (times.boot, times.learning, times.answers) == (LIGHT_BOOT, LORA, (2, 2))


@pytest.mark.parametrize(
    ("words", "nodes", "message"),
    [
        ("", 4, "optim.ranks: is 32, must be at most 16: each rank needs a GPU (4 x 4 GPUs)"),
        ("--optim.ranks 8", 4, "engine.replicas: is 32, must be at most 8: each server needs a GPU"),
        (
            "--optim.ranks 8 --engine.name in_process",
            4,
            "engine.name: is 'in_process', must be vllm for 4 nodes: the in-process engine uses one GPU",
        ),
        (
            "--optim.ranks 16 --engine.replicas 16",
            4,
            "engine.replicas: is 16, must be at most 0: on a Ray cluster, servers and learner",
        ),
        (
            "--optim.ranks 4 --engine.replicas 4 --train.max_staleness 1",
            1,
            "train.max_staleness: is 1, must be 0 if servers and learner share a GPU",
        ),
    ],
)
def test_combinations_that_cannot_work_are_refused(words: str, nodes: int, message: str) -> None:
    with pytest.raises(BadSetting) as refused:
        load_of(load_config("osworld_full", words.split()), nodes=nodes, gpus=4)
    assert message in str(refused.value)


def test_servers_elsewhere_are_counted_by_their_addresses() -> None:
    words = ["--engine.replicas", "0", "--engine.endpoints", "http://a:9000-9007,http://b:9000"]
    load = load_of(load_config("osworld_full", words), nodes=8, gpus=4)
    assert (load.replicas, load.ranks, load.shared) == (9, 32, False)
