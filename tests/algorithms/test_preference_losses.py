"""RFT, SFT, DPO and KTO over whole trajectories: worked numbers, and gradients against plain transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from arpo.algorithms.microbatches import split_microbatches
from arpo.algorithms.preference_losses import KTOWeights, dpo, kto, mismatched, pairs, rft, samples_for
from arpo.config import Config, OptimConfig, RolloutConfig, TrainConfig
from arpo.learner.local import LocalLearner
from arpo.training.offline_methods import BETA, DPO, KTO, OfflineMethod, open_method
from arpo.types import Message, Screenshot, Trajectory
from tiny_vlm import screenshot, stock_inputs, tiny_model, tiny_renderer
from trajectories import trajectory, turn

RENDERER = tiny_renderer()
WEIGHTS = KTOWeights(desirable=1.2, undesirable=0.7)


def test_rft_is_the_mean_likelihood_of_successes() -> None:
    result = rft([-0.5, -1.5])
    assert result.metrics == {"loss": 1.0, "nll": 1.0}
    assert result.coefficients == (-0.5, -0.5)


def test_dpo_by_hand() -> None:
    # Margins 2 and -2 at β = 0.5: σ(-1) = 0.268941, σ(1) = 0.731059.
    result = dpo([2.0, 0.0, -1.0, 1.0], beta=0.5)
    assert result.metrics == pytest.approx({"loss": 0.8132617, "margin": 0.0, "accuracy": 0.5}, abs=1e-7)
    wanted = (-0.0672354, 0.0672354, -0.1827646, 0.1827646)
    assert result.coefficients == pytest.approx(wanted, abs=1e-7)


def test_where_nothing_was_learnt_yet_dpo_is_log_two() -> None:
    result = dpo([0.0, 0.0], beta=0.1)
    assert result.metrics == pytest.approx({"loss": math.log(2), "margin": 0.0, "accuracy": 0.0})
    assert result.coefficients == pytest.approx((-0.05, 0.05))


def test_dpo_bears_margins_that_overflow_an_exponential() -> None:
    result = dpo([5000.0, -5000.0, -5000.0, 5000.0], beta=1.0)
    assert result.metrics["loss"] == pytest.approx(5000.0)
    assert result.coefficients == pytest.approx((0.0, 0.0, -0.5, 0.5))


def test_kto_by_hand() -> None:
    # z₀ = 0.2; σ(1 · (1 − 0.2)) = 0.689974, σ(1 · (0.2 + 1)) = 0.768525.
    result = kto([1.0, -1.0], [True, False], [0.5, -0.1], 1.0, KTOWeights(desirable=1.0, undesirable=2.0))
    wanted = {"loss": 0.3864883, "gain_desirable": 1.0, "gain_undesirable": -1.0, "z0": 0.2}
    assert result.metrics == pytest.approx(wanted, abs=1e-6)
    assert result.coefficients == pytest.approx((-0.1069549, 0.1778943), abs=1e-6)


def test_the_point_that_kto_compares_with_is_never_below_zero() -> None:
    weights = KTOWeights(desirable=1.0, undesirable=1.0)
    assert kto([1.0], [True], [-3.0, 1.0], 1.0, weights).metrics["z0"] == 0.0
    alone = kto([1.0], [True], [], 1.0, weights)
    assert alone.metrics["z0"] == 0.0 and math.isnan(alone.metrics["gain_undesirable"])


def test_few_successes_weigh_as_much_as_many_failures() -> None:
    weights = KTOWeights.of(133, 379)
    assert (weights.desirable, weights.undesirable) == pytest.approx((1.924812, 0.675462), abs=1e-6)
    assert 133 * weights.desirable == pytest.approx(379 * weights.undesirable)
    alone = KTOWeights.of(5, 0)
    assert (alone.desirable, alone.undesirable) == (1.0, 1.0)


@pytest.mark.parametrize("place", range(4))
def test_a_coefficient_is_the_slope_of_the_loss(place: int) -> None:
    gains, step = [0.7, -0.3, 1.9, 0.4], 1e-6
    weights = KTOWeights(desirable=1.5, undesirable=1.0)

    def losses(moved: float) -> tuple[float, float, float]:
        there = [gain + moved * (index == place) for index, gain in enumerate(gains)]
        wanted = [True, False, False, True]
        results = (rft(there), dpo(there, 0.3), kto(there, wanted, [0.2], 0.3, weights))
        return tuple(result.metrics["loss"] for result in results)  # type: ignore[return-value]

    slopes = [(up - down) / (2 * step) for up, down in zip(losses(step), losses(-step), strict=True)]
    wanted = [True, False, False, True]
    results = (rft(gains), dpo(gains, 0.3), kto(gains, wanted, [0.2], 0.3, weights))
    assert [result.coefficients[place] for result in results] == pytest.approx(slopes, abs=1e-8)


def test_every_success_meets_a_failure_of_its_own_task() -> None:
    successes = {"a": ["a1", "a2"], "b": ["b1"], "c": [f"c{number}" for number in range(9)]}
    failures = {"a": ["a8", "a9"], "c": ["c9"], "d": ["d9"]}
    made = pairs(successes, failures, Random(0))
    assert [won for won, _ in made[:2]] == ["a1", "a2"] and {lost for _, lost in made[:2]} <= {"a8", "a9"}
    assert len(made) == 2 + 8 and all(lost == "c9" for _, lost in made[2:])
    assert len({won for won, _ in made[2:]}) == 8
    assert pairs(successes, failures, Random(0)) == made
    drawn = [pairs(successes, failures, Random(seed)) for seed in range(9)]
    assert any(other != made for other in drawn)


def test_a_mismatched_trajectory_has_another_tasks_beginning() -> None:
    ours, theirs = screenshot(1, 56, 56), screenshot(2, 56, 56)
    began = turn([1, 2], [3], restart=True, images=[ours])
    one = trajectory(1.0, began, turn([4], [5], images=[ours]), name="x", task="a")
    two = trajectory(0.0, turn([6, 7, 8], [9], restart=True, images=[theirs]), name="y", task="b")
    three = trajectory(0.0, turn([6], [9], restart=True, images=[theirs]), name="z", task="b")
    first, second, third = mismatched([one, two, three], Random(0))
    begun = {((6, 7, 8), (theirs,)), ((6,), (theirs,))}
    assert (first.turns[0].context, first.turns[0].images) in begun and first.turns[0].restart
    assert [each.completion for each in first.turns] == [each.completion for each in one.turns]
    assert first.turns[1] == one.turns[1]
    for each in (second, third):
        assert (each.turns[0].context, each.turns[0].images) == ((1, 2), (ours,))
    assert mismatched([two, three], Random(0)) == []


def test_advantage_and_weight_make_the_coefficient() -> None:
    long = trajectory(1.0, turn([1], [2, 3, 4], restart=True), turn([5], [6], restart=True), name="x")
    short = trajectory(0.0, turn([1], [2, 3], restart=True), name="y")
    for per_token, wanted in ((False, (0.5, 0.5, -0.25)), (True, (0.125, 0.125, -0.125))):
        samples = list(samples_for([long, short], [-0.5, 0.25], per_token=per_token))
        pulls = [sample.weight * sample.advantage for sample in samples]
        assert pulls == pytest.approx(wanted)
        assert not any(sample.replayed for sample in samples)


def episode(rng: Random, score: float, name: str, task: str, turns: int) -> Trajectory:
    """Turns with a picture each; the third one begins the sequence anew."""
    made = []
    for number in range(turns):
        shot = screenshot(rng.randrange(999), 56, 56)
        message = Message(role="user", text=f"open {task}", screenshot=shot)
        restart = number in (0, 2)
        context = (RENDERER.render([message]) if restart else RENDERER.continuation(message)).token_ids
        sampled = [rng.randrange(20, 40) for _ in range(rng.randint(1, 6))] + [RENDERER.end_of_turn_id]
        made.append(turn(context, sampled, restart=restart, images=[shot]))
    return trajectory(score, *made, name=name, task=task)


def stored() -> list[Trajectory]:
    """Two pairs, each a success and a failure of one task, of several lengths and one to two samples."""
    rng = Random(5)
    return [
        episode(rng, 1.0, "a1", "file", 3),
        episode(rng, 0.0, "a2", "file", 1),
        episode(rng, 1.0, "b1", "the", 2),
        episode(rng, 0.0, "b2", "the", 4),
    ]


def of_teacher(one: Trajectory) -> Trajectory:
    """The same answers, given by another model: without log-probabilities and versions."""
    turns = [
        replace(each, completion=replace(each.completion, logprobs=(), versions=())) for each in one.turns
    ]
    return replace(one, turns=tuple(turns))


def recipe(method: str) -> Config:
    return Config(
        train=TrainConfig(method=method),  # type: ignore[arg-type]
        rollout=RolloutConfig(temperature=0.8),
        optim=OptimConfig(
            lr=1e-3, warmup_updates=0, weight_decay=0.0, grad_norm=1e9, tokens_per_microbatch=60
        ),
    )


def learner(config: Config) -> LocalLearner:
    """Its policy has moved away from the base model."""
    return LocalLearner(tiny_model(seed=1), RENDERER, config, tiny_model(seed=0))


def plain_logps(model: nn.Module, one: Trajectory, temperature: float) -> Tensor:
    """Of every sampled token. Plain transformers, a sequence at a time, from all logits."""
    logps: list[Tensor] = []
    sequences: list[tuple[list[int], list[bool], list[Screenshot]]] = []
    for each in one.turns:
        if each.restart:
            sequences.append(([], [], []))
        ids, sampled, images = sequences[-1]
        ids += [*each.context, *each.completion.token_ids]
        sampled += [False] * len(each.context) + [True] * len(each.completion.token_ids)
        images += each.images
    for ids, sampled, images in sequences:
        logits = model(**stock_inputs(RENDERER, ids, images)).logits[0, :-1].double() / temperature
        every = logits.log_softmax(-1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
        logps.append(every[torch.tensor(sampled[1:])])
    return torch.cat(logps)


def plain_loss(config: Config, policy: nn.Module, base: nn.Module) -> Tensor:
    """The published losses as they stand."""
    temperature, given = config.rollout.temperature, stored()

    def delta(one: Trajectory) -> Tensor:
        with torch.no_grad():
            reference = plain_logps(base, one, temperature).sum()
        return plain_logps(policy, one, temperature).sum() - reference

    if config.train.method in ("rft", "sft"):
        successes = [one for one in given if one.score == 1.0]
        return -torch.stack([plain_logps(policy, one, temperature).mean() for one in successes]).mean()
    if config.train.method == "dpo":
        margins = [delta(given[0]) - delta(given[1]), delta(given[2]) - delta(given[3])]
        return -nn.functional.logsigmoid(BETA * torch.stack(margins)).mean()
    with torch.no_grad():
        z0 = torch.stack([delta(one) for one in mismatched(given, Random(2))]).mean().clamp(min=0)
    terms = []
    for one in given:
        weight, sign = (WEIGHTS.desirable, 1) if one.score == 1.0 else (WEIGHTS.undesirable, -1)
        terms.append(weight - weight * torch.sigmoid(BETA * sign * (delta(one) - z0)))
    return torch.stack(terms).mean()


@pytest.mark.parametrize("method", ["rft", "sft", "dpo", pytest.param("kto", marks=pytest.mark.slow)])
def test_the_learner_descends_the_very_loss(method: str, tmp_path: Path) -> None:
    config = recipe(method)
    given = [one for one in stored() if method not in ("rft", "sft") or one.score == 1.0]
    if method == "sft":
        given = [of_teacher(one) for one in given]
    ours = learner(config)
    methods: dict[str, OfflineMethod] = {
        **{name: open_method(name, 2, 0) for name in ("rft", "sft")},
        "dpo": DPO(),
        "kto": KTO(weights=WEIGHTS),
    }
    chosen = methods[method]
    result = chosen.loss(ours, given, [one.score == 1.0 for one in given], Random(2))
    batch = chosen.batch(given, result)
    assert len(batch.updates[0]) > len(given), "a trajectory is in several samples"
    assert len(split_microbatches(batch.updates[0], config.optim.tokens_per_microbatch)) > 1
    metrics = ours.train(batch)
    assert (metrics["updates"], metrics["ratio"], metrics["clip_fraction"]) == (1, 1.0, 0.0)

    policy, base = tiny_model(seed=1, stock=True), tiny_model(seed=0, stock=True)
    loss = plain_loss(config, policy, base)
    loss.backward()
    assert result.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)

    ours.save(tmp_path)  # after one step from rest, Adam's first moment is a tenth of the gradient
    slots = load_file(tmp_path / "optimiser.safetensors")
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    assert gradients.keys() == {name.removesuffix("/exp_avg") for name in slots if name.endswith("/exp_avg")}
    norm = torch.linalg.vector_norm(torch.stack([grad.norm() for grad in gradients.values()]))
    assert norm > 1e-3
    for name, gradient in gradients.items():
        found = 10 * slots[f"{name}/exp_avg"]
        assert torch.allclose(found, gradient, rtol=1e-3, atol=1e-5 * norm.item()), name
    assert metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
