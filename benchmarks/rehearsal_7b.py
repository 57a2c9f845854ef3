"""Rehearsal of a whole training run of a 7B model on one GPU: time per stage, and memory.

`arpo train` runs two batches of two groups on Desk at 1920x1080, is killed in the second batch, resumes, ends
and is exported. With vLLM, the server is killed too, in the batch after the resume. The model has the size of
a 7B model and weights made for this purpose: it writes a thought of fixed length and then `wait()`, or rarely
`error_env()`, which solves the tasks used here. So episodes have up to 15 steps, groups have a signal, and
the replay buffer fills. The tiny learning rate keeps it so. Prints one JSON line; `ratio` is the goal of 9
seconds per episode divided by the measured time of the first batch, with its checkpoint.

    PYTHONPATH=. python benchmarks/rehearsal_7b.py [--train lora] [--folder FOLDER]
    PYTHONPATH=. python benchmarks/rehearsal_7b.py --engine vllm --python .venv-vllm/bin/python    # same GPU
    PYTHONPATH=. python benchmarks/rehearsal_7b.py --tiny    # on a CPU, to test this script

`--staleness 1 --batches 4` measures the same work side by side, without kills and without export:
`batch_seconds` is the time from the end of one batch to the end of the next. With `--replicas 2`, the first
of two servers is killed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from learner import SEVEN_B
from safetensors.torch import save_model
from tokenizers import Tokenizer

from arpo.config import ModelConfig
from arpo.models.loading import load_model, load_renderer, resolve_model
from arpo.rollout.player import SERVER_LOGS, release_gpu_memory
from arpo.storage.checkpoint import CHECKPOINTS
from arpo.storage.run_folder import METRICS, TIMING
from arpo.types import Message

GOAL_SECONDS = 9.0  # per episode
STAGES = ("rollout", "learn")
LIKELY = 22.0  # logit of the next token of the answer; all others are near 0
PORT = 9000  # of the first server: the default of engine.port
PAGE_EPISODES = 6  # of the static site
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
epochs = {batches}
tasks_per_batch = 2
tasks_per_update = 1
max_staleness = {staleness}

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
checkpoint_every = {checkpoint_every}
tensorboard = false

[engine]
name = "{engine}"
replicas = {replicas}
gpus = "{gpus}"
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
        self.ended: list[float] = []  # times at which batches ended
        self.save_seconds = 0.0  # of the checkpoint after the first batch
        self.server_back = 0.0  # seconds from the kill of the server to its next answer

    def train(self, look: Callable[[subprocess.Popen[bytes]], None] = lambda process: None) -> float:
        """Returns the seconds until the end. `look` is called each second, and may kill the process."""
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "arpo", "train", "recipe.toml"], cwd=self.folder)
        while process.poll() is None:
            time.sleep(1)
            self.peak = max(self.peak, gpu_gibibytes())
            self._report()
            look(process)
        if process.returncode not in (0, -signal.SIGKILL):
            for log in (self.folder / "run" / SERVER_LOGS).glob("*.log"):
                print(log.read_text("utf-8", "replace")[-20_000:])
            sys.exit(f"arpo train ended with exit code {process.returncode}")
        return time.perf_counter() - started

    def kill_after_first_checkpoint(self, process: subprocess.Popen[bytes]) -> None:
        if (self.folder / "run" / CHECKPOINTS / "step-000001").is_dir():
            self.save_seconds = time.perf_counter() - self.ended[-1] if self.ended else 0.0
            time.sleep(3)
            process.kill()

    def kill_server(self) -> Callable[[subprocess.Popen[bytes]], None]:
        """A `look` that kills the first server when it samples. The checkpoint in use is removed before."""
        killed, back = 0.0, False

        def look(_: subprocess.Popen[bytes]) -> None:
            nonlocal killed, back
            if back or len(self.ended) > 1:
                return
            sampling = bool(re.search(r"Running: [1-9]\d* reqs", self._new_log()))
            if killed and sampling:
                self.server_back, back = time.perf_counter() - killed, True
            elif not killed and sampling:
                old = self.folder / "run" / CHECKPOINTS / "step-000001"
                shutil.rmtree(old, ignore_errors=True)  # for want of space
                subprocess.run(["pkill", "-9", "-f", f"api_serve[r].* --port {PORT} "], check=False)
                killed = time.perf_counter()
                self._log_size = self._read_log()[1]

        self._log_size = self._read_log()[1]
        return look

    def hand_over(self) -> dict[str, list[float]]:
        """Seconds in which the server released and took the memory of the GPU, one for each batch."""
        found = re.findall(r"It took ([\d.]+) seconds to (fall asleep|wake up)", self._read_log()[0])
        return {
            kind: [round(float(seconds), 1) for seconds, name in found if name == kind]
            for kind in ("fall asleep", "wake up")
        }

    def _read_log(self) -> tuple[str, int]:
        logs = sorted((self.folder / "run" / SERVER_LOGS).glob("*.log"))
        text = "".join(log.read_text("utf-8", "replace") for log in logs)
        return text, len(text)

    def _new_log(self) -> str:
        return self._read_log()[0][self._log_size :]

    def _report(self) -> None:
        """Print the stages of each batch when it ends, in case the rehearsal is interrupted."""
        for batch in read_lines(self.folder / "run" / TIMING)[len(self.ended) :]:
            self.ended.append(time.perf_counter())
            steps = [line["steps"] for line in read_lines(self.folder / "run" / METRICS) if "steps" in line]
            print(json.dumps(batch), f"mean steps {steps[-1:]}, peak {self.peak:.1f} GiB", flush=True)


def write_recipe(arguments: argparse.Namespace, model: Path, folder: Path) -> None:
    tiny, vllm = arguments.tiny, arguments.engine == "vllm"
    (folder / "recipe.toml").write_text(
        RECIPE.format(
            model=model, dtype="float32" if tiny else "bfloat16", train=arguments.train,
            width=224 if tiny else 1920, height=168 if tiny else 1080, steps=arguments.steps,
            lr=1e-9, engine=arguments.engine, python=arguments.python,
            replicas=arguments.replicas if vllm else 0,
            gpus=",".join(["0"] * arguments.replicas) if vllm and not tiny else "",
            batches=arguments.batches, staleness=arguments.staleness,
            checkpoint_every=1 if arguments.batches == 2 else arguments.batches,
        )
    )  # fmt: skip


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train in `folder`. Without --model, the model is made there."""
    model = arguments.model or folder / "model"
    if not model.exists():
        make_model(model, arguments.tiny, arguments.tokens)
        release_gpu_memory()
    write_recipe(arguments, model.absolute(), folder)
    rehearsal = Rehearsal(folder)
    seconds: dict[str, float] = {}
    if arguments.batches == 2:
        seconds["until_kill"] = rehearsal.train(rehearsal.kill_after_first_checkpoint)
        server = {"look": rehearsal.kill_server()} if arguments.engine == "vllm" else {}
        seconds["resumed"] = rehearsal.train(**server)
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "arpo", "export", "run", "exported"], cwd=folder, check=True)
        seconds["export"] = time.perf_counter() - started
    else:
        server = {"look": rehearsal.kill_server()} if arguments.replicas > 1 else {}
        seconds["trained"] = rehearsal.train(**server)
    if arguments.page:
        keep(folder, arguments.page)
    batches = read_lines(folder / "run" / TIMING)
    lines = [line for line in read_lines(folder / "run" / METRICS) if "episodes" in line]
    stages = [{name: value for name, value in batch.items() if name in STAGES} for batch in batches]
    each = [(sum(stage.values()) + rehearsal.save_seconds) / 16 for stage in stages]
    return {
        "benchmark": "rehearsal_7b",
        **{key: value for key, value in vars(arguments).items() if key not in ("folder", "model", "page")},
        "stages": [{name: round(value, 1) for name, value in stage.items()} for stage in stages],
        "save": round(rehearsal.save_seconds, 1),
        "mean_steps": [round(line["steps"], 1) for line in lines],
        **{name: [line[name] for line in lines] for name in ("success", "rescued", "replay_size")},
        "engine_kl": [line.get("engine_kl") for line in lines],
        "seconds": {name: round(value) for name, value in seconds.items()},
        "hand_over": rehearsal.hand_over(),
        "server_back": round(rehearsal.server_back, 1),
        "batch_seconds": [round(end - start, 1) for start, end in pairwise(rehearsal.ended)],
        "seconds_per_episode": [round(value, 2) for value in each],
        "peak_gibibytes": round(rehearsal.peak, 1),
        "ratio": round(GOAL_SECONDS / each[0], 2),
    }


