"""The recipe as a frozen tree: every setting with its default, its help and its range, and every cross-check.

A tree that exists is valid: making one with a bad value or an impossible combination raises `BadSetting`.
Reading and writing TOML is `recipe.py`. No other file holds a default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from arpo.errors import UserError


class BadSetting(UserError):
    """A setting that cannot be, by its dotted key."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key}: {reason}")
        self.key = key
        self.reason = reason


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
) -> Any:
    """A field with its help and its range: low and high belong to it, above and below do not."""
    bounds = {">=": low, ">": above, "<=": high, "<": below}
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    dir: str = setting("runs/desk", "everything the run writes is in here; the same command goes on from it")
    seed: int = setting(0, "decides every draw of the run", low=0)
    threads: int = setting(0, "torch threads; 0: all cores", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    path: str = setting("base", '"base": the shipped tiny model; else a Hugging Face directory')
    dtype: Literal["float32", "bfloat16"] = setting("float32", "of the weights while training")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "auto: a GPU if there is one")
    weights: Literal["load", "random"] = setting("load", "random: from config.json alone, for benchmarks")
    train: Literal["all", "language", "lora"] = setting(
        "all", "language: the vision tower is frozen; lora: adapters on language and merger layers"
    )
    lora_rank: int = setting(32, "of the adapters' matrices", low=1)
    lora_alpha: float = setting(64.0, "adapters are scaled by this over their rank", above=0)
    features_megabytes: int = setting(
        4096, "of main memory for what a frozen vision tower made of screenshots", low=0
    )
    prompt: str = setting("desk", '"desk", a file, or package.module:ATTRIBUTE that holds the template')
    min_pixels: int = setting(3136, "smaller screenshots are enlarged to this", low=784)
    max_pixels: int = setting(2116800, "larger screenshots are reduced to this", low=784)
    coordinates: Literal["pixels", "thousandths"] = setting(
        "pixels", "it answers in pixels of what it sees, or thousandths (Qwen3-VL, UI-TARS before 1.5)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    train: str = setting("desk:32", '"desk:NAME" (shipped), a task file, or a folder in OSWorld\'s layout')
    heldout: str = setting("desk:heldout", "tasks that are evaluated and never trained on")
    overall: str = setting("", "tasks that are evaluated before and after, trained on or not; empty: none")
    examples: str = setting("", "where a list {domain: [id, …]} finds its tasks; empty: examples/ beside it")
    domains: str = setting("", "only tasks of these domains, separated by commas; empty: all")
    ids: str = setting("", "only tasks with these ids, separated by commas; empty: all")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    name: str = setting("desk", '"desk", "osworld", or module:Class of your own')
    hosts: str = setting("", "addresses of environment hosts, separated by commas; empty: on this machine")
    width: int = setting(224, "of the screen of desk and osworld, in pixels", low=28)
    height: int = setting(168, "of the screen of desk and osworld, in pixels", low=28)
    parallel: int = setting(32, "environments at once", low=1)
    start_seconds: float = setting(60.0, "a start that takes longer has failed", above=0)
    step_seconds: float = setting(60.0, "a step that takes longer has failed", above=0)
    evaluate_seconds: float = setting(60.0, "a verdict that takes longer has failed", above=0)
    attempts: int = setting(3, "tries of one episode, each in a fresh environment", low=1)
    partial: float = setting(
        0.0,
        "desk: what the way to an unfinished goal is worth at most, in training; 0: nothing",
        low=0,
        below=1,
    )
    quarantine_after: int = setting(3, "failed episodes in a row after which a task is set aside", low=1)
    listen: str = setting("127.0.0.1:8700", "where an environment host listens; elsewhere it wants a token")
    lease_seconds: float = setting(
        900.0, "an episode that nobody calls for so long is given up by its host", above=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OSWorldConfig:
    provider: str = setting("local", '"local": a light sandbox; else "docker" or another of desktop-env\'s')
    python: str = setting(".venv-osworld/bin/python", "the interpreter that has desktop-env (`make osworld`)")
    cache: str = setting("osworld-cache", "folder of downloaded files, filled by `arpo osworld fetch-cache`")
    network: str = setting("off", '"off", "on", or a file with the ids of tasks that are allowed it')
    downloads: int = setting(8, "of `arpo osworld fetch-cache` at once", low=1)
    download_seconds: float = setting(60.0, "a download that stands still for longer has failed", above=0)
    pause: float = setting(2.0, "seconds between an action and its picture, on virtual machines", low=0)
    home_megabytes: int = setting(512, "what one local desktop may write", low=64)
    machine: str = setting("", "the virtual machine's path or id, for providers that need one")
    region: str = setting("", "of a cloud provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    group_size: int = setting(2, "episodes of one task that are compared with each other", low=2)
    max_steps: int = setting(15, "answers in one episode", low=1)
    max_images: int = setting(15, "screenshots that the model sees at once", low=1)
    max_answer_tokens: int = setting(64, "a longer answer is cut, which ends the episode", low=1)
    max_context_tokens: int = setting(4096, "prompt and answers together", low=1)
    temperature: float = setting(1.0, "of sampling while training", above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    method: Literal["online", "rft", "dpo", "kto"] = setting(
        "online", "online: GRPO and its kin; the others learn from stored episodes (offline.source)"
    )
    epochs: int = setting(30, "passes over the training tasks", low=1)
    tasks_per_batch: int = setting(32, "groups that are rolled out with one policy", low=1)
    tasks_per_update: int = setting(32, "groups that one optimiser step averages over", low=1)
    curriculum: Literal["none", "middle", "easy_first"] = setting(
        "none", "by screening counts: tasks of middle difficulty more often, or easy tasks in early passes"
    )
    dynamic_sampling: bool = setting(False, "DS-GRPO: replace groups without signal by fresh ones")
    dynamic_attempts: int = setting(4, "at most this many rounds of extra groups a batch", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    clip_low: float = setting(0.2, "the ratio is clipped below 1 - this", low=0, below=1)
    clip_high: float = setting(0.3, "the ratio is clipped above 1 + this", low=0)
    aggregation: Literal["sequence", "token", "constant"] = setting(
        "sequence", "mean over each trajectory's tokens, over all tokens (DAPO), or a constant (Dr. GRPO)"
    )
    denominator: Literal["all", "live"] = setting(
        "all", "groups that an update averages over: all, or live: those that have signal"
    )
    advantage: Literal["grpo", "mean", "rloo"] = setting(
        "grpo",
        "rewards less their group's mean (mean), also divided by its spread (grpo); less the others' (rloo)",
    )
    ratio: Literal["recompute", "behaviour", "truncated"] = setting(
        "recompute",
        "of fresh tokens: to the policy before the update (recompute), to the one that sampled them "
        "(behaviour), or to the former, weighted by how far both are apart (truncated)",
    )
    format_weight: float = setting(1.0, "of the penalty for an answer outside the action language", low=0)
    kl: float = setting(0.0, "weight of the k3 KL term against the base model", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    enabled: bool = setting(True, "a group of failures gets a stored success of its task; false: plain GRPO")
    capacity: int = setting(8, "successes kept for each task, first in first out", low=1)
    threshold: float = setting(0.5, "a score from here on is a success", above=0, high=1)
    rare: float = setting(
        0.25, "a group with at most this share of successes is rescued; 0: only if all failed", low=0, below=1
    )
    injections: int = setting(1, "stored successes that a rescued group gets at most", low=1)
    victim: Literal["random", "longest", "shortest"] = setting(
        "random", "which failed episode of the group gives way"
    )
    pick: Literal["random", "newest", "shortest"] = setting("random", "which stored success takes its place")
    max_age: int = setting(0, "successes older than so many versions are forgotten; 0: never", low=0)
    ratio: Literal["recompute", "behaviour", "truncated"] = setting(
        "recompute", "of replayed tokens, as loss.ratio of fresh ones"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig:
    source: str = setting("", "a folder of stored episodes: `arpo collect` wrote it, or a run")
    passes: int = setting(4, "over what the method makes of them", low=1)
    batch: int = setting(64, "trajectories of one update; of DPO, half as many pairs", low=2)
    pairs: int = setting(8, "DPO: of a success and a failure of one task, at most, in one pass", low=1)
    beta: float = setting(0.1, "DPO and KTO: how closely the base model is kept to", above=0)
    length: Literal["sum", "mean"] = setting(
        "sum", "DPO and KTO: a trajectory's log-probability, over its sampled tokens"
    )
    desirable: float = setting(1.0, "KTO: weight of all successes together, however many", low=0)
    undesirable: float = setting(1.0, "KTO: weight of all failures together, however many", low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    lr: float = setting(2e-4, "AdamW's learning rate", above=0)
    weight_decay: float = setting(0.01, "AdamW's weight decay", low=0)
    beta1: float = setting(0.9, "AdamW's", low=0, below=1)
    beta2: float = setting(0.99, "AdamW's", low=0, below=1)
    moments: Literal["float32", "bfloat16"] = setting("float32", "of AdamW's two moments")
    rounding: Literal["stochastic", "nearest"] = setting(
        "stochastic", "of bfloat16 weights and moments; nearest loses updates below 1/256 of a weight"
    )
    grad_norm: float = setting(1.0, "gradients are clipped to this norm", above=0)
    warmup_updates: int = setting(2, "the learning rate rises over this many updates", low=0)
    tokens_per_microbatch: int = setting(
        4096, "packed together; changes memory and speed, the gradient by rounding alone", low=1
    )
    ranks: int = setting(
        1, "processes that share weights and samples among them, each with a GPU of its own", low=1
    )
    rank_seconds: float = setting(600.0, "ranks that wait longer than this for another one fail", above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    every: int = setting(10, "batches between evaluations; 0: only before and after", low=0)
    temperature: float = setting(0.6, "of sampling in evaluation; 0: the likeliest token", low=0)
    rollouts: int = setting(4, "per training task", low=1)
    heldout_rollouts: int = setting(1, "per held-out task", low=1)
    overall_rollouts: int = setting(1, "per task of tasks.overall", low=1)
    tasks: str = setting(
        "evaluation_examples/test_all.json", "what `arpo eval osworld` plays, as tasks.train"
    )
    results: str = setting("results", "the folder in which `arpo eval osworld` writes OSWorld's layout")
    trials: str = setting("0", "its trials by name, separated by commas; in each, every task is played once")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    endpoints: str = setting(
        "http://127.0.0.1:8000/v1",
        "OpenAI-compatible servers of one model, separated by commas; 9000-9007 as port: one on each",
    )
    model: str = setting("ui-tars", "the name under which they serve it")
    top_p: float = setting(1.0, "only the likeliest tokens that together weigh so much", above=0, high=1)
    frequency_penalty: float = setting(0.0, "for repeated tokens; OSWorld's own agent has 1", low=-2, high=2)
    stop: str = setting("", "an answer ends at this text; empty: where the model ends it")
    special_tokens: bool = setting(
        True, "ask for <|box_start|> and such in answers; OpenAI itself refuses to"
    )
    seconds: float = setting(300.0, "a request that takes longer has failed", above=0)
    attempts: int = setting(8, "tries of one request, with growing pauses, over all servers", low=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenConfig:
    rollouts: int = setting(16, "of model.path, per task; a task with at least one success is kept", low=1)
    drop_always: bool = setting(False, "leave out also the tasks that were solved every time")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    checkpoint_every: int = setting(1, "batches from one checkpoint to the next", low=1)
    keep_checkpoints: int = setting(2, "older ones are removed", low=1)
    prune_every: int = setting(
        0, "batches after which screenshots that replay does not need are freed; 0: all are kept", low=0
    )
    tensorboard: bool = setting(True, "write TensorBoard files into the run folder")
    wandb_project: str = setting("", "Weights & Biases project; empty: off")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    steps: int = setting(1500, "updates of the base model's supervised training", low=1)
    tokens_per_step: int = setting(65536, "padded tokens of one update", low=1024)
    lr: float = setting(1.5e-3, "highest learning rate, after warm-up", above=0)
    warmup: int = setting(200, "updates over which the learning rate rises", low=1)
    hidden: int = setting(128, "width of the text model", low=32)
    vision_hidden: int = setting(128, "width of the vision tower", low=32)
    workers: int = setting(0, "processes that make lessons; 0: one less than there are cores", low=0)
    minutes: float = setting(0.0, "stop after so long, to go on later with the same command; 0: never", low=0)


# Beginnings of settings' names: of those that change nothing in what a run finds, and of those that change
# nothing in what a model plays.
INCIDENTAL = (
    "run.dir",
    "run.threads",
    "store.",
    "offline.source",
    "model.features_megabytes",
    "optim.rank",
    "env.hosts",
    "env.listen",
)
LEARNING = ("train.", "loss.", "replay.", "offline.", "optim.", "eval.", "screen.", "pretrain.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    tasks: TasksConfig = field(default_factory=TasksConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    osworld: OSWorldConfig = field(default_factory=OSWorldConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    screen: ScreenConfig = field(default_factory=ScreenConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)

    def __post_init__(self) -> None:
        for section in fields(self):
            _check_ranges(section.name, getattr(self, section.name))
        if not self.run.dir:
            raise BadSetting("run.dir", "is empty, must name the folder that the run writes into")
        _check_combinations(self)

    @property
    def compares_with_base(self) -> bool:
        """Whether the base model is needed beside the one that is trained."""
        return self.loss.kl > 0 or self.train.method in ("dpo", "kto")


def _check_ranges(section: str, settings: Any) -> None:
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise BadSetting(f"{section}.{entry.name}", f"is {value}, must be a finite number")
        for relation, bound in entry.metadata["bounds"].items():
            if bound is not None and not _holds(value, relation, bound):
                raise BadSetting(f"{section}.{entry.name}", f"is {value}, must be {relation} {bound:g}")


def _holds(value: float, relation: str, bound: float) -> bool:
    return {">=": value >= bound, ">": value > bound, "<=": value <= bound, "<": value < bound}[relation]


def _check_offline(config: Config) -> None:
    """What is for runs that play their own episodes, and would do nothing or harm without them."""
    without = f"with train.method = {config.train.method}"
    if config.loss.ratio != "recompute":
        raise BadSetting(
            "loss.ratio", f"is {config.loss.ratio}, must be recompute {without}: it has no ratio"
        )
    if config.loss.kl:
        raise BadSetting(
            "loss.kl",
            f"is {config.loss.kl}, must be 0 {without}: the term is estimated from answers of the policy "
            "itself, and stored ones are not",
        )
    if config.train.curriculum != "none":
        raise BadSetting(
            "train.curriculum",
            f"is {config.train.curriculum}, must be none {without}: it says which tasks to play",
        )
    if config.train.dynamic_sampling:
        raise BadSetting("train.dynamic_sampling", f"must be false {without}: it says which tasks to play")


def _check_combinations(config: Config) -> None:
    """What each setting allows alone but not together."""
    train, rollout, tasks = config.train, config.rollout, config.tasks
    if train.tasks_per_batch % train.tasks_per_update:
        raise BadSetting(
            "train.tasks_per_update",
            f"is {train.tasks_per_update}, must divide train.tasks_per_batch ({train.tasks_per_batch}): "
            "a group is never split across updates",
        )
    if tasks.train == tasks.heldout:
        raise BadSetting("tasks.heldout", f"is tasks.train ({tasks.train!r}), held-out tasks must be others")
    if train.method != "online":
        _check_offline(config)
    if config.model.min_pixels > config.model.max_pixels:
        raise BadSetting(
            "model.min_pixels",
            f"is {config.model.min_pixels}, must be <= model.max_pixels ({config.model.max_pixels})",
        )
    if rollout.max_answer_tokens >= rollout.max_context_tokens:
        raise BadSetting(
            "rollout.max_answer_tokens",
            f"is {rollout.max_answer_tokens}, must leave room for the prompt in "
            f"rollout.max_context_tokens ({rollout.max_context_tokens})",
        )
    if config.env.partial and config.env.name != "desk":
        raise BadSetting(
            "env.partial", f"is {config.env.partial}, but only desk knows part of the way: set 0"
        )
    if config.env.partial > config.replay.threshold:
        raise BadSetting(
            "env.partial",
            f"is {config.env.partial}, must be <= replay.threshold ({config.replay.threshold}): "
            "an unfinished goal is no success",
        )
    if train.dynamic_sampling and config.replay.enabled:
        raise BadSetting(
            "train.dynamic_sampling",
            "replaces the groups that replay would rescue; set replay.enabled = false to use it",
        )
