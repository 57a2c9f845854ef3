"""`arpo export --push` with the real huggingface_hub and a hub on this machine.

Files travel as LFS objects. The transfer with hf-xet needs the hub's own storage servers.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from arpo.config import Config, ModelConfig
from arpo.learner.local import LocalLearner
from arpo.models.trainable import set_trainable
from arpo.prompts.rendering import Renderer
from arpo.storage.checkpoint import CHECKPOINTS, LEARNER, save
from arpo.storage.run_folder import RunFolder
from fake_hub import TOKEN, Hub, Repository, hub_environment, serving_hub
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, save_model_folder, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids

PROGRAM = """
import sys
from arpo.cli.entry_point import main

for line in sys.stdin.read().splitlines():
    print(f"exit {main(line.split())}")
    sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a tiny model with adapters."""
    folder = tmp_path_factory.mktemp("runs") / "agent"
    tokenizer = build_tokenizer(ACTION_PHRASES, ["Click", "Save"], 225)
    shape = tiny_config(
        tokenizer.get_vocab_size(),
        special_ids(tokenizer),
        hidden=64,
        layers=1,
        vision_hidden=64,
        vision_layers=1,
    )
    model = new_tiny_model(shape, 0)
    save_model_folder(model, tokenizer, folder / "tiny-base", dtype=torch.float32)
    settings = ModelConfig(path=str(folder / "tiny-base"), train="lora", lora_rank=4)
    config = replace(Config(), model=settings)
    set_trainable(model, settings, 0)
    learner = LocalLearner(model, Renderer(tokenizer, IMAGE_SETTINGS), config)
    store = RunFolder(folder)
    store.write_recipe(config)
    counts = {"base": {"train": (16, 64), "heldout": (0, 0)}, "final": {"train": (48, 64), "heldout": (0, 0)}}
    rates = {name: {"train": successes["train"][0] / 64} for name, successes in counts.items()}
    store.write_summary({"success": rates, "counts": counts, "seed": 0, "episodes": 64})
    store.close()
    save(folder / CHECKPOINTS, 3, lambda path: learner.save(path / LEARNER), keep=1)
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving_hub() as hub:
        yield hub


def arpo(environment: dict[str, str], folder: Path, *commands: str) -> tuple[list[str], list[str]]:
    """Run the commands in one new process. Returns the lines of stdout, and the errors."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(commands),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), [line for line in done.stderr.splitlines() if line.startswith("arpo: ")]


@pytest.mark.slow
def test_a_pushed_model_comes_back_the_same(run: Path, hub: Hub, tmp_path: Path) -> None:
    before = Repository(private=True)
    before.commit({"model-00001-of-00002.safetensors": b"old", "picture.png": b"kept"})
    hub.repositories["acme/adapters"] = before
    said, errors = arpo(
        hub_environment(hub, tmp_path / "home", HF_TOKEN=TOKEN),
        tmp_path,
        f"export {run} --push acme/agent",
        f"export {run} exported --push acme/agent --dtype bfloat16",
        "export acme/agent back --dtype bfloat16",
        f"export {run} --push acme/adapters --public --no-merge",
    )
    url = f"{hub.url}/acme/agent"
    assert errors == []
    again = [f"{hub.url}/acme/adapters", "exit 0"]
    assert said == [url, "exit 0", "exported", url, "exit 0", "back", "exit 0", *again]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "exported", "home"]
    exported = {path.name: path.read_bytes() for path in (tmp_path / "exported").iterdir()}
    repository = hub.repositories["acme/agent"]
    assert repository.private
    assert repository.commits[repository.refs["main"]] == exported | {".gitattributes": b""}
    assert len(repository.commits) == 3  # one at its creation, one per push
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == exported["model.safetensors"]
    assert (tmp_path / "back" / "chat_template.jinja").read_bytes() == exported["chat_template.jinja"]
    card = exported["README.md"].decode()
    assert 'MODEL = "acme/agent"\nSYSTEM = "You use a computer."\n' in card
    assert "# acme/agent\n" in card
    assert "- Base model: tiny-base\n- Method: ARPO (GRPO with a replay" in card
    assert "| train: desk:32 | 25.0% (16 of 64) | 75.0% (48 of 64) |\n\n## Recipe" in card
    assert '```toml\nmodel.train = "lora"\nmodel.lora_rank = 4\n```' in card
    assert str(run) not in card
    adapters = {"README.md", "adapter_config.json", "adapter_model.safetensors"}
    assert before.commits[before.refs["main"]].keys() == adapters | {"picture.png"}
    assert before.private  # an existing repository stays private


@pytest.mark.slow
def test_refusals_come_before_the_work(run: Path, hub: Hub, tmp_path: Path) -> None:
    hub.forbidden.add("other")
    _, errors = arpo(
        hub_environment(hub, tmp_path / "home", HF_TOKEN=TOKEN),
        tmp_path,
        f"export {run}",
        f"export {run} --push agent",
        f"export {run} --push acme/agent@main",
        f"export {run} --push other/agent",
        f"export {run} out --public",
        "export nothing --push acme/agent",
        "export acme/nothing out",
    )
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    assert [line.removeprefix("arpo: error: ") for line in errors] == [
        "export needs an output directory, or --push ORG/NAME (see: arpo export --help)",
        "--push agent: must be the name of a hub repository: ORG/NAME",
        "--push acme/agent@main: must be the name of a hub repository: ORG/NAME",
        "--push other/agent: the hub refuses (403: You don't have the rights to create a model under other): "
        f"check the rights of your token, or {log_in}",
        "--public: needs --push ORG/NAME",
        "nothing: is not a run folder, a checkpoint, a model folder or ORG/NAME of the hub: check the path",
        f"acme/nothing: neither a folder here nor a repository on {hub.url} that you may read: check the "
        f"name; for a private repository, {log_in}",
    ]
    assert hub.repositories == {}
    _, errors = arpo(hub_environment(hub, tmp_path / "home"), tmp_path, f"export {run} --push acme/agent")
    assert errors == [f"arpo: error: --push acme/agent: you are not logged in to the hub: {log_in}"]
    assert {path.name for path in tmp_path.iterdir()} <= {"home"}
