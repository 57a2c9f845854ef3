"""Success of the careless demonstrator itself, without a model: the success of a perfect imitation.

    python -m tools.pretrain.imitation --level 1 --tasks 2000

Prints one JSON line: the success rate by number of goals and by goal family, at temperature 1 and 0.6.
A lower temperature T sharpens the probabilities of answers, p to the power of 1/T: faults become rarer.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from dataclasses import fields

from arpo.config import RolloutConfig
from arpo.envs.desk.goals import FEASIBLE, INFEASIBLE, compatible
from arpo.envs.desk.random_tasks import random_task, rng_for, to_task
from tools.pretrain.carelessness import Carelessness, solves

# Number of different answers of one kind of fault: its probability is divided among them.
_ALTERNATIVES = {"early_finish": 1, "giving_up": 1, "skipped_goal": 1, "neighbour": 2, "detour": 5}


def sharpened(faults: Carelessness, temperature: float) -> Carelessness:
    """The rates of a model that imitates `faults` and is sampled at `temperature`."""

    def sharpen(name: str) -> float:
        rate, count, power = getattr(faults, name), _ALTERNATIVES[name], 1 / temperature
        wrong = count * (rate / count) ** power
        return float(wrong / (wrong + (1 - rate) ** power))

    return Carelessness(**{each.name: sharpen(each.name) for each in fields(faults)})


def random_families(rng: random.Random, goals: int) -> list[type]:
    if goals == 0:
        return [rng.choice(list(INFEASIBLE.values()))]
    while True:
        families = rng.sample(list(FEASIBLE.values()), goals)
        if compatible(families):
            return families


def success(faults: Carelessness, tasks: int, max_steps: int) -> dict[str, float]:
    """Success rates by number of goals ("0" is infeasible), and by family for tasks with one goal."""
    scores: dict[str, list[bool]] = defaultdict(list)
    for goals in range(4):
        for number in range(tasks):
            rng = rng_for("pretrain", 10**9 + 10_000 * goals + number)
            raw = random_task(rng, random_families(rng, goals), f"{goals}-{number}")
            solved = solves(to_task(raw), faults, rng, max_steps)
            scores[str(goals)].append(solved)
            if goals == 1:
                scores[raw["snapshot"]].append(solved)
    return {name: round(sum(all_) / len(all_), 3) for name, all_ in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--level", type=float, default=1.0, help="level of carelessness")
    parser.add_argument("--tasks", type=int, default=1000, help="tasks per number of goals")
    options = parser.parse_args()
    faults, steps = Carelessness.of(options.level), RolloutConfig().max_steps
    rates = {f"{t:g}": success(sharpened(faults, t), options.tasks, steps) for t in (1.0, 0.6)}
    print(json.dumps({"level": options.level, "tasks": options.tasks, "success_by_temperature": rates}))


if __name__ == "__main__":
    main()
