import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from arpo.algorithms.losses import Tokens, TokenSums, k3, kl_loss, policy_loss, teacher_loss
from arpo.algorithms.microbatches import split_microbatches
from arpo.algorithms.replay import ReplayBuffer
from arpo.algorithms.samples import count_groups, teacher_samples
from arpo.config import LossConfig, ReplayConfig
from arpo.types import Group, Sample, Trajectory
from trajectories import all_updates, group, trajectory, turn


def tokens(
    ratios: list[float],
    advantage: float,
    *,
    old: list[float] | None = None,
    behaviour: list[float] | None = None,
    replayed: list[bool] | None = None,
    stale: list[bool] | None = None,
    teacher: list[float] | None = None,
) -> Tokens:
    """Tokens with these ratios π_θ/π_old; old and behaviour are probabilities, 0.5 unless told."""
    count = len(ratios)
    old_T = torch.tensor(old or [0.5] * count, dtype=torch.float64)
    return Tokens(
        logp_T=(old_T * torch.tensor(ratios)).log().requires_grad_(),
        entropy_T=torch.full((count,), 0.25, dtype=torch.float64),
        old_logp_T=old_T.log(),
        behaviour_logp_T=torch.tensor(behaviour or [0.5] * count, dtype=torch.float64).log(),
        advantage_T=torch.full((count,), advantage, dtype=torch.float64),
        weight_T=torch.full((count,), 0.1, dtype=torch.float64),
        kl_weight_T=torch.full((count,), 0.2, dtype=torch.float64),
        teacher_weight_T=torch.tensor(teacher or [0.0] * count, dtype=torch.float64),
        replayed_T=torch.tensor(replayed or [False] * count),
        stale_T=torch.tensor(stale or [False] * count),
    )


def loss_and_gradient(
    batch: Tokens, replay_ratio: str = "recompute", **settings: Any
) -> tuple[float, list[float], TokenSums]:
    loss, sums, _ = policy_loss(batch, LossConfig(**settings), replay_ratio)
    (gradient,) = torch.autograd.grad(loss, batch.logp_T)
    return loss.item(), gradient.tolist(), sums


def test_a_good_answer_is_pushed_until_the_upper_clip() -> None:
    loss, gradient, sums = loss_and_gradient(tokens([1.0, 1.2, 1.5, 0.5], advantage=2.0))
    # terms: 1·2, 1.2·2, 1.3·2 (clipped), 0.5·2 (min keeps the smaller one)
    assert loss == pytest.approx(-0.1 * (2.0 + 2.4 + 2.6 + 1.0))
    # d/dlogp of ρ·Â is ρ·Â; nothing flows through a clipped term
    assert gradient == pytest.approx([-0.2, -0.24, 0.0, -0.1])
    assert (sums.tokens, sums.clipped) == (4, 1)
    assert sums.ratio == pytest.approx(4.2)


def test_a_bad_answer_is_pushed_until_the_lower_clip() -> None:
    loss, gradient, sums = loss_and_gradient(tokens([1.0, 0.9, 0.5, 1.5], advantage=-1.0))
    assert loss == pytest.approx(0.1 * (1.0 + 0.9 + 0.8 + 1.5))
    assert gradient == pytest.approx([0.1, 0.09, 0.0, 0.15])
    assert sums.clipped == 1


def test_clip_bounds_are_the_recipes() -> None:
    loss, _, _ = loss_and_gradient(tokens([3.0], advantage=1.0), clip_high=1.5)
    assert loss == pytest.approx(-0.1 * 2.5)
    loss, _, _ = loss_and_gradient(tokens([0.1], advantage=-1.0), clip_low=0.6)
    assert loss == pytest.approx(0.1 * 0.4)


def test_behaviour_divides_by_the_engines_policy() -> None:
    batch = tokens([1.0], advantage=1.0, old=[0.5], behaviour=[0.4])
    assert loss_and_gradient(batch, ratio="behaviour")[0] == pytest.approx(-0.1 * 1.25)
    assert loss_and_gradient(batch, ratio="recompute")[0] == pytest.approx(-0.1 * 1.0)


def test_truncated_weighs_recomputes_surrogate_by_at_most_two() -> None:
    batch = tokens([1.1, 1.1], advantage=1.0, old=[0.5, 0.5], behaviour=[0.4, 0.1])
    loss, gradient, _ = loss_and_gradient(batch, ratio="truncated")
    assert loss == pytest.approx(-0.1 * (1.25 * 1.1 + 2.0 * 1.1))
    assert gradient == pytest.approx([-0.1 * 1.25 * 1.1, -0.1 * 2.0 * 1.1])


