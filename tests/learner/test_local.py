"""The local learner on a tiny Qwen2.5-VL, and on a tiny Qwen3.5, which has linear attention."""

import copy
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from arpo.algorithms.losses import policy_loss
from arpo.algorithms.replay import ReplayBuffer
from arpo.algorithms.samples import teacher_samples
from arpo.config import Config, LossConfig, ModelConfig, OptimConfig, ReplayConfig
from arpo.errors import UserError
from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.models.forward import sampled_logprobs
from arpo.models.loading import prepare
from arpo.models.trainable import base_model_of, set_trainable
from arpo.prompts.rendering import Renderer
from arpo.types import Group, Message, Sample, Screenshot, Trajectory
from devices import DEVICES
from tiny_vlm import QWEN2_5, QWEN3_5, QWEN3_SETTINGS, tiny_qwen3_5
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids
from trajectories import Updates, all_updates, group, trajectory, turn

Update = tuple[Sample, ...]

TOKENIZER = build_tokenizer(ACTION_PHRASES, ["Click", "Save"], 50)
RENDERER = Renderer(TOKENIZER, IMAGE_SETTINGS)
RENDERERS = {QWEN2_5: RENDERER, QWEN3_5: Renderer(TOKENIZER, QWEN3_SETTINGS)}  # both: 4 tokens for an image
EACH_ATTENTION = pytest.mark.parametrize("family", RENDERERS)


def new_model(seed: int = 0, hidden: int = 32, family: str = QWEN2_5) -> Any:
    if family == QWEN3_5:
        return tiny_qwen3_5(seed, tokenizer=TOKENIZER)
    ids = special_ids(TOKENIZER)
    shape = tiny_config(
        TOKENIZER.get_vocab_size(), ids, hidden=hidden, layers=2, heads=2, vision_hidden=32, vision_layers=1
    )
    return new_tiny_model(shape, seed)


def screenshot(shade: int) -> Screenshot:
    file = io.BytesIO()
    Image.new("RGB", (56, 56), (shade, 255 - shade, 100)).save(file, "PNG")
    return Screenshot.of(file.getvalue())


def config(*, tokens_per_microbatch: int = 10_000, loss: LossConfig | None = None, **optim: Any) -> Config:
    optim = {"lr": 1e-3, "warmup_updates": 0, "weight_decay": 0.0, "grad_norm": 1e9} | optim
    loss = loss or LossConfig()
    return Config(
        loss=loss,
        replay=ReplayConfig(ratio="truncated", seeds="taught" if loss.teacher else ""),
        optim=OptimConfig(tokens_per_microbatch=tokens_per_microbatch, **optim),
    )


def learner(
    seed: int = 0, base: nn.Module | None = None, family: str = QWEN2_5, **settings: Any
) -> LocalLearner:
    return LocalLearner(new_model(seed, family=family), RENDERERS[family], config(**settings), base)


def train(one: LocalLearner, *updates: Update) -> dict[str, float]:
    return dict(one.train(Batch(updates=updates)))


def episode(rng: Random, score: float, name: str, turns: int, images: int = 1) -> Trajectory:
    """Turns with one image each, or none; the third one starts a new sequence."""
    made = []
    for number in range(turns):
        shot = screenshot(rng.randrange(256)) if images else None
        message = Message(role="user", text="Click Save", screenshot=shot)
        restart = number in (0, 2)
        context = (RENDERER.render([message]) if restart else RENDERER.continuation(message)).token_ids
        sampled = [rng.randrange(20, 60) for _ in range(rng.randint(2, 5))] + [RENDERER.end_of_turn_id]
        logprobs = [-rng.uniform(3, 7) for _ in sampled]
        made.append(turn(context, sampled, logprobs, restart=restart, images=[shot] if shot else []))
    return trajectory(score, *made, name=name)


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    """Three groups, of which the second was rescued by replay and the third has no signal."""
    rng = Random(3)
    replay = ReplayBuffer(ReplayConfig())
    replay.rescue([group(episode(rng, 1, "old", 2), episode(rng, 0, "x", 1))], rng, version=0)
    fresh = [
        group(episode(rng, 1, "a", 3), episode(rng, 0, "b", 1), episode(rng, 0, "c", 2), task="u"),
        group(episode(rng, 0, "d", 1), episode(rng, 0, "e", 2), index=1),
        group(episode(rng, 0, "f", 1), episode(rng, 0, "g", 1), index=2, task="v"),
    ]
    return replay.rescue(fresh, rng, version=1)


