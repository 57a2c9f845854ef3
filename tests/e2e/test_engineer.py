"""An engineer writes an environment and makes the usual mistakes: `check-env` and `train` explain each.

Every message names the file and the line in the engineer's code, and what to write instead.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from clicking_model import clicking_model

LAMP = """\
import asyncio, io, time

from PIL import Image

from arpo.actions import Click
from arpo.types import Observation, Screenshot, StepResult


class Lamp:
    async def start(self, task):
        self.task = task
        self.on = False
        return self.observe()

    async def step(self, actions):
        for action in actions:
            if isinstance(action, Click):
                self.on = True
        return StepResult(observation=self.observe(), terminated=self.on)

    async def evaluate(self):
        return 1.0 if self.on else 0.0

    async def close(self):
        pass

    def observe(self):
        buffer = io.BytesIO()
        Image.new("RGB", (224, 168), "white" if self.on else "black").save(buffer, "PNG")
        return Observation(screenshot=Screenshot.of(buffer.getvalue()))
"""
TASKS: list[dict[str, object]] = [
    {"id": name, "instruction": "Click Lamp", "evaluator": {}, "solution": ["click(start_box='(20,20)')"]}
    for name in ("left", "right")
]
CORRECT = "correct this line"
IGNORE = f"{CORRECT}; ignore actions that the environment does not support"
SCORE = "not a number in [0, 1]: return 1.0 if the task is solved and 0.0 if not"
PNG = 'PNG bytes of a PIL image: `buffer = io.BytesIO(); image.save(buffer, "PNG"); png = buffer.getvalue()`'
NUMBERS = count()


def tiny() -> list[str]:
    """Options of a small run."""
    return f"""
    --model.path={clicking_model()} --run.dir=run
    --run.threads=1 --store.tensorboard=false --tasks.train=tasks.json --tasks.heldout=
    --env.attempts=1 --eval.rollouts=1 --eval.every=0 --rollout.group_size=2 --rollout.max_steps=1
    --train.epochs=1 --train.tasks_per_batch=2 --train.tasks_per_update=2
    """.split()


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """Replaces `right` by `wrong` in the lamp. The place of the messages is the line of `at`.

    `found` is the line of check-env, without its mark and place; `failed` the reason of train. "" if the
    environment works in training: then nothing fails there.
    """

    right: str
    wrong: str
    at: str
    found: str
    failed: str = ""
    settings: tuple[str, ...] = ()


MISTAKES = {
    "step returns a tuple, as in Gym": Mistake(
        right="return StepResult(observation=self.observe(), terminated=self.on)",
        wrong="return self.observe(), 1.0, self.on, {}",
        at="async def step",
        found="step: returned a tuple, must return StepResult(observation=…, terminated=…): see "
        "examples/doorbell.py (in 5 of 10 checks)",
        failed="step: returned a tuple, must return StepResult(observation=…, terminated=…): see "
        "examples/doorbell.py",
    ),
    "methods without async": Mistake(
        right="async def",
        wrong="def",
        at="def start",
        found="start: not async: start, step, evaluate, close: write `async def start(self, …)`, see "
        "examples/doorbell.py (in 9 of 10 checks)",
        failed="start: not async: start, step, evaluate, close: write `async def start(self, …)`, see "
        "examples/doorbell.py",
    ),
    "a PIL image as observation": Mistake(
        right="return Observation(screenshot=Screenshot.of(buffer.getvalue()))",
        wrong="return Image.open(buffer)",
        at="async def start",
        found="start: returned a PngImageFile of PIL, must return "
        f"Observation(screenshot=Screenshot.of(png)): {PNG} (in 9 of 10 checks)",
        failed="start: returned a PngImageFile of PIL, must return "
        f"Observation(screenshot=Screenshot.of(png)): {PNG}",
    ),
    "a KeyError": Mistake(
        right="                self.on = True",
        wrong='                self.on = {"lamp": True}["Lamp"]',
        at='["Lamp"]',
        found=f"step: KeyError: 'Lamp': {IGNORE} (in 3 of 10 checks)",
        failed="step: KeyError: 'Lamp'",
    ),
    "a score of 100": Mistake(
        right="return 1.0 if self.on",
        wrong="return 100 if self.on",
        at="async def evaluate",
        found=f"evaluate: returned 100, {SCORE}",
        failed=f"evaluate: returned 100, {SCORE}",
    ),
    "no return in evaluate": Mistake(
        right="return 1.0 if self.on else 0.0",
        wrong="1.0 if self.on else 0.0",
        at="async def evaluate",
        found=f"evaluate: returned None, {SCORE} (in 5 of 10 checks)",
        failed=f"evaluate: returned None, {SCORE}",
    ),
    "time.sleep": Mistake(
        right="start(self, task):",
        wrong="start(self, task, naps=[2, 2]):\n        time.sleep(naps.pop() if naps else 0)",
        at="time.sleep(",
        found="start: blocks all environments for more than 1 s: use `await asyncio.sleep(…)`, or "
        "`await asyncio.to_thread(function, …)` for a slow function",
    ),
    "another screen size after a step": Mistake(
        right="(224, 168)",
        wrong="(224, 168 + 28 * self.on)",
        at="async def step",
        found="step: the screenshot is 224x196, must be 224x168, the size of the first one of the episode "
        "(in 3 of 10 checks)",
        failed="step: the screenshot is 224x196, must be 224x168, the size of the first one of the episode",
    ),
    "state of the class": Mistake(
        right="self.on = ",
        wrong="Lamp.on = ",
        at="class Lamp",
        found="evaluate: returned 0 alone, but 1 while another environment is open: give each its own state, "
        "port, folder or display",
    ),
    "evaluate changes the state": Mistake(
        right="        return 1.0 if self.on else 0.0",
        wrong="        self.on = not self.on\n        return 0.0 if self.on else 1.0",
        at="async def evaluate",
        found="evaluate: three calls returned 0, 1, 0, although nothing was done: it must score the current "
        "state and not change it",
    ),
    "close needs start": Mistake(
        right="        pass",
        wrong="        del self.task",
        at="del self.task",
        found="close: AttributeError: 'Lamp' object has no attribute 'task': "
        f"{CORRECT}; close() must work twice, and before start()",
    ),
    "a wait that does not end": Mistake(
        right="        for action in actions:",
        wrong="        await asyncio.Event().wait()\n        for action in actions:",
        at="asyncio.Event",
        found="step: no answer within 0.2 s: make it faster, or raise --env.step_seconds (in 5 of 10 checks)",
        failed="step: no answer within 0.2 s",
        settings=("--env.step_seconds=0.2",),
    ),
}
REFUSED = {
    "arguments of the constructor": Mistake(
        right="    async def start(",
        wrong="    def __init__(self, address):\n        self.address = address\n\n    async def start(",
        at="def __init__",
        found="ARPO calls Lamp() without arguments, but it needs address: give them default values",
    ),
    "a missing method": Mistake(
        right="async def close",
        wrong="async def quit",
        at="class Lamp",
        found="not an environment: add the methods close",
    ),
    "a module that is not installed": Mistake(
        right="from PIL import Image",
        wrong="from PILLOW import Image",
        at="from PILLOW",
        found="importing {module} failed: ModuleNotFoundError: No module named 'PILLOW'",
    ),
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that writes the environment with a mistake. Returns its module and the place of messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "tasks.json").write_text(json.dumps(TASKS), "utf-8")

    def written(mistake: Mistake) -> tuple[str, str]:
        assert mistake.right in LAMP
        code, module = LAMP.replace(mistake.right, mistake.wrong), f"engineers_lamp_{next(NUMBERS)}"
        (tmp_path / f"{module}.py").write_text(code, "utf-8")
        line = next(number for number, text in enumerate(code.splitlines(), 1) if mistake.at in text)
        return module, f"{module}.py:{line}"

    return written


MARKS = ("FAIL", "warn", "skip")
NOTES = re.compile(r" \((?:at|task|in) ")


def findings(printed: str) -> list[str]:
    """The lines that are not ok. A line that later checks have repeated is the one with the notes."""
    first, _, last = printed.partition("found again by later checks:\n")
    once, again = ([line for line in part.splitlines() if line.startswith(MARKS)] for part in (first, last))
    repeated = {NOTES.split(line)[0] for line in again}
    return [line for line in once if NOTES.split(line)[0] not in repeated] + again


@pytest.mark.parametrize("name", MISTAKES)
def test_check_env_explains_a_mistake_in_one_line(name, write, capsys):
    mistake = MISTAKES[name]
    module, place = write(mistake)
    code = main(["check-env", f"{module}:Lamp", "--tasks", "tasks.json", *mistake.settings])
    printed = capsys.readouterr()
    assert findings(printed.out) == [f"FAIL  {place}: {mistake.found}"]
    assert (code, printed.err) == (1, "")


@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.failed])
def test_train_stops_and_names_the_line(name, write, capsys):
    mistake = MISTAKES[name]
    module, place = write(mistake)
    code = main(["train", "desk", f"--env.name={module}:Lamp", *tiny(), *mistake.settings])
    count, _, rest = capsys.readouterr().err.partition(". ")
    assert re.fullmatch(
        "arpo: error: all [24] episodes failed", count
    )  # of the evaluation or the first batch
    assert rest == (
        f"First failure: task left, {mistake.failed} ({place}). Fix the environment "
        "(`arpo check-env` helps), then run the same command again\n"
    )
    failures = [json.loads(line) for line in Path("run", "failures.jsonl").read_text("utf-8").splitlines()]
    assert len(failures) >= 2
    assert {f"{failure['where']}: {failure['message']}" for failure in failures} == {mistake.failed}
    assert {failure["place"] for failure in failures} == {place}
    assert code == 2


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("command", ["check-env", "train desk"])
def test_a_class_that_cannot_be_used_is_refused_at_once(command, name, write, capsys):
    module, place = write(REFUSED[name])
    target = (
        [f"{module}:Lamp", "--tasks=tasks.json"] if command == "check-env" else [f"--env.name={module}:Lamp"]
    )
    code = main([*command.split(), *target, *(() if command == "check-env" else tiny())])
    found = REFUSED[name].found.format(module=module)
    assert capsys.readouterr().err == f"arpo: error: env.name = '{module}:Lamp': {found} ({place})\n"
    assert code == 2


CORRECT_LAMP = Mistake(right="class Lamp", wrong="class Lamp", at="class Lamp", found="")


def test_without_tasks_check_env_says_how_to_write_some(write, capsys):
    module, _ = write(CORRECT_LAMP)
    assert main(["check-env", f"{module}:Lamp"]) == 2
    assert f"--tasks: {module}:Lamp needs tasks of its own: write a file" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["train desk", "eval --out=scores.json", "collect desk", "play random"])
def test_an_own_environment_does_not_play_the_tasks_of_desk(command, write, capsys):
    module, _ = write(CORRECT_LAMP)
    assert main([*command.split(), f"--env.name={module}:Lamp"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert "tasks.train = 'desk:32', tasks.heldout = 'desk:heldout'" in error
    assert f"'{module}:Lamp' cannot play: set tasks.train to a task file" in error
    assert not [*Path("runs").glob("*/recipe.toml")]  # the corrected command begins in the same folder


def test_own_training_tasks_need_own_held_out_tasks(write, capsys):
    module, _ = write(CORRECT_LAMP)
    assert main(["train", "desk", f"--env.name={module}:Lamp", "--tasks.train=tasks.json"]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert f"'{module}:Lamp' cannot play: set tasks.heldout to a task file" in error


def test_own_environments_are_not_screened_with_the_tasks_of_desk(write, capsys):
    module, _ = write(CORRECT_LAMP)
    assert main(["screen", "--out=kept.json", f"--env.name={module}:Lamp"]) == 2
    assert "tasks.train = 'desk:32': tasks of Desk, which env.name" in capsys.readouterr().err


def test_without_mistakes_the_lamp_passes_and_trains(write, capsys):
    module, _ = write(CORRECT_LAMP)
    assert main(["check-env", f"{module}:Lamp", "--tasks=tasks.json"]) == 0
    assert findings(capsys.readouterr().out) == []
    assert main(["train", "desk", f"--env.name={module}:Lamp", *tiny()]) == 0
    assert "failed, most often" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_that_refused_most_successes_does_not_succeed(write, capsys):
    """One of two tasks fails, so the run goes on to its end. The same command ends in the same way again."""
    wrong = 'return 100 if self.task.id == "left" else 0.0'
    mistake = Mistake(right="return 1.0 if self.on else 0.0", wrong=wrong, at="async def evaluate", found="")
    module, place = write(mistake)
    printed = []
    for _ in range(2):
        assert main(["train", "desk", f"--env.name={module}:Lamp", *tiny()]) == 1
        printed.append(capsys.readouterr().out)
        assert "most successes were refused: evaluate() failed in 4 episodes" in printed[-1]
        assert f"returned 100, {SCORE} ({place})" in printed[-1]
        assert "report: run/report.html\n" in printed[-1]
    first = f"1 episode failed. First failure: task left, evaluate: returned 100, {SCORE} ({place})\n"
    assert first in printed[0]
