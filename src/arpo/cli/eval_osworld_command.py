"""`arpo eval osworld`, with the flags of OSWorld's runners and of the published evaluation.

Every flag has the meaning of the original. It may be written with underscores or with dashes. A flag is
rejected if this agent cannot do it, and prints a note if it has no effect. The recipe defines all defaults.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from arpo.cli.command import Command, argument, recipe_argument
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.errors import UserError

PUBLISHED_PORTS = "9000-9007"  # eight servers, one per GPU, as in the published evaluation
TASKS, RESULTS, TRIAL = "evaluation_examples/test_all.json", "results", "0"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Flag(NamedTuple):
    """One flag: Flag("--num-envs", "N", "env.parallel", "number of parallel environments")."""

    name: str  # with dashes
    metavar: str
    setting: str  # config key for the unchanged value; "": see `overrides` and `notes`
    help: str
    repeated: bool = False
    also: str = ""  # second name of the flag

    @property
    def spellings(self) -> str:
        words = [self.name, *([self.also] if self.also else [])]
        return " ".join(dict.fromkeys(spelling for word in words for spelling in (word, _underscored(word))))

    @property
    def key(self) -> str:
        return _underscored(self.name).removeprefix("--")


def _underscored(flag: str) -> str:
    return "--" + flag.removeprefix("--").replace("-", "_")


FLAGS = (
    Flag(
        "--endpoint",
        "URL",
        "server.endpoints",
        "URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; repeat for more servers",
        repeated=True,
    ),
    Flag(
        "--server-ip",
        "HOST",
        "",
        f"host with eight servers on the ports {PUBLISHED_PORTS}, instead of --endpoint",
    ),
    Flag("--model", "NAME", "server.model", "name of the model on the servers"),
    Flag("--num-envs", "N", "env.parallel", "number of parallel environments"),
    Flag("--max-steps", "N", "rollout.max_steps", "maximum answers per episode"),
    Flag("--max-trajectory-length", "N", "rollout.max_images", "maximum screenshots in the prompt"),
    Flag("--temperature", "T", "eval.temperature", "sampling temperature"),
    Flag("--top-p", "P", "server.top_p", "nucleus sampling"),
    Flag("--max-tokens", "N", "rollout.max_answer_tokens", "maximum tokens per answer"),
    Flag(
        "--tasks",
        "FILE",
        "",
        f"task list {{domain: [id, …]}} as in OSWorld, or any other source of tasks (default: {TASKS})",
        also="--test-all-meta-path",
    ),
    Flag(
        "--test-config-base-dir",
        "DIR",
        "",
        "folder that contains examples/ (default: the folder of the task list)",
    ),
    Flag("--domain", "NAME", "", "domain to evaluate; all: every domain"),
    Flag("--result-dir", "DIR", "", f"output directory (default: {RESULTS})"),
    Flag(
        "--trial-id",
        "ID",
        "",
        f"name of a trial, which plays every task once; repeat for more trials (default: {TRIAL})",
        repeated=True,
    ),
    Flag("--env", "NAME", "env.name", 'environment: "osworld", "desk", module:Class'),
    Flag(
        "--provider-name",
        "NAME",
        "osworld.provider",
        'provider of desktops: "local", "docker" or another of desktop-env',
    ),
    Flag("--path-to-vm", "PATH", "osworld.machine", "path or id of the virtual machine"),
    Flag("--region", "NAME", "osworld.region", "region of a cloud provider"),
    Flag("--screen-width", "PIXELS", "env.width", "screen width"),
    Flag("--screen-height", "PIXELS", "env.height", "screen height"),
    Flag(
        "--sleep-after-execution",
        "SECONDS",
        "osworld.pause",
        "pause between an action and its screenshot, on virtual machines",
    ),
    Flag("--observation-type", "TYPE", "", "must be screenshot"),
    Flag("--action-space", "NAME", "", "must be pyautogui"),
    Flag("--client-password", "TEXT", "", "no effect: desktop-env's own password is used"),
    Flag("--log-level", "LEVEL", "", "no effect: there is one log level"),
)


def arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments for argparse: spellings of each flag, and keyword arguments of `add_argument`."""
    for flag in FLAGS:
        action = "append" if flag.repeated else "store"
        yield argument(flag.spellings, flag.help, dest=flag.key, action=action, metavar=flag.metavar)
    yield argument("--headless", "no effect: no window is ever opened", action="store_true")