def updates_of(groups: list[Group], tasks_per_update: int = 8, kl: float = 0.0) -> Updates:
    return all_updates(groups, LossConfig(kl=kl), tasks_per_update=tasks_per_update, token_budget=100)


@pytest.fixture(scope="module")
def update(groups: list[Group]) -> Update:
    return updates_of(groups)[0]


def weights_of(one: LocalLearner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in one.weights().handle.named_parameters()}


def saved_gradient(one: LocalLearner, folder: Path) -> dict[str, torch.Tensor]:
    """After one step from rest, Adam's first moment is a tenth of the gradient."""
    one.save(folder)
    slots = load_file(folder / "optimiser.safetensors")
    return {name: 10 * slot for name, slot in slots.items() if name.endswith("/exp_avg")}


def plain_loss(
    model: nn.Module, old_model: nn.Module, groups: list[Group], loss: LossConfig, replay_ratio: str
) -> Tensor:
    """DESIGN's objective token by token, each sample of each trajectory through the model on its own."""
    total = torch.zeros((), dtype=torch.float64)
    for one in groups:
        scores = [t.score for t in one.trajectories]
        mean = sum(scores) / len(scores)
        sigma = math.sqrt(sum((score - mean) ** 2 for score in scores) / len(scores))
        if sigma == 0:
            continue
        for i, t in enumerate(one.trajectories):
            replayed = any(rescue.index == i for rescue in one.rescues)
            # only its token sequences are used, not weight or advantage
            alone = group(t, trajectory(1 - t.score))
            sequences = updates_of([alone])[0][: sum(each.restart for each in t.turns)]
            length = sum(len(s.behaviour_logprobs) for s in sequences)
            for sequence in sequences:
                logps = sampled_logprobs(model, [sequence], RENDERER, 1.0)[0].double()
                olds = sampled_logprobs(old_model, [sequence], RENDERER, 1.0)[0].double().detach()
                for logp, old, mu in zip(logps, olds, sequence.behaviour_logprobs, strict=True):
                    ratio, advantage = torch.exp(logp - old), (scores[i] - mean) / sigma
                    clipped = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
                    term = torch.minimum(ratio * advantage, clipped * advantage)
                    if replayed and replay_ratio == "truncated":
                        term = term * min(math.exp(old.item() - mu), 2.0)
                    total = total - term / (len(groups) * len(one.trajectories) * length)
    return total


