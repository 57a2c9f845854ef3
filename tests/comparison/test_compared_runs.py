"""`arpo compare` with real runs: complete, interrupted and resumed, killed, and with a failing run."""

from __future__ import annotations

import fcntl
import json
import shutil
import signal
import subprocess
import sys
import time
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from arpo.comparison.methods import collection_seconds

pytestmark = pytest.mark.slow

TASKS = {"train": ("desk:pool", "pool-001", "pool-010"), "heldout": ("desk:heldout", "heldout-006")}
ARPO = """
extends = "desk"
[run]
threads = 1
[tasks]
train = "train.json"
heldout = "heldout.json"
[rollout]
max_steps = 2
max_answer_tokens = 24
[eval]
every = 1
rollouts = 2
heldout_rollouts = 1
[train]
epochs = 3
tasks_per_batch = 2
tasks_per_update = 2
[loss]
kl = 0.0
"""
RECIPES = {
    "arpo.toml": ARPO,
    "rft.toml": 'extends = "arpo.toml"\n[train]\nmethod = "rft"\n[offline]\npasses = 1\nbatch = 2\n',
    "lost.toml": 'extends = "arpo.toml"\n[model]\npath = "nowhere"\n',
}
SAME = ("metrics.jsonl", "evaluations.jsonl", "trajectories.jsonl", "model/model.safetensors")


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "arpo", "compare", *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def compared(folder: Path, *words: str) -> tuple[int, str]:
    """Run the command in this process, which has imported torch already. Returns exit code and output."""
    stdout = StringIO()
    with chdir(folder), redirect_stdout(stdout):
        code = main(["compare", *words])
    return code, stdout.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with recipes, and with an uninterrupted comparison in out/."""
    folder = tmp_path_factory.mktemp("compare")
    for name, (source, *ids) in TASKS.items():
        counts = {task: {"successes": 5, "rollouts": 16} for task in ids}
        (folder / f"{name}.json").write_text(json.dumps({"source": source, "tasks": counts}), "utf-8")
    for name, text in RECIPES.items():
        (folder / name).write_text(text, "utf-8")
    code, output = compared(folder, "arpo.toml", "rft.toml", "--seeds", "1", "--jobs", "2", "--out", "out")
    assert code == 0, output
    assert output.startswith("rft differs from arpo in 3 settings\n")
    assert "\nDifference from arpo in percentage points" in output and output.endswith("\nout/compare.html\n")
    for title in ("collected", "arpo", "rft"):
        assert f"{title}, seed 0: started\n" in output and f"{title}, seed 0: finished, " in output
    return folder


def test_every_run_has_a_folder_and_the_comparison_two_files(folder: Path) -> None:
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        *(".lock", "arpo", "collected", "compare.html", "compare.json", "rft")
    ]
    content = json.loads((out / "compare.json").read_text("utf-8"))
    assert [row["name"] for row in content["rows"]] == ["base", "arpo", "rft"]
    assert content["missing"] == [] and content["bins"] == {"4–8 of 16": ["pool-001", "pool-010"]}
    assert [row["totals"]["episodes"]["mean"] for row in content["rows"][1:]] == [12.0, 12.0]
    for run in content["runs"]:
        summary = json.loads((out / run["method"] / "seed-0" / "summary.json").read_text("utf-8"))
        row = next(row for row in content["rows"] if row["name"] == run["method"])
        assert row["success"]["train"]["mean"] == summary["success"]["final"]["train"]
    offline = next(run for run in content["runs"] if run["method"] == "rft")
    assert offline["seconds"] > collection_seconds(out / "collected" / "seed-0") > 0


def test_finished_runs_are_not_repeated_and_a_failed_run_does_not_stop_others(folder: Path) -> None:
    before = (folder / "out" / "arpo" / "seed-0" / "summary.json").stat().st_mtime_ns
    code, output = compared(folder, "lost.toml", "arpo.toml", "--seeds", "1", "--out", "out")
    assert code == 1
    log = folder / "out" / "lost" / "seed-0.log"
    assert "lost, seed 0: failed: arpo: error: nowhere: " in output
    assert f"full log: {log.relative_to(folder)}" in output
    assert "1 of 2 runs failed: run the same command to retry them" in output
    assert "arpo, seed 0" not in output
    assert (folder / "out" / "arpo" / "seed-0" / "summary.json").stat().st_mtime_ns == before
    assert "Unfinished runs, not included in the figures: lost: seed 0." in output


def test_a_report_needs_neither_checkpoints_nor_episodes(folder: Path, tmp_path: Path) -> None:
    kept = {
        "recipe.toml",
        "summary.json",
        "metrics.jsonl",
        "timing.jsonl",
        "evaluations.jsonl",
        "seed-0.json",
    }
    for path in (folder / "out").glob("*/**/*"):
        if path.name in kept:
            copy = tmp_path / "out" / path.relative_to(folder / "out")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    shutil.rmtree(tmp_path / "out" / "lost", ignore_errors=True)
    (tmp_path / "out" / "rft" / "seed-0" / "summary.json").unlink()
    code, output = compared(tmp_path, "--report", "--out", "out")
    assert code == 0 and output.endswith("\nout/compare.html\n")
    assert output.splitlines()[3].split()[:4] == ["training", "tasks", "held-out", "tasks"]
    assert "Unfinished runs, not included in the figures: rft: seed 0." in output


def test_an_interrupted_comparison_resumes_with_identical_results(folder: Path) -> None:
    words = ("arpo.toml", "--seeds", "1", "--out", "stopped")
    run = folder / "stopped" / "arpo" / "seed-0"
    process = begin(folder, *words)
    while process.poll() is None and not (run / "checkpoints").is_dir():  # until the base evaluation is done
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "arpo, seed 0: interrupted\n1 of 1 runs are unfinished: run the same command to resume\n" in output
    assert not (folder / "stopped" / "compare.html").exists() and not (run / "summary.json").exists()
    code, output = compared(folder, *words)
    assert code == 0 and "arpo, seed 0: resumed\n" in output
    for name in SAME:
        assert (run / name).read_bytes() == (folder / "out" / "arpo" / "seed-0" / name).read_bytes(), name


def test_killing_the_comparison_kills_its_runs(folder: Path) -> None:
    run = folder / "killed" / "arpo" / "seed-0"
    process = begin(folder, "arpo.toml", "--seeds", "1", "--out", "killed")
    while process.poll() is None and not (run / "recipe.toml").is_file():  # until the run has its lock
        time.sleep(0.05)
    process.kill()
    process.communicate()
    with (run / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # blocks until the process of the run has ended
    assert not (run / "summary.json").exists()  # the run did not continue to its end
