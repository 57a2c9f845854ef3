"""`arpo compare` with real runs: from nothing, stopped and called again, killed, and with one that fails."""

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

from arpo.cli.main import main
from arpo.evaluation.compare import seconds_of_collection

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
    """The command in this process, which has torch already; its runs have processes of their own."""
    said = StringIO()
    with chdir(folder), redirect_stdout(said):
        code = main(["compare", *words])
    return code, said.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With recipes, and in out/ the comparison that nothing disturbed."""
    folder = tmp_path_factory.mktemp("compare")
    for name, (source, *ids) in TASKS.items():
        counts = {task: {"successes": 5, "rollouts": 16} for task in ids}
        (folder / f"{name}.json").write_text(json.dumps({"source": source, "tasks": counts}), "utf-8")
    for name, text in RECIPES.items():
        (folder / name).write_text(text, "utf-8")
    code, said = compared(folder, "arpo.toml", "rft.toml", "--seeds", "1", "--jobs", "2", "--out", "out")
    assert code == 0, said
    assert said.endswith("out/compare.html\n")
    for title in ("collected", "arpo", "rft"):
        assert f"{title}, seed 0: begins\n" in said and f"{title}, seed 0: done, " in said
    return folder


def test_every_run_has_a_folder_and_the_comparison_three_files(folder: Path) -> None:
    out = folder / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        *(".lock", "arpo", "collected", "compare.html", "compare.json", "compare.md", "rft")
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
    assert offline["seconds"] > seconds_of_collection(out / "collected" / "seed-0") > 0


def test_what_is_done_is_not_done_again_and_what_fails_holds_nothing_up(folder: Path) -> None:
    before = (folder / "out" / "arpo" / "seed-0" / "summary.json").stat().st_mtime_ns
    code, said = compared(folder, "lost.toml", "arpo.toml", "--seeds", "1", "--out", "out")
    assert code == 1
    log = folder / "out" / "lost" / "seed-0.log"
    assert "lost, seed 0: failed: arpo: error: nowhere: " in said
    assert f"all of it is in {log.relative_to(folder)}" in said
    assert "1 of 2 runs failed; the same command tries them again" in said
    assert "arpo, seed 0" not in said
    assert (folder / "out" / "arpo" / "seed-0" / "summary.json").stat().st_mtime_ns == before
    assert "have not ended: lost: seed 0." in (folder / "out" / "compare.md").read_text("utf-8")


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
    code, said = compared(tmp_path, "--report", "--out", "out")
    assert (code, said) == (0, "out/compare.html\n")
    assert "have not ended: rft: seed 0." in (tmp_path / "out" / "compare.md").read_text("utf-8")


def test_stopped_it_saves_and_the_same_command_ends_as_if_it_never_was(folder: Path) -> None:
    words = ("arpo.toml", "--seeds", "1", "--out", "stopped")
    run = folder / "stopped" / "arpo" / "seed-0"
    process = begin(folder, *words)
    while process.poll() is None and not (run / "checkpoints").is_dir():  # until the base model is measured
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    assert "arpo, seed 0: stopped\n1 of 1 runs are left; the same command goes on\n" in said
    assert not (folder / "stopped" / "compare.html").exists() and not (run / "summary.json").exists()
    code, said = compared(folder, *words)
    assert code == 0 and "arpo, seed 0: goes on\n" in said
    for name in SAME:
        assert (run / name).read_bytes() == (folder / "out" / "arpo" / "seed-0" / name).read_bytes(), name


def test_killed_it_takes_its_runs_with_it(folder: Path) -> None:
    run = folder / "killed" / "arpo" / "seed-0"
    process = begin(folder, "arpo.toml", "--seeds", "1", "--out", "killed")
    while process.poll() is None and not (run / "recipe.toml").is_file():  # until the run has its lock
        time.sleep(0.05)
    process.kill()
    process.communicate()
    with (run / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as soon as the run's process has ended
    assert not (run / "summary.json").exists()  # that one would have gone on to its end