def test_two_updates_agree_with_a_plain_training_loop(groups: list[Group]) -> None:
    one = learner(tokens_per_microbatch=150)
    metrics = train(one, *updates_of(groups, tasks_per_update=1))

    model, old_model = new_model().eval(), new_model().eval()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    losses, norms = [], []
    for part in ([groups[0]], [groups[1]]):
        loss = plain_loss(model, old_model, part, LossConfig(), "truncated")
        optimiser.zero_grad()
        loss.backward()
        norms.append(math.sqrt(sum(p.grad.double().square().sum().item() for p in model.parameters())))
        losses.append(loss.item())
        optimiser.step()

    assert metrics["loss"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    assert metrics["updates"] == 2
    assert 0 < metrics["kl"] < 1  # the second update differs from π_old
    (every,) = updates_of(groups)
    ours, theirs = (sampled_logprobs(m, every, RENDERER, 1.0)[0] for m in (one.weights().handle, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_episodes_without_a_screenshot_agree_with_a_plain_training_loop() -> None:
    """An agent program may ask the model about texts alone."""
    rng = Random(5)
    texts = [group(episode(rng, 1, "a", 3, images=0), episode(rng, 0, "b", 2, images=0))]
    metrics = train(learner(), *updates_of(texts))
    model = new_model().eval()
    loss = plain_loss(model, new_model().eval(), texts, LossConfig(), "truncated")
    loss.backward()
    learned = [p.grad for p in model.parameters() if p.grad is not None]
    norm = math.sqrt(sum(grad.double().square().sum().item() for grad in learned))
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_the_teachers_loss_agrees_with_a_plain_one_also_in_an_update_without_signal() -> None:
    """Two updates: a group with signal and a teacher's episode, then two of the teacher's alone."""
    rng = Random(4)
    own = group(episode(rng, 1, "a", 1), episode(rng, 0, "b", 2))
    taught = [episode(rng, 1, name, turns) for name, turns in (("s", 3), ("t", 1), ("u", 1))]
    parts = [([own], taught[:1]), ([], taught[1:])]
    one = learner(tokens_per_microbatch=60, loss=LossConfig(teacher=0.5))
    updates = (
        (*updates_of(mine)[0], *teacher_samples(theirs)) if mine else tuple(teacher_samples(theirs))
        for mine, theirs in parts
    )
    metrics = train(one, *updates)

    model, old_model = new_model().eval(), new_model().eval()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0)
    losses, nlls = [], []
    for mine, theirs in parts:
        samples = teacher_samples(theirs)
        nll_T = torch.cat([-sampled_logprobs(model, [each], RENDERER, 1.0)[0].double() for each in samples])
        loss = plain_loss(model, old_model, mine, LossConfig(), "truncated") + 0.5 * nll_T.mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
        nlls += nll_T.tolist()
    assert metrics["loss"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    assert metrics["teacher_loss"] == pytest.approx(sum(nlls) / len(nlls), rel=1e-4)
    assert metrics["tokens"] == sum(t.sampled_tokens for t in own.trajectories)
    every = [*teacher_samples(taught)]
    ours, theirs_T = (sampled_logprobs(m, every, RENDERER, 1.0)[0] for m in (one.weights().handle, model))
    torch.testing.assert_close(ours, theirs_T, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_the_kl_term_agrees_with_a_plain_one_also_without_signal(groups: list[Group], tmp_path: Path) -> None:
    one = learner(base=new_model(1), loss=LossConfig(kl=0.5))
    (update,) = updates_of(groups, kl=0.5)
    metrics = train(one, update)

    model, base = new_model().eval(), new_model(1).eval()
    total = plain_loss(model, new_model().eval(), groups, LossConfig(), "truncated")
    terms = []
    for played in groups:
        replayed = {rescue.index for rescue in played.rescues}
        own = [t for index, t in enumerate(played.trajectories) if index not in replayed]
        for t in own:
            sequences = updates_of([group(t, trajectory(1 - t.score))])[0][: sum(e.restart for e in t.turns)]
            ours, theirs = (
                torch.cat([sampled_logprobs(m, [s], RENDERER, 1.0)[0].double() for s in sequences])
                for m in (model, base)
            )
            kl_T = (theirs - ours).exp() - 1 - (theirs - ours)
            terms.append(kl_T.detach())
            total = total + 0.5 * kl_T.mean() / (len(groups) * len(own))
    total.backward()
    assert metrics["loss"] == pytest.approx(total.item(), rel=1e-4)
    assert metrics["base_kl"] == pytest.approx(torch.cat(terms).mean().item(), rel=1e-4) != 0
    gradient = saved_gradient(one, tmp_path)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradient[f"{name}/exp_avg"], parameter.grad, rtol=1e-3, atol=1e-6)


@EACH_ATTENTION
def test_the_gradient_does_not_depend_on_the_microbatches(
    family: str, groups: list[Group], tmp_path: Path
) -> None:
    gradients = []
    (update,) = updates_of(groups, kl=0.5)
    for max_tokens in (1, 60, 10_000):
        base = new_model(1, family=family)
        one = learner(tokens_per_microbatch=max_tokens, base=base, family=family, loss=LossConfig(kl=0.5))
        train(one, update)
        gradients.append(saved_gradient(one, tmp_path / str(max_tokens)))
    for name, gradient in gradients[0].items():
        for other in gradients[1:]:
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [False, True])
def test_each_core_learns_from_its_own_microbatches_with_the_same_bits(
    update: Update, adapters: bool
) -> None:
    results = []
    for cores in (1, 2, 3):
        torch.set_num_threads(cores)
        one = (
            lora_learner(kl=0.5, tokens_per_microbatch=1)
            if adapters
            else learner(tokens_per_microbatch=1, base=new_model(1), loss=LossConfig(kl=0.5))
        )
        metrics = train(one, update, update)
        assert torch.get_num_threads() == cores
        results.append((metrics, {name: weight.tolist() for name, weight in weights_of(one).items()}))
    assert results[0] == results[1] == results[2]


def test_a_single_update_needs_no_precomputed_old_policy(update: Update, tmp_path: Path) -> None:
    """After an update without effect, π_old is computed in advance, with the same result."""
    still = tuple(replace(sample, weight=0.0) for sample in update)
    direct, recomputed = learner(), learner()
    short = train(direct, update)
    long = train(recomputed, still, update)
    assert long["grad_norm"] == short["grad_norm"] / 2 > 0
    assert long["loss"] == short["loss"] / 2
    gradients = [saved_gradient(one, tmp_path / name) for one, name in ((direct, "a"), (recomputed, "b"))]
    assert gradients[0].keys() == gradients[1].keys()
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0])


