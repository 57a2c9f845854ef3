"""The flags of OSWorld's runners and of the published evaluation, as settings of ours.

Each is taken in its published spelling and with dashes, and means what it meant there. One that asks for
something that this agent does not do is refused; one whose effect cannot be had here says so in a line. None
is dropped in silence. There are no defaults here: what is not given, the recipe says.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arpo.config import Config
from arpo.errors import UserError

PUBLISHED_PORTS = "9000-9007"  # eight replicas, one for each GPU of the published machine
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    name: str  # with dashes
    metavar: str
    help: str
    setting: str = ""  # the setting that takes its value as it is
    repeated: bool = False
    also: str = ""  # another name

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
        help="an OpenAI-compatible server, such as http://127.0.0.1:8000/v1; give it again for each replica",
    ),
    Flag(
        name="--server-ip",
        metavar="HOST",
        help=f"a host on whose ports {PUBLISHED_PORTS} eight replicas serve, in place of --endpoint",
    ),
    Flag(name="--model", metavar="NAME", setting="server.model", help="the name under which it is served"),
    Flag(name="--num-envs", metavar="N", setting="env.parallel", help="environments at once"),
    Flag(name="--max-steps", metavar="N", setting="rollout.max_steps", help="answers in one episode"),
    Flag(
        name="--max-trajectory-length",
        metavar="N",
        setting="rollout.max_images",
        help="screenshots that the model sees at once",
    ),
    Flag(name="--temperature", metavar="T", setting="eval.temperature", help="of sampling"),
    Flag(name="--top-p", metavar="P", setting="server.top_p", help="of sampling"),
    Flag(name="--max-tokens", metavar="N", setting="rollout.max_answer_tokens", help="of one answer"),
    Flag(name="--stop-token", metavar="TEXT", setting="server.stop", help="text at which an answer ends"),
    Flag(
        name="--tasks",
        also="--test-all-meta-path",
        metavar="FILE",
        setting="eval.tasks",
        help="the list of tasks: OSWorld's {domain: [id, …]}, or any other source",
    ),
    Flag(
        name="--test-config-base-dir",
        metavar="DIR",
        help="the folder that holds examples/; without it, examples/ beside the list",
    ),
    Flag(name="--domain", metavar="NAME", help="only this domain; all: every one"),
    Flag(name="--result-dir", metavar="DIR", setting="eval.results", help="where results are written"),
    Flag(
        name="--trial-id",
        metavar="ID",
        repeated=True,
        setting="eval.trials",
        help="the trial's name in the results; again for more trials, in each of which every task is played",
    ),
    Flag(name="--env", metavar="NAME", setting="env.name", help='"osworld", "desk", or module:Class'),
    Flag(
        name="--provider-name",
        metavar="NAME",
        setting="osworld.provider",
        help='"local": light desktops; "docker" or another of desktop-env\'s',
    ),
    Flag(
        name="--path-to-vm", metavar="PATH", setting="osworld.machine", help="of a virtual machine, or its id"
    ),
    Flag(name="--region", metavar="NAME", setting="osworld.region", help="of a cloud provider"),
    Flag(name="--screen-width", metavar="PIXELS", setting="env.width", help="of the desktop"),
    Flag(name="--screen-height", metavar="PIXELS", setting="env.height", help="of the desktop"),
    Flag(
        name="--sleep-after-execution",
        metavar="SECONDS",
        setting="osworld.pause",
        help="between an action and its screenshot, on virtual machines",
    ),
    Flag(name="--observation-type", metavar="TYPE", help="screenshot: this agent sees nothing else"),
    Flag(name="--action-space", metavar="NAME", help="pyautogui: results are written in its words"),
    Flag(name="--client-password", metavar="TEXT", help="of the guest; desktop-env's own is used"),
    Flag(name="--log-level", metavar="LEVEL", help="taken and without effect: there is one level"),
)
HEADLESS = ("--headless", {"action": "store_true", "help": "as always: no window is opened here"})


def arguments() -> Iterator[tuple[str, dict[str, Any]]]:
    """For argparse: the spellings of each flag, and what it takes."""
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
    """What the flags say, as settings on the command line."""
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
    """A line for each flag that was given and cannot do here what it did there."""
    given = _given(options)
    real = config.env.name == "osworld" and config.osworld.provider != "local"
    lines = {
        "log_level": "there is one level of telling; failures are in failures.jsonl",
        "client_password": "the guest's password is what desktop-env has for its provider",
    }
    if not real:
        lines["sleep_after_execution"] = "only virtual machines are given a fixed pause"
        lines["path_to_vm"] = lines["region"] = "only virtual machines have one"
    flags = {flag.key: flag.name for flag in FLAGS}
    return [f"{flags[key]} has no effect: {line}" for key, line in lines.items() if key in given]


def _given(options: argparse.Namespace) -> Mapping[str, Any]:
    return {flag.key: value for flag in FLAGS if (value := getattr(options, flag.key)) is not None}


def _refuse(given: Mapping[str, Any]) -> None:
    only = {
        "observation_type": ("screenshot", "this agent sees screenshots and nothing else"),
        "action_space": ("pyautogui", "this agent acts by mouse and keyboard"),
    }
    for key, (value, why) in only.items():
        if given.get(key, value) != value:
            raise UserError(f"--{key} {given[key]}: must be {value}: {why}")
    if given.get("log_level", LEVELS[0]).upper() not in LEVELS:
        raise UserError(f"--log_level {given['log_level']}: must be one of {', '.join(LEVELS)}")
    if "endpoint" in given and "server_ip" in given:
        raise UserError("--endpoint and --server_ip: give one of them, both name the servers")