def test_capped_importance_weights_are_counted() -> None:
    """π_old/μ: 1.25, 5, 0.5, 5. Replayed tokens have a mode without weights."""
    behaviour = [0.4, 0.1, 1.0, 0.1]
    batch = tokens([1.0] * 4, advantage=1.0, behaviour=behaviour, replayed=[False, False, False, True])
    assert loss_and_gradient(batch, ratio="truncated")[2].capped == 1
    assert loss_and_gradient(batch, ratio="truncated", replay_ratio="truncated")[2].capped == 2
    assert loss_and_gradient(batch, ratio="behaviour")[2].capped == 0


def test_replayed_tokens_have_a_mode_of_their_own() -> None:
    batch = tokens([1.0, 1.0], advantage=1.0, behaviour=[0.4, 0.4], replayed=[False, True])
    loss, _, _ = loss_and_gradient(batch, replay_ratio="behaviour", ratio="recompute")
    assert loss == pytest.approx(-0.1 * (1.0 + 1.25))
    loss, _, _ = loss_and_gradient(batch, replay_ratio="recompute", ratio="behaviour")
    assert loss == pytest.approx(-0.1 * (1.25 + 1.0))


@pytest.mark.parametrize("mode", ["recompute", "behaviour", "truncated"])
def test_tokens_of_a_seed_have_the_policy_of_the_batch_in_the_place_of_the_unknown_one(mode: str) -> None:
    """Four replayed tokens: one of the policy (μ = 0.4), three of a teacher (no μ), with Â = 2.

    The ratio of the teacher's is π_θ/π_old: 1 at the first update, then 1.2, then clipped at 1.3.
    """
    nan = math.nan
    batch = tokens([1.0, 1.0, 1.2, 1.5], 2.0, behaviour=[0.4, nan, nan, nan], replayed=[True] * 4)
    loss, gradient, sums = loss_and_gradient(batch, replay_ratio=mode)
    own = {"recompute": 1.0, "behaviour": 1.25, "truncated": 1.25}[mode]
    assert loss == pytest.approx(-0.1 * 2 * (own + 1.0 + 1.2 + 1.3))
    # The gradient of ρ·Â at ρ = 1 is that of Â·log π_θ.
    assert gradient == pytest.approx([-0.2 * own, -0.2, -0.24, 0.0])
    assert (sums.fresh, sums.clipped, sums.capped) == (0, 1, 0)


def test_an_engine_without_log_probabilities_is_not_hidden() -> None:
    """Only replayed tokens may have none: at others NaN reaches the loss, and the update is skipped."""
    batch = tokens([1.0], 1.0, behaviour=[math.nan])
    assert math.isnan(loss_and_gradient(batch, ratio="behaviour")[0])


def test_stale_tokens_have_a_mode_of_their_own() -> None:
    batch = tokens([1.1] * 4, 1.0, behaviour=[0.4, 0.4, 0.1, 0.4], stale=[False, True, True, False])
    loss, gradient, _ = loss_and_gradient(batch)  # 1, min(0.5 / 0.4, 2), min(0.5 / 0.1, 2), 1
    assert loss == pytest.approx(-0.11 * (1 + 1.25 + 2 + 1))
    assert gradient == pytest.approx([-0.11, -0.11 * 1.25, -0.11 * 2, -0.11])
    assert loss_and_gradient(batch, stale_ratio="recompute")[0] == pytest.approx(-0.11 * 4)
    # ρ = 0.55 / 0.4 = 1.375 and 0.55 / 0.1 = 5.5, both above the clip at 1.3
    assert loss_and_gradient(batch, stale_ratio="behaviour")[0] == pytest.approx(-0.11 * 2 - 0.13 * 2)


def test_a_replayed_token_is_never_stale() -> None:
    batch = tokens([1.0], advantage=1.0, behaviour=[0.4], replayed=[True], stale=[True])
    loss, _, sums = loss_and_gradient(batch, replay_ratio="recompute")
    assert (loss, sums.fresh, sums.stale_kl) == (pytest.approx(-0.1), 0, 0.0)


