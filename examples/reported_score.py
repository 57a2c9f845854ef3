"""An environment without a screen: the score is the number that the agent program gives as its answer."""

import io

from PIL import Image

from arpo.actions import GiveAnswer
from arpo.errors import EnvError
from arpo.types import Observation, Screenshot, StepResult


def _blank() -> Observation:
    file = io.BytesIO()
    Image.new("RGB", (56, 56), "white").save(file, "PNG")
    return Observation(screenshot=Screenshot.of(file.getvalue()))


class ReportedScore:
    async def start(self, task):
        self.score = None
        return _blank()

    async def step(self, actions):
        for action in actions:
            if isinstance(action, GiveAnswer):
                self.score = float(action.text)
        return StepResult(observation=_blank())

    async def evaluate(self):
        if self.score is None:
            raise EnvError(
                "evaluate", "no score was reported: give the program with --agent (docs/inspect.md)"
            )
        return self.score

    async def close(self):
        pass
