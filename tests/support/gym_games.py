"""Small Gymnasium environments: as other people write them, and broken ones."""

import os
import time

import gymnasium
import numpy as np
from gymnasium import spaces

WIDTH, HEIGHT = 48, 32


class Target(gymnasium.Env):
    """Click the white square. Its place depends on the seed; two clicks beside it end the episode."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    observation_space = spaces.Discrete(1)
    action_space: spaces.Space = spaces.MultiDiscrete([WIDTH, HEIGHT])

    def __init__(self, render_mode=None, reward=1.0, crash=""):
        self.render_mode, self._reward, self._crash = render_mode, reward, crash

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.integers((0, 0), (WIDTH - 8, HEIGHT - 8))
        self.missed = 0
        return 0, {"instruction": f"Click the square, process {os.getpid()}"}

    def step(self, action):
        if self._crash == "exit":
            os._exit(7)
        if self._crash == "hang":
            time.sleep(1000)
        if self._crash == "raise":
            raise ValueError("no such wall")
        hit = bool(all(self.place <= action) and all(action < self.place + 8))
        self.missed += not hit
        return 0, self._reward * hit, hit, self.missed == 2, {}

    def render(self):
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        x, y = self.place
        image[y : y + 8, x : x + 8] = 255
        image[0, 0] = 80 * self.missed
        return image


class FlatTarget(Target):
    """The pixel is one number."""

    action_space = spaces.Discrete(WIDTH * HEIGHT)

    def step(self, action):
        return super().step([action % WIDTH, action // WIDTH])


class FloatTarget(Target):
    action_space = spaces.Box(0, 100, (2,), np.float32)


class Lever(Target):
    """No pixels: 1 pulls the lever."""

    action_space = spaces.Discrete(2)

    def step(self, action):
        return 0, float(action), False, False, {}


class Blind(Target):
    def render(self):
        return None


def typed(action, env):
    """A rule: the text "pull" pulls the lever."""
    assert env.action_space.n == 2
    return int(action["text"] == "pull") if action["do"] == "Type" else None


for game in (Target, FlatTarget, FloatTarget, Lever, Blind):
    gymnasium.register(f"{game.__name__}-v0", f"gym_games:{game.__name__}")
