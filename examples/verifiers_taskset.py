"""A taskset of verifiers: eight tasks and their reward."""

import verifiers.v1 as vf

__all__ = ["Digits"]


class Digit(vf.TaskData):
    digit: str


class WriteDigit(vf.Task[Digit]):
    @vf.reward
    async def written(self, trace: vf.Trace) -> float:
        return float(self.data.digit in trace.last_reply)


class Digits(vf.Taskset[WriteDigit, vf.TasksetConfig]):
    def load(self):
        for one in range(8):
            yield WriteDigit(Digit(prompt=f"Write the digit {one}", digit=str(one)), self.config.task)
