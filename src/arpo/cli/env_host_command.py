"""`arpo env-host`: serves environments to runs elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from arpo.cli.command import RECIPE_HELP, Command, argument, recipe_argument
from arpo.config.recipe import load_config


def run_env_host(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    flags = {"env.name": options.env, "env.parallel": options.slots}
    given = [f"--{key}={value}" for key, value in flags.items() if value is not None]
    default = "osworld_local" if options.env == "osworld" else "desk"
    config = load_config(options.recipe or default, [*overrides, *given])
    from arpo.envs.host import run_host

    run = partial(run_host, config, options.listen, options.ready_file, options.with_parent)
    if not options.openenv:
        return run()
    from arpo.envs.openenv.host import OpenEnvHost
    from arpo.tasks.sets import load_sets, playable

    splits, _ = playable(config, load_sets(config))
    return run(partial(OpenEnvHost, splits=splits, max_steps=config.rollout.max_steps))


COMMAND = Command(
    name="env-host",
    run=run_env_host,
    purpose="serve environments to runs in other processes or on other machines",
    lesson="""\
A run connects to hosts with --env.hosts http://HOST:PORT,… and then starts no environments itself. Use the
same recipe for host and run.
By default the host listens on 127.0.0.1 only. To listen on another address, set the environment variable
ARPO_HOST_TOKEN to the same secret (at least 16 characters) for the host and for the run.
With --openenv, trainers that speak OpenEnv connect to ws://HOST:PORT/ws. The task sets of the recipe are its
splits (docs/openenv.md).
Ctrl-C closes all environments and exits.""",
    example="""\
arpo env-host --env desk --slots 8
arpo env-host desk --openenv
ARPO_HOST_TOKEN=SECRET arpo env-host osworld_local --slots 4 --listen 0.0.0.0:8700
ARPO_HOST_TOKEN=SECRET arpo train osworld_local --env.hosts http://desktops-1:8700,http://desktops-2:8700""",
    arguments=(
        recipe_argument(None, f"{RECIPE_HELP} (default: desk, or osworld_local with --env osworld)"),
        argument("--env", "environment to serve; sets env.name", metavar="NAME"),
        argument("--slots", "number of environments; sets env.parallel", metavar="N"),
        argument(
            "--listen",
            "address (default: %(default)s); port 0: any free port",
            default="127.0.0.1:8700",
            metavar="HOST:PORT",
        ),
        argument("--openenv", "serve with the protocol of OpenEnv", action="store_true"),
        argument("--ready-file", "file that receives the address (JSON)", type=Path, metavar="FILE"),
        argument("--with-parent", "exit when stdin is closed", action="store_true"),
    ),
    settings=True,
)
