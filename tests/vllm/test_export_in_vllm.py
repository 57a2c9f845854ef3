"""Real vLLM loads the folders of `arpo export` unchanged, and agrees with transformers."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from arpo.cli.entry_point import main
from arpo.config import Config, ModelConfig
from arpo.envs.desk.env import DeskEnv
from arpo.learner.local import LocalLearner
from arpo.models.loading import load_model, load_renderer, resolve_model
from arpo.models.trainable import set_trainable
from arpo.prompts.rendering import Renderer
from arpo.serving.vllm_server import EXTENSION, link_package
from arpo.storage.checkpoint import CHECKPOINTS, LEARNER, save
from arpo.storage.run_folder import RunFolder
from arpo.tasks.lists import load_tasks
from arpo.types import Message, Screenshot
from tiny_vlm import QWEN2_5, QWEN3, QWEN3_5, save_folder, stock_inputs, tiny_qwen3, tiny_qwen3_5

PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
SCORE = Path(__file__).with_name("score.py")
SURROUNDINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, and nothing listens
    "VLLM_CPU_KVCACHE_SPACE": "1",  # gigabytes
    "TORCH_COMPILE_DISABLE": "1",  # needs no compiler, and is quicker for a few texts
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
SMALL = """
    --run.threads 1 --train.epochs 1 --train.tasks_per_batch 2 --train.tasks_per_update 2
    --rollout.max_steps 2 --rollout.temperature 2 --rollout.max_answer_tokens 24 --loss.kl 0 --optim.lr 3e-3
    --eval.every 0 --eval.rollouts 1 --eval.heldout_rollouts 1
