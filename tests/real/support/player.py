"""Plays scripted answers: each is read and carried out as if a model had written it."""

import io
from dataclasses import dataclass

from PIL import Image

from arpo.actions import Action, Wait
from arpo.parsing import parse

MOST_LOOKS = 20
MOST_LOOKS_AT_FIRST = 5  # a cursor that blinks never keeps still
CENTRE = (960, 540)  # where the pointer is at first
POINTER = 28  # pixels of its sides, with its shadow


@dataclass(frozen=True, slots=True)
class Look:
    """wait() until this part of the screen is another than before the last answer, and keeps still.

    Where the pointer was and is does not count.
    """

    left: int
    top: int
    right: int
    bottom: int

    def part(self, screenshot, pointers):
        with Image.open(io.BytesIO(screenshot.png)) as file:
            picture = file.convert("RGB")
        for x, y in pointers:
            picture.paste((0, 0, 0), (x - 2, y - 2, x + POINTER, y + POINTER))
        return picture.crop((self.left, self.top, self.right, self.bottom)).tobytes()


async def play(env, shown, solution):
    """`shown` is what it began with; an entry is an answer, without its "Action: ", or a Look."""
    before = shown = await _settled(env, shown)
    actions: tuple[Action, ...] = (Wait(),)  # of the last answer
    pointers = (CENTRE, CENTRE)  # before it, and after
    for entry in solution:
        if isinstance(entry, Look):
            found = await _look(env, entry, before, shown, pointers)
            if found is None:  # a person would try again: programs have missed a double click
                found = await _look(env, entry, before, await _step(env, actions), pointers)
            assert found is not None, f"nothing came up at {entry}"
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
    """Applications go on painting for a while after they have come up."""
    for _ in range(MOST_LOOKS_AT_FIRST):
        last, shown = shown, await _step(env, (Wait(),))
        if last == shown:
            break
    return shown


async def _look(env, look, before, shown, pointers):
    """What is shown when it has come up; None where it does not."""
    before, last = (look.part(picture, pointers) for picture in (before, shown))
    for _ in range(MOST_LOOKS):
        shown = await _step(env, (Wait(),))
        now = look.part(shown, pointers)
        if before != now == last:
            return shown
        last = now
    return None


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
