"""Every setting, by section, with its default, help text and range. No other module defines a default.

`Config` puts the sections together. `config/checks.py` checks values that depend on each other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Literal

from arpo.types import MAX_SCREEN_SIDE

LARGEST = 1_000_000_000


class OnResume(Enum):
    """Whether a setting may change when a run resumes, as `arpo train --help-keys` shows it.

    FREE keys (place, speed, memory, output) change results by rounding at most. REMEDY keys (patience,
    alarms, limits of faults) decide what happens in a fault. FIXED keys decide what is learned.
    """

    FIXED = ""
    FREE = "may change on resume"
    REMEDY = "may change on resume, as a remedy"
    LOWER = "may be lowered on resume"
    LENGTH = "may change on resume with a constant learning rate"
    UNJUDGED = "may change on resume without reward.judge"


# Of a judge, per episode: in training, and by default in `arpo judge`.
JUDGE_VOTES, JUDGE_SCREENSHOTS = 3, 6


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    on_resume: OnResume = OnResume.FIXED,
) -> Any:
    """A config key. Range: low <= value, above < value, value <= high, value < below.

    A number without an upper limit is at most LARGEST. Numbers of threads, environments or episodes have a
    smaller limit. A key that stays FIXED needs a reason in `config/changes.py`.
    """
    bounds = {">=": low, ">": above, "<=": high, "<": below}
    return field(default=default, metadata={"help": help, "bounds": bounds, "on_resume": on_resume})


free = partial(setting, on_resume=OnResume.FREE)
remedy = partial(setting, on_resume=OnResume.REMEDY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Output directory, random seed, threads."""

    dir: str = free("runs/desk", "Output directory; the same command resumes the run in it")
    seed: int = setting(0, "Random seed of the whole run", low=0, high=2**32 - 1)
    threads: int = free(0, "Number of torch threads; 0: one per core", low=0, high=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Model, precision, trained parameters, prompt and image size."""

    path: str = setting(
        "base",
        'Model: a Hugging Face directory, "base" (the shipped tiny model), or a model of the hub: '
        '"ORG/NAME" or "ORG/NAME@REVISION"',
    )
    dtype: Literal["float32", "bfloat16"] = setting("float32", "Data type of the weights")
    float32_head: bool = remedy(
        False, "Logits in float32 although the weights are bfloat16: less rounding, slower decoding"
    )
    device: Literal["auto", "cpu", "cuda"] = free("auto", "Device; auto: a GPU if there is one")
    weights: Literal["load", "random"] = setting(
        "load",
        "Source of the weights: load (from model.path), random (for benchmarks; needs only config.json)",
    )
    train: Literal["all", "language", "lora"] = setting(
        "all",
        "Trained parameters: all, language (the vision tower is frozen), lora (adapters on the language and "
        "merger layers)",
    )
    lora_rank: int = setting(32, "Rank of the LoRA adapters", low=1, high=4096)
    prompt: str = setting(
        "auto",
        'Prompt template: "desk", a text file, package.module:ATTRIBUTE, or auto (the published text of the '
        "dialect; UI-TARS: desk)",
    )
    min_pixels: int = setting(3136, "Minimum image size (width x height); smaller ones grow", low=784)
    max_pixels: int = setting(2116800, "Maximum image size (width x height); larger ones shrink", low=784)
    dialect: str = setting(
        "auto",
        "Dialect of the model's answers (docs/models.md), such as qwen3_vl; auto: by name and type of the "
        "model; module:NAME: your own",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksConfig:
    """Tasks for training and evaluation."""

    train: str = setting(
        "desk:32",
        'Training tasks: "desk:NAME" or "osworld:NAME" (shipped), a task file, a folder as in OSWorld, or '
        '"desk:fresh" (a new task for every group)',
    )
    heldout: str = setting(
        "desk:heldout",
        "Held-out tasks: evaluated, never trained on; several sources separated by commas, each with its own "
        'success rate; "desk:validation", "desk:test" or "desk:quick": new instances, goal families and '
        "applications of Desk; empty: none",
    )
    overall: str = setting(
        "", "Tasks evaluated before and after training; may contain training tasks; empty: none"
    )
    examples: str = setting(
        "", "Folder of the task files that a list {domain: [id, …]} names; empty: examples/ next to the list"
    )
    domains: str = setting("", "Domains to use, separated by commas; empty: all")
    ids: str = setting("", 'Task ids to use, such as "pool-018,pool-019"; empty: all')
    families: str = setting(
        "", "Goal families of desk:fresh, separated by commas; empty: all except those held out"
    )
    goals: str = setting(
        "1,2",
        'Numbers of goals of the tasks of desk:fresh, separated by commas and drawn equally often; "1,1,2": '
        "two of three tasks have one goal",
    )
    distinct: int = setting(
        0, "Number of different tasks of desk:fresh; 0: every group plays a new one", low=0, high=10_000_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """Environment, timeouts, environment hosts."""

    name: str = setting(
        "desk",
        'Environment: "desk", "osworld", "browser", "gymnasium:ID", "browsergym:ID", "openenv:URL#FILE", or '
        "module:Class (your own)",
    )
    hosts: str = free(
        "", "Addresses of environment hosts (`arpo env-host`), separated by commas; empty: run them locally"
    )
    width: int = setting(
        224, "Screen width (pixels) of desk, osworld and browser", low=28, high=MAX_SCREEN_SIDE
    )
    height: int = setting(168, "Screen height (pixels) of desk and osworld", low=28, high=MAX_SCREEN_SIDE)
    parallel: int = free(32, "Number of parallel environments", low=1, high=4096)
    start_seconds: float = remedy(60.0, "Timeout (seconds) for starting an environment", above=0)
    step_seconds: float = remedy(60.0, "Timeout (seconds) for one step", above=0)
    evaluate_seconds: float = remedy(60.0, "Timeout (seconds) for scoring the final state", above=0)
    attempts: int = remedy(3, "Attempts per episode, each in a new environment", low=1, high=1000)
    partial: float = setting(
        0.0,
        "Desk only: maximum partial credit for an unfinished task, during training; 0: none",
        low=0,
        below=1,
    )
    quarantine_after: int = remedy(
        3, "Consecutive failures of a task before it is set aside; concurrent ones count once", low=1
    )
    outage_seconds: float = free(
        3600.0, "Timeout (seconds) of a pause while no environment, or no vLLM server, works", low=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OSWorldConfig:
    """Real desktops (env.name = "osworld")."""

    provider: str = setting(
        "local",
        'Provider of desktops: "local" (a sandbox on this machine), "docker" or another of desktop-env',
    )
    python: str = free(
        ".venv-osworld/bin/python", "Python interpreter with desktop-env installed (`arpo osworld install`)"
    )
    cache: str = free("osworld-cache", "Folder of the files that `arpo osworld fetch-cache` downloads")
    network: str = setting(
        "off", 'Network access of the desktops: "off", "on", or a file with the ids of tasks with access'
    )
    pause: float = setting(
        2.0, "Pause (seconds) between an action and its screenshot, on virtual machines", low=0
    )
    memory_megabytes: int = remedy(
        4096, "Memory (MiB) of one local desktop, its disk space included", low=512
    )
    cpus: float = remedy(4.0, "Maximum number of CPU cores that one local desktop keeps busy", above=0)
    machine: str = setting("", "Path or id of the virtual machine, for providers that need it")
    region: str = free("", "Region of a cloud provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserConfig:
    """Web applications in Chromium (env.name = "browser")."""

    program: str = free("", "File of Chromium or Chrome; empty: the one that is installed")
    scale: float = setting(
        1.0,
        "Pixels of a screenshot per CSS pixel of a page: 2 is a screen of high resolution",
        low=0.25,
        high=8,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumConfig:
    """Environments of other people (env.name = "gymnasium:ID" or "browsergym:ID")."""

    python: str = free(
        "",
        "Python interpreter that has the environment; empty: .venv-browsergym/bin/python for browsergym, "
        "otherwise the one of this command",
    )
    actions: str = setting(
        "",
        "Function module:name that converts an action for the environment of gymnasium:ID; empty: a click is "
        "a pixel",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Inference engine. All keys after cache_gigabytes are for vllm."""

    name: Literal["auto", "in_process", "vllm", "openai", "person"] = free(
        "auto",
        "Engine: in_process (the model of model.path), vllm (vLLM servers), openai (the servers of "
        "server.endpoints; for evaluation, and as a teacher in `arpo collect`), person (you, on a page; in "
        "`arpo collect`), auto (openai for `arpo eval osworld`, otherwise in_process)",
    )
    cache_gigabytes: float = free(
        0.0,
        "Memory (GiB) for the keys and values of running episodes; 0: the free memory of the GPU (vLLM on a "
        "CPU: 1)",
        low=0,
    )
    replicas: int = free(
        0,
        "Number of vLLM servers that a command starts and ends itself; 0: it uses engine.endpoints",
        low=0,
        high=1024,
    )
    endpoints: str = free(
        "http://127.0.0.1:9000",
        "URLs of vLLM servers of `arpo serve`, separated by commas; a port range such as 9000-9007 means one "
        "server per port",
    )
    gpus: str = free(
        "",
        "GPUs of the servers to start, such as 1-7; 0,0 means two servers on GPU 0; empty: those that no "
        "learner uses",
    )
    gpus_per_server: int = free(1, "GPUs of one server, which splits each layer between them", low=1, high=64)
    port: int = free(9000, "Port of the first server to start", low=1024, high=65_535)
    python: str = free(
        "", "Python interpreter that has vLLM; empty: the one of this command, or .venv-vllm/bin/python"
    )
    weights: str = free(
        "",
        "Folder for new weights, readable by all servers; empty: shared memory (/dev/shm) if it has space, "
        "otherwise, and on a cluster, the run folder",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """Episodes: group size, limits, sampling."""

    group_size: int = setting(
        2, "Episodes per group: rollouts of one task, compared with each other", low=2, high=1024
    )
    max_steps: int = setting(15, "Maximum number of answers in one episode", low=1, high=10_000)
    max_images: int = setting(
        15, "Maximum number of screenshots in the prompt; the newest stay", low=1, high=10_000
    )
    history: Literal["auto", "answers", "text", "blocks"] = setting(
        "auto",
        "What stays of older steps: their answers; text: one line each; blocks: as text, but half of the "
        "screenshots leave at once, so that more of the prompt is cached; auto: as the model's dialect",
    )
    max_answer_tokens: int = setting(
        64,
        "Maximum length (tokens) of one answer; a longer one is cut and ends the episode",
        low=1,
        high=16_777_216,
    )
    alternatives: int = free(
        0,
        "Number of other likely tokens stored with each sampled one, for `arpo view`; about 25 bytes each",
        low=0,
        high=15,
    )
    max_context_tokens: int = setting(
        4096, "Maximum length (tokens) of prompt and answer together", low=1, high=16_777_216
    )
    temperature: float = setting(1.0, "Sampling temperature during training", above=0)
    agent: str = setting(
        "",
        "Command of your own agent program (docs/agent.md), such as 'python my_agent.py'; --agent for short; "
        "empty: the built-in loop",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """OpenAI-compatible servers, for engine.name = "openai"."""

    endpoints: str = free(
        "http://127.0.0.1:8000/v1",
        "URLs of OpenAI-compatible servers of one model, separated by commas; a port range such as 9000-9007 "
        "means one server per port",
    )
    model: str = setting("ui-tars", "Name of the model on the servers", on_resume=OnResume.UNJUDGED)
    top_p: float = free(
        1.0, "Nucleus sampling: total probability of the tokens to sample from", above=0, high=1
    )
    frequency_penalty: float = free(
        0.0, "Penalty for repeated tokens; the agent in OSWorld's repository uses 1", low=-2, high=2
    )
    special_tokens: bool = free(
        True, "Special tokens such as <|box_start|> in the answers; false for servers that reject the option"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Ray cluster: placement of vLLM servers, environment hosts and learner ranks."""

    ray: str = free(
        "",
        "Ray cluster: auto (the one of this machine, or of RAY_ADDRESS) or an address such as 10.0.0.1:6379; "
        "empty: everything runs on this machine",
    )
    hosts: int = free(
        0,
        "Number of environment hosts on the cluster, each with an equal share of env.parallel; 0: the "
        "environments run as without a cluster",
        low=0,
        high=4096,
    )
    host_nodes: str = free(
        "", "Custom resource of the nodes for environment hosts, such as desktops; empty: all nodes"
    )
    replica_nodes: str = free("", "Custom resource of the nodes for vLLM servers; empty: all nodes")
    wait_seconds: float = free(
        60.0,
        "Timeout (seconds) of the wait for free resources at the start; longer if the cluster adds nodes on "
        "demand",
        low=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """Training method, batches, epochs."""

    method: Literal["online", "rft", "sft", "dpo", "kto"] = setting(
        "online",
        "Training method: online (GRPO and its variants), or offline from stored episodes (offline.source): "
        "rft, sft (the same loss, on successes of a teacher), dpo, kto",
    )
    epochs: int = setting(
        30, "Passes over the training tasks", low=1, high=1_000_000, on_resume=OnResume.LENGTH
    )
    tasks: int = setting(
        0,
        "Number of tasks (groups) to play in all, instead of train.epochs; 0: train.epochs decides. Needed "
        "for desk:fresh without tasks.distinct",
        low=0,
        on_resume=OnResume.LENGTH,
    )
    tasks_per_batch: int = setting(
        32, "Tasks (groups) per batch; all are played with the same policy", low=1, high=65_536
    )
    tasks_per_update: int = setting(32, "Tasks (groups) per optimiser step", low=1, high=65_536)
    curriculum: Literal["none", "middle"] = setting(
        "none",
        "Order of tasks: none (shuffled) or middle (by the counts of `arpo screen`, medium difficulty more "
        "often)",
    )
    dynamic_sampling: bool = setting(
        False, "Dynamic sampling (DS-GRPO): replaces groups with equal rewards by new groups"
    )
    max_staleness: int = setting(
        0,
        "Maximum age (policy versions) of trained tokens, for asynchronous training; 0: lock step, rollouts "
        "wait for the learner",
        low=0,
        high=1000,
        on_resume=OnResume.LOWER,
    )
    engine_kl_alarm: float = remedy(
        0.0,
        "Alarm threshold of engine_kl, the KL divergence between engine and learner; 0: 2% of "
        'engine_surprise, with model.dtype = "float32" 0.00001',
        low=0,
    )
    engine_kl_skip: bool = remedy(
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
    advantage: Literal["grpo", "grpo_sample", "mean", "rloo"] = setting(
        "grpo",
        "Advantage: grpo (reward - group mean, divided by the standard deviation; grpo_sample: the sample "
        "deviation), mean (reward - group mean, Dr. GRPO), rloo (reward - mean of the other episodes)",
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
    teacher: float = setting(
        0.0,
        "Weight of the teacher's loss, added to each update: the mean of -log p over the tokens of as many "
        "random episodes of replay.seeds as the update has tasks; 0: off",
        low=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardConfig:
    """Score of a training episode. loss.format_weight and plugins.reward make the reward of it."""

    judge: float = setting(
        0.0,
        "Weight w of a judge, the model of server.model on server.endpoints: score = (1 - w) * evaluator + w "
        "* verdict, or the verdict alone for a task without an evaluator; 0: no judge",
        low=0,
        high=1,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Replay of stored successes."""

    enabled: bool = setting(True, "Replay: a group of failures receives a stored success; false: plain GRPO")
    capacity: int = setting(8, "Stored successes per task; the oldest is dropped first", low=1, high=100_000)
    threshold: float = setting(0.5, "Minimum score of a success", above=0, high=1)
    rare: float = setting(
        0.25,
        "Maximum share of successes in a group that receives a stored one; 0: only all-failed groups",
        low=0,
        below=1,
    )
    ratio: Literal["recompute", "behaviour", "truncated"] = setting(
        "recompute", "Denominator of the probability ratio for replayed tokens; values as in loss.ratio"
    )
    seeds: str = setting(
        "", "Folder with successes that are stored at the start, of `arpo collect` (a teacher) or of a run"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig:
    """Offline training: rft, sft, dpo, kto."""

    source: str = free("", "Folder with stored episodes, of `arpo collect` or of a run")
    passes: int = setting(4, "Epochs over the offline data", low=1, high=100_000, on_resume=OnResume.LENGTH)
    batch: int = setting(64, "Trajectories per update; DPO: batch / 2 pairs", low=2, high=1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """Optimiser, micro-batches, ranks."""

    lr: float = setting(2e-4, "Learning rate (AdamW)", above=0)
    weight_decay: float = setting(0.01, "Weight decay (AdamW)", low=0)
    beta2: float = setting(0.99, "Decay rate of the second moment (AdamW)", low=0, below=1)
    moments: Literal["float32", "bfloat16"] = setting(
        "float32", "Data type of both moments (AdamW); bfloat16 is rounded stochastically"
    )
    grad_norm: float = setting(1.0, "Maximum gradient norm; larger gradients are clipped", above=0)
    warmup_updates: int = setting(2, "Updates of linear learning-rate warm-up; 0: none", low=0)
    schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "Learning rate after the warm-up: constant, or a decay to 0 at the end of training"
    )
    tokens_per_microbatch: int = free(
        4096,
        "Maximum tokens per micro-batch; changes memory and speed, not the gradient (except rounding)",
        low=1,
    )
    ranks: int = free(1, "Processes that shard weights and samples, one GPU each", low=1, high=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Evaluation."""

    every: int = remedy(10, "Batches between evaluations; 0: only before and after training", low=0)
    temperature: float = setting(0.6, "Sampling temperature in evaluation; 0: greedy", low=0)
    rollouts: int = setting(
        4, "Episodes per training task; 0: training tasks are not evaluated", low=0, high=10_000
    )
    heldout_rollouts: int = setting(1, "Episodes per held-out task", low=1, high=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Checkpoints, stored screenshots, metric trackers."""

    checkpoint_every: int = free(1, "Batches between checkpoints", low=1)
    keep_checkpoints: int = free(2, "Number of checkpoints to keep; older ones are deleted", low=1)
    prune_every: int = free(
        0, "Batches between deletions of screenshots that replay does not need; 0: keep all", low=0
    )
    token_stats: bool = free(
        False,
        "Entropy, ratio and clipping of each trained token in token_stats.jsonl, for `arpo view`; about 16 "
        "bytes a token and 110 an answer",
    )
    tensorboard: bool = free(True, "TensorBoard files in the run folder")
    wandb_project: str = free(
        "",
        "Weights & Biases project; empty: off. WANDB_ENTITY, WANDB_NAME and WANDB_TAGS of the process "
        "environment give the team, the name and the tags of the run",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginsConfig:
    """Functions of your own, as module:function; empty: the built-in ones (docs/python.md)."""

    reward: str = setting("", "Reward of an episode: function of (trajectory, task)")
    advantage: str = setting("", "Advantages of a group: function of (rewards, group)")
    curriculum: str = setting(
        "", "Order of the tasks in an epoch: function of (tasks, epoch, history, random generator)"
    )
    tracker: str = free("", "Additional metric tracker: class or function of (config)")
    callback: str = free("", "Function called after each batch with (batch, metrics, groups)")
