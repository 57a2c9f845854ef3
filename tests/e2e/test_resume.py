"""A run killed at any moment and resumed ends with the same files, bit for bit, as an uninterrupted run."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from arpo.storage.run_folder import RunFolder
from kill_at import MOMENTS, Ended, arpo

pytestmark = pytest.mark.slow

SETTINGS = """
    --train.epochs 4 --train.tasks_per_batch 4 --train.tasks_per_update 2 --rollout.max_steps 3
    --eval.every 2 --eval.rollouts 1 --eval.heldout_rollouts 1 --run.threads 1
"""
# Short tasks, with a few successes of the base model.
TASKS = {
    "pool": ("pool-037", "pool-054", "pool-059", "pool-063"),
    "heldout": ("heldout-001", "heldout-006"),
}
SAME = (
    "metrics.jsonl",
    "evaluations.jsonl",
    "groups.jsonl",
    "trajectories.jsonl",
    "failures.jsonl",
    "screenshots.pack",
    "model/model.safetensors",
)
LEARNED = ("weights.safetensors", "optimiser.safetensors", "learner.json")


class Runs:
    """Runs of one recipe, each in its own folder; `reference` is uninterrupted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name, ids in TASKS.items():
            counts = {task: {"successes": 0, "rollouts": 0} for task in ids}
            chosen = {"source": f"desk:{name}", "tasks": counts}
            (folder / f"{name}.json").write_text(json.dumps(chosen), "utf-8")
        self.reference = folder / "reference"
        assert self.train(self.reference).code == 0

    def train(
        self,
        run: Path,
        *more: str,
        at: str = "",
        signals: tuple[int, ...] = (signal.SIGKILL,),
        file_bytes: int = 0,
        starts: Path | None = None,
    ) -> Ended:
        tasks = (
            "--tasks.train",
            f"{self._folder}/pool.json",
            "--tasks.heldout",
            f"{self._folder}/heldout.json",
        )
        words = ("train", "desk", *SETTINGS.split(), *tasks, "--run.dir", str(run), *more)
        log = run.with_suffix(".log")
        return arpo(log, *words, at=at, signals=signals, file_bytes=file_bytes, starts=starts)

    def copy(self, run: Path) -> Path:
        return Path(shutil.copytree(self.reference, run))

    def assert_same(self, run: Path, *, rounded: bool = False) -> None:
        """`rounded`: the log-probabilities in trajectories.jsonl may differ by rounding."""
        for name in SAME if not rounded else [name for name in SAME if name != "trajectories.jsonl"]:
            assert (run / name).read_bytes() == (self.reference / name).read_bytes(), name
        if rounded:
            own, other = episodes(run), episodes(self.reference)
            assert logprobs(own) == pytest.approx(logprobs(other), abs=1e-4)
            assert own == other  # everything else
        for name in LEARNED:
            last = f"checkpoints/step-000004/learner/{name}"
            assert (run / last).read_bytes() == (self.reference / last).read_bytes(), last
        assert summary(run) == summary(self.reference)


def summary(run: Path) -> dict[str, object]:
    """The summary without time, folder and storage settings."""
    whole = json.loads((run / "summary.json").read_text("utf-8"))
    assert whole.pop("seconds") > 0
    del whole["recipe"]["run"]["dir"], whole["recipe"]["store"]
    return whole


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def episodes(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "trajectories.jsonl").read_text("utf-8").splitlines()]


def logprobs(played: list[dict[str, Any]]) -> list[float]:
    """Remove and return the log-probabilities of all answers."""
    answers = [turn["completion"] for episode in played for turn in episode["turns"]]
    return [number for answer in answers for number in answer.pop("logprobs")]


def content(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def test_the_reference_run_uses_replay_and_evaluates(runs: Runs) -> None:
    lines = metrics(runs.reference)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in lines if "eval_train" in line] == [0, 2, 4]
    assert lines[4]["episodes"] == 32
    assert sum(line["rescued"] for line in lines[1:]) >= 1
    assert sum(line["updates"] for line in lines[1:]) >= 4


FINISHING = (
    r"finishing batch 2 and saving \(about \d+ s\)\. Press Ctrl-C again to stop at once: "
    r"only this batch is lost"
)
OFTEN: tuple[str, ...] = ()
RARELY = ("--store.checkpoint_every", "3", "--store.keep_checkpoints", "1")
# Every moment is in one of these sequences, in the order in which a run reaches them.
SEQUENCES = (
    (OFTEN, ("in the base evaluation", "after the learning", "in an evaluation", "before the checkpoint")),
    (OFTEN, ("in the checkpoint", "before the checkpoint's rename", "at the end")),
    (RARELY, ("in a rollout", "in a line of the store", "in the final evaluation")),
)


