"""`arpo doctor --recipe R --nodes N --gpus G`: roles, times, bottleneck and changes."""

from __future__ import annotations

import pytest

from arpo.cli.doctor_cluster import SOURCE, describe_cluster
from arpo.cli.entry_point import main
from arpo.config.recipe import load_config


def test_the_plan_of_the_published_run() -> None:
    lines = describe_cluster(load_config("osworld_full"), nodes=8, gpus=8)
    assert lines[:6] == [
        "plan for 8 x 8 GPUs:",
        "    GPUs: 32 for vLLM servers, 32 for the learner",
        "    new weights: 46 GiB in the run folder, which all nodes must share",
        "    256 virtual machines: 1,024 GiB and up to 1,024 cores, on hosts with KVM",
        "    several nodes need Ray: --cluster.ray auto --cluster.hosts N",
        "a batch of 256 episodes takes 5.5 minutes, 2,773 episodes an hour. Its parts, one after the other:",
    ]
    assert [line.split()[-2] for line in lines[6:9]] == ["4.5", "0.7", "0.3"]
    assert lines[9] == "    the driver needs 1.1 CPU cores for this"  # 0.77 per second x (0.066 + 9 x 0.15)
    assert lines[10:12] == ["bottleneck: environments", "faster would be, one of:"]
    assert lines[12].split() == ["--train.max_staleness", "1", "2.6", "minutes"]
    assert lines[-1] == SOURCE
    words = ["--cluster.ray", "auto", "--engine.weights", "/shared/weights"]
    lines = describe_cluster(load_config("osworld_full", words), nodes=8, gpus=8)
    assert "    new weights: 46 GiB in /shared/weights" in lines
    assert not any("need Ray" in line for line in lines)


def test_shared_gpus_and_gpus_without_a_role() -> None:
    words = ["--engine.replicas", "2", "--optim.ranks", "4", "--train.max_staleness", "0"]
    lines = describe_cluster(load_config("osworld_node", words), nodes=1, gpus=4)
    assert lines[1] == "    GPUs: 4 for the learner; vLLM servers take turns with it on 2 of them"
    lines = describe_cluster(load_config("osworld_node"), nodes=1, gpus=10)
    assert lines[2] == "    GPUs without a role: 2; raise engine.replicas or optim.ranks"


def test_one_gpu_with_light_desktops() -> None:
    config = load_config("osworld_subset32", ["--osworld.provider", "local"])
    lines = describe_cluster(config, nodes=1, gpus=1)
    assert lines[1:3] == [
        "    GPUs: 1 for the learner; the engine takes turns with it on 1 of them",
        "    16 light desktops of 0.2 to 0.6 GiB each, on hosts without GPUs",
    ]
    config = load_config("osworld_subset32", ["--train.max_staleness", "1"])
    assert describe_cluster(config, nodes=1, gpus=1)[-1].startswith("no expected time: sampling and learning")


def test_other_environments_have_no_expected_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--recipe", "desk", "--gpus", "2", "--gpu", "8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("plan for 1 x 2 GPUs:")
    assert lines[start - 1].startswith("fits into a GPU of 8 GiB")
    assert lines[start + 1 :] == [
        "    GPUs: 1 for the learner; the engine takes turns with it on 1 of them",
        "    GPUs without a role: 1; raise engine.replicas or optim.ranks",
        "    32 environments",
        "no expected time: it is known for online training on OSWorld only",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gpus 8", "--gpus: needs a recipe to plan for; add --recipe RECIPE"),
        ("--recipe desk --nodes 2", "--nodes: needs the number of GPUs of a node; add --gpus N"),
        ("--recipe desk --nodes 2 --gpus 1", "engine.name: is 'auto', must be vllm for 2 nodes"),
        ("--recipe desk --gpus 1 --optim.ranks 2", "optim.ranks: is 2, must be at most 1"),
    ],
)
def test_bad_combinations_are_one_error_line(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words.split()]) == 2
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert message in line
    assert printed.out == ""