def test_a_loaded_learner_resumes_bit_for_bit(groups: list[Group], update: Update, tmp_path: Path) -> None:
    straight = learner(warmup_updates=4, weight_decay=0.01, grad_norm=1.0)
    train(straight, (replace(update[0], advantage=math.nan),), *updates_of(groups, tasks_per_update=1))
    straight.save(tmp_path)
    resumed = learner(seed=7, warmup_updates=4, weight_decay=0.01, grad_norm=1.0)
    resumed.load(tmp_path)
    assert resumed.weights().version == straight.weights().version == 1
    assert train(resumed, update, update) == train(straight, update, update)
    ours, theirs = weights_of(resumed), weights_of(straight)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["learner.json", "optimiser.safetensors", "weights.safetensors"]


def test_a_learner_that_never_stepped_can_be_saved_and_loaded(update: Update, tmp_path: Path) -> None:
    untouched = learner()
    untouched.save(tmp_path)
    stepped = learner()
    train(stepped, update)
    stepped.load(tmp_path)
    assert train(stepped, update) == train(untouched, update)


def test_the_same_batch_twice_gives_the_same_bits(update: Update) -> None:
    first, second = learner(), learner()
    assert train(first, update) == train(second, update)
    assert all(
        torch.equal(a, b)
        for a, b in zip(weights_of(first).values(), weights_of(second).values(), strict=True)
    )


def test_good_answers_become_likelier_and_bad_ones_less(update: Update) -> None:
    one = learner()
    before = sampled_logprobs(one.weights().handle, update, RENDERER, 1.0)[0].detach()
    for _ in range(3):
        train(one, update)
    after = sampled_logprobs(one.weights().handle, update, RENDERER, 1.0)[0].detach()
    counts = torch.tensor([len(sample.behaviour_logprobs) for sample in update])
    good_T = torch.tensor([sample.advantage > 0 for sample in update]).repeat_interleave(counts)
    gain_T = after - before
    assert gain_T[good_T].mean() > 0.05 > -0.05 > gain_T[~good_T].mean()


