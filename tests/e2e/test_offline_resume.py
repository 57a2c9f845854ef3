"""Killed collections resume to every episode once; killed offline runs resume to the same result."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from kill_at import Ended, arpo

pytestmark = pytest.mark.slow

SETTINGS = """
    --train.epochs 4 --rollout.max_steps 3 --optim.lr 1e-3 --loss.kl 0
    --eval.every 0 --eval.rollouts 1 --eval.heldout_rollouts 1 --run.threads 1 --store.tensorboard false
    --offline.passes 1
"""
TASKS = {
    "pool": ("pool-016", "pool-022", "pool-030", "pool-044"),
    "heldout": ("heldout-006",),
}
BATCH = {"rft": 5, "dpo": 6, "kto": 12}  # two to three updates
SAME = ("metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl", "model/model.safetensors")


class Offline:
    """Commands with the same settings and tasks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, ids in TASKS.items():
            counts = {task: {"successes": 0, "rollouts": 0} for task in ids}
            chosen = {"source": f"desk:{name}", "tasks": counts}
            (folder / f"{name}.json").write_text(json.dumps(chosen), "utf-8")

    def call(self, command: str, run: str, *more: str, at: str = "") -> Ended:
        tasks = (
            "--tasks.train",
            f"{self._folder}/pool.json",
            "--tasks.heldout",
            f"{self._folder}/heldout.json",
        )
        words = (command, "desk", *SETTINGS.split(), *tasks, "--run.dir", str(self._folder / run), *more)
        return arpo(self._folder / f"{run}.log", *words, at=at)

    def train(self, method: str, run: str, at: str = "") -> Ended:
        source = ("--train.method", method, "--offline.source", str(self._folder / "collected"))
        return self.call("train", run, *source, "--offline.batch", str(BATCH[method]), at=at)

    def lines(self, run: str, name: str) -> list[dict[str, float]]:
        text = (self._folder / run / name).read_text("utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def bytes(self, run: str) -> list[bytes]:
        return [(self._folder / run / name).read_bytes() for name in SAME]

    def summary(self, run: str) -> dict[str, object]:
        whole = json.loads((self._folder / run / "summary.json").read_text("utf-8"))
        del whole["seconds"], whole["recipe"]
        return whole


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    """32 episodes: a first process is killed, a second one resumes."""
    offline = Offline(tmp_path_factory.mktemp("offline"))
    assert offline.call("collect", "collected", at="in a line of a collection").code == -signal.SIGKILL
    ended = offline.call("collect", "collected")
    assert ended.code == 0, ended.output
    assert "collecting: 32 episodes, 4 already done" in ended.output
    assert "collected: 32 episodes, " in ended.output.splitlines()[-1]
    return offline


def test_a_collection_has_every_episode_once(offline: Offline) -> None:
    stored = offline.lines("collected", "trajectories.jsonl")
    names = {str(episode["episode_id"]) for episode in stored}
    assert names == {f"collect-{number}-0" for number in range(32)} and len(stored) == 32
    again = offline.call("collect", "collected")
    assert again.code == 0 and "collecting" not in again.output
    assert offline.lines("collected", "trajectories.jsonl") == stored
    more = offline.call("train", "collected")
    assert more.code == 2 and "holds collected episodes" in more.output


@pytest.mark.parametrize(
    ("method", "metrics"),
    [
        ("rft", {"loss", "nll"}),
        ("dpo", {"loss", "margin", "accuracy"}),
        ("kto", {"loss", "gain_desirable", "gain_undesirable", "z0"}),
    ],
)
def test_a_method_learns_and_resumes_after_a_kill(offline: Offline, method: str, metrics: set[str]) -> None:
    assert offline.train(method, method).code == 0
    base, *updates = offline.lines(method, "metrics.jsonl")
    assert base.keys() == {"step", "eval_train", "eval_heldout"}
    assert len(updates) >= 2 and all(update.keys() >= metrics for update in updates)
    assert [update["step"] for update in updates] == list(range(1, len(updates) + 1))
    assert {update["episodes"] for update in updates} == {32}
    assert min(update["grad_norm"] for update in updates) > 0
    assert [line["landmark"] for line in offline.lines(method, "evaluations.jsonl")] == ["base", "final"]
    assert offline.summary(method)["episodes"] == 32

    killed = f"{method}-killed"
    assert offline.train(method, killed, at="after an update").code == -signal.SIGKILL
    assert len(offline.lines(killed, "metrics.jsonl")) == 2
    assert offline.train(method, killed).code == 0
    assert offline.bytes(killed) == offline.bytes(method)
    assert offline.summary(killed) == offline.summary(method)
