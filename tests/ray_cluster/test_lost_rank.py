"""A run that loses the node of a learner rank continues by itself, with the results of an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

from ray_clusters import TrainCommand, places, ray_nodes

RECIPE = """
    desk --run.threads 1 --train.epochs 2 --train.tasks_per_batch 2 --train.tasks_per_update 1
    --rollout.group_size 4 --rollout.max_steps 2 --rollout.temperature 1.5 --rollout.max_answer_tokens 24
    --loss.kl 0.1 --optim.lr 1e-3 --optim.tokens_per_microbatch 300 --optim.ranks 2
    --eval.every 0 --eval.rollouts 1 --tasks.train desk:pool --tasks.ids pool-001,pool-010,pool-013,pool-021
    --store.checkpoint_every 2 --store.tensorboard false
"""


def start(folder: Path, name: str, *words: str) -> TrainCommand:
    return TrainCommand(folder / name, *RECIPE.split(), "--tasks.heldout", "", *words)


def episodes(run: Path) -> list[str]:
    lines = (run / "trajectories.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line)["episode_id"] for line in lines]


def test_a_run_survives_the_loss_of_a_node_with_a_learner_rank(tmp_path: Path) -> None:
    """The node is lost after a batch that is in no checkpoint: the learner repeats this batch."""
    undisturbed = start(tmp_path, "undisturbed")
    undisturbed.end()
    with ray_nodes({}, {}) as nodes:
        run = start(tmp_path, "run", "--cluster.ray", nodes.address)
        run.until_batch(1)
        nodes.remove(places("CPU")[0])
        run.end()
        assert places("CPU") == {}
    assert [line["step"] for line in run.metrics()] == [0, 1, 2, 3, 4]
    assert run.metrics() == undisturbed.metrics()
    assert episodes(run.run) == episodes(undisturbed.run)
    assert "The learner restarts from the last checkpoint" in run.output
    summary = json.loads((run.run / "summary.json").read_text("utf-8"))
    assert summary["learner_restarts"] >= 1