def keep(folder: Path, page: Path) -> None:
    """Write a static site of the run to `page`, with its metrics and the logs of its servers."""
    episodes = f"size={PAGE_EPISODES}"
    words = ["view", "run", "--no-open", "--export", str(page.absolute()), "--episodes", episodes]
    subprocess.run([sys.executable, "-m", "arpo", *words], cwd=folder, check=True)
    run = folder / "run"
    for file in (*run.glob("*.jsonl"), *run.glob("*.json"), *(run / SERVER_LOGS).glob("*.log")):
        shutil.copy(file, page)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train", default="all", choices=["all", "language", "lora"])
    parser.add_argument("--tokens", type=int, default=145, help="length of a thought")
    parser.add_argument("--steps", type=int, default=15, help="maximum steps of an episode")
    parser.add_argument("--engine", default="in_process", choices=["in_process", "vllm"])
    parser.add_argument("--replicas", type=int, default=1, help="vLLM servers on the GPU")
    parser.add_argument("--batches", type=int, default=2, help="more or fewer than two: no kills")
    parser.add_argument("--staleness", type=int, default=0, help="train.max_staleness")
    parser.add_argument("--python", default="", help="of an environment with vLLM (engine.python)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and small screenshots")
    parser.add_argument(
        "--folder",
        type=Path,
        help="for the run; --train all needs 64 GiB, or 110 in the process; default: /tmp",
    )
    parser.add_argument("--page", type=Path, help="folder for a static site of the run, and for its logs")
    parser.add_argument("--model", type=Path, help="folder of the model, made if it does not exist")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        print(json.dumps(measure(arguments, Path(folder))))


if __name__ == "__main__":
    main()
