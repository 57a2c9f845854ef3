"""Desk's solver as a teacher: an agent program that answers without the model.

    arpo collect paper --agent "python benchmarks/demonstrator.py desk:pool" --run.dir runs/taught

It plays a second desktop in the same state, and sends the solver's steps as answers, written as those of the
base model's pretraining. Its argument is the list with the tasks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

from arpo.actions import TERMINAL, render
from arpo.envs.desk.env import perform, set_up
from arpo.envs.desk.goals import from_json, next_step
from arpo.tasks.lists import load_tasks
from arpo.types import Task


def answers(task: Task) -> Iterator[str]:
    """The answers that solve a task of Desk, until `finished` or `error_env`."""
    desktop, goals = set_up(task), from_json(task.evaluator["solution"])
    ended = False
    while not ended:
        step = next_step(desktop, goals)
        yield render([step.action], step.thought)
        perform(desktop, step.action)
        ended = isinstance(step.action, TERMINAL)


def main() -> None:
    env, [source] = os.environ["ARPO_ENV_URL"], sys.argv[1:]
    played: dict[str, Any] = json.load(urlopen(f"{env}/task"))
    task = next((one for one in load_tasks(source) if one.id == played["id"]), None)
    if task is None:
        sys.exit(f"{source}: has no task {played['id']}. Give the list of tasks.train")
    for answer in answers(task):
        reply = urlopen(Request(f"{env}/step", json.dumps({"answer": answer}).encode()))
        if json.load(reply)["finished"]:  # also after rollout.max_steps
            break


if __name__ == "__main__":
    main()
