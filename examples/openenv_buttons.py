"""An OpenEnv environment of the package `openenv`: `python openenv_buttons.py PORT SESSIONS`.

A dark button lies somewhere on a white screen. A click on it earns 1.5 and ends the episode; a click beside
it earns -1. "end" ends the connection. The screen comes as a base64 PNG and as a flat array with a shape.
"""

import asyncio
import base64
import struct
import sys
import zlib

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

WIDTH, HEIGHT, BUTTON = 64, 48, 12
SPLITS = {"train": 8, "test": 4}


class ButtonAction(Action):
    kind: str
    x: int = 0
    y: int = 0


class Screen(Observation):
    goal: str
    png: str
    pixels: list[int]
    shape: list[int]


class Buttons(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, split="train", index=0):
        self.left, self.top = (5 * index) % (WIDTH - BUTTON), (7 * index) % (HEIGHT - BUTTON)
        return self.screen(f"Click the button of {split} {index}")

    def step(self, action, timeout_s=None):
        if action.kind == "end":
            raise asyncio.CancelledError
        if action.kind != "click":
            raise ValueError(f"no such kind: {action.kind}")
        hit = 0 <= action.x - self.left < BUTTON and 0 <= action.y - self.top < BUTTON
        return self.screen("", done=hit, reward=1.5 if hit else -1.0)

    def screen(self, goal, **result):
        rows = bytearray(b"\xff" * WIDTH * HEIGHT * 3)
        for y in range(self.top, self.top + BUTTON):
            start = 3 * (y * WIDTH + self.left)
            rows[start : start + 3 * BUTTON] = bytes(3 * BUTTON)
        return Screen(
            goal=goal,
            png=base64.b64encode(png(rows)).decode(),
            pixels=list(rows),
            shape=[HEIGHT, WIDTH, 3],
            **result,
        )

    @property
    def state(self):
        return State()

    def list_splits(self):
        return list(SPLITS)

    def num_tasks(self, split):
        return SPLITS[split]

    def list_tasks(self, split):
        return [
            {"index": index, "prompt": f"Click the button of {split} {index}"}
            for index in range(SPLITS[split])
        ]


def png(rows):
    def chunk(name, content):
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    lines = b"".join(b"\0" + rows[start : start + 3 * WIDTH] for start in range(0, len(rows), 3 * WIDTH))
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


if __name__ == "__main__":
    app = create_fastapi_app(
        Buttons, ButtonAction, Screen, env_name="buttons", max_concurrent_envs=int(sys.argv[2])
    )
    # Short pings: a client that does not answer them while a model thinks loses its session.
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", ws_ping_interval=0.2, ws_ping_timeout=3)
