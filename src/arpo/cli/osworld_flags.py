"""The flags of OSWorld's runners and of the published evaluation, mapped to config keys.

Every flag has the meaning of the original. It may be written with underscores or with dashes. A flag is
rejected if this agent cannot do it, and prints a note if it has no effect. The recipe defines all defaults.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arpo.config import Config
from arpo.errors import UserError

PUBLISHED_PORTS = "9000-9007"  # eight servers, one per GPU, as in the published evaluation
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag: Flag(name="--num-envs", metavar="N", help="…", setting="env.parallel")."""

    name: str  # with dashes
    metavar: str
    help: str
    setting: str = ""  # config key for the unchanged value
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
        name="--endpoint",
        metavar="URL",
        repeated=True,
        setting="server.endpoints",
        help="URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; repeat for more servers",
    ),
    Flag(
        name="--server-ip",
        metavar="HOST",
        help=f"host with eight servers on the ports {PUBLISHED_PORTS}, instead of --endpoint",
    ),
    Flag(name="--model", metavar="NAME", setting="server.model", help="name of the model on the servers"),
    Flag(name="--num-envs", metavar="N", setting="env.parallel", help="number of parallel environments"),
    Flag(name="--max-steps", metavar="N", setting="rollout.max_steps", help="maximum answers per episode"),
    Flag(
        name="--max-trajectory-length",
        metavar="N",
        setting="rollout.max_images",
        help="maximum screenshots in the prompt",
    ),
    Flag(name="--temperature", metavar="T", setting="eval.temperature", help="sampling temperature"),
    Flag(name="--top-p", metavar="P", setting="server.top_p", help="nucleus sampling"),
    Flag(
        name="--max-tokens",
        metavar="N",
        setting="rollout.max_answer_tokens",
        help="maximum tokens per answer",
    ),
    Flag(name="--stop-token", metavar="TEXT", setting="server.stop", help="text at which an answer ends"),
    Flag(
        name="--tasks",
        also="--test-all-meta-path",
        metavar="FILE",
        setting="eval.tasks",
        help="task list {domain: [id, …]} as in OSWorld, or any other source of tasks",
    ),
    Flag(
        name="--test-config-base-dir",
        metavar="DIR",
        help="folder that contains examples/ (default: the folder of the task list)",
    ),
    Flag(name="--domain", metavar="NAME", help="domain to evaluate; all: every domain"),
    Flag(name="--result-dir", metavar="DIR", setting="eval.results", help="output directory"),
    Flag(
        name="--trial-id",
        metavar="ID",
        repeated=True,
        setting="eval.trials",
        help="name of a trial, which plays every task once; repeat for more trials",
    ),
    Flag(
        name="--env", metavar="NAME", setting="env.name", help='environment: "osworld", "desk", module:Class'
    ),
    Flag(
        name="--provider-name",
        metavar="NAME",
        setting="osworld.provider",
        help='provider of desktops: "local", "docker" or another of desktop-env',
    ),
    Flag(
        name="--path-to-vm",
        metavar="PATH",
        setting="osworld.machine",
        help="path or id of the virtual machine",
    ),
    Flag(name="--region", metavar="NAME", setting="osworld.region", help="region of a cloud provider"),
    Flag(name="--screen-width", metavar="PIXELS", setting="env.width", help="screen width"),
    Flag(name="--screen-height", metavar="PIXELS", setting="env.height", help="screen height"),
    Flag(
        name="--sleep-after-execution",
        metavar="SECONDS",
        setting="osworld.pause",
        help="pause between an action and its screenshot, on virtual machines",
    ),
    Flag(name="--observation-type", metavar="TYPE", help="must be screenshot"),
    Flag(name="--action-space", metavar="NAME", help="must be pyautogui"),
    Flag(name="--client-password", metavar="TEXT", help="no effect: desktop-env's own password is used"),
    Flag(name="--log-level", metavar="LEVEL", help="no effect: there is one log level"),
)
HEADLESS = ("--headless", {"action": "store_true", "help": "no effect: no window is ever opened"})


def arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    """Arguments for argparse: spellings of each flag, and keyword arguments of `add_argument`."""
    for flag in FLAGS:
        action = "append" if flag.repeated else "store"
        yield (
            flag.spellings,
            {
                "dest": flag.key,
                "action": action,
                "metavar": flag.metavar,
                "help": flag.help,
            },
        )
    yield HEADLESS


def overrides(options: argparse.Namespace) -> list[str]:
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
        for key in ("endpoint", "server_ip", "model", "top_p", "stop_token"):
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
