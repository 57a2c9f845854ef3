"""Plays scripted answers: they are parsed and run like those of a model."""

import io
from dataclasses import dataclass

from PIL import Image

from arpo.actions import Action, Wait
from arpo.dialects.ui_tars import parse

MAX_WAITS = 20
MAX_FIRST_WAITS = 5  # a blinking cursor never stops changing
CENTRE = (960, 540)  # initial position of the pointer
POINTER_SIZE = 28  # pixels, with its shadow


@dataclass(frozen=True, slots=True)
class WaitForChange:
    """Waits until this region differs from before the last answer and is stable. Ignores the pointer."""

    left: int
    top: int
    right: int
    bottom: int

    def region(self, screenshot, pointers):
        with Image.open(io.BytesIO(screenshot.png)) as file:
            image = file.convert("RGB")
        for x, y in pointers:
            image.paste((0, 0, 0), (x - 2, y - 2, x + POINTER_SIZE, y + POINTER_SIZE))
        return image.crop((self.left, self.top, self.right, self.bottom)).tobytes()


async def play(env, shown, solution):
    """`shown` is the first screenshot. An entry is an answer without "Action: ", or a WaitForChange."""
    before = shown = await _settled(env, shown)
    actions: tuple[Action, ...] = (Wait(),)  # of the last answer
    pointers = (CENTRE, CENTRE)  # before and after the last answer
    for entry in solution:
        if isinstance(entry, WaitForChange):
            found = await _wait_for(env, entry, before, shown, pointers)
            if found is None:  # retry once: applications sometimes miss a double click
                found = await _wait_for(env, entry, before, await _step(env, actions), pointers)
            assert found is not None, f"no change in {entry}"
            shown = found
        else:
            before, actions = shown, parse(f"Action: {entry}").actions
            shown = await _step(env, actions)
            pointers = (pointers[1], _pointer(actions, pointers[1]))


def _pointer(actions, pointer):
    for action in actions:
        point = getattr(action, "end", getattr(action, "point", None))
        pointer = pointer if point is None else (round(point.x), round(point.y))
    return pointer


async def _settled(env, shown):
    """Waits until the screen is stable: applications keep drawing for a while after they start."""
    for _ in range(MAX_FIRST_WAITS):
        last, shown = shown, await _step(env, (Wait(),))
        if last == shown:
            break
    return shown


async def _wait_for(env, wait, before, shown, pointers):
    """The screenshot after the change; None if the region does not change."""
    before, last = (wait.region(screenshot, pointers) for screenshot in (before, shown))
    for _ in range(MAX_WAITS):
        shown = await _step(env, (Wait(),))
        now = wait.region(shown, pointers)
        if before != now == last:
            return shown
        last = now
    return None


async def _step(env, actions):
    return (await env.step(actions)).observation.screenshot


async def score(hosts, task, solution):
    """Score of the task after the solution, in a new environment."""
    async with hosts.lease() as env:
        try:
            first = await env.start(task)
            await play(env, first.screenshot, solution)
            return await env.evaluate()
        finally:
            await env.close()
