"""Rehearsal of a whole training run of a 7B model on one GPU: time per stage, and memory.

`arpo train` runs two batches of two groups on Desk at 1920x1080, is killed in the second batch, resumes, ends
and is exported. The model has the size of a 7B model and weights made for this purpose: it writes a thought
of fixed length and then `wait()`, or rarely `error_env()`, which solves the tasks used here. So episodes have
up to 15 steps, groups have a signal, and the replay buffer fills. The tiny learning rate keeps it so. Prints
one JSON line; `ratio` is the goal of 12 seconds per episode divided by the measured time with checkpoints.

    PYTHONPATH=. python benchmarks/rehearsal_7b.py [--train lora] [--folder FOLDER]
    PYTHONPATH=. python benchmarks/rehearsal_7b.py --engine vllm --python .venv-vllm/bin/python    # same GPU
    PYTHONPATH=. python benchmarks/rehearsal_7b.py --tiny    # on a CPU, to test this script
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from learner import SEVEN_B
from safetensors.torch import save_model
from tokenizers import Tokenizer

from arpo.config import ModelConfig
from arpo.models.loading import load_model, load_renderer, resolve_model
from arpo.storage.checkpoint import CHECKPOINTS
from arpo.storage.run_folder import METRICS, TIMING
from arpo.types import Message

GOAL_SECONDS = 12.0  # per episode
STAGES = ("rollout", "learn")
LIKELY = 22.0  # logit of the next token of the answer; all others are near 0
GIVE_UP = 0.03  # probability of error_env() at each step
RECIPE = """
extends = "desk"

[run]
dir = "run"

[model]
path = "{model}"
dtype = "{dtype}"
train = "{train}"
lora_rank = 16

[tasks]
train = "desk:pool"
ids = "pool-000,pool-001"
heldout = ""

[env]
width = {width}
height = {height}
parallel = 16

[rollout]
group_size = 8
max_steps = {steps}
max_images = 15
max_answer_tokens = 256
max_context_tokens = 65536

[train]
epochs = 2
tasks_per_batch = 2
tasks_per_update = 1

[loss]
kl = 0.0

[optim]
lr = {lr}
moments = "bfloat16"
warmup_updates = 0
tokens_per_microbatch = 32768

[eval]
rollouts = 1

[store]
keep_checkpoints = 1
tensorboard = false

[engine]
name = "{engine}"
replicas = {replicas}
python = "{python}"
"""


def make_model(folder: Path, tiny: bool, thought: int) -> None:
    """A model folder whose weights answer as described above."""
    shutil.copytree(resolve_model("base"), folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = False
    config["text_config"].pop("layer_types", None)
    for part, values in SEVEN_B.items() if not tiny else ():
        config[part] |= values
    config["text_config"]["max_position_embeddings"] = 128000
    (folder / "config.json").write_text(json.dumps(config))
    settings = ModelConfig(path=str(folder), weights="random", dtype="float32" if tiny else "bfloat16")
    renderer, model = load_renderer(settings), load_model(settings, seed=0)
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    wait, give_up, end = (
        vocabulary[name] for name in ("ĊAction:Ġwait()", "ĊAction:Ġerror_env()", "<|im_end|>")
    )
    words = [number for name, number in sorted(vocabulary.items()) if name.isalpha()][:thought]
    start = renderer.continuation(Message(role="user", text="go on")).token_ids[-1]
    chain = [start, vocabulary["Thought:Ġ"], *words]
    with torch.no_grad():
        for layer in model.model.language_model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embeddings, head = model.model.language_model.embed_tokens.weight, model.lm_head.weight
        embeddings.normal_()
        head.normal_(std=0.01)

        def follow(token: int, following: int, logit: float) -> None:
            head[following] += logit * embeddings[token] / embeddings[token].float().pow(2).sum()

        for token, following in pairwise(chain):
            follow(token, following, LIKELY)
        follow(chain[-1], wait, LIKELY)
        follow(chain[-1], give_up, LIKELY + math.log(GIVE_UP))
        follow(wait, end, LIKELY)
        follow(give_up, end, LIKELY)
    save_model(model, str(folder / "model.safetensors"), metadata={"format": "pt"})


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def gpu_gibibytes() -> float:
    """Memory in use on the GPU; 0 without one."""
    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


class Rehearsal:
    """Runs `arpo` in `folder` and watches the memory of the GPU."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.peak = folder, 0.0
        self.save_seconds = 0.0  # of the checkpoint after the first batch
        self._ended: list[float] = []  # times at which batches ended

    def train(self, kill_in_batch: int | None = None) -> float:
        """Returns the seconds until the end, or until the run was killed in this batch."""
        started = time.perf_counter()
        command = [sys.executable, "-m", "arpo", "train", "recipe.toml"]
        process = subprocess.Popen(command, cwd=self.folder)
        while process.poll() is None:
            time.sleep(1)
            self.peak = max(self.peak, gpu_gibibytes())
            self._report()
            saved = self.folder / "run" / CHECKPOINTS / f"step-{(kill_in_batch or 1) - 1:06d}"
            if kill_in_batch is not None and saved.is_dir():
                self.save_seconds = time.perf_counter() - self._ended[-1] if self._ended else 0.0
                time.sleep(3)
                process.send_signal(signal.SIGKILL)
                process.wait()
                return time.perf_counter() - started
        if process.returncode:
            sys.exit(f"arpo train ended with exit code {process.returncode}")
        return time.perf_counter() - started

    def _report(self) -> None:
        """Print the stages of each batch when it ends, in case the rehearsal is interrupted."""
        for batch in read_lines(self.folder / "run" / TIMING)[len(self._ended) :]:
            self._ended.append(time.perf_counter())
            steps = [line["steps"] for line in read_lines(self.folder / "run" / METRICS) if "steps" in line]
            print(json.dumps(batch), f"mean steps {steps[-1:]}, peak {self.peak:.1f} GiB", flush=True)


