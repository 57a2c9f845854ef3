"""`arpo train osworld_local`, cut short: the tiny model makes one update on two tasks through a host."""

import json

import pytest

from arpo.cli.entry_point import main
from osworld_files import PYTHON, osworld_folder, osworld_task

# Nothing is solved; what tells episodes apart is whether an answer can be read. Six of a kind are rare.
SHORT = """
    --run.threads 1 --env.parallel 2 --train.epochs 1 --train.tasks_per_batch 2 --train.tasks_per_update 2
    --rollout.group_size 6 --rollout.max_steps 2 --eval.every 0 --eval.rollouts 1 --store.tensorboard false
"""


def two_tasks(folder):
    """OSWorld's where they are, else our own."""
    try:
        ids = [osworld_task(name).id for name in ("os/e0df059f", "os/a4d98375")]
        examples = osworld_folder() / "examples"
    except pytest.skip.Exception:
        return ["--tasks.train", "osworld:train", "--tasks.ids", "terminal-archive,editor-append"]
    (folder / "list.json").write_text(json.dumps({"os": ids}))
    return ["--tasks.train", str(folder / "list.json"), "--tasks.examples", str(examples)]


def test_the_tiny_model_is_trained_on_real_desktops(tmp_path, host_config):
    run = tmp_path / "run"
    settings = [*SHORT.split(), *two_tasks(tmp_path), "--osworld.python", str(PYTHON), "--run.dir", str(run)]
    assert main(["train", "osworld_local", *settings]) == 0
    before, update = map(json.loads, (run / "metrics.jsonl").read_text("utf-8").splitlines())
    assert before == {"step": 0, "eval_train": 0.0, "eval_heldout": None}
    seen = {key: update[key] for key in ("episodes", "failures", "success", "groups", "updates")}
    assert seen == {"episodes": 12, "failures": 0, "success": 0.0, "groups": 2, "updates": 1.0}
    metrics = (run / "metrics.jsonl").read_bytes()
    assert main(["train", "osworld_local", *settings]) == 0
    assert (run / "metrics.jsonl").read_bytes() == metrics
