"""Config keys of training: method, loss, replay, optimiser, evaluation, storage. See `config/keys.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from arpo.config.keys import LARGEST, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Training method, batches, epochs."""

    method: Literal["online", "rft", "dpo", "kto"] = setting(
        "online",
        "Training method: online (GRPO and its variants), or offline from stored episodes (offline.source): "
        "rft, dpo, kto",
    )
    epochs: int = setting(30, "Passes over the training tasks", low=1, high=1_000_000)
    tasks: int = setting(
        0,
        "Number of tasks (groups) to play in all, instead of train.epochs; 0: train.epochs decides. Needed "
        "for desk:fresh without tasks.distinct",
        low=0,
    )
    tasks_per_batch: int = setting(
        32, "Tasks (groups) per batch; all are played with the same policy", low=1, high=65_536
    )
    tasks_per_update: int = setting(32, "Tasks (groups) per optimiser step", low=1, high=65_536)
    curriculum: Literal["none", "middle", "easy_first", "adaptive"] = setting(
        "none",
        "Order of tasks: none; by the counts of `arpo screen`: middle (medium difficulty more often), "
        "easy_first (easy tasks in early epochs); by the results of this run: adaptive (desk:fresh: goal "
        "families whose groups both succeed and fail more often)",
    )
    dynamic_sampling: bool = setting(
        False, "Dynamic sampling (DS-GRPO): replaces groups with equal rewards by new groups"
    )
    dynamic_attempts: int = setting(4, "Maximum rounds of dynamic sampling per batch", low=1, high=1000)
    max_staleness: int = setting(
        0,
        "Maximum age (policy versions) of trained tokens, for asynchronous training; 0: lock step, rollouts "
        "wait for the learner",
        low=0,
        high=1000,
    )
    engine_kl_alarm: float = setting(
        0.02, "Alarm threshold of engine_kl, the KL divergence between engine and learner", above=0
    )
    engine_kl_skip: bool = setting(
        False, "No training on batches above train.engine_kl_alarm; costs one more forward pass per batch"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Objective: clipping, normalisation, advantage, KL."""

    clip_low: float = setting(0.2, "Lower clipping range: the ratio is at least 1 - clip_low", low=0, below=1)
    clip_high: float = setting(0.3, "Upper clipping range: the ratio is at most 1 + clip_high", low=0)
    aggregation: Literal["sequence", "token", "constant"] = setting(
        "sequence",
        "Normalisation of the loss: sequence (mean over the tokens of each trajectory), token (mean over all "
        "tokens of the update, DAPO), constant (the maximum number of tokens, Dr. GRPO)",
    )
    denominator: Literal["all", "live"] = setting(
        "all", "Groups in the mean of an update: all, live (only groups with signal)"
    )
    dual_clip: float = setting(0.0, "Maximum ratio at negative advantages (dual clip); 0: no limit", low=0)
    advantage: Literal["grpo", "grpo_sample", "mean", "rloo"] = setting(
        "grpo",
        "Advantage: grpo (reward - group mean, divided by the standard deviation; grpo_sample: the sample "
        "deviation), mean (reward - group mean, Dr. GRPO), rloo (reward - mean of the other episodes)",
    )
    state_weight: float = setting(
        0.0,
        "Weight of state advantages (GiGPO), which compare the steps of a group from equal screenshots; "
        "0: off",
        low=0,
    )
    state_discount: float = setting(
        0.95,
        "Discount of the reward per later step of the episode, for loss.state_weight",
        above=0,
        high=1,
    )
    negative: float = setting(
        1.0, "Factor on negative advantages; below 1, failures change the policy less", low=0
    )
    ratio: Literal["recompute", "behaviour", "truncated"] = setting(
        "recompute",
        "Denominator of the probability ratio for new tokens: recompute (the policy before the batch), "
        "behaviour (the engine's log-probabilities), truncated (as recompute, with the weight "
        "min(recompute / behaviour, 2))",
    )
    stale_ratio: Literal["recompute", "behaviour", "truncated"] = setting(
        "truncated",
        "Denominator of the probability ratio for tokens of older policy versions (train.max_staleness); "
        "values as in loss.ratio",
    )
    format_weight: float = setting(1.0, "Penalty for an answer that does not parse", low=0)
    kl: float = setting(0.0, "Weight of the KL term (k3) against the base model; 0: off", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Replay of stored successes."""

    enabled: bool = setting(True, "Replay: a group of failures receives a stored success; false: plain GRPO")
    key: Literal["task", "family"] = setting(
        "task",
        "Tasks that share stored successes: task (none, the published rule), family (tasks of Desk with the "
        "same goal families, for desk:fresh)",
    )
    capacity: int = setting(
        8, "Stored successes per replay.key; the oldest is dropped first", low=1, high=100_000
    )
    threshold: float = setting(0.5, "Minimum score of a success", above=0, high=1)
    rare: float = setting(
        0.25,
        "Maximum share of successes in a group that receives a stored one; 0: only all-failed groups",
        low=0,
        below=1,
    )
    injections: int = setting(1, "Maximum number of stored successes per group", low=1, high=1024)
    victim: Literal["random", "longest", "shortest"] = setting(
        "random", "Failed episode of the group to replace"
    )
    pick: Literal["random", "newest", "shortest"] = setting("random", "Stored success to use")
    max_age: int = setting(0, "Maximum age (policy versions) of a stored success; 0: no limit", low=0)
    ratio: Literal["recompute", "behaviour", "truncated"] = setting(
        "recompute", "Denominator of the probability ratio for replayed tokens; values as in loss.ratio"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig:
    """Offline training: rft, dpo, kto."""

    source: str = setting("", "Folder with stored episodes, of `arpo collect` or of a run")
    passes: int = setting(4, "Epochs over the offline data", low=1, high=100_000)
    batch: int = setting(64, "Trajectories per update; DPO: batch / 2 pairs", low=2, high=1_000_000)
    pairs: int = setting(
        8, "DPO only: maximum pairs (success, failure) per task and epoch", low=1, high=1_000_000
    )
    beta: float = setting(0.1, "DPO and KTO: strength of the constraint to the base model", above=0)
    length: Literal["sum", "mean"] = setting(
        "sum", "DPO and KTO: log-probability of a trajectory, as sum or mean over its sampled tokens"
    )
    desirable: float = setting(1.0, "KTO only: total weight of the successes", low=0)
    undesirable: float = setting(1.0, "KTO only: total weight of the failures", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """Optimiser, micro-batches, ranks."""

    lr: float = setting(2e-4, "Learning rate (AdamW)", above=0)
    weight_decay: float = setting(0.01, "Weight decay (AdamW)", low=0)
    beta1: float = setting(0.9, "Decay rate of the first moment (AdamW)", low=0, below=1)
    beta2: float = setting(0.99, "Decay rate of the second moment (AdamW)", low=0, below=1)
    moments: Literal["float32", "bfloat16"] = setting("float32", "Data type of both moments (AdamW)")
    rounding: Literal["stochastic", "nearest"] = setting(
        "stochastic",
        "Rounding of bfloat16 weights and moments; nearest loses updates smaller than 1/256 of a weight",
    )
    grad_norm: float = setting(1.0, "Maximum gradient norm; larger gradients are clipped", above=0)
    warmup_updates: int = setting(2, "Updates of linear learning-rate warm-up; 0: none", low=0)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "Learning rate after the warm-up: constant, or a decay to 0 at the end of training"
    )
    tokens_per_microbatch: int = setting(
        4096,
        "Maximum tokens per micro-batch; changes memory and speed, not the gradient (except rounding)",
        low=1,
    )
    ranks: int = setting(1, "Processes that shard weights and samples, one GPU each", low=1, high=1024)
    rank_seconds: float = setting(
        600.0, "Timeout (seconds) for waiting for another rank", above=0, high=LARGEST
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Evaluation."""

    every: int = setting(10, "Batches between evaluations; 0: only before and after training", low=0)
    temperature: float = setting(0.6, "Sampling temperature in evaluation; 0: greedy", low=0)
    rollouts: int = setting(
        4, "Episodes per training task; 0: training tasks are not evaluated", low=0, high=10_000
    )
    heldout_rollouts: int = setting(1, "Episodes per held-out task", low=1, high=10_000)
    overall_rollouts: int = setting(1, "Episodes per task of tasks.overall", low=1, high=10_000)
    tasks: str = setting(
        "evaluation_examples/test_all.json", "Tasks of `arpo eval osworld`; values as in tasks.train"
    )
    results: str = setting("results", "Output directory of `arpo eval osworld`, in OSWorld's layout")
    trials: str = setting(
        "0", "Names of the trials of `arpo eval osworld`, separated by commas; each plays every task once"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenConfig:
    """Task screening: `arpo screen`."""

    rollouts: int = setting(16, "Episodes per task; tasks with a success are kept", low=1, high=10_000)
    drop_always: bool = setting(False, "Removal of tasks that succeed in every episode")
    count: int = setting(0, "Number of tasks to keep, those nearest to 50% success; 0: no selection", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Checkpoints, stored screenshots, metric trackers."""

    checkpoint_every: int = setting(1, "Batches between checkpoints", low=1)
    keep_checkpoints: int = setting(2, "Number of checkpoints to keep; older ones are deleted", low=1)
    prune_every: int = setting(
        0, "Batches between deletions of screenshots that replay does not need; 0: keep all", low=0
    )
    token_stats: bool = setting(
        False,
        "Entropy, ratio and clipping of each trained token in token_stats.jsonl, for `arpo view`; about 16 "
        "bytes a token and 110 an answer",
    )
    tensorboard: bool = setting(True, "TensorBoard files in the run folder")
    wandb_project: str = setting("", "Weights & Biases project; empty: off")
    wandb_entity: str = setting("", "Weights & Biases user or team; empty: your default one")
    wandb_name: str = setting("", "Weights & Biases name of the run; empty: run.dir")
    wandb_tags: str = setting("", "Weights & Biases tags of the run, separated by commas")
    wandb_episodes: int = setting(
        4, "Episodes that each evaluation shows on Weights & Biases, per task set", low=0, high=1000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """Base model of desk: `arpo pretrain`."""

    steps: int = setting(6800, "Number of updates", low=1)
    tokens_per_step: int = setting(65536, "Tokens per update, padding included", low=1024)
    lr: float = setting(1.5e-3, "Peak learning rate, after warm-up; it then falls to 0 as a cosine", above=0)
    warmup: int = setting(200, "Updates of learning-rate warm-up", low=1)
    carelessness: float = setting(
        1.0, "Level of the demonstrator's faults; 0: no faults, 2: twice as many", low=0, high=10
    )
    hidden: int = setting(128, "Hidden size of the text model", low=32, high=65_536)
    layers: int = setting(4, "Layers of the text model", low=1, high=1024)
    vision_hidden: int = setting(128, "Hidden size of the vision tower", low=32, high=65_536)
    vision_layers: int = setting(4, "Layers of the vision tower", low=1, high=1024)
    workers: int = setting(0, "Processes that make training data; 0: number of cores - 1", low=0, high=1024)
    minutes: float = setting(
        0.0, "Time limit (minutes); the same command resumes afterwards; 0: no limit", low=0, high=LARGEST
    )
    report_size: int = setting(
        256, "Screens, and tasks per number of goals, of the report on the model; 0: no report", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsConfig:
    """Functions of your own, as module:function; empty: the built-in ones (docs/python.md)."""

    reward: str = setting("", "Reward of an episode: function of (trajectory, task)")
    advantage: str = setting("", "Advantages of a group: function of (rewards, group)")
    curriculum: str = setting(
        "", "Order of the tasks in an epoch: function of (tasks, epoch, history, random generator)"
    )
    tracker: str = setting("", "Additional metric tracker: class or function of (config)")
    callback: str = setting("", "Function called after each batch with (batch, metrics, groups)")
