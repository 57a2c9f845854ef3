"""`arpo check-env`: tests an environment class with the conformance suite."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence

from arpo.cli.command import Command, argument
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.config.task_set_names import GYM_PREFIXES, OPENENV
from arpo.envs.check_findings import Check
from arpo.errors import UserError
from arpo.interrupts import run_interruptibly

CHECKED_INSTANCES = 4  # of an environment of Gymnasium: they differ in their seeds only


def run_check_env(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if any(word.partition("=")[0] == "--env.name" for word in overrides):
        raise UserError(
            "--env.name: the argument of check-env is the class to check: write arpo check-env MODULE:CLASS, "
            "without --env.name"
        )
    config = load_config(None, [*overrides, f"--env.name={options.target}"])
    from arpo.envs.check import check_env
    from arpo.envs.factory import open_factory
    from arpo.envs.openenv.env import OpenEnvs
    from arpo.tasks.sources import chosen_tasks

    factory = open_factory(config)
    source = options.tasks or _default_tasks(config)
    tasks = chosen_tasks(source, config)
    if not options.tasks and source == config.env.name:
        tasks = tasks[:CHECKED_INSTANCES]
    shown: list[Check] = []
    sizes: Counter[tuple[int, int]] = Counter()

    def show(check: Check) -> None:
        shown.append(check)
        print(check, flush=True)

    checks = run_interruptibly(
        check_env(
            factory,
            tasks,
            config.env,
            show,
            lambda screenshot: sizes.update([screenshot.size]),
            factory.selected_actions() if isinstance(factory, OpenEnvs) else (),
        ),
        on_cancel=_report_cancel,
    )
    if again := [check for check in checks if check not in shown]:
        print("found again by later checks:", *again, sep="\n")
    for size in sizes:
        print(_describe_size(*size, config))
    return 0 if all(check.ok or not check.required for check in checks) else 1


def _describe_size(width: int, height: int, config: Config) -> str:
    """The size of a screenshot, and how many tokens of a prompt it takes."""
    from arpo.models.loading import resolve_model
    from arpo.prompts.vision import ImageSettings, grid, image_tokens, target_size

    model, steps = config.model, config.rollout.max_steps
    settings = ImageSettings.from_folder(resolve_model(model.path), model.min_pixels, model.max_pixels)
    tokens = image_tokens(grid(width, height, settings), settings)
    seen = target_size(width, height, settings)
    resized = "" if seen == (width, height) else f", resized to {seen[0]}x{seen[1]}"
    return (
        f"screenshots of {width}x{height}{resized}: {tokens:,} tokens each for model.path = "
        f"{model.path!r}; {tokens * steps:,} in an episode of {steps} steps (model.max_pixels limits them)"
    )


def _report_cancel() -> None:
    """If an environment never returns, the checks do not end."""
    print("stopping: closing the environments. Press Ctrl-C again to stop at once", flush=True)


def _default_tasks(config: Config) -> str:
    """tasks.train. Its default is a list of Desk, which no other environment can play."""
    if config.env.name.startswith(OPENENV) and config.tasks.train == Config().tasks.train:
        return config.env.name.partition("#")[0]  # an error with the splits of the server
    if config.env.name.startswith(GYM_PREFIXES) and config.tasks.train == Config().tasks.train:
        return config.env.name
    if config.env.name != "desk" and config.tasks.train == Config().tasks.train:
        raise UserError(
            f"--tasks: {config.env.name} needs tasks of its own: write a file tasks.json such as "
            '[{"id": "a", "instruction": "Click OK", "config": [], "evaluator": {}}], and add '
            "--tasks tasks.json"
        )
    return config.tasks.train


COMMAND = Command(
    name="check-env",
    run=run_check_env,
    purpose="test your own environment with the conformance suite",
    lesson="""\
MODULE:CLASS is a Python class without constructor arguments and with the async methods start, step, evaluate
and close (see arpo.envs.base.Env and the tutorial). Your own class needs --tasks.
If a task has a "solution", a list of calls such as "click(start_box='(105,63)')" in pixels of the screenshot,
check-env plays it: it must score 1, and doing nothing must not. No model sees it.
Prints one line per rule that holds and one per finding: file and line, what is wrong, what to write instead.
At the end it prints the sizes of the screenshots and their cost in tokens, for model.path.
Exit code 1 if a line begins with FAIL; warn and skip are no failures.""",
    example="arpo check-env my_package.my_env:MyEnv --tasks my-tasks.json --env.step_seconds 5",
    arguments=(
        argument("target", "class to check, gymnasium:ID or browsergym:ID", metavar="MODULE:CLASS"),
        argument(
            "--tasks",
            "tasks for the checks (default: tasks.train or those of gymnasium:ID; needed for your own class)",
            metavar="SOURCE",
        ),
    ),
    settings=True,
)