def test_the_engine_alarm_does_not_see_staleness() -> None:
    batch = tokens([1.0] * 3, 1.0, behaviour=[0.5, 0.25, 0.25], stale=[False, False, True])
    _, _, sums = loss_and_gradient(batch)
    assert (sums.fresh, sums.current) == (3, 2)
    assert sums.gap == pytest.approx(math.log(2))  # of the second token; the first has no gap
    assert sums.engine_kl == pytest.approx(2 - 1 - math.log(2))
    assert sums.surprise == pytest.approx(2 * math.log(2))  # of both: 0.5 each
    assert sums.stale_kl == pytest.approx(2 - 1 - math.log(2))  # of the third


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="must be recompute, behaviour or truncated"):
        policy_loss(tokens([1.0], advantage=1.0), LossConfig(), "sideways")


def test_k3_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.5, 0.2]).log(), torch.tensor([0.5, 0.25, 0.8]).log()
    assert k3(p, q).tolist() == pytest.approx([0.0, 0.5 - 1 + math.log(2), 4 - 1 - math.log(4)])


def test_the_engine_gap_is_over_fresh_tokens_alone() -> None:
    batch = tokens([1.0, 1.0, 1.0], 1.0, behaviour=[0.5, 0.25, 0.001], replayed=[False, False, True])
    _, _, sums = loss_and_gradient(batch)
    assert sums.fresh == 2
    assert sums.gap == pytest.approx(math.log(2))
    assert sums.engine_kl == pytest.approx(2 - 1 - math.log(2))
    assert sums.kl == pytest.approx(0.0)
    assert sums.entropy == pytest.approx(0.75)


def test_kl_against_the_base_model() -> None:
    batch = tokens([1.0, 1.0], advantage=0.0)
    loss, sums = kl_loss(batch, torch.tensor([0.5, 0.25], dtype=torch.float64).log())
    assert loss.item() == pytest.approx(0.2 * (math.log(2) - 0.5))
    assert sums.base_kl == pytest.approx(math.log(2) - 0.5)
    (gradient,) = torch.autograd.grad(loss, batch.logp_T)
    # d/dlogp of (q/p − 1 − log q/p) = 1 − q/p
    assert gradient.tolist() == pytest.approx([0.0, 0.2 * 0.5])


def test_the_kl_term_leaves_out_replayed_tokens() -> None:
    batch = tokens([1.0, 1.0], advantage=1.0, replayed=[False, True])
    loss, sums = kl_loss(batch, torch.tensor([0.25, 0.001], dtype=torch.float64).log())
    assert loss.item() == pytest.approx(0.2 * (math.log(2) - 0.5))
    assert sums.base_kl == pytest.approx(math.log(2) - 0.5)
    (gradient,) = torch.autograd.grad(loss, batch.logp_T)
    assert gradient.tolist() == pytest.approx([0.2 * 0.5, 0.0])


def test_the_kl_term_of_stale_tokens_is_corrected() -> None:
    """π_old/μ: 5 (current: not corrected), 1.25, 0.5, 5 (at most 2). The base model halves every token."""
    behaviour, stale = [0.1, 0.4, 1.0, 0.1], [False, True, True, True]
    batch = tokens([1.0] * 4, advantage=0.0, behaviour=behaviour, stale=stale)
    loss, sums = kl_loss(batch, torch.full((4,), 0.25, dtype=torch.float64).log())
    each = math.log(2) - 0.5
    assert sums.base_kl == pytest.approx((1 + 1.25 + 0.5 + 2) * each)
    assert loss.item() == pytest.approx(0.2 * (1 + 1.25 + 0.5 + 2) * each)
    (gradient,) = torch.autograd.grad(loss, batch.logp_T)
    assert gradient.tolist() == pytest.approx([0.1 * 1, 0.1 * 1.25, 0.1 * 0.5, 0.1 * 2])


def test_the_loss_of_the_teachers_tokens_is_their_negative_log_likelihood() -> None:
    """π_θ of four tokens: 0.5, 0.6, 0.25, 0.75. The last two are a teacher's: no ratio, clip or mean."""
    nan = math.nan
    batch = tokens(
        [1.0, 1.2, 0.5, 1.5], 0.0, behaviour=[0.5, 0.5, nan, nan], replayed=[False, False, True, True],
        teacher=[0.0, 0.0, 0.5, 0.5],
    )  # fmt: skip
    loss, sums = teacher_loss(batch)
    nll = -math.log(0.25) - math.log(0.75)
    assert loss.item() == pytest.approx(nll / 2) == pytest.approx(0.8370, abs=1e-4)
    assert (sums.teacher_tokens, sums.teacher_nll) == (2, pytest.approx(nll))
    (gradient,) = torch.autograd.grad(loss, batch.logp_T)
    assert gradient.tolist() == [0.0, 0.0, -0.5, -0.5]
    _, _, own = loss_and_gradient(batch)
    assert (own.tokens, own.ratio, own.entropy) == (2, pytest.approx(2.2), pytest.approx(0.5))
    assert own.kl == pytest.approx(1.2 - 1 - math.log(1.2))


