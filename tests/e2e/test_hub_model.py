"""Commands with a model of the hub, and a hub on this machine that gets a new commit between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.config.recipe import load_config
from arpo.models.loading import resolve_model
from fake_hub import TOKEN, hub_environment, serving_hub
from tiny_vlm import QWEN3_5_MOE, save_folder, tiny_of

pytestmark = pytest.mark.slow

SMALL = """
    --run.threads 1 --train.tasks_per_batch 1 --train.tasks_per_update 1 --rollout.max_steps 1
    --rollout.max_answer_tokens 16 --eval.every 0 --eval.rollouts 1 --eval.heldout_rollouts 1
    --tasks.ids pool-013,heldout-006 --tasks.train desk:pool --tasks.heldout desk:heldout
    --model.train language --run.dir run
"""
PROGRAM = """
import os, sys
from pathlib import Path
from huggingface_hub import HfApi
from arpo.cli.entry_point import main

def arpo(*words):
    print(f"{words[0]}: {main(words)}", file=sys.stderr)

small = sys.argv[1:]
arpo("doctor", "--recipe", "desk", "--model.path", "acme/desk", "--gpu", "8")
assert not list(Path(os.environ["HF_HOME"]).rglob("*.safetensors")), "a plan needs no weights"
arpo("train", "desk", *small, "--model.path", "acme/desk", "--train.epochs", "1")
Path("note.txt").write_text("new")
HfApi().upload_file(path_or_fileobj="note.txt", path_in_repo="note.txt", repo_id="acme/desk")
arpo("train", "desk", *small, "--model.path", "acme/desk", "--train.epochs", "2")
arpo("train", "desk", *small, "--model.path", "acme/desk@main", "--train.epochs", "3")
arpo("eval", *small, "--model.path", "acme/desk", "--out", "scores.json")
arpo("train", "desk", *small, "--model.path", "acme/moe")
arpo("train", "desk", *small, "--model.path", "acme/experts")
"""


def test_a_run_records_the_commit_and_resumes_with_it(tmp_path: Path) -> None:
    with serving_hub() as hub:
        first = hub.add("acme/desk", resolve_model("base"))
        files = dict(hub.repositories["acme/desk"].commits[first])
        foreign = json.loads(files["config.json"]) | {"model_type": "glm4v_moe"}
        (tmp_path / "config.json").write_text(json.dumps(foreign))
        (tmp_path / "model.safetensors").write_bytes(b"gigabytes")
        hub.add("acme/moe", tmp_path)
        hub.add("acme/experts", save_folder(tiny_of(QWEN3_5_MOE), tmp_path / "experts"))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *SMALL.split()],
            env=hub_environment(hub, tmp_path / "home", HF_TOKEN=TOKEN),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        newest = hub.repositories["acme/desk"].refs["main"]
    lines = [
        line for line in done.stderr.splitlines() if line.startswith(("arpo:", "doctor:", "train:", "eval:"))
    ]
    assert lines[:3] == ["doctor: 0", "train: 0", "train: 0"]
    assert load_config(tmp_path / "run" / "recipe.toml").model.path == f"acme/desk@{first}"
    assert lines[3] == (
        f"arpo: error: model.path = 'acme/desk@main': is commit {newest}, but the run in run has "
        f"acme/desk@{first}: to resume it, use --model.path acme/desk; else choose another --run.dir"
    )
    assert lines[4:6] == ["train: 2", "eval: 0"]
    assert json.loads((tmp_path / "scores.json").read_text())["model"] == f"acme/desk@{newest}" != first
    assert "model_type is 'glm4v_moe', a mixture of experts" in lines[6]
    assert "model.train: is 'language', and" in lines[8] and "mixture of experts" in lines[8]
    refused = [line for line in hub.requests if "acme/moe" in line or "acme/experts" in line]
    assert refused and not [line for line in refused if "safetensors" in line]
    assert (tmp_path / "run" / "model" / "tokenizer.json").read_bytes() == files["tokenizer.json"]
