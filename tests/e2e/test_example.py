"""The example environment of the tutorial passes the conformance suite, scores correctly, and trains."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.actions import Click, Point
from arpo.tasks.lists import check_disjoint, load_tasks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TUTORIAL = ROOT / "docs" / "tutorial.md"


def arpo(*words, cwd):
    command = [sys.executable, "-m", "arpo", *words]
    this_checkout = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=cwd, env=this_checkout, capture_output=True, text=True, check=False)


def ring(task, x, y):
    """Click once. Returns the score, and whether the click ended the episode."""
    sys.path.insert(0, str(EXAMPLES))
    from doorbell import Doorbell

    async def play():
        env = Doorbell()
        await env.start(task)
        result = await env.step((Click(point=Point(x, y)),))
        return await env.evaluate(), result.terminated

    return asyncio.run(play())


def test_it_passes_the_conformance_suite():
    done = arpo("check-env", "doorbell:Doorbell", "--tasks", "doorbell_tasks.json", cwd=EXAMPLES)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, size = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 10
    assert size.startswith("screenshots of ")


def test_only_the_right_bell_scores():
    task = load_tasks(str(EXAMPLES / "doorbell_tasks.json"))[0]
    assert task.config[0]["parameters"]["names"].index(task.evaluator["expected"]) == 5
    right_column, third_row = 28 + 98, 28 + 2 * 28
    assert ring(task, right_column + 69, third_row + 13) == (1.0, True)
    assert ring(task, right_column + 70, third_row + 13) == (0.0, False)
    assert ring(task, 28, 28) == (0.0, True)


def test_no_task_is_in_both_lists():
    train, heldout = (load_tasks(str(EXAMPLES / f"doorbell_{name}.json")) for name in ("tasks", "heldout"))
    assert len(train) == len(heldout) == 16
    check_disjoint(train, heldout)


def test_it_trains_through_the_command(tmp_path):
    for name in ("doorbell.py", "doorbell.toml"):
        shutil.copy(EXAMPLES / name, tmp_path)
    for name in ("doorbell_tasks.json", "doorbell_heldout.json"):
        two = json.loads((EXAMPLES / name).read_text("utf-8"))[:2]
        (tmp_path / name).write_text(json.dumps(two), "utf-8")
    small = "--train.epochs 1 --train.tasks_per_batch 2 --train.tasks_per_update 2 --rollout.group_size 2"
    limits = (
        "--rollout.max_steps 1 --rollout.max_answer_tokens 12 --eval.rollouts 1 --eval.heldout_rollouts 1"
    )
    done = arpo("train", "doorbell.toml", *small.split(), *limits.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "runs" / "doorbell"
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert (summary["episodes"], summary["failures"], summary["groups"]["total"]) == (4, 0, 2)
    assert summary["success"].keys() == {"base", "final"}
    assert (run / "report.html").is_file()
    assert (run / "model" / "model.safetensors").is_file()


def test_the_tutorial_shows_the_code_that_runs():
    blocks = [block.split("```")[0] for block in TUTORIAL.read_text("utf-8").split("```python\n")[1:]]
    assert len(blocks) >= 3
    code = squeezed((EXAMPLES / "doorbell.py").read_text("utf-8"))
    for block in blocks:
        assert squeezed(block) in code


def squeezed(code):
    """Lines without indentation and blank lines: the tutorial shows methods outside their class."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())