# ---- the whole objective, from groups to gradient, against a plain re-implementation in float64 ----

VOCABULARY = 7
VERSION = 3  # of the learner


def episode(rng: Random, score: float, name: str, malformed: bool = False) -> Trajectory:
    """Two or three turns, the last of which may begin anew; any log-probabilities as the engine's.

    Some tokens are of older versions.
    """
    turns = []
    for number in range(rng.choice([2, 3])):
        sampled = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 5))]
        context = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 4))]
        logprobs = [-rng.uniform(0.5, 3.5) for _ in sampled]
        versions = [rng.choice([1, 2, *[VERSION] * 12]) for _ in sampled]
        turns.append(turn(context, sampled, logprobs, restart=number in (0, 2), versions=versions))
    return trajectory(score, *turns, name=name, malformed=malformed)


def of_teacher(one: Trajectory) -> Trajectory:
    turns = [
        replace(each, completion=replace(each.completion, logprobs=(), versions=())) for each in one.turns
    ]
    return replace(one, turns=tuple(turns))


def batch_of_groups() -> list[Group]:
    rng = Random(5)
    replay = ReplayBuffer(ReplayConfig())
    seed = of_teacher(trajectory(1.0, *episode(rng, 1.0, "seed").turns, name="seed", task="z"))
    replay.restore([seed])
    replay.rescue([group(episode(rng, 1.0, "old"), episode(rng, 0.0, "x"))], rng, version=0)
    groups = [
        group(
            episode(rng, 1.0, "a"), episode(rng, 0.0, "b"), episode(rng, 0.5, "c", malformed=True), task="u"
        ),
        group(episode(rng, 0.0, "d"), episode(rng, 0.2, "e"), index=1),  # rescued
        group(episode(rng, 0.0, "f"), episode(rng, 0.0, "g"), index=2, task="v"),  # without signal
        group(episode(rng, 1.0, "h"), index=3, task="w", failures=1),  # too small
        group(episode(rng, 0.3, "i"), episode(rng, 0.0, "j"), index=4, task="y"),
        group(episode(rng, 0.0, "k"), episode(rng, 0.0, "l"), index=5, task="z"),  # rescued by the seed
    ]
    return replay.rescue(groups, rng, version=VERSION)


def taught_episodes() -> list[Trajectory]:
    """Two successes of a teacher. Each has one token more than once, and sequences of several turns."""
    rng = Random(6)
    return [of_teacher(episode(rng, 1.0, name)) for name in ("seed-1", "seed-2")]


def policies() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    old, step, base = torch.randn(3, VOCABULARY, VOCABULARY, dtype=torch.float64, generator=generator)
    return (old + 0.4 * step).requires_grad_(), old, base


def plain_objective(
    groups: list[Group],
    policies: tuple[Tensor, Tensor, Tensor],
    loss: LossConfig,
    replay_ratio: str,
    token_budget: int,
) -> Tensor:
    """Straight from the formula: loops over groups, trajectories, turns and tokens; one number at a time.

    The model is a table: the logits of a token depend on the token before it.
    """
    theta, old, _ = policies
    counted, live = [], []
    for one in groups:
        if len(one.trajectories) < 2:
            continue
        rewards = [t.score - (loss.format_weight if t.malformed else 0.0) for t in one.trajectories]
        mean = sum(rewards) / len(rewards)
        sigma = math.sqrt(sum((r - mean) ** 2 for r in rewards) / len(rewards))
        if sigma >= 1e-6:
            live.append((one, rewards, mean, sigma))
        counted.append(one)
    all_tokens = sum(len(s.completion.token_ids) for g in counted for t in g.trajectories for s in t.turns)

    objective = torch.zeros((), dtype=torch.float64)
    for one, rewards, mean, sigma in live:
        for i, t in enumerate(one.trajectories):
            length = sum(len(s.completion.token_ids) for s in t.turns)
            normaliser = {
                "sequence": len(counted) * len(one.trajectories) * length,
                "token": all_tokens,
                "constant": len(counted) * len(one.trajectories) * token_budget,
            }[loss.aggregation]
            advantage = (rewards[i] - mean) / sigma
            replayed = any(rescue.index == i for rescue in one.rescues)
            seen: list[float] = []
            for s in t.turns:
                before = s.context[-1]
                sampled = s.completion
                unknown = [math.nan] * len(sampled.token_ids) if t.episode_id == "seed" else []
                for token, mu, version in zip(
                    sampled.token_ids, sampled.logprobs or unknown, sampled.versions or unknown, strict=True
                ):
                    seen.append(version)
                    own = loss.ratio if min(seen) == VERSION else loss.stale_ratio
                    mode = "recompute" if unknown else replay_ratio if replayed else own
                    logp = torch.log_softmax(theta[before], 0)[token]
                    logp_old = torch.log_softmax(old[before], 0)[token]
                    ratio = torch.exp(logp - (mu if mode == "behaviour" else logp_old))
                    clipped = torch.clamp(ratio, 1 - loss.clip_low, 1 + loss.clip_high)
                    term = torch.minimum(ratio * advantage, clipped * advantage)
                    if mode == "truncated":
                        term = term * min(math.exp(logp_old.item() - mu), 2.0)
                    objective = objective + term / normaliser
                    before = token
    kl = plain_kl(groups, policies, loss.aggregation, token_budget)
    return loss.kl * kl + loss.teacher * plain_teacher_loss(theta) - objective


