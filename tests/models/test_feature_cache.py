"""The feature cache respects its size, and cached features equal fresh ones."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from arpo.config import ModelConfig
from arpo.models.feature_cache import FeatureCache
from arpo.models.forward import features_by_sha256
from arpo.models.trainable import set_trainable
from arpo.types import Screenshot
from tiny_vlm import EACH_FAMILY, QWEN2_5, screenshot, tiny_of, tiny_renderer

Train = Literal["language", "lora"]
SHOTS = (screenshot(1), screenshot(2, 140, 56), screenshot(3), screenshot(1))


def frozen(family: str, train: Train, megabytes: int = 64) -> Any:
    model = tiny_of(family)
    set_trainable(model, ModelConfig(train=train, lora_rank=4), 0, megabytes)
    return model


def features(model: Any, shots: Sequence[Screenshot], family: str = QWEN2_5) -> dict[str, Tensor]:
    return features_by_sha256(model, shots, tiny_renderer(family))


def looks(model: Any) -> list[int]:
    """Grows by the number of images at each pass through the tower."""
    seen: list[int] = []
    model.model.visual.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(len(kwargs["grid_thw"])), with_kwargs=True
    )
    return seen


@pytest.mark.parametrize("train", ["language", "lora"])
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_cached_features_equal_those_of_the_tower(family: str, train: Train) -> None:
    expected = features(tiny_of(family), SHOTS, family)
    model = frozen(family, train)
    for _ in range(2):
        found = features(model, SHOTS, family)
        assert found.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-5)


def test_the_tower_encodes_each_screenshot_once() -> None:
    model = frozen(QWEN2_5, "language")
    seen = looks(model)
    first = features(model, SHOTS[:2])
    again = features(model, SHOTS)
    assert seen == [1, 1, 1]
    assert all(torch.equal(first[shot.sha256], again[shot.sha256]) for shot in SHOTS[:2])


def test_cached_features_do_not_depend_on_the_batch() -> None:
    """So a resumed run, which starts with an empty cache, computes the same bits."""
    alone, among = frozen(QWEN2_5, "language"), frozen(QWEN2_5, "language")
    features(among, SHOTS)
    assert torch.equal(*(features(model, SHOTS[1:2])[SHOTS[1].sha256] for model in (alone, among)))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_features_do_not_depend_on_the_number_of_cores(threads: int) -> None:
    """Several threads may ask at the same time: the number of torch threads is the same afterwards."""
    expected = features(frozen(QWEN2_5, "language"), SHOTS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with ThreadPoolExecutor(4) as asking:
            models = [frozen(QWEN2_5, "language") for _ in range(4)]
            answers = list(asking.map(lambda model: features(model, SHOTS), models))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for found in answers:
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_mergers_adapters_learn_and_the_tower_does_not() -> None:
    model = frozen(QWEN2_5, "lora")
    torch.cat(list(features(model, SHOTS).values())).square().sum().backward()
    touched = {name for name, p in model.named_parameters() if p.grad is not None}
    merger = "model.visual.merger.mlp"
    assert touched == {f"{merger}.{layer}.lora.{which}" for layer in (0, 2) for which in "ab"}
    before = features(model, SHOTS[:1])[SHOTS[0].sha256]
    with torch.no_grad():
        model.get_parameter(f"{merger}.2.lora.b").add_(1.0)
    assert not torch.equal(features(model, SHOTS[:1])[SHOTS[0].sha256], before)


def test_the_least_recently_used_entries_are_dropped() -> None:
    cache = FeatureCache(1)
    third = torch.zeros(350_000, dtype=torch.uint8)
    for name in ("a", "b"):
        cache.put(name, third)
    assert cache.get("a") is not None
    for name in ("c", "d"):
        cache.put(name, third)
    assert [cache.get(name) is not None for name in "abcd"] == [False, False, True, True]


def test_a_cache_of_size_zero_works() -> None:
    model = frozen(QWEN2_5, "language", megabytes=0)
    seen = looks(model)
    first, again = features(model, SHOTS), features(model, SHOTS)
    assert seen == [1] * 6
    assert all(torch.equal(first[name], again[name]) for name in first)
