"""Episodes with every action and with real images, for tests of storage and of the report."""

import functools
import io
import math

import numpy as np
from PIL import Image

from arpo import actions as act
from arpo.types import Completion, Screenshot, StopReason, Trajectory, Turn

ALL_ACTIONS = (
    act.Click(point=act.Point(1, 2.5)),
    act.DoubleClick(point=act.Point(0, 0)),
    act.RightClick(point=act.Point(3, 4)),
    act.MiddleClick(point=act.Point(3, 4)),
    act.TripleClick(point=act.Point(3, 4)),
    act.MouseDown(point=act.Point(3, 4)),
    act.MouseUp(point=act.Point(3, 4)),
    act.Hover(point=act.Point(3, 4)),
    act.LongPress(point=act.Point(3, 4)),
    act.Drag(start=act.Point(1, 2), end=act.Point(3, 4)),
    act.Scroll(point=None, direction=act.Direction.UP),
    act.Scroll(point=act.Point(5, 6), direction=act.Direction.LEFT),
    act.Scroll(point=None, direction=act.Direction.UP, amount=3),
    act.Hotkey(keys=("ctrl", "c")),
    act.KeyDown(key="shift"),
    act.KeyUp(key="shift"),
    act.Type(text="naïve\n\ud800'\"", submit=True),
    act.OpenApp(name="mail"),
    act.PressHome(),
    act.PressBack(),
    act.Wait(),
    act.Wait(seconds=2.5),
    act.GiveAnswer(text="42"),
    act.Finished(content="done"),
    act.Fail(),
    act.CallUser(),
)


def png(pixels, mode="RGB"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def small(number):
    """A small palette image, like those of Desk."""
    return Screenshot.of(png(np.full((12, 16, 3), number, np.uint8), "P"))


@functools.cache
def desktop(seed, window=None):
    """Incompressible noise of 400x300 pixels, optionally with a plain window."""
    pixels = np.random.default_rng(seed).integers(0, 256, (300, 400, 3), np.uint8)
    if window is not None:
        pixels[50:100, 60:200] = window
    return Screenshot.of(png(pixels))


@functools.cache
def large_desktop(seed, window=None):
    """640x480 pixels, which other processes encode: noise at the top, optionally a plain window below."""
    pixels = np.zeros((480, 640, 3), np.uint8)
    pixels[:60] = np.random.default_rng(seed).integers(0, 256, (60, 640, 3), np.uint8)
    if window is not None:
        pixels[100 + window : 200 + window, 60:200] = (window, 100, 200)
    return Screenshot.of(png(pixels))


def pixels_of(shot):
    return np.asarray(Image.open(io.BytesIO(shot.png)).convert("RGB"))


def turn(shot, **changes):
    fields = {
        "screenshot": shot,
        "context": (1, 2, *[7] * 30, 3),
        "images": (shot,),
        "restart": True,
        "completion": Completion(
            token_ids=(5, 6, 6),
            logprobs=(-0.1, -1e-17, -math.pi),
            text="Thought: x\nAction: wait()",
            finish="stop",
            versions=(3, 3, 4),
        ),
        "actions": (act.Wait(),),
    }
    return Turn(**(fields | changes))


def episode(name, shots, **changes):
    fields = {
        "episode_id": name,
        "task_id": "t",
        "turns": tuple(turn(shot) for shot in shots[:-1]),
        "final": shots[-1],
        "score": 1.0,
        "malformed": False,
        "stop": StopReason.FINISHED,
    }
    return Trajectory(**(fields | changes))