def plain_teacher_loss(theta: Tensor) -> Tensor:
    """Mean of −log π over all tokens of the teacher, in every aggregation."""
    nll = []
    for t in taught_episodes():
        for s in t.turns:
            before = s.context[-1]
            for token in s.completion.token_ids:
                nll.append(-torch.log_softmax(theta[before], 0)[token])
                before = token
    return torch.stack(nll).mean()


def plain_kl(
    groups: list[Group], policies: tuple[Tensor, Tensor, Tensor], aggregation: str, token_budget: int
) -> Tensor:
    """Mean KL of the episodes that the policy played itself, with and without signal.

    Tokens of older versions, and those after them, have importance weights of at most 2.
    """
    theta, old, base = policies
    own = []
    for one in groups:
        replayed = {rescue.index for rescue in one.rescues}
        if len(one.trajectories) >= 2:
            own.append([t for i, t in enumerate(one.trajectories) if i not in replayed])
    terms: list[list[list[Tensor]]] = []  # by group, trajectory, token
    for played in own:
        terms.append([])
        for t in played:
            terms[-1].append([])
            stale = False
            for s in t.turns:
                before = s.context[-1]
                for position, token in enumerate(s.completion.token_ids):
                    stale = stale or s.completion.versions[position] != VERSION
                    logp = torch.log_softmax(theta[before], 0)[token]
                    logp_base = torch.log_softmax(base[before], 0)[token]
                    probability_old = torch.softmax(old[before], 0)[token].item()
                    weight = min(2.0, probability_old / math.exp(s.completion.logprobs[position]))
                    term = torch.exp(logp_base - logp) - (logp_base - logp) - 1
                    terms[-1][-1].append(weight * term if stale else term)
                    before = token
    if aggregation == "token":
        tokens = [term for group in terms for trajectory in group for term in trajectory]
        return torch.stack(tokens).mean()
    means = []
    for group_terms in terms:
        per_trajectory = [
            torch.stack(each).mean() if aggregation == "sequence" else torch.stack(each).sum() / token_budget
            for each in group_terms
        ]
        means.append(torch.stack(per_trajectory).mean())
    return torch.stack(means).mean()


def table_logprobs(table: Tensor, microbatch: Sequence[Sample]) -> Tensor:
    logps = []
    for sample in microbatch:
        ids = torch.tensor(sample.token_ids)
        logp = torch.log_softmax(table[ids[:-1]], -1).gather(1, ids[1:, None])[:, 0]
        logps.append(logp[torch.tensor(list(sample.mask[1:])).bool()])
    return torch.cat(logps)


