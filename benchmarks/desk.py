"""Desk throughput: environment steps per second on one core. A step is an action, a drawn screen and its PNG.

Plays episodes of the scripted solver for every task family, one action per step. Repeats them with Pillow as
the PNG encoder. Prints one JSON line; `ratio` is the rate of Desk divided by the rate with Pillow.

    python benchmarks/desk.py [--size 1920x1080] [--episodes 20]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import time

from PIL import Image

from arpo.actions import TERMINAL, Action, scale
from arpo.envs.desk.canvas import LAYOUT_HEIGHT, LAYOUT_WIDTH, PALETTE
from arpo.envs.desk.env import DeskEnv, perform, set_up
from arpo.envs.desk.goals import FAMILIES, from_json, next_step
from arpo.envs.desk.random_tasks import random_task, rng_for
from arpo.types import Observation, Screenshot, Task

Episode = tuple[Task, list[Action]]
LONGEST = 60


class PillowEnv(DeskEnv):
    """Desk with Pillow as the PNG encoder, for comparison."""

    def _observe(self) -> Observation:
        image = Image.fromarray(self.desktop.draw(self.width, self.height).pixels)
        image.putpalette(PALETTE.tobytes())
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return Observation(screenshot=Screenshot.of(buffer.getvalue()))


def solved(task: Task, size: tuple[int, int]) -> Episode:
    desktop, goals = set_up(task), from_json(task.evaluator["solution"])
    actions: list[Action] = []
    while len(actions) < LONGEST:
        action = next_step(desktop, goals).action
        actions.append(scale(action, (LAYOUT_WIDTH, LAYOUT_HEIGHT), size))
        perform(desktop, action)
        if isinstance(action, TERMINAL):
            break
    return task, actions


def invented(size: tuple[int, int], per_family: int) -> list[Episode]:
    episodes = []
    for number, family in enumerate(FAMILIES.values()):
        for repeat in range(per_family):
            raw = random_task(rng_for("pretrain", 1_000 * number + repeat), [family], f"{number}-{repeat}")
            names = ("id", "instruction", "snapshot", "evaluator")
            task = Task(config=tuple(raw["config"]), **{name: raw[name] for name in names})
            episodes.append(solved(task, size))
    return episodes


async def seconds(env: DeskEnv, episode: Episode) -> float:
    """CPU time of all steps of an episode, independent of other processes."""
    task, actions = episode
    await env.start(task)
    started = time.process_time()
    for action in actions:
        await env.step((action,))
    spent = time.process_time() - started
    assert await env.evaluate() == 1.0, task.instruction
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--size", default=f"{LAYOUT_WIDTH}x{LAYOUT_HEIGHT}", help="screen size in pixels (%(default)s)"
    )
    parser.add_argument("--episodes", type=int, default=20, help="episodes per task family (%(default)s)")
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))
    episodes = invented((width, height), options.episodes)
    size = (width, height)
    for episode in episodes[::10]:  # warm-up: fonts and words are cached
        asyncio.run(seconds(DeskEnv(*size), episode))
    ours = pillow = 0.0
    for episode in episodes:
        ours += asyncio.run(seconds(DeskEnv(*size), episode))
        pillow += asyncio.run(seconds(PillowEnv(*size), episode))
    steps = sum(len(actions) for _, actions in episodes)
    result = {
        "benchmark": "desk",
        "size": options.size,
        "families": len(FAMILIES),
        "steps": steps,
        "steps_per_second": round(steps / ours),
        "steps_per_second_pillow": round(steps / pillow),
        "ratio": round(pillow / ours, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