def test_warm_up_is_linear_then_constant(update: Update) -> None:
    one = learner(warmup_updates=4)
    rates = [train(one, update)["lr"] for _ in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_a_batch_scales_the_rate_of_each_of_its_updates(update: Update) -> None:
    one, other = learner(lr=1e-3), learner(lr=2.5e-4)
    scaled = Batch(updates=(update, (), update), lr_scales=(0.25, 0.5, 0.25))
    assert one.train(scaled)["lr"] == 0.25e-3
    assert train(other, update, update)["lr"] == 0.25e-3
    assert all(torch.equal(p, weights_of(other)[name]) for name, p in weights_of(one).items())
    assert one.train(Batch(updates=((),), lr_scales=(0.125,)))["lr"] == 0.125e-3


def test_a_batch_without_samples_is_a_version_and_nothing_else() -> None:
    one = learner()
    before = weights_of(one)
    metrics = train(one, (), ())
    assert one.weights().version == 1
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(one).items())
    assert set(metrics.values()) == {0.0}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("poison", [{"advantage": math.nan}, {"advantage": math.inf}, {"weight": math.inf}])
def test_a_step_that_is_not_finite_is_skipped_and_counted(
    update: Update, poison: dict[str, Any], dtype: torch.dtype, device: str
) -> None:
    """On a GPU sums may come in another order."""
    one, clean = (
        LocalLearner(prepare(new_model().to(device, dtype)), RENDERER, config(tokens_per_microbatch=100))
        for _ in range(2)
    )
    before = weights_of(one)
    poisoned = (replace(update[0], **poison), *update[1:])
    metrics = train(one, poisoned)
    assert (metrics["skipped"], metrics["skipped_total"], metrics["updates"]) == (1, 1, 0)
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(one).items())
    assert one.weights().version == 1
    after, undisturbed = train(one, update), train(clean, update)
    order = {"cpu": 0.0, "cuda": 1e-2}[device]
    assert after == pytest.approx(undisturbed | {"skipped_total": 1}, rel=order, abs=order)


