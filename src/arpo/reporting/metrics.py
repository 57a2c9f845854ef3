"""The metrics of a run, explained: one entry per name in metrics.jsonl, and in timing.jsonl.

The report prints the explanation under each curve, and `arpo report --help-metrics` lists all of them.
Metrics of plug-ins have no entry.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from arpo.config.task_set_names import HALVES, LEVELS, set_label


@dataclass(frozen=True, slots=True)
class Metric:
    """A title, and one line of explanation: meaning, good direction, and what to do if it looks bad."""

    title: str
    explanation: str
    percent: bool = False  # the value is a fraction


EVALUATION = "eval_"  # before the name of a task set
LEVEL_NOTES = {
    "instances": "new tasks with the goal families and applications of training.",
    "families": "tasks with goal families that training does not have.",
    "applications": "tasks in an application that training does not have.",
    "long": "tasks of two or three goals in several applications.",
}
HALF_NOTES = {
    "validation": "Higher is better: use it to choose settings.",
    "test": "Use it once, after all choices.",
}
METRICS: Mapping[str, Metric] = {
    # Evaluations
    "eval_train": Metric(
        "Success rate on training tasks",
        "Mean score of new episodes of the training tasks. Higher is better. If it stays flat, look at "
        "'Groups without signal': without signal the model learns nothing.",
        percent=True,
    ),
    "eval_heldout": Metric(
        "Success rate on held-out tasks",
        "Mean score on tasks that are never trained on. Higher is better. If it falls while the training "
        "tasks improve, the model forgets: lower optim.lr or raise loss.kl.",
        percent=True,
    ),
    **{
        f"eval_{level}_{half}": Metric(
            title=f"Success rate on {label} ({half})",
            percent=True,
            explanation=f"Mean score on {LEVEL_NOTES[level]} Never trained on. {HALF_NOTES[half]}",
        )
        for level, label in LEVELS.items()
        for half in HALVES
    },
    "eval_overall": Metric(
        "Success rate on all tasks",
        "Mean score on the tasks of tasks.overall, before and after training. Higher is better.",
        percent=True,
    ),
    # Episodes of a batch
    "success": Metric(
        "Success rate of training episodes",
        "Share of this batch's episodes that solved their task. Rising is good. It is noisy, because "
        "episodes are sampled at rollout.temperature: judge the trend, not single batches.",
        percent=True,
    ),
    "reward": Metric(
        "Reward",
        "Mean reward of the episodes: score, minus loss.format_weight for an answer that does not parse. "
        "Rising is good. If it is below the success rate, answers do not parse.",
    ),
    "steps": Metric(
        "Steps per episode",
        "Mean number of answers per episode. Near rollout.max_steps, episodes run out of steps: the model "
        "does not know when to call finished().",
    ),
    "malformed": Metric(
        "Malformed answers",
        "Share of episodes with an answer that does not parse or was cut. Should fall to 0. If it is high, "
        "read the answers below; check model.prompt and rollout.max_answer_tokens.",
        percent=True,
    ),
    "prompt_tokens": Metric(
        "Prompt tokens per answer",
        "Mean length of the prompts. Fewer screenshots (rollout.max_images, model.max_pixels) make it "
        "shorter.",
    ),
    "prompt_cached": Metric(
        "Cached share of the prompts",
        "Share of prompt tokens that continue the prompt before them: engine and learner compute them once. "
        "It falls when old screenshots leave the prompt at every step; rollout.history = blocks then raises "
        "it.",
        percent=True,
    ),
    "episodes": Metric("Episodes", "Training episodes so far. It grows by the same number in each batch."),
    "failures": Metric(
        "Environment faults",
        "Episodes so far that an environment or engine fault ended. They are not trained on. Should stay 0; "
        "the section 'Faults' shows their messages.",
    ),
    # Groups
    "groups": Metric("Groups", "Groups in this batch: one group per task."),
    "too_small": Metric(
        "Groups that are too small",
        "Groups with fewer than two episodes left after faults: not trained on. Should be 0.",
    ),
    "without_signal": Metric(
        "Groups without signal",
        "Groups whose episodes all have the same reward: the model learns nothing from them. Lower is "
        "better. If most groups are here, choose tasks of middle difficulty with `arpo screen`.",
    ),
    "rescued": Metric(
        "Groups rescued by replay",
        "Groups without a success that received a stored success of the same task. Neither high nor low is "
        "bad; 0 after some batches means that no failed task has a stored success.",
    ),
    "seeded": Metric(
        "Groups rescued by a seed",
        "Those of the rescued groups that received a success of replay.seeds. Should fall, when own "
        "successes take the place of seeds.",
    ),
    "judge_false_positives": Metric(
        "Failures judged a success",
        "reward.judge: share of this batch's failures by the evaluator that the judge calls a success. "
        "Absent without such episodes. Rising is bad: the model learns to please the judge.",
        percent=True,
    ),
    "judge_false_negatives": Metric(
        "Successes judged a failure",
        "reward.judge: share of this batch's successes by the evaluator that the judge calls a failure.",
        percent=True,
    ),
    "judge_success": Metric(
        "Success rate, corrected for errors of the judge",
        "reward.judge: (share of episodes judged a success - a) / (1 - a - b), with the rates a of false "
        "positives and b of false negatives of the run so far. Rising is good.",
        percent=True,
    ),
    "judge_alarm": Metric(
        "Alarm of judge and evaluators",
        "1 in a batch after which the judge errs more often than before (see docs/design.md).",
    ),
    "all_success": Metric(
        "Groups in which all episodes succeed",
        "These tasks are learned. If most groups are here, training has nothing left to learn: add harder "
        "tasks.",
    ),
    "all_fail": Metric(
        "Groups in which all episodes fail",
        "Counted before replay. Should fall. If most groups stay here, the tasks are too hard: use `arpo "
        "screen`, or a larger rollout.group_size.",
    ),
    "replay_age": Metric(
        "Age of replayed episodes",
        "Mean age, in batches, of the stored successes that replay used. High: they come from a much older "
        "policy.",
    ),
    "replay_size": Metric(
        "Episodes in the replay buffer",
        "Stored successes of all tasks. Grows until each task has replay.capacity of them.",
    ),
    # Asynchronous training
    "staleness_mean": Metric(
        "Staleness",
        "Mean age, in policy versions, of the trained tokens: version of the learner minus version that "
        "sampled the token. At most train.max_staleness.",
    ),
    "staleness_max": Metric(
        "Maximum staleness",
        "Age of the oldest trained token, in policy versions. At most train.max_staleness.",
    ),
    "stale_fraction": Metric(
        "Stale tokens",
        "Share of the sampled tokens that loss.stale_ratio corrects: an older policy has sampled them, or "
        "an earlier token of their episode.",
        percent=True,
    ),
    "waiting": Metric(
        "Groups that wait for the learner",
        "Finished groups that are not in this batch. If it stays high, the learner is slower than the "
        "rollouts, or a batch waits for slow groups.",
    ),
    "stale_kl": Metric(
        "KL divergence of stale tokens",
        "KL divergence between the older policy that sampled a token and the policy that learns from it. "
        "Small is good; above 0.5, the batch is reported. If it grows, lower train.max_staleness or "
        "optim.lr.",
    ),
    # Updates
    "loss": Metric(
        "Loss",
        "Training loss. In reinforcement learning it stays near 0 and does not fall with success: judge the "
        "success rate. Only sudden jumps matter: then lower optim.lr.",
    ),
    "grad_norm": Metric(
        "Gradient norm",
        "Mean length of the gradient before it is cut at optim.grad_norm. Steady is good. If it jumps or "
        "grows, lower optim.lr.",
    ),
    "clip_fraction": Metric(
        "Clipped tokens",
        "Share of tokens whose update the clipping of the loss stopped. A few percent is normal. If it "
        "exceeds about 20%, updates are too large: lower optim.lr.",
        percent=True,
    ),
    "capped_fraction": Metric(
        "Tokens with a capped importance weight",
        "Share of tokens whose importance weight (learner over the policy that sampled them) was cut at 2. "
        "Near 0 is good. If it grows, lower train.max_staleness or optim.lr.",
        percent=True,
    ),
    "ratio": Metric(
        "Probability ratio",
        "Mean probability of the trained tokens, new policy over old. Near 1 is good. If it drifts away "
        "from 1, lower optim.lr.",
    ),
    "kl": Metric(
        "Change of the policy per batch",
        "KL divergence of the policy from that at the start of the batch, in nats per token. Small is good. "
        "If it jumps, lower optim.lr.",
    ),
    "base_kl": Metric(
        "Distance from the base model",
        "KL divergence from the base model, in nats per token (measured if loss.kl is above 0). It grows "
        "slowly. If it grows fast while held-out success falls, raise loss.kl.",
    ),
    "teacher_loss": Metric(
        "Teacher's loss",
        "loss.teacher: mean of -log p over the tokens of the teacher in this batch, without the weight. "
        "Should fall. These tokens have no part in entropy, ratio, kl and tokens.",
    ),
    "entropy": Metric(
        "Entropy",
        "How varied the answers are, in nats per token. A slow fall is normal. Near 0, all episodes of a "
        "task are the same and nothing is learned: raise loss.kl or rollout.temperature.",
    ),
    "logprob_gap": Metric(
        "Log-probability gap between engine and learner",
        "Mean difference of the log-probabilities of sampled tokens. Near 0 is good. If it exceeds about "
        "0.1, engine and learner disagree: check model.dtype and the engine.",
    ),
    "engine_kl": Metric(
        "KL divergence between engine and learner",
        "The same disagreement as the log-probability gap, as a KL divergence. Near 0 is good: about 0.001 "
        "in bfloat16. Above train.engine_kl_alarm, the batch is reported. Tokens of older policy versions "
        "have no part in it. Absent if nothing was compared.",
    ),
    "engine_surprise": Metric(
        "Surprise at compared tokens",
        "Mean of −log probability at the tokens of engine_kl. Rounding disturbs uncertain tokens more, so "
        "the alarm threshold of bfloat16 is 2% of it.",
    ),
    "engine_tokens": Metric(
        "Compared tokens",
        "Tokens of engine_kl. 0: engine and learner were not compared in this batch.",
    ),
    "engine_alarm": Metric(
        "Alarm of engine and learner",
        "1 in a batch with engine_kl above train.engine_kl_alarm, or stale_kl above 0.5.",
    ),
    "untrained": Metric(
        "Batch without training",
        "1 in a batch that was not trained on because of this alarm (train.engine_kl_skip).",
    ),
    "tokens": Metric("Trained tokens", "Sampled tokens in the updates of this batch."),
    "samples": Metric("Training sequences", "Sequences in the updates of this batch."),
    "updates": Metric("Updates", "Optimiser steps in this batch, without skipped ones."),
    "skipped": Metric(
        "Skipped updates",
        "Updates of this batch whose loss or gradient was not finite. Should be 0. If it continues, lower "
        "optim.lr or loss.kl.",
    ),
    "skipped_total": Metric("Skipped updates so far", "Sum over all batches. Should be 0."),
    "lr": Metric("Learning rate", "Learning rate of the newest update: warm-up, then optim.schedule."),
    # Offline methods
    "nll": Metric("Negative log-likelihood", "RFT: loss per token of the stored successes. Falling is good."),
    "margin": Metric(
        "Margin",
        "DPO: how much more the policy prefers the success to the failure than the base model does. Rising "
        "is good.",
    ),
    "accuracy": Metric(
        "Pairs in the right order",
        "DPO: share of pairs in which the policy prefers the success. Higher is better.",
        percent=True,
    ),
    "gain_desirable": Metric(
        "Gain of successes",
        "KTO: log-probability of successes compared with the base model. Rising is good.",
    ),
    "gain_undesirable": Metric(
        "Gain of failures",
        "KTO: log-probability of failures compared with the base model. Falling is good.",
    ),
    "z0": Metric(
        "KTO reference point",
        "KTO: estimated KL divergence from the base model. If it grows fast, lower optim.lr.",
    ),
}


# Columns of timing.jsonl. Seconds of a batch have the name of their stage.
TIMES: Mapping[str, str] = {
    "rollout": "Seconds in which the trainer waited for the episodes of the batch (lock step).",
    "wait": "Seconds in which the learner waited for groups (asynchronous training).",
    "learn": "Seconds of the updates, with the new weights of the engine.",
    "evaluate": "Seconds of evaluations.",
    "save": "Seconds of checkpoints.",
    "judge": "Seconds of log-probabilities of the base model (offline methods).",
    "outage": "Seconds in which no environment worked.",
    "episodes_per_second": "Rate of training episodes.",
    "env_start": "Share of the time of all environments (env.parallel) in starting.",
    "env_step": "Share of their time in steps.",
    "env_evaluate": "Share of their time in the scoring of final states.",
    "env_engine": "Share of their time in waiting for an answer.",
    "env_idle": "The rest. Small is good; if it is large, more environments do not help.",
    "env_lost": "Share of their time in attempts that a fault ended. Above 10%: see the failures.",
    "engine_busy": "Share of the time in which the engine had a request.",
}


def find_metric(name: str) -> Metric | None:
    """The entry of a metric, also of the success rate on a held-out set with a name of the user's."""
    if name not in METRICS and name.startswith(EVALUATION):
        label = set_label(name.removeprefix(EVALUATION))
        return Metric(
            title=f"Success rate on {label}", percent=True, explanation=METRICS["eval_heldout"].explanation
        )
    return METRICS.get(name)


def describe_metrics() -> str:
    """Listing of all metrics with their explanations."""
    lines = ["The metrics in metrics.jsonl, in the report and in the trackers."]
    for name, metric in METRICS.items():
        lines += ["", f"{name}  ({metric.title})"]
        lines += textwrap.wrap(metric.explanation, 106, initial_indent="    ", subsequent_indent="    ")
    lines += ["", "The times in timing.jsonl.", ""]
    lines += [f"{name:<20} {explanation}" for name, explanation in TIMES.items()]
    return "\n".join(lines)
