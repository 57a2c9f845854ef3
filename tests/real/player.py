"""Plays scripted answers: each is read and carried out as if a model had written it."""

import io
from dataclasses import dataclass

from PIL import Image

from arpo.actions import Wait
from arpo.parsing import parse

MOST_LOOKS = 30
MOST_LOOKS_AT_FIRST = 5  # a cursor that blinks never keeps still


@dataclass(frozen=True, slots=True)
class Look:
    """wait() until this part of the screen is another than before the last answer, and keeps still."""

    left: int
    top: int
    right: int
    bottom: int

    def part(self, screenshot):
        with Image.open(io.BytesIO(screenshot.png)) as picture:
            return picture.crop((self.left, self.top, self.right, self.bottom)).tobytes()


async def play(env, shown, solution):
    """`shown` is what it began with; an entry is an answer, without its "Action: ", or a Look."""
    before = shown = await _settled(env, shown)
    for entry in solution:
        if isinstance(entry, Look):
            shown = await _look(env, entry, before, shown)
        else:
            before = shown
            shown = await _step(env, parse(f"Action: {entry}").actions)


async def _settled(env, shown):
    """Applications go on painting for a while after they have come up."""
    for _ in range(MOST_LOOKS_AT_FIRST):
        last, shown = shown, await _step(env, (Wait(),))
        if last == shown:
            break
    return shown


async def _look(env, look, before, shown):
    last = shown
    for _ in range(MOST_LOOKS):
        shown = await _step(env, (Wait(),))
        if look.part(before) != look.part(shown) == look.part(last):
            return shown
        last = shown
    raise AssertionError(f"nothing came up at {look}")


async def _step(env, actions):
    return (await env.step(actions)).observation.screenshot


async def score(hosts, task, solution):
    """What the task's judge says after the solution, in a fresh environment."""
    async with hosts.lease() as env:
        try:
            begun = await env.start(task)
            await play(env, begun.screenshot, solution)
            return await env.evaluate()
        finally:
            await env.close()
