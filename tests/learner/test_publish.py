"""Published weights are those of the learner, with the names of Hugging Face, and a probe proves them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from arpo.config import (
    ClusterConfig,
    Config,
    EngineConfig,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
)
from arpo.learner.base import Batch, Learner
from arpo.learner.local import LocalLearner
from arpo.learner.publish import Publisher, open_publisher, published_bytes
from arpo.learner.sharded import ShardedLearner
from arpo.models.checksums import bit_sum
from arpo.models.loading import load_model
from arpo.models.lora import merge
from arpo.models.trainable import set_trainable
from arpo.prompts.rendering import Renderer
from arpo.storage.published_weights import PublishedWeights, newest_published
from arpo.types import Message, Sample
from tiny_vlm import QWEN3, save_folder, screenshot, stock_inputs, tiny_of, tiny_renderer

Train = Literal["all", "language", "lora"]
RENDERER = tiny_renderer(QWEN3)
LR = 1e-2


def config(folder: Path, train: Train = "all", ranks: int = 1) -> Config:
    return Config(
        run=RunConfig(threads=1, dir=str(folder / "run")),
        model=ModelConfig(path=str(folder / "model"), device="cpu", train=train, lora_rank=4),
        engine=EngineConfig(name="vllm", weights=str(folder / "published")),
        rollout=RolloutConfig(temperature=0.7),
        optim=OptimConfig(lr=LR, ranks=ranks),
    )


@contextmanager
def trained(config: Config) -> Iterator[Learner]:
    """A learner after one update."""
    model = load_model(config.model, 0)
    set_trainable(model, config.model, 0)
    renderer = Renderer.from_folder(Path(config.model.path), config.model.min_pixels, config.model.max_pixels)
    kind = ShardedLearner if config.optim.ranks > 1 else LocalLearner
    with closing(kind(model, renderer, config)) as learner:
        learner.train(Batch(updates=((sample(1), sample(2)),)))
        yield learner


def sample(seed: int) -> Sample:
    rendered = RENDERER.render([Message(role="user", text="open the file", screenshot=screenshot(seed))])
    sampled = tuple(Random(seed).randrange(4, 30) for _ in range(6))
    return Sample(
        token_ids=(*rendered.token_ids, *sampled), mask=(False,) * len(rendered.token_ids) + (True,) * 6,
        images=rendered.images, behaviour_logprobs=(-5.0,) * 6, advantage=1.0 - seed, weight=0.1,
        replayed=False,
    )  # fmt: skip


def publish(learner: Learner, root: Path) -> PublishedWeights:
    root.mkdir(exist_ok=True)
    weights = Publisher(learner, RENDERER, root).publish()
    published = newest_published(root)
    assert published is not None
    assert (published.version, published.folder) == (1, weights.handle)
    assert weights.version == 1
    return published


def tensors(published: PublishedWeights) -> dict[str, Tensor]:
    files = [load_file(path) for path in sorted(published.folder.glob("*.safetensors"))]
    merged = {name: tensor for file in files for name, tensor in file.items()}
    assert len(merged) == sum(map(len, files))
    return merged


def stock_logprobs(model: Any, published: PublishedWeights) -> list[float]:
    """Plain transformers on the published probe, at temperature 1."""
    probe = published.probe()
    inputs = stock_inputs(RENDERER, (*probe.token_ids, *probe.answer), probe.images)
    with torch.no_grad():
        logps_TV = model(**inputs).logits[0].log_softmax(-1)
    start = len(probe.token_ids) - 1
    return [logps_TV[start + index, token].item() for index, token in enumerate(probe.answer)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("publish")
    save_folder(tiny_of(QWEN3), folder / "model")
    return folder


def test_the_model_is_published_with_a_probe_that_plain_transformers_confirms(
    folder: Path, tmp_path: Path
) -> None:
    with trained(config(folder)) as learner:
        published = publish(learner, tmp_path)
        stock: Any = tiny_of(QWEN3, stock=True)
        before = stock_logprobs(stock, published)
        stock.load_state_dict(tensors(published))  # all names, no other ones
        probe = published.probe()
        assert probe.logprobs == pytest.approx(stock_logprobs(stock, published), abs=1e-4)
        gaps = [abs(old - new) for old, new in zip(before, probe.logprobs, strict=True)]
        assert max(gaps) > 0.05  # one update later, the probe no longer fits the old weights
        assert (len(probe.images), len(probe.answer) >= 8) == (2, True)
        assert published.checksums() == {name: bit_sum(p) for name, p in stock.named_parameters()}
        assert probe.answer[-1] == RENDERER.end_of_turn_id
        model = learner.weights().handle
        assert published_bytes(model) == sum(tensor.nbytes for tensor in tensors(published).values())


def test_a_lora_run_publishes_adapters_alone(folder: Path, tmp_path: Path) -> None:
    with trained(config(folder, "lora")) as learner:
        published = publish(learner, tmp_path)
        assert published.has_adapters
        names = {path.name for path in published.folder.iterdir()}
        described = {"adapter_config.json", "checksums.json", "probe.json", "COMPLETE"}
        assert names == {"adapter_model.safetensors", *described}
        settings = json.loads((published.folder / "adapter_config.json").read_text())
        assert (settings["r"], settings["lora_alpha"]) == (4, 64.0)
        layer = "model.language_model.layers.0.self_attn.q_proj"
        assert layer in settings["target_modules"]
        found, model = tensors(published), learner.weights().handle
        assert len(found) == 2 * len(settings["target_modules"])
        own = dict(model.named_parameters())
        assert found[f"base_model.model.{layer}.lora_B.weight"].equal(own[f"{layer}.lora.b"])
        sums, scaled = published.checksums(), found[f"base_model.model.{layer}.lora_B.weight"] * (64.0 / 4)
        assert sums.keys() == found.keys()
        assert sums[f"base_model.model.{layer}.lora_B.weight"] == bit_sum(scaled)  # as a server holds it
        assert published_bytes(model) == sum(tensor.nbytes for tensor in found.values())
        merge(model, torch.float32)
        stock: Any = tiny_of(QWEN3, stock=True)
        stock.load_state_dict(model.state_dict())
        assert published.probe().logprobs == pytest.approx(stock_logprobs(stock, published), abs=1e-4)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads change the order of sums, and AdamW turns a gradient near 0 into a step of either sign."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("train", ["all", "language", "lora"])
def test_ranks_publish_the_same_without_gathering_the_model(
    folder: Path, tmp_path: Path, train: Train
) -> None:
    with trained(config(folder, train)) as learner:
        alone = publish(learner, tmp_path / "alone")
    with trained(config(folder, train, ranks=2)) as learner:
        together = publish(learner, tmp_path / "together")
        full = learner.weights().handle.state_dict()
    expected, found = tensors(alone), tensors(together)
    assert found.keys() == expected.keys() == together.checksums().keys()
    for name in found:
        difference = (found[name] - expected[name]).abs()
        # AdamW turns a gradient near 0 into a step of either sign, so single weights may differ.
        assert difference.mean() < 1e-5 and difference.max() < 2 * LR, name
    assert together.probe().logprobs == pytest.approx(alone.probe().logprobs, abs=1e-3)
    if train != "lora":
        sizes = [sum(t.nbytes for t in load_file(together.folder / f"model-{rank}.safetensors").values())
                 for rank in range(2)]  # fmt: skip
        assert max(sizes) < 0.6 * sum(sizes)
        name = "model.language_model.layers.0.mlp.up_proj.weight"
        assert full[name].equal(tiny_of(QWEN3).state_dict()[name])  # still the initial values
        assert not full[name].equal(found[name])


def test_the_publisher_of_a_run_removes_its_folder(folder: Path) -> None:
    settings = config(folder)
    with trained(settings) as learner:
        with open_publisher(
            settings.cluster, settings.engine, learner, RENDERER, Path(settings.run.dir)
        ) as publisher:
            weights = publisher.publish()
            assert weights.handle.parents[1] == folder / "published"
            assert newest_published(weights.handle.parent) is not None
        assert not any((folder / "published").iterdir())


def test_weights_for_the_servers_of_a_cluster_are_in_the_run_folder(folder: Path) -> None:
    """Shared memory is on one node only."""
    settings = replace(
        config(folder), engine=EngineConfig(name="vllm"), cluster=ClusterConfig(ray="127.0.0.1:6379")
    )
    run = Path(settings.run.dir)
    with (
        trained(settings) as learner,
        open_publisher(settings.cluster, settings.engine, learner, RENDERER, run) as publisher,
    ):
        assert publisher.publish().handle.parents[1] == run.resolve()
