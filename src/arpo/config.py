"""The recipe: every setting, every default, every cross-check, in one frozen tree.

A recipe is TOML; the command line overrides single keys (`--loss.clip_low 0.1`). What the tree does not know is
refused with the place, the reason and the nearest right name. No other file holds a default.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    dir: str = "runs/desk"  # everything the run writes is in here; the same command goes on from it
    seed: int = 0
    threads: int = 0  # torch threads; 0: all cores


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    path: str = "base"  # "base": the shipped tiny model; else a Hugging Face directory
    dtype: str = "float32"  # float32 | bfloat16
    device: str = "auto"  # auto | cpu | cuda
    prompt: str = "desk"  # "desk", a file, or package.module:ATTRIBUTE that holds the template
    min_pixels: int = 3136
    max_pixels: int = 2116800


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    train: str = "desk:32"  # "desk:NAME" (shipped), a task file, or a folder in OSWorld's layout
    heldout: str = "desk:heldout"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    name: str = "desk"  # "desk", or module:Class of your own
    width: int = 224
    height: int = 168
    parallel: int = 32  # environments at once
    start_seconds: float = 60.0
    step_seconds: float = 60.0
    evaluate_seconds: float = 60.0
    attempts: int = 3  # tries of one episode, each in a fresh environment
    quarantine_after: int = 3  # failed episodes in a row after which a task is set aside


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    group_size: int = 2
    max_steps: int = 15
    max_images: int = 15
    max_answer_tokens: int = 64
    max_context_tokens: int = 4096
    temperature: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    epochs: int = 30  # passes over the training tasks
    tasks_per_batch: int = 32
    tasks_per_update: int = 32
    dynamic_sampling: bool = False  # DS-GRPO: replace groups without signal by fresh ones
    dynamic_attempts: int = 4  # at most this many rounds of extra groups a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    clip_low: float = 0.2
    clip_high: float = 0.3
    aggregation: str = "sequence"  # sequence | token | constant
    denominator: str = "all"  # all | live: which groups an update averages over
    advantage: str = "grpo"  # grpo | mean | rloo
    ratio: str = "recompute"  # recompute | behaviour | truncated
    format_weight: float = 1.0
    kl: float = 0.0  # weight of the k3 KL term against the base model


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    enabled: bool = True
    capacity: int = 8
    threshold: float = 0.5
    ratio: str = "recompute"  # recompute | behaviour | truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    lr: float = 2e-4
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    grad_norm: float = 1.0
    warmup_updates: int = 2
    tokens_per_microbatch: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    every: int = 10  # batches between evaluations; 0: only before and after
    temperature: float = 0.6
    rollouts: int = 4  # per training task
    heldout_rollouts: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    checkpoint_every: int = 1  # batches
    keep_checkpoints: int = 2
    tensorboard: bool = True
    wandb_project: str = ""  # empty: off


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