def our_loss(
    groups: list[Group],
    policies: tuple[Tensor, Tensor, Tensor],
    loss: LossConfig,
    replay_ratio: str,
    token_budget: int,
    max_tokens: int,
) -> Tensor:
    theta, old, base = policies
    (update,) = all_updates(groups, loss, tasks_per_update=8, token_budget=token_budget, version=VERSION)
    taught = teacher_samples(taught_episodes()) if loss.teacher else ()
    total = torch.zeros((), dtype=torch.float64)
    for microbatch in split_microbatches([*update, *taught], max_tokens):
        repeats = torch.tensor([sample.sampled_tokens for sample in microbatch])
        per_sample = torch.tensor(
            [(s.advantage, s.weight, s.kl_weight, s.teacher_weight, s.replayed) for s in microbatch],
            dtype=torch.float64,
        )
        advantage_T, weight_T, kl_weight_T, teacher_weight_T, replayed_T = per_sample.repeat_interleave(
            repeats, 0
        ).unbind(1)
        logp_T = table_logprobs(theta, microbatch)
        flat = Tokens(
            logp_T=logp_T,
            entropy_T=torch.zeros_like(logp_T),
            old_logp_T=table_logprobs(old, microbatch),
            behaviour_logp_T=logp_T.new_tensor(
                [p for s in microbatch for p in s.behaviour_logprobs or (math.nan,) * s.sampled_tokens]
            ),
            advantage_T=advantage_T,
            weight_T=weight_T,
            kl_weight_T=kl_weight_T,
            teacher_weight_T=teacher_weight_T,
            replayed_T=replayed_T.bool(),
            stale_T=torch.tensor(
                [age > 0 for s in microbatch for age in s.staleness or (0,) * s.sampled_tokens]
            ),
        )
        total = total + policy_loss(flat, loss, replay_ratio)[0]
        total = total + loss.kl * kl_loss(flat, table_logprobs(base, microbatch))[0]
        total = total + loss.teacher * teacher_loss(flat)[0]
    return total


@pytest.mark.parametrize("aggregation", ["sequence", "token", "constant"])
@pytest.mark.parametrize(
    ("ratio", "stale_ratio", "replay_ratio", "kl", "teacher"),
    [
        ("recompute", "truncated", "recompute", 0.1, 0.3),
        ("behaviour", "recompute", "truncated", 0.1, 0.0),
        ("truncated", "behaviour", "behaviour", 0.0, 0.3),
    ],
)
def test_the_whole_objective_agrees_with_a_plain_one(
    aggregation: str, ratio: str, stale_ratio: str, replay_ratio: str, kl: float, teacher: float
) -> None:
    settings: dict[str, Any] = {
        "aggregation": aggregation,
        "ratio": ratio,
        "stale_ratio": stale_ratio,
        "kl": kl,
        "teacher": teacher,
    }
    groups, three = batch_of_groups(), policies()
    assert len(groups[1].rescues) == 1 and groups[5].rescues[0].stored_episode == "seed"
    loss = LossConfig(**settings)
    plain = plain_objective(groups, three, loss, replay_ratio, token_budget=30)
    (plain_gradient,) = torch.autograd.grad(plain, three[0])
    assert plain_gradient.abs().max() > 1e-3
    for max_tokens in (1, 25, 10_000):
        ours = our_loss(groups, three, loss, replay_ratio, token_budget=30, max_tokens=max_tokens)
        (gradient,) = torch.autograd.grad(ours, three[0])
        assert ours.item() == pytest.approx(plain.item(), rel=1e-12)
        torch.testing.assert_close(gradient, plain_gradient, rtol=1e-10, atol=1e-14)


def test_the_batch_under_comparison_has_every_kind_of_group_and_clipped_tokens() -> None:
    groups, (theta, old, _) = batch_of_groups(), policies()
    (update,) = all_updates(groups, LossConfig(), tasks_per_update=8, token_budget=30, version=VERSION)
    ages = [sample.staleness for sample in update if not sample.replayed]
    assert () in ages and any(len({*age}) > 1 for age in ages)
    stats = count_groups(groups, LossConfig(), success=0.5)
    assert (stats.total, stats.too_small, stats.without_signal, stats.rescued) == (6, 1, 1, 2)
    ratio_T = (table_logprobs(theta, update) - table_logprobs(old, update)).exp()
    assert (ratio_T > 1.3).any() and (ratio_T < 0.8).any()


def test_each_token_has_its_ratio_and_whether_the_clip_bounds_it() -> None:
    _, sums, terms = policy_loss(tokens([1.0, 1.5, 0.5], advantage=2.0), LossConfig(), "recompute")
    assert terms.ratio_T.tolist() == pytest.approx([1.0, 1.5, 0.5])
    assert not terms.ratio_T.requires_grad
    assert terms.clipped_T.tolist() == [False, True, False]
    assert sums.clipped == 1
    bad = tokens([0.5, 2.0, 4.0], advantage=-1.0)
    _, _, terms = policy_loss(bad, LossConfig(), "recompute")
    assert terms.clipped_T.tolist() == [True, False, False]
