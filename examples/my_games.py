"""A Gymnasium environment: `arpo check-env gymnasium:my_games:Maze-v0` in this folder."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Text

SIZE, SQUARE = 112, 28  # pixels


class Maze(gymnasium.Env):
    """A red square on a white screen. A click on it earns 1."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    action_space = Box(0, SIZE - 1, (2,))  # the pixel x, y
    observation_space = Dict({"goal": Text(40)})

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.y = self.np_random.integers(0, SIZE - SQUARE, 2)
        return {"goal": "Click the red square"}, {}

    def step(self, action):
        x, y = action
        hit = self.x <= x < self.x + SQUARE and self.y <= y < self.y + SQUARE
        return {"goal": "Click the red square"}, float(hit), True, False, {}

    def render(self):
        screen = np.full((SIZE, SIZE, 3), 255, np.uint8)
        screen[self.y : self.y + SQUARE, self.x : self.x + SQUARE] = (220, 30, 30)
        return screen


gymnasium.register("Maze-v0", "my_games:Maze")