@pytest.mark.parametrize("calls", [1, 3])
def test_an_update_that_runs_out_of_gpu_memory_is_computed_again(
    update: Update, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out in this call of the loss. A second time in the same update, it is an error."""
    settings = config(tokens_per_microbatch=100)
    settings = replace(settings, store=replace(settings.store, token_stats=True))
    one, clean = (LocalLearner(prepare(new_model()), RENDERER, settings) for _ in range(2))
    failing = {calls}
    counted = iter(range(1, 1000))

    def full(*words: Any) -> Any:
        if next(counted) in failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return policy_loss(*words)

    undisturbed = train(clean, update)
    monkeypatch.setattr("arpo.learner.local.policy_loss", full)
    assert train(one, update) == undisturbed
    assert one.token_stats() == clean.token_stats() != ()
    assert all(
        torch.equal(own, other)
        for own, other in zip(weights_of(one).values(), weights_of(clean).values(), strict=True)
    )
    failing |= set(range(1000))
    with pytest.raises(torch.OutOfMemoryError):
        train(one, update)


def test_the_gradient_is_clipped_to_its_norm(update: Update, tmp_path: Path) -> None:
    one = learner(grad_norm=0.01)
    metrics = train(one, update)
    assert metrics["grad_norm"] > 0.1  # as it was before
    gradient = saved_gradient(one, tmp_path)
    norm = math.sqrt(sum(g.double().square().sum().item() for g in gradient.values()))
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_decay_is_for_matrices_alone(update: Update) -> None:
    one = learner(lr=0.1, weight_decay=0.5)
    before = weights_of(one)
    train(one, tuple(replace(sample, weight=0.0) for sample in update))
    for name, weight in weights_of(one).items():
        factor = 1 - 0.1 * 0.5 if weight.dim() >= 2 else 1.0
        torch.testing.assert_close(weight, factor * before[name])


def test_metrics_of_one_update(update: Update) -> None:
    """If the engine's log-probabilities equal the learner's, their gap is 0."""
    model = new_model().eval()
    logp_T, entropy_T = sampled_logprobs(model, update, RENDERER, 1.0)
    parts = logp_T.detach().split([len(sample.behaviour_logprobs) for sample in update])
    honest = tuple(
        replace(s, behaviour_logprobs=tuple(p.tolist())) for s, p in zip(update, parts, strict=True)
    )
    metrics = train(learner(), honest)
    assert metrics["logprob_gap"] < 1e-5 and metrics["engine_kl"] < 1e-5
    assert metrics["ratio"] == 1.0 and metrics["clip_fraction"] == 0.0 and metrics["kl"] == 0.0
    assert metrics["entropy"] == pytest.approx(entropy_T.mean().item(), rel=1e-4)
    assert metrics["tokens"] == len(logp_T)
    assert metrics["samples"] == len(update)
    shifted = tuple(
        replace(s, behaviour_logprobs=tuple(p - 0.5 for p in s.behaviour_logprobs)) for s in honest
    )
    gapped = train(learner(), shifted)
    assert gapped["logprob_gap"] == pytest.approx(0.5, abs=1e-4)
    assert gapped["engine_kl"] == pytest.approx(math.exp(0.5) - 1 - 0.5, abs=1e-3)


def test_stale_tokens_have_a_divergence_of_their_own(update: Update) -> None:
    """All tokens of the first sample are one version old; the engine divides other probabilities by 1.9."""
    model = new_model()
    parts = sampled_logprobs(model, update, RENDERER, 1.0)[0].detach()
    lengths = [len(sample.behaviour_logprobs) for sample in update]
    gaps = [1.0, *[math.log(1.9)] * (len(update) - 1)]
    aged = tuple(
        replace(
            sample,
            behaviour_logprobs=tuple((part - gap).tolist()),
            staleness=() if index else (1,) * len(part),
        )
        for index, (sample, part, gap) in enumerate(zip(update, parts.split(lengths), gaps, strict=True))
    )
    metrics = train(learner(), aged)
    assert metrics["stale_kl"] == pytest.approx(math.e - 1 - 1, abs=1e-3)
    assert metrics["capped_fraction"] == pytest.approx(lengths[0] / sum(lengths))  # weights of e, cut at 2
    assert metrics["engine_kl"] == pytest.approx(1.9 - 1 - math.log(1.9), abs=1e-3)
    assert metrics["logprob_gap"] == pytest.approx(math.log(1.9), abs=1e-3)
    assert "stale_kl" not in train(learner(), update)
    old = tuple(replace(one, staleness=(2,) * len(one.behaviour_logprobs)) for one in update)
    assert train(learner(), old).keys() & {"engine_kl", "logprob_gap", "stale_kl"} == {"stale_kl"}


@pytest.mark.slow
def test_the_kl_term_holds_the_policy_at_the_base(update: Update) -> None:
    free, held = learner(lr=1e-2), learner(lr=1e-2, base=new_model(), loss=LossConfig(kl=2.0))
    first = train(held, update)
    assert first["base_kl"] == pytest.approx(0, abs=1e-6)
    assert first["grad_norm"] == pytest.approx(
        train(free, update)["grad_norm"], rel=1e-4
    )  # k3 is flat at zero
    for _ in range(8):
        metrics = train(held, update)
        train(free, update)
    base = new_model()
    logps = [
        sampled_logprobs(m, update, RENDERER, 1.0)[0]
        for m in (base, held.weights().handle, free.weights().handle)
    ]
    assert metrics["base_kl"] > 0
    assert (logps[1] - logps[0]).abs().mean() < (logps[2] - logps[0]).abs().mean()


def test_a_kl_term_without_a_base_model_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="base model"):
        learner(loss=LossConfig(kl=0.1))


def test_weights_are_the_models_own_and_filled_in_place(update: Update, tmp_path: Path) -> None:
    one = learner()
    handle = one.weights().handle
    train(one, update)
    one.save(tmp_path)
    kept = copy.deepcopy(handle)
    train(one, update)
    one.load(tmp_path)
    assert one.weights().handle is handle
    assert all(torch.equal(a, b) for a, b in zip(handle.parameters(), kept.parameters(), strict=True))


def test_a_damaged_or_foreign_folder_is_refused_by_name(update: Update, tmp_path: Path) -> None:
    one = learner()
    before = weights_of(one)
    with pytest.raises(UserError, match="nowhere"):
        one.load(tmp_path / "nowhere")

    LocalLearner(new_model(hidden=16), RENDERER, config()).save(tmp_path / "other")
    with pytest.raises(UserError, match=r"other.*embed_tokens.* is torch\.Size"):
        one.load(tmp_path / "other")

    one.save(tmp_path / "cut")
    content = (tmp_path / "cut" / "weights.safetensors").read_bytes()
    (tmp_path / "cut" / "weights.safetensors").write_bytes(content[:-100])
    with pytest.raises(UserError, match="cut"):
        one.load(tmp_path / "cut")

    one.save(tmp_path / "garbled")
    (tmp_path / "garbled" / "learner.json").write_text('{"version": 1}')
    with pytest.raises(UserError, match="garbled"):
        one.load(tmp_path / "garbled")
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(one).items())


def half_learner(seed: int = 0, **settings: Any) -> LocalLearner:
    return LocalLearner(new_model(seed).bfloat16(), RENDERER, config(**settings))


def lora_learner(
    seed: int = 0, *, kl: float = 0.0, dtype: torch.dtype = torch.float32, **settings: Any
) -> LocalLearner:
    model = new_model(seed).to(dtype)
    set_trainable(model, ModelConfig(train="lora", lora_rank=4), 0)
    whole = config(lr=1e-2, loss=LossConfig(kl=kl), **settings)
    return LocalLearner(model, RENDERER, whole, base_model_of(model))


@pytest.mark.slow
@pytest.mark.parametrize("moments", ["float32", "bfloat16"])
def test_bfloat16_learns_and_resumes_bit_for_bit(
    groups: list[Group], update: Update, tmp_path: Path, moments: str
) -> None:
    straight = half_learner(moments=moments)
    start = weights_of(straight)
    train(straight, *updates_of(groups, tasks_per_update=1))
    straight.save(tmp_path)
    saved = load_file(tmp_path / "optimiser.safetensors")
    assert {str(slot.dtype) for name, slot in saved.items() if "exp_avg" in name} == {f"torch.{moments}"}
    resumed = half_learner(seed=7, moments=moments)
    resumed.load(tmp_path)
    assert train(resumed, update, update) == train(straight, update, update)
    ours, theirs = weights_of(resumed), weights_of(straight)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(weight.dtype == torch.bfloat16 for weight in ours.values())
    assert sum(not torch.equal(start[name], theirs[name]) for name in theirs) == len(theirs)


def test_a_step_of_a_millionth_is_kept_on_average(update: Update, tmp_path: Path) -> None:
    """The first step has the size of the learning rate. Only weights too large for such a step count."""
    one = half_learner(lr=1e-6)
    before = weights_of(one)
    train(one, update)
    gradient, after = saved_gradient(one, tmp_path), weights_of(one)
    moves = []
    for name, weight in before.items():
        towards = -gradient[f"{name}/exp_avg"].sign()
        counted = (weight.abs() > 0.01) & (towards != 0)
        moves.append(((after[name].float() - weight.float()) * towards)[counted])
    move = torch.cat(moves)
    deviation = move.std().item() / math.sqrt(len(move))
    assert len(move) > 10_000
    assert move.mean().item() == pytest.approx(1e-6, abs=4 * deviation)
    assert 6 * deviation < 1e-6


def test_adapters_learn_and_the_base_stays(update: Update) -> None:
    one = lora_learner()
    before = weights_of(one)
    first = sampled_logprobs(one.weights().handle, update, RENDERER, 1.0)[0].detach()
    for _ in range(3):
        metrics = train(one, update)
    assert metrics["grad_norm"] > 0
    after = sampled_logprobs(one.weights().handle, update, RENDERER, 1.0)[0].detach()
    counts = torch.tensor([len(sample.behaviour_logprobs) for sample in update])
    good_T = torch.tensor([sample.advantage > 0 for sample in update]).repeat_interleave(counts)
    assert (after - first)[good_T].mean() > 0.01 > -0.01 > (after - first)[~good_T].mean()
    for name, weight in weights_of(one).items():
        assert torch.equal(weight, before[name]) == (".lora." not in name), name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_of_adapters_is_small_and_resumes_bit_for_bit(
    update: Update, tmp_path: Path, dtype: torch.dtype
) -> None:
    straight, resumed = lora_learner(kl=0.1, dtype=dtype), lora_learner(kl=0.1, dtype=dtype)
    train(straight, update)
    straight.save(tmp_path)
    for file in ("weights", "optimiser"):
        saved = load_file(tmp_path / f"{file}.safetensors")
        assert saved and all(".lora." in name for name in saved)
        assert all(tensor.dtype == torch.float32 for tensor in saved.values())
    resumed.load(tmp_path)
    assert train(resumed, update, update) == train(straight, update, update)
    ours, theirs = weights_of(resumed), weights_of(straight)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_adapters_are_not_loaded_beside_another_base(tmp_path: Path) -> None:
    lora_learner(seed=0).save(tmp_path)
    with pytest.raises(UserError, match="the frozen weights differ"):
        lora_learner(seed=1).load(tmp_path)


def test_with_adapters_the_kl_term_is_that_of_a_copy_of_the_base(update: Update) -> None:
    itself, copied = lora_learner(kl=0.5), lora_learner(kl=0.5)
    copied._models = (copied._models[0], new_model().eval())
    for _ in range(2):
        metrics, expected = train(itself, update), train(copied, update)
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert metrics["base_kl"] > 1e-4


@EACH_ATTENTION
def test_with_a_frozen_tower_the_language_model_learns_the_same(
    family: str, update: Update, tmp_path: Path
) -> None:
    """Its gradients are those of training everything."""
    model = new_model(family=family)
    set_trainable(model, ModelConfig(train="language"), 0)
    one, whole = LocalLearner(model, RENDERERS[family], config()), learner(family=family)
    train(one, update)
    train(whole, update)
    ours, theirs = saved_gradient(one, tmp_path / "one"), saved_gradient(whole, tmp_path / "whole")
    assert ours and ours.keys() == {name for name in theirs if not name.startswith("model.visual.")}
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-3, atol=1e-6)
    visual = dict(new_model(family=family).named_parameters())
    assert all(
        torch.equal(weight, visual[name]) for name, weight in weights_of(one).items() if "visual" in name
    )


def tokens_of(one: LocalLearner, samples: Sequence[Sample], *, base: bool) -> list[float]:
    return [*chain(*one.logprobs(samples, base=base))]


def test_log_probabilities_of_the_tokens_of_each_sample(update: Update) -> None:
    moved = new_model(1)
    one = LocalLearner(moved, RENDERER, config(tokens_per_microbatch=60), new_model(0))
    given = [*update, update[0]]
    for base, model in ((False, moved), (True, new_model(0))):
        with torch.no_grad():
            alone = [sampled_logprobs(model, [each], RENDERER, 1.0)[0].tolist() for each in given]
        assert tokens_of(one, given, base=base) == pytest.approx([*chain(*alone)], rel=1e-5)


def test_adapters_are_compared_with_the_model_without_them(update: Update) -> None:
    one = lora_learner()
    before = tokens_of(one, update, base=False)
    train(one, update)
    assert tokens_of(one, update, base=True) == pytest.approx(before, rel=1e-6)
    assert tokens_of(one, update, base=False) != pytest.approx(before, rel=1e-3)
