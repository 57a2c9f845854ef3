"""`arpo train osworld_local`, cut short: the tiny model makes one update on two tasks through a host."""

import json
from importlib.resources import files

from arpo.cli.entry_point import main
from osworld_files import PYTHON

# Nothing is solved; what tells episodes apart is whether an answer can be read. Six of a kind are rare.
SHORT = """
    --run.threads 1 --env.parallel 2 --train.epochs 1 --train.tasks_per_batch 2 --train.tasks_per_update 2
    --rollout.group_size 6 --rollout.max_steps 2 --rollout.temperature 1.8
    --eval.every 0 --eval.rollouts 1 --store.tensorboard false
"""
TASKS = ("terminal-archive", "editor-append")
KNOWN = "Set the language to Greek"  # an instruction of Desk: the model answers others with no action


def two_tasks(folder):
    tasks = json.loads((files("arpo") / "envs/osworld/tasks/train.json").read_text("utf-8"))
    chosen = [{**task, "instruction": KNOWN} for task in tasks if task["id"] in TASKS]
    (folder / "tasks.json").write_text(json.dumps(chosen))
    return ["--tasks.train", str(folder / "tasks.json")]


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