"""
LORA = ModelConfig(train="lora", lora_rank=4)
ANSWERS = (
    "Thought: Open Mail\nAction: click(start_box='(112,70)')",
    "Thought: Now save\nAction: hotkey(key='ctrl s')",
    "Thought: Done\nAction: finished()",
)
EXACT = 1e-4  # of a log-probability in float32
# By itself vLLM resizes with torchvision, which differs from Pillow at sharp edges.
PILLOW = {"use_fast": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A conversation with a screenshot before each answer; `prompt` is all of it but the last answer."""

    messages: tuple[Message, ...]
    prompt: tuple[int, ...]
    token_ids: tuple[int, ...]
    images: tuple[Screenshot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What vLLM answered: the log-probabilities of each text by each adapter, and the tokens of each chat."""

    logprobs: list[list[list[float]]]
    chats: list[list[int]]


@pytest.fixture(autouse=True)
def vllm_is_installed() -> None:
    if not PYTHON.exists():
        pytest.fail("vLLM is not installed: make vllm")


def desk_screens(width: int, height: int) -> list[Screenshot]:
    async def first_screen(task: Any) -> Screenshot:
        env = DeskEnv(width, height)
        screen = (await env.start(task)).screenshot
        await env.close()
        return screen

    return [asyncio.run(first_screen(task)) for task in load_tasks("desk:heldout")[:3]]


def conversation(renderer: Renderer, screens: Sequence[Screenshot]) -> Text:
    messages = [
        Message(role="system", text="You work a computer."),
        Message(role="user", text="Save the file"),
    ]
    for screen, answer in zip(screens, ANSWERS, strict=False):
        messages += [Message(role="user", screenshot=screen), Message(role="assistant", text=answer)]
    last = messages.pop()
    rendered = renderer.render(messages)
    return Text(
        messages=tuple(messages),
        prompt=rendered.token_ids,
        token_ids=(*rendered.token_ids, *renderer.encode(last.text), renderer.end_of_turn_id),
        images=rendered.images,
    )


def conversations(folder: Path, width: int, height: int) -> list[Text]:
    renderer, screens = Renderer.from_folder(folder), desk_screens(width, height)
    return [conversation(renderer, screens), conversation(renderer, screens[1:2])]


@torch.no_grad()
def by_transformers(folder: Path, texts: Sequence[Text]) -> list[list[float]]:
    """Log-probabilities of all tokens but the first, of each text."""
    model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    renderer = Renderer.from_folder(folder)
    found = []
    for text in texts:
        logits = model(**stock_inputs(renderer, text.token_ids, text.images)).logits[0]
        tokens = torch.tensor(text.token_ids[1:])
        found.append(logits[:-1].log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist())
    return found


def by_vllm(
    folder: Path,
    texts: Sequence[Text],
    scratch: Path,
    *,
    adapters: Sequence[str] = ("",),
    processor: Mapping[str, Any],
) -> Said:
    placeholder = Renderer.from_folder(folder).image_token_id
    # vLLM's own linear attention has no float32 on a CPU.
    linear = "linear_attention" in (folder / "config.json").read_text("utf-8")
    packages = {"PYTHONPATH": str(link_package(scratch))} if linear else {}
    request = {
        "folder": str(folder),
        "extension": EXTENSION if linear else "",
        "adapters": adapters,
        "processor": processor,
        "texts": [
            {"token_ids": one_for_each_image(text, placeholder), "images": [_base64(i) for i in text.images]}
            for text in texts
        ],
        "chats": [[_chat_message(message) for message in text.messages] for text in texts],
    }
    asked, answered, log = (scratch / name for name in ("request.json", "answer.json", "vllm.log"))
    asked.write_text(json.dumps(request), "utf-8")
    with log.open("wb") as output:
        done = subprocess.run(
            [PYTHON, SCORE, asked, answered],
            env=SURROUNDINGS | {"PATH": os.environ["PATH"], "HOME": str(scratch.parent)} | packages,
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=900, check=False,
        )  # fmt: skip
    assert done.returncode == 0, log.read_text("utf-8", "replace")[-4000:]
    answer = json.loads(answered.read_text("utf-8"))
    for scores in answer["scores"]:
        assert [tuple(score["token_ids"]) for score in scores] == [text.token_ids for text in texts]
    return Said(
        logprobs=[[score["logprobs"] for score in scores] for scores in answer["scores"]],
        chats=answer["chats"],
    )


def one_for_each_image(text: Text, placeholder: int) -> list[int]:
    """As vLLM takes tokens: it knows by itself how many an image becomes."""
    runs = [(token, len(list(run))) for token, run in groupby(text.token_ids)]
    return [token for token, length in runs for _ in range(1 if token == placeholder else length)]


def _base64(screenshot: Screenshot) -> str:
    return base64.b64encode(screenshot.png).decode()


def _chat_message(message: Message) -> dict[str, Any]:
    if message.screenshot is None:
        return {"role": message.role, "content": message.text}
    url = {"url": f"data:image/png;base64,{_base64(message.screenshot)}"}
    return {"role": message.role, "content": [{"type": "image_url", "image_url": url}]}


def gap(some: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    pairs = zip(some, others, strict=True)
    return max(float(np.abs(np.subtract(one, other)).max()) for one, other in pairs)


def trained(folder: Path, *settings: str) -> Path:
    """A run on two tasks of Desk, as `arpo train` leaves it."""
    tasks = {"train": ("desk:pool", "pool-013", "pool-021"), "heldout": ("desk:heldout", "heldout-006")}
    words = [*SMALL.split(), *settings]
    for name, (source, *ids) in tasks.items():
        counts = {task: {"successes": 0, "rollouts": 0} for task in ids}
        (folder / f"{name}.json").write_text(json.dumps({"source": source, "tasks": counts}), "utf-8")
        words += [f"--tasks.{name}", str(folder / f"{name}.json")]
    assert main(["train", "desk", *words, "--run.dir", str(folder / "run")]) == 0
    return folder / "run"


def exported(source: Path, out: Path, *options: str) -> Path:
    assert main(["export", str(source), str(out), *options]) == 0
    return out


def fresh_run(folder: Path, family: str) -> Path:
    """A LoRA run of a model with fresh weights, whose adapters have moved, as the learner saves it."""
    model = tiny_qwen3(head=32) if family == QWEN3 else tiny_qwen3_5(head=32)
    base = save_folder(model, folder / "base-model")  # vLLM on a CPU knows no narrower heads
    config = replace(Config(), model=replace(LORA, path=str(base)))
    store = RunFolder(folder)
    store.write_recipe(config)
    store.close()
    model = load_model(config.model, config.run.seed)
    set_trainable(model, config.model, config.run.seed)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(".lora.b"):
                weight.normal_(std=0.01, generator=generator)
    learner = LocalLearner(model, load_renderer(config.model), config)
    save(folder / CHECKPOINTS, 3, lambda path: learner.save(path / LEARNER), keep=1)
    return folder


def test_a_trained_model_in_vllm(tmp_path: Path) -> None:
    out = exported(trained(tmp_path), tmp_path / "out")
    texts = conversations(out, 224, 168)  # as the model sees them, so that nothing is resized
    assert [len(text.images) for text in texts] == [3, 1]
    said, expected = by_vllm(out, texts, tmp_path, processor={}), by_transformers(out, texts)
    assert gap(said.logprobs[0], expected) < EXACT
    assert gap(by_transformers(resolve_model("base"), texts), expected) > 1000 * EXACT
    assert [tuple(chat) for chat in said.chats] == [text.prompt for text in texts]


@pytest.mark.parametrize("family", [QWEN2_5, QWEN3, QWEN3_5])
def test_adapters_in_vllm_merged_and_apart(tmp_path: Path, family: str) -> None:
    if family != QWEN2_5:
        run, base = fresh_run(tmp_path, family), tmp_path / "base-model"
    else:
        run = trained(tmp_path, "--model.train", "lora", "--model.lora_rank", "4")
        base = resolve_model("base")
    merged = exported(run, tmp_path / "merged")
    apart = exported(run, tmp_path / "apart", "--no-merge")
    texts = conversations(base, 300, 200)
    before, after = by_transformers(base, texts), by_transformers(merged, texts)
    assert gap(before, after) > 1000 * EXACT
    assert gap(by_vllm(merged, texts, tmp_path, processor=PILLOW).logprobs[0], after) < EXACT
    plain, adapted = by_vllm(base, texts, tmp_path, adapters=["", str(apart)], processor=PILLOW).logprobs
    assert gap(plain, before) < EXACT
    assert gap(adapted, after) < EXACT