def flag_overrides(options: argparse.Namespace) -> list[str]:
    """Overrides of config keys for the given flags: --num-envs 8 becomes "--env.parallel=8"."""
    given = _given(options)
    _refuse(given)
    found = []
    for flag in FLAGS:
        if flag.setting and flag.key in given:
            value = given[flag.key]
            found.append(f"--{flag.setting}={','.join(value) if flag.repeated else value}")
    if host := given.get("server_ip"):
        address = host.rstrip("/") if "://" in host else f"http://{host}"
        found.append(f"--server.endpoints={address}:{PUBLISHED_PORTS}/v1")
    if folder := given.get("test_config_base_dir"):
        found.append(f"--tasks.examples={folder.rstrip('/')}/examples")
    if domain := given.get("domain"):
        found.append(f"--tasks.domains={'' if domain == 'all' else domain}")
    return found


def notes(options: argparse.Namespace, config: Config) -> list[str]:
    """One line for each given flag without effect in this config."""
    given = _given(options)
    virtual_machine = config.env.name == "osworld" and config.osworld.provider != "local"
    reasons = {
        "log_level": "there is one log level; failures are in failures.jsonl",
        "client_password": "desktop-env sets the password of the guest",
    }
    if not virtual_machine:
        reasons["sleep_after_execution"] = "only virtual machines use a fixed pause"
        reasons["path_to_vm"] = reasons["region"] = "it is for virtual machines"
    if config.engine.name == "in_process":
        for key in ("endpoint", "server_ip", "model", "top_p"):
            reasons[key] = 'it is for servers (engine.name = "openai")'
    flags = {flag.key: flag.name for flag in FLAGS}
    return [f"{flags[key]} has no effect: {reason}" for key, reason in reasons.items() if key in given]


def _given(options: argparse.Namespace) -> Mapping[str, Any]:
    return {flag.key: value for flag in FLAGS if (value := getattr(options, flag.key)) is not None}


def _refuse(given: Mapping[str, Any]) -> None:
    only = {
        "observation_type": ("screenshot", "this agent sees only screenshots"),
        "action_space": ("pyautogui", "this agent uses mouse and keyboard"),
    }
    for key, (value, reason) in only.items():
        if given.get(key, value) != value:
            raise UserError(f"--{key} {given[key]}: must be {value}: {reason}")
    if given.get("log_level", LEVELS[0]).upper() not in LEVELS:
        raise UserError(f"--log_level {given['log_level']}: must be one of {', '.join(LEVELS)}")
    if "endpoint" in given and "server_ip" in given:
        raise UserError("--endpoint and --server_ip: both name the servers; use one of them")


def run_eval_osworld(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, [*flag_overrides(options), *overrides])
    for note in notes(options, config):
        print(f"arpo: {note}", file=sys.stderr)
    from arpo.evaluation.osworld import run_osworld_evaluation

    given = _given(options)
    trials = given.get("trial_id", [TRIAL])
    return run_osworld_evaluation(config, given.get("tasks", TASKS), given.get("result_dir", RESULTS), trials)


COMMAND = Command(
    name="eval osworld",
    run=run_eval_osworld,
    purpose="evaluate a model on OSWorld tasks",
    lesson="""\
Plays every task once per trial, with a model behind OpenAI-compatible servers (--endpoint), or in this
process (--engine.name in_process --model.path FOLDER). Output files have the layout of OSWorld's runner:
  RESULT_DIR/pyautogui/screenshot/MODEL/TRIAL/DOMAIN/TASK/{result.txt, traj.jsonl, step_*.png}
OSWorld's own tools read a trial if you pass MODEL/TRIAL as the model name.
If it is interrupted, run the same command again: it skips tasks that have a result, and repeats episodes
that failed because of an environment or a server.
Prints success rates by domain with 95% confidence intervals, pass@k over all trials with the same settings,
failed episodes and skipped tasks. summary.json in the folder of the trials contains the same.
Exit code 1 if episodes failed. If the servers need an API key, set OPENAI_API_KEY in the environment.""",
    example="""\
arpo eval osworld --endpoint http://127.0.0.1:8000/v1 --model ui-tars --tasks osworld:train
arpo eval osworld --headless --observation_type screenshot --max_steps 15 --max_trajectory_length 15 \\
    --temperature 0.6 --model ui-tars --action_space pyautogui --num_envs 8 --result_dir ./results/ \\
    --test_all_meta_path ./evaluation_examples/test_all.json --trial-id 0 --server_ip http://127.0.0.1""",
    arguments=(recipe_argument("osworld_eval"), *arguments()),
    settings=True,
    resumable=True,
)