def measure(arguments: argparse.Namespace, model: Path, folder: Path) -> dict[str, Any]:
    """Train the `model`, which is made first, in `folder`."""
    tiny = arguments.tiny
    make_model(model, tiny, arguments.tokens)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    (folder / "recipe.toml").write_text(
        RECIPE.format(
            model=model, dtype="float32" if tiny else "bfloat16", train=arguments.train,
            width=224 if tiny else 1920, height=168 if tiny else 1080,
            steps=arguments.steps, lr=1e-9, engine=arguments.engine, python=arguments.python,
            replicas=1 if arguments.engine == "vllm" else 0,
        )
    )  # fmt: skip
    rehearsal = Rehearsal(folder)
    until_kill = rehearsal.train(kill_in_batch=2)
    resumed = rehearsal.train()
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "arpo", "export", "run", "exported"], cwd=folder, check=True)
    exported = time.perf_counter() - started
    batches = read_lines(folder / "run" / TIMING)
    episodes = [line for line in read_lines(folder / "run" / METRICS) if "episodes" in line]
    engine_kl = [line["engine_kl"] for line in episodes]
    stages = [{name: value for name, value in batch.items() if name in STAGES} for batch in batches]
    each = [(sum(stage.values()) + rehearsal.save_seconds) / 16 for stage in stages]
    return {
        "benchmark": "rehearsal_7b",
        **{key: value for key, value in vars(arguments).items() if key != "folder"},
        "stages": [{name: round(value, 1) for name, value in stage.items()} for stage in stages],
        "save": round(rehearsal.save_seconds, 1),
        "mean_steps": [round(line["steps"], 1) for line in episodes],
        "success": [line["success"] for line in episodes],
        "rescued": [line["rescued"] for line in episodes],
        "replay_size": [line["replay_size"] for line in episodes],
        "engine_kl": engine_kl,
        "seconds": {"until_kill": round(until_kill), "resumed": round(resumed), "export": round(exported)},
        "seconds_per_episode": [round(value, 2) for value in each],
        "peak_gibibytes": round(rehearsal.peak, 1),
        "ratio": round(GOAL_SECONDS / each[-1], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", default="all", choices=["all", "language", "lora"])
    parser.add_argument("--tokens", type=int, default=145, help="length of a thought")
    parser.add_argument("--steps", type=int, default=15, help="maximum steps of an episode")
    parser.add_argument("--engine", default="in_process", choices=["in_process", "vllm"])
    parser.add_argument("--python", default="", help="of an environment with vLLM (engine.python)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and small screenshots")
    parser.add_argument(
        "--folder", type=Path, help="folder of the run, with 110 GiB of space for --train all; default: /tmp"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as models, tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(measure(arguments, Path(models) / "model", Path(folder))))


if __name__ == "__main__":
    main()
