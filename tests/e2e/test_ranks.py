"""`arpo train` on two ranks gives the same run as on one, also if it is interrupted, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kill_at import Ended, arpo

pytestmark = pytest.mark.slow

TASKS = {
    "train": ("desk:pool", "pool-054", "pool-055", "pool-076", "pool-101"),
    "heldout": ("desk:heldout", "heldout-006"),
}
RANK = b"arpo.learner.sharded"
SMALL = """
    --run.threads 1 --train.epochs 2 --train.tasks_per_batch 2 --train.tasks_per_update 1
    --rollout.group_size 4 --rollout.max_steps 3 --rollout.temperature 1.5 --rollout.max_answer_tokens 24
    --loss.kl 0.1 --optim.lr 1e-3 --optim.tokens_per_microbatch 300 --store.tensorboard false
    --eval.every 0 --eval.rollouts 1 --eval.heldout_rollouts 1
"""


def run(folder: Path, name: str, ranks: int, **moment: Any) -> Ended:
    """Run to the end. No rank process may be left."""
    words = [*SMALL.split(), "--run.dir", str(folder / name), "--optim.ranks", str(ranks)]
    for which, (source, *ids) in TASKS.items():
        chosen = {"source": source, "tasks": {task: {"successes": 0, "rollouts": 0} for task in ids}}
        (folder / f"{which}.json").write_text(json.dumps(chosen), "utf-8")
        words += [f"--tasks.{which}", str(folder / f"{which}.json")]
    ended = arpo(folder / f"{name}.log", "train", "desk", *words, **moment)
    assert wait_until(lambda: not orphans()), "a rank has outlived its run"
    return ended


def rank_processes() -> dict[int, int]:
    """{process id: parent id} of all ranks on this machine, including those of other tests."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and RANK in command_of(int(entry.name)):
            status = (entry / "stat").read_text()
            found[int(entry.name)] = int(status.rpartition(")")[2].split()[1])
    return found


def command_of(process: int) -> bytes:
    """Command line of a process; empty if the process is dead or a zombie."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def orphans() -> set[int]:
    """Ranks without a Python parent process: their run is gone."""
    return {rank for rank, parent in rank_processes().items() if b"python" not in command_of(parent)}


def wait_until(happened: Any, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def kill_rank(log: Path) -> None:
    """Wait for a rank of the run with this log, and kill it."""

    def ranks() -> list[int]:
        return [rank for rank, run in rank_processes().items() if Path(f"/proc/{run}/fd/1").resolve() == log]

    assert wait_until(ranks)
    os.kill(ranks()[0], signal.SIGKILL)


def metrics(folder: Path, name: str) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text("utf-8").splitlines()]


def same(ours: list[dict[str, float]], theirs: list[dict[str, float]]) -> bool:
    return len(ours) == len(theirs) and all(
        one == pytest.approx(other, rel=1e-3, abs=1e-5) for one, other in zip(ours, theirs, strict=True)
    )


def test_a_run_moves_between_one_and_two_ranks_with_the_same_result(tmp_path: Path) -> None:
    """Interrupted on two ranks after two batches, killed on one while saving the third, finished on two."""
    alone = run(tmp_path, "alone", 1)
    assert alone.code == 0, alone.output
    wanted = metrics(tmp_path, "alone")
    assert [line["step"] for line in wanted] == [0, 1, 2, 3, 4]
    assert min(line["grad_norm"] for line in wanted[1:]) > 0.1 and wanted[4]["base_kl"] > 1e-5

    stopped = run(tmp_path, "both", 2, at="in a rollout", signals=(signal.SIGINT,))
    assert stopped.code == 130, stopped.output
    assert same(metrics(tmp_path, "both"), wanted[:3])
    learned = tmp_path / "both" / "checkpoints" / "step-000002" / "learner"
    assert {path.stem for path in learned.glob("weights*")} == {"weights-0", "weights-1"}
    killed = run(tmp_path, "both", 1, at="before the checkpoint's rename")
    assert killed.code == -signal.SIGKILL, killed.output
    ended = run(tmp_path, "both", 2)
    assert ended.code == 0, ended.output
    assert "after batch 2" in ended.output
    assert same(metrics(tmp_path, "both"), wanted)
    assert (tmp_path / "both" / "model" / "model.safetensors").is_file()


def test_a_killed_run_ends_its_ranks_and_a_lost_rank_ends_its_run(tmp_path: Path) -> None:
    killed = run(tmp_path, "run", 2, at="after the learning")
    assert killed.code == -signal.SIGKILL, killed.output

    kill = threading.Thread(target=kill_rank, args=(tmp_path / "run.log",))
    kill.start()
    lost = run(tmp_path, "run", 2)
    kill.join()
    assert lost.code == 2
    message = (
        "arpo: error: rank 1 of the learner ended: killed by SIGKILL. Run the same command again to resume"
    )
    assert message in lost.output and "Traceback" not in lost.output