@pytest.mark.parametrize(
    ("saved", "moments"), SEQUENCES, ids=[", ".join(moments) for _, moments in SEQUENCES]
)
def test_a_run_killed_at_any_moment_resumes_to_the_same_result(
    runs: Runs, tmp_path: Path, saved: tuple[str, ...], moments: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    for moment in moments:
        assert runs.train(run, *saved, at=moment).code == -signal.SIGKILL
        assert not (run / "model").exists()
    ended = runs.train(run, *saved)
    assert ended.code == 0 and f"resuming from {run}/checkpoints" in ended.output
    runs.assert_same(run)


def test_every_moment_is_tested() -> None:
    assert sorted(moment for _, moments in SEQUENCES for moment in moments) == sorted(MOMENTS)


# Moment in an evaluation; evaluations that the resumed run plays; batches, after Ctrl-C and after a kill.
EVALUATIONS = (
    ("after 3 episodes of the base evaluation", 3, 4, 4),
    ("after 2 episodes of an evaluation", 2, 2, 3),
    ("after 3 episodes of the final evaluation", 1, 0, 1),
)


@pytest.mark.parametrize(("moment", "evaluations", "after_ctrl_c", "after_kill"), EVALUATIONS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_evaluation_of_a_run_plays_no_episode_twice(
    runs: Runs,
    tmp_path: Path,
    moment: str,
    evaluations: int,
    after_ctrl_c: int,
    after_kill: int,
    number: int,
) -> None:
    run, starts = tmp_path / "run", tmp_path / "starts"
    stopped = runs.train(run, at=moment, signals=(number,))
    assert stopped.code == (130 if number == signal.SIGINT else -signal.SIGKILL), stopped.output
    kept = len((run / "evaluating" / "trajectories.jsonl").read_text("utf-8").splitlines())
    assert 2 <= kept < 6
    if number == signal.SIGINT:
        *_, stopping, last = stopped.output.splitlines()
        assert stopping.startswith("stopping the evaluation: its finished episodes are stored; closing")
        assert last.endswith(". Run the same command again to resume")
    ended = runs.train(run, starts=starts)
    assert ended.code == 0, ended.output
    batches = after_kill if number == signal.SIGKILL else after_ctrl_c
    assert len(starts.read_text().splitlines()) == batches * 8 + evaluations * 6 - kept
    runs.assert_same(run, rounded=True)  # the missing episodes are computed in batches of other sizes
    assert not (run / "evaluating").exists()


# Moment, permitted bytes of one file, the file that does not fit, and the note.
FULL = (
    ("in a rollout", 20_000, "trajectories.jsonl", "; it resumes after batch 1"),
    ("before the checkpoint", 10_000_000, "checkpoints/step-000003", "; it resumes after batch 2"),
    ("at the end", 1_000_000, "model", ""),
)


def test_a_full_disk_is_one_line_and_the_run_resumes_to_the_same_result(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for moment, size, name, note in FULL:
        ended = runs.train(run, at=moment, file_bytes=size)
        assert ended.code == 2
        remedy = f"raise the limit of file sizes (`ulimit -f`), then run the same command again{note}"
        assert ended.output.splitlines()[-1] == f"arpo: error: {run / name}: File too large: {remedy}"
        assert "Traceback" not in ended.output
        assert not list(run.rglob(".*tmp*")) and not (run / "model").exists()
    assert runs.train(run).code == 0
    runs.assert_same(run)


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_in_an_evaluation_is_one_line(tmp_path: Path, presses: int) -> None:
    words = ("eval", "--out", str(tmp_path / "scores.json"), "--tasks.train", "desk:32", "--run.threads", "1")
    stopped = arpo(tmp_path / "log", *words, at="in eval", signals=(signal.SIGINT,) * presses)
    assert stopped.code == 130
    assert stopped.output.splitlines()[0].startswith("evaluating, train tasks: ")
    last = "arpo: interrupted; to resume" if presses == 1 else "arpo: stopped at once; run the same command"
    lines = stopped.output.splitlines()[1:]
    assert [
        line.startswith(first) for line, first in zip(lines, ("stopping: finished", last), strict=True)
    ] == [
        True,
        True,
    ]


def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(runs: Runs, tmp_path: Path) -> None:
    run = runs.copy(tmp_path / "run")
    weights = run / "checkpoints/step-000004/learner/weights.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-100] ^= 1
    weights.write_bytes(damaged)
    ended = runs.train(run)
    assert ended.code == 0
    assert f"checkpoint {run}/checkpoints/step-000004 is damaged and was skipped" in ended.output
    assert "learner/weights.safetensors does not match its sha256" in ended.output
    assert f"resuming from {run}/checkpoints/step-000003, after batch 3" in ended.output
    runs.assert_same(run)


def test_ctrl_c_finishes_the_batch_and_a_second_one_stops_at_once(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped = runs.train(run, at="in a rollout", signals=(signal.SIGINT, signal.SIGINT))
    assert stopped.code == 130
    lines = stopped.output.splitlines()
    assert re.fullmatch(FINISHING, lines[-2])
    assert lines[-1] == "arpo: interrupted; to resume, run the same command again"
    assert metrics(run) == metrics(runs.reference)[:2]

    stopped = runs.train(run, at="in a rollout", signals=(signal.SIGINT,) * 3)
    assert stopped.code == 130
    assert stopped.output.splitlines()[-1] == "arpo: stopped at once; run the same command again"
    assert metrics(run) == metrics(runs.reference)[:2]

    stopped = runs.train(run, at="in the loading of the model", signals=(signal.SIGINT,))
    assert (stopped.code, stopped.output.count("\n")) == (130, 1)

    stopped = runs.train(run, at="in a rollout", signals=(signal.SIGINT,))
    assert stopped.code == 130
    *lines, batch, saved = stopped.output.splitlines()
    assert any(re.fullmatch(FINISHING, line) for line in lines)
    assert batch.startswith("batch 2: ")  # and no evaluation
    assert saved == "saved after batch 2. Run the same command again to resume"
    assert metrics(run) == metrics(runs.reference)[:2]  # the metrics of batch 2 wait for its evaluation

    assert runs.train(run).code == 0
    runs.assert_same(run)  # the evaluation after batch 2 was not begun


def test_a_finished_run_is_not_changed(runs: Runs, tmp_path: Path) -> None:
    run = runs.copy(tmp_path / "run")
    ended = runs.train(run)
    assert ended.code == 0 and "batch" not in ended.output.replace("after batch 4", "")
    runs.assert_same(run)


def test_a_finished_run_continues_with_more_epochs(runs: Runs, tmp_path: Path) -> None:
    run = runs.copy(tmp_path / "run")
    ended = runs.train(run, "--train.epochs", "5")
    assert ended.code == 0, ended.output
    lines = metrics(run)
    assert lines[:5] == metrics(runs.reference)
    assert (len(lines), lines[5]["step"], lines[5]["episodes"]) == (6, 5, 40)
    whole = summary(run)
    assert whole["episodes"] == 40
    success = whole["success"]
    assert isinstance(success, dict)
    assert success["base"]["train"] == lines[0]["eval_train"]
    assert success["final"]["train"] == lines[5]["eval_train"]


def test_another_recipe_is_rejected_with_the_keys_that_differ(runs: Runs) -> None:
    before = content(runs.reference)
    refused = runs.train(runs.reference, "--optim.lr", "1e-3", "--replay.enabled", "false")
    assert refused.code == 2
    assert refused.output.count("\n") == 1
    assert all(key in refused.output for key in ("replay.enabled = true", "optim.lr = ", "--run.dir"))
    assert content(runs.reference) == before


def test_a_second_process_cannot_write_the_same_run(runs: Runs) -> None:
    store = RunFolder(runs.reference)
    try:
        refused = runs.train(runs.reference)
    finally:
        store.close()
    assert refused.code == 2
    assert refused.output == (
        f"arpo: error: {runs.reference}: another process is writing this run: choose another --run.dir\n"
    )


def test_a_failed_first_command_leaves_the_folder_usable(runs: Runs, tmp_path: Path) -> None:
    run = tmp_path / "run"
    refused = runs.train(run, "--rollout.max_context_tokens", "100")
    assert refused.code == 2 and "rollout.max_context_tokens = 100" in refused.output
    stopped = runs.train(run, at="in the base evaluation", signals=(signal.SIGINT,))
    assert stopped.code == 130
    *_, stopping, last = stopped.output.splitlines()
    assert stopping == (
        "stopping the evaluation: its finished episodes are stored; closing the environments. "
        "Press Ctrl-C again to stop at once"
    )
    assert last == "stopped. Run the same command again to resume"
