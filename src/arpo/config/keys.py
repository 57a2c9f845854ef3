"""Config keys of playing episodes: model, tasks, environments, engine, rollouts.

`config/training_keys.py` has the keys of training. These two files define all defaults, help texts and
ranges. `config.py` puts the sections together and checks the values.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from arpo.types import MAX_SCREEN_SIDE

LARGEST = 1_000_000_000


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
) -> Any:
    """A config key. Range: low <= value, above < value, value <= high, value < below.

    An integer without an upper limit is at most LARGEST. Numbers of threads, environments or episodes have a
    smaller limit.
    """
    bounds = {">=": low, ">": above, "<=": high, "<": below}
    return field(default=default, metadata={"help": help, "bounds": bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Output directory, random seed, threads."""

    dir: str = setting("runs/desk", "Output directory; the same command resumes the run in it")
    seed: int = setting(0, "Random seed of the whole run", low=0, high=2**32 - 1)
    threads: int = setting(0, "Number of torch threads; 0: one per core", low=0, high=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Model, precision, trained parameters, prompt and image size."""

    path: str = setting(
        "base",
        'Model: a Hugging Face directory, "base" (the shipped tiny model), or a model of the hub: '
        '"ORG/NAME" or "ORG/NAME@REVISION"',
    )
    dtype: Literal["float32", "bfloat16"] = setting("float32", "Data type of the weights")
    float32_head: bool = setting(
        False, "Logits in float32 although the weights are bfloat16: less rounding, slower decoding"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "Device; auto: a GPU if there is one")
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
    lora_alpha: float = setting(64.0, "Scale of the LoRA adapters: lora_alpha / lora_rank", above=0)
    features_megabytes: int = setting(
        4096, "CPU memory (MiB) for caching vision features when the vision tower is frozen", low=0
    )
    prompt: str = setting("desk", 'Prompt template: "desk", a text file, or package.module:ATTRIBUTE')
    min_pixels: int = setting(3136, "Minimum image size (width x height); smaller ones grow", low=784)
    max_pixels: int = setting(2116800, "Maximum image size (width x height); larger ones shrink", low=784)
    coordinates: Literal["pixels", "thousandths"] = setting(
        "pixels",
        "Coordinates in the model's answers: pixels (of the resized image), thousandths (0 to 1000, as "
        "Qwen3-VL and UI-TARS before 1.5)",
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
        'success rate; "desk:validation" or "desk:test": new instances, goal families and applications of '
        "Desk; empty: none",
    )
    overall: str = setting(
        "", "Tasks evaluated before and after training; may contain training tasks; empty: none"
    )
    examples: str = setting(
        "", "Folder of the task files that a list {domain: [id, …]} names; empty: examples/ next to the list"
    )
    domains: str = setting("", "Domains to use, separated by commas; empty: all")
    ids: str = setting("", "Task ids to use, separated by commas; empty: all")
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

    name: str = setting("desk", 'Environment: "desk", "osworld", or module:Class (your own)')
    hosts: str = setting(
        "", "Addresses of environment hosts (`arpo env-host`), separated by commas; empty: run them locally"
    )
    width: int = setting(224, "Screen width (pixels) of desk and osworld", low=28, high=MAX_SCREEN_SIDE)
    height: int = setting(168, "Screen height (pixels) of desk and osworld", low=28, high=MAX_SCREEN_SIDE)
    parallel: int = setting(32, "Number of parallel environments", low=1, high=4096)
    start_seconds: float = setting(
        60.0, "Timeout (seconds) for starting an environment", above=0, high=LARGEST
    )
    step_seconds: float = setting(60.0, "Timeout (seconds) for one step", above=0, high=LARGEST)
    evaluate_seconds: float = setting(
        60.0, "Timeout (seconds) for scoring the final state", above=0, high=LARGEST
    )
    attempts: int = setting(3, "Attempts per episode, each in a new environment", low=1, high=1000)
    partial: float = setting(
        0.0,
        "Desk only: maximum partial credit for an unfinished task, during training; 0: none",
        low=0,
        below=1,
    )
    quarantine_after: int = setting(
        3, "Consecutive failures of a task before it is set aside; concurrent ones count once", low=1
    )
    quarantine_batches: int = setting(
        4, "Batches before a task set aside gets another trial; doubles after each failed trial", low=1
    )
    outage_seconds: float = setting(
        3600.0, "Timeout (seconds) of a pause while no environment works", low=0, high=LARGEST
    )
    listen: str = setting(
        "127.0.0.1:8700", "Address (HOST:PORT) of `arpo env-host`; beyond this machine it requires a token"
    )
    lease_seconds: float = setting(
        900.0,
        "Timeout (seconds) after which a host ends an episode that receives no calls",
        above=0,
        high=LARGEST,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OSWorldConfig:
    """Real desktops (env.name = "osworld")."""

    provider: str = setting(
        "local",
        'Provider of desktops: "local" (a sandbox on this machine), "docker" or another of desktop-env',
    )
    python: str = setting(
        ".venv-osworld/bin/python", "Python interpreter with desktop-env installed (`arpo osworld install`)"
    )
    cache: str = setting("osworld-cache", "Folder of the files that `arpo osworld fetch-cache` downloads")
    network: str = setting(
        "off", 'Network access of the desktops: "off", "on", or a file with the ids of tasks with access'
    )
    downloads: int = setting(8, "Parallel downloads of `arpo osworld fetch-cache`", low=1, high=256)
    download_seconds: float = setting(
        60.0, "Timeout (seconds) for a download without progress", above=0, high=LARGEST
    )
    pause: float = setting(
        2.0, "Pause (seconds) between an action and its screenshot, on virtual machines", low=0, high=LARGEST
    )
    home_megabytes: int = setting(512, "Disk space (MiB) of one local desktop", low=64, high=1_048_576)
    memory_megabytes: int = setting(
        4096, "Memory (MiB) of one local desktop, its disk space included", low=512
    )
    processes: int = setting(2048, "Maximum number of processes and threads of one local desktop", low=256)
    cpus: float = setting(4.0, "Maximum number of CPU cores that one local desktop keeps busy", above=0)
    machine: str = setting("", "Path or id of the virtual machine, for providers that need it")
    region: str = setting("", "Region of a cloud provider")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Inference engine. All keys after cache_gigabytes are for vllm."""

    name: Literal["auto", "in_process", "vllm", "openai"] = setting(
        "auto",
        "Engine: in_process (the model of model.path), vllm (vLLM servers), openai (the servers of "
        "server.endpoints; evaluation only), auto (openai for `arpo eval osworld`, otherwise in_process)",
    )
    cache_gigabytes: float = setting(
        0.0,
        "Memory (GiB) for the keys and values of running episodes; 0: the free memory of the GPU (vLLM on a "
        "CPU: 1)",
        low=0,
        high=LARGEST,
    )
    replicas: int = setting(
        0,
        "Number of vLLM servers that a command starts and ends itself; 0: it uses engine.endpoints",
        low=0,
        high=1024,
    )
    endpoints: str = setting(
        "http://127.0.0.1:9000",
        "URLs of vLLM servers of `arpo serve`, separated by commas; a port range such as 9000-9007 means one "
        "server per port",
    )
    gpus: str = setting("", "GPUs of the servers to start, such as 1-7; empty: those that no learner uses")
    port: int = setting(9000, "Port of the first server to start", low=1024, high=65_535)
    python: str = setting(
        "", "Python interpreter that has vLLM; empty: the one of this command, or .venv-vllm/bin/python"
    )
    weights: str = setting(
        "",
        "Folder for new weights, readable by all servers; empty: shared memory (/dev/shm) if it has space, "
        "otherwise, and on a cluster, the run folder",
    )
    start_seconds: float = setting(900.0, "Timeout (seconds) for starting a server", above=0, high=LARGEST)
    seconds: float = setting(600.0, "Timeout (seconds) for one answer", above=0, high=LARGEST)
    load_seconds: float = setting(
        300.0, "Timeout (seconds) for loading new weights into a server", above=0, high=LARGEST
    )
    outage_seconds: float = setting(
        3600.0, "Timeout (seconds) of a pause while no server works", low=0, high=LARGEST
    )
    probe_gap: float = setting(
        0.2,
        "Maximum mean difference of the log-probabilities of server and learner after loading weights; in "
        "bfloat16 rounding alone gives some hundredths",
        above=0,
        high=LARGEST,
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
    max_answer_tokens: int = setting(
        64,
        "Maximum length (tokens) of one answer; a longer one is cut and ends the episode",
        low=1,
        high=16_777_216,
    )
    max_context_tokens: int = setting(
        4096, "Maximum length (tokens) of prompt and answer together", low=1, high=16_777_216
    )
    temperature: float = setting(1.0, "Sampling temperature during training", above=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """OpenAI-compatible servers, for engine.name = "openai"."""

    endpoints: str = setting(
        "http://127.0.0.1:8000/v1",
        "URLs of OpenAI-compatible servers of one model, separated by commas; a port range such as 9000-9007 "
        "means one server per port",
    )
    model: str = setting("ui-tars", "Name of the model on the servers")
    top_p: float = setting(
        1.0, "Nucleus sampling: total probability of the tokens to sample from", above=0, high=1
    )
    frequency_penalty: float = setting(
        0.0, "Penalty for repeated tokens; the agent in OSWorld's repository uses 1", low=-2, high=2
    )
    stop: str = setting("", "Stop text at which an answer ends; empty: none")
    special_tokens: bool = setting(
        True, "Special tokens such as <|box_start|> in the answers; false for servers that reject the option"
    )
    seconds: float = setting(300.0, "Timeout (seconds) for one request", above=0, high=LARGEST)
    attempts: int = setting(
        8, "Attempts per request, over all servers, with growing pauses", low=1, high=1000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """Ray cluster: placement of vLLM servers, environment hosts and learner ranks."""

    ray: str = setting(
        "",
        "Ray cluster: auto (the one of this machine, or of RAY_ADDRESS) or an address such as 10.0.0.1:6379; "
        "empty: everything runs on this machine",
    )
    hosts: int = setting(
        0,
        "Number of environment hosts on the cluster, each with an equal share of env.parallel; 0: the "
        "environments run as without a cluster",
        low=0,
        high=4096,
    )
    host_cpus: float = setting(1.0, "CPUs reserved for each environment host", above=0, high=4096)
    host_nodes: str = setting(
        "", "Custom resource of the nodes for environment hosts, such as desktops; empty: all nodes"
    )
    replica_cpus: float = setting(1.0, "CPUs reserved for each vLLM server", above=0, high=4096)
    replica_nodes: str = setting("", "Custom resource of the nodes for vLLM servers; empty: all nodes")
    rank_cpus: float = setting(1.0, "CPUs reserved for each learner rank", above=0, high=4096)
    rank_nodes: str = setting("", "Custom resource of the nodes for learner ranks; empty: all nodes")
    wait_seconds: float = setting(
        60.0,
        "Timeout (seconds) of the wait for free resources at the start; longer if the cluster adds nodes on "
        "demand",
        low=0,
        high=LARGEST,
    )
