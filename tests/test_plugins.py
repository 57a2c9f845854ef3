"""Plug-ins of a recipe: loading, the call of each kind during training, checks of results, and faults."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path

import pytest

from arpo.algorithms.credit import Credit
from arpo.config import Config, LossConfig, PluginsConfig
from arpo.config.recipe import load_config
from arpo.envs.desk.fresh import FreshTasks, GoalMix
from arpo.errors import UserError
from arpo.plugins import Plugin, check_plugins, import_attribute, open_plugin, run_callback
from arpo.tasks.order import PluginOrder
from arpo.tasks.sources import TaskIndex
from arpo.testing import task
from arpo.training.trainer import Trainer, run_training
from arpo.types import Group
from trained import lines, train_to_end
from trajectories import group, trajectory
from verdicts import A, B, Scripted, small_config

NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a module into the current folder and return its name. Each one has another name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])

    def write(code: str) -> str:
        name = f"plugin_module_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
        return name

    return write


def with_plugin(kind: str, name: str) -> Config:
    return Config(plugins=PluginsConfig(**{kind: name}))


def plugin(function: object, kind: str = "reward") -> Plugin:
    assert callable(function)
    return Plugin(key=f"plugins.{kind}", name=f"mine:{kind}", function=function)


def refusal(kind: str, name: str) -> str:
    with pytest.raises(UserError) as caught:
        open_plugin(with_plugin(kind, name).plugins, kind)
    return str(caught.value)


def test_a_plugin_is_found_in_the_current_folder_and_an_empty_name_is_none(module):
    name = module("def reward(trajectory, task):\n    return 0.5\n")
    found = open_plugin(with_plugin("reward", f"{name}:reward").plugins, "reward")
    assert found is not None
    assert found(None, None) == 0.5
    assert open_plugin(Config().plugins, "reward") is None


def test_each_mistake_in_a_name_is_one_clear_error(module):
    name = module("VALUE = 3\ndef reward(trajectory, task):\n    return 0.5\n")
    broken = module("import os\n\n1 / 0\n")
    needs = module("import not_installed_package\n")
    async_one = module("async def reward(trajectory, task):\n    return 0.5\n")
    assert refusal("reward", "reward") == (
        "plugins.reward = 'reward': must be module:function, for example my_file:my_function"
    )
    assert refusal("reward", "no_such_module:reward") == (
        "plugins.reward = 'no_such_module:reward': no module no_such_module: run the command in the folder "
        "of no_such_module.py, or install it"
    )
    assert refusal("reward", f"{name}.py:reward") == (
        f"plugins.reward = '{name}.py:reward': is a path, must be a module: write {name}:reward"
    )
    assert refusal("reward", f"./sub/{name}.py:reward").endswith(f"must be a module: write sub.{name}:reward")
    assert refusal("reward", f"{name}:rewards") == (
        f"plugins.reward = '{name}:rewards': module {name} has no function rewards (did you mean reward?)"
    )
    assert refusal("reward", f"{name}:VALUE") == f"plugins.reward = '{name}:VALUE': is 3, must be a function"
    assert refusal("advantage", f"{async_one}:reward") == (
        f"plugins.advantage = '{async_one}:reward': is async: write `def`, not `async def` ({async_one}.py:1)"
    )
    assert refusal("reward", f"{broken}:reward").endswith(
        f"importing {broken} failed: ZeroDivisionError: division by zero ({broken}.py:3)"
    )
    assert f"importing {needs} failed: ModuleNotFoundError" in refusal("reward", f"{needs}:reward")


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("reward", "trajectory, task"),
        ("advantage", "rewards, group"),
        ("curriculum", "tasks, epoch, history, rng"),
        ("tracker", "config"),
        ("callback", "batch, metrics, groups"),
    ],
)
def test_a_wrong_signature_is_refused_with_the_right_one(module, kind, parameters):
    name = module("def none():\n    pass\n\n\ndef right(*arguments):\n    pass\n")
    assert refusal(kind, f"{name}:none") == (
        f"plugins.{kind} = '{name}:none': takes (), must take ({parameters}) ({name}.py:1)"
    )
    assert open_plugin(with_plugin(kind, f"{name}:right").plugins, kind)


def test_all_plugins_are_checked_before_the_run_folder_is_made(module, tmp_path):
    config = small_config(tmp_path, [A], "--plugins.callback=nowhere_at_all:callback")
    with pytest.raises(UserError, match=r"plugins\.callback = 'nowhere_at_all:callback': no module"):
        run_training(config)
    assert not Path(config.run.dir).exists()
    check_plugins(Config().plugins)


def test_environments_are_imported_with_the_same_messages(module):
    name = module("class Env: ...\n")
    with pytest.raises(
        UserError, match=rf"env.name = '{name}:Emv': module {name} has no class Emv \(did you"
    ):
        import_attribute("env.name", f"{name}:Emv", "class")


def test_a_fault_names_file_and_line_of_the_users_code(module):
    name = module(
        "def reward(trajectory, task):\n    return helper({})\n\ndef helper(x):\n    return x['room']\n"
    )
    found = open_plugin(with_plugin("reward", f"{name}:reward").plugins, "reward")
    assert found is not None
    with pytest.raises(UserError) as caught:
        found(None, None)
    assert str(caught.value) == f"plugins.reward = '{name}:reward': KeyError: 'room' ({name}.py:5)"
    exits = module("import sys\ndef reward(trajectory, task):\n    sys.exit(1)\n")
    found = open_plugin(with_plugin("reward", f"{exits}:reward").plugins, "reward")
    assert found is not None
    with pytest.raises(UserError, match=rf"SystemExit: 1 \({exits}.py:3\)"):
        found(None, None)


GROUP = Group(
    index=0,
    task_id="a",
    trajectories=(trajectory(1.0, name="e0", task="a"), trajectory(0.0, name="e1", task="a")),
)


def test_credit_calls_reward_once_per_episode_and_advantage_once_per_group():
    calls = []

    def reward(trajectory, task):
        calls.append((trajectory.episode_id, task.id))
        return trajectory.score * 2

    def advantage(rewards, group):
        calls.append((tuple(rewards), group.index))
        return [reward - 1 for reward in rewards]

    credit = Credit(LossConfig(), plugin(reward), plugin(advantage, "advantage"), {"a": task("a")})
    assert credit.advantages(GROUP) == (1.0, -1.0)
    assert credit.advantages(GROUP) == (1.0, -1.0)
    assert credit.reward(GROUP.trajectories[0]) == 2.0
    assert calls == [("e0", "a"), ("e1", "a"), ((2.0, 0.0), 0)]


def test_the_reward_of_a_replayed_episode_gets_its_own_task():
    """Replay by goal family puts a success of one fresh task into the group of another."""
    mix = GoalMix(("SetTheme",), (1,))
    own, other = (tasks := FreshTasks(mix, seed=0, count=2, max_steps=15, endless=True))
    seen = []

    def reward(trajectory, task):
        seen.append((trajectory.task_id, task.instruction))
        return trajectory.score

    credit = Credit(LossConfig(), plugin(reward), None, TaskIndex(tasks))
    failed, stored = trajectory(0.0, name="a", task=own.id), trajectory(1.0, name="b", task=other.id)
    assert credit.advantages(group(failed, stored, task=own.id)) == (-1.0, 1.0)
    assert seen == [(own.id, own.instruction), (other.id, other.instruction)]


def test_a_group_with_equal_rewards_reaches_the_advantage_plugin():
    credit = Credit(LossConfig(), plugin(lambda *_: 1.0), plugin(lambda r, g: (0.5, 0.25)), {"a": task("a")})
    assert credit.advantages(GROUP) == (0.5, 0.25)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "1", True])
def test_a_reward_must_be_a_finite_number(value):
    credit = Credit(LossConfig(), plugin(lambda *_: value), None, {"a": task("a")})
    with pytest.raises(
        UserError, match=r"plugins.reward = 'mine:reward': returned .* for episode e0, must be"
    ):
        credit.reward(GROUP.trajectories[0])


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0, 3.0], None, 1.0])
def test_there_must_be_one_advantage_per_episode(values):
    credit = Credit(LossConfig(), None, plugin(lambda *_: values, "advantage"))
    with pytest.raises(
        UserError, match=r"'mine:advantage': returned .* for a group of task a, must be 2 numbers"
    ):
        credit.advantages(GROUP)
    credit = Credit(LossConfig(), None, plugin(lambda *_: [1.0, float("nan")], "advantage"))
    with pytest.raises(UserError, match="returned nan for a group of task a, must be a finite number"):
        credit.advantages(GROUP)


TASKS = [task("a"), task("b"), task("c")]


def test_the_curriculum_is_called_once_per_epoch_with_the_scores_so_far():
    seen = []

    def order(tasks, epoch, history, rng):
        seen.append((epoch, dict(history), rng.random()))
        return sorted(tasks, key=lambda task: sum(history[task.id]))

    curriculum = PluginOrder(TASKS, 7, 6, plugin(order, "curriculum"))
    curriculum.record([trajectory(1.0, name="e", task="a"), trajectory(0.5, name="f", task="b")])
    ids = [[one.id for one in curriculum.epoch(0)] for _ in range(2)]
    assert ids == [["c", "b", "a"]] * 2
    assert len(seen) == 1 and seen[0][:2] == (0, {"a": (1.0,), "b": (0.5,), "c": ()})
    again = PluginOrder(TASKS, 7, 6, plugin(order, "curriculum"))
    again.restore(curriculum.state()["orders"], [trajectory(0.0, name="g", task="a")])
    assert [one.id for one in again.epoch(0)] == ["c", "b", "a"]
    again.epoch(1)
    assert seen[1][:2] == (1, {"a": (0.0,), "b": (), "c": ()})
    assert again.state() == {"orders": [[1, ["a", "b", "c"]]]}


@pytest.mark.parametrize(
    ("ordered", "reason"),
    [
        (TASKS[:2], "returned 2 tasks for epoch 0, must be 3, the number of training tasks; a task may"),
        (["a", "b", "c"], "returned ['a', 'b', 'c'] for epoch 0, must be a list of tasks"),
        (None, "returned None for epoch 0, must be a list of tasks"),
        ([*TASKS[:2], task("d")], "returned 'd' for epoch 0, which is no training task"),
    ],
)
def test_a_curriculum_returns_as_many_training_tasks(ordered, reason):
    with pytest.raises(UserError) as caught:
        PluginOrder(TASKS, 0, 3, plugin(lambda *_: ordered, "curriculum")).epoch(0)
    assert f"plugins.curriculum = 'mine:curriculum': {reason}" in str(caught.value)


def test_a_callback_returns_new_finite_metrics_or_none():
    def result(value):
        return run_callback(plugin(lambda *_: value, "callback"), 1, {"loss": 0.5}, ())

    assert result(None) == {}
    assert result({"mine": 1}) == {"mine": 1.0}
    for value, reason in {
        "text": "returned 'text', must be a dict of metrics, or None",
        ("loss", 1.0): "returned the metric 'loss', which exists: choose another name",
        ("step", 1.0): "returned the metric 'step', which exists: choose another name",
        ("mine", float("nan")): "returned nan for the metric 'mine', must be a finite number",
    }.items():
        with pytest.raises(UserError) as caught:
            result(dict([value]) if isinstance(value, tuple) else value)
        assert str(caught.value).startswith(f"plugins.callback = 'mine:callback': {reason}")


ALL = """
CALLS = []


def reward(trajectory, task):
    CALLS.append(("reward", trajectory.episode_id, task.id))
    return 10 * trajectory.score


def advantage(rewards, group):
    CALLS.append(("advantage", tuple(rewards), group.task_id))
    return [reward - sum(rewards) / len(rewards) for reward in rewards]


def curriculum(tasks, epoch, history, rng):
    CALLS.append(("curriculum", epoch, {name: list(scores) for name, scores in history.items()}))
    return sorted(tasks, key=lambda task: task.id, reverse=epoch % 2 == 1)


class Tracker:
    def __init__(self, config):
        self.lines = []
        CALLS.append(("tracker", config.run.seed))

    def log(self, step, metrics):
        CALLS.append(("log", step, metrics.get("played"), metrics.get("reward")))

    def close(self):
        CALLS.append(("close",))


def callback(batch, metrics, groups):
    CALLS.append(("callback", batch, [group.task_id for group in groups], "loss" in metrics))
    return {"played": sum(len(group.trajectories) for group in groups)}
"""


def all_plugins(name: str) -> list[str]:
    kinds = {kind: kind for kind in ("reward", "advantage", "curriculum", "callback")} | {
        "tracker": "Tracker"
    }
    return [f"--plugins.{kind}={name}:{attribute}" for kind, attribute in kinds.items()]


def test_a_run_calls_every_plugin(module, tmp_path):
    name = module(ALL)
    Scripted.play({A: [0, 1, 0, 1, 0, 0], B: [0, 1, 0, 1, 0, 0]})
    config = small_config(tmp_path, [A, B], "--train.epochs=2", "--run.seed=5", *all_plugins(name))
    assert run_training(config) == 0
    calls = importlib.import_module(name).CALLS
    by_kind = {kind: [call[1:] for call in calls if call[0] == kind] for kind in {call[0] for call in calls}}
    assert by_kind["tracker"] == [(5,)] and by_kind["close"] == [()]
    assert [step for step, *_ in by_kind["log"]] == [0, 1, 2]
    assert [more for _, *more in by_kind["log"]][1:] == [[4.0, 5.0], [4.0, 5.0]]
    assert by_kind["callback"] == [(1, [A, B], True), (2, [B, A], True)]
    assert by_kind["curriculum"][0] == (0, {A: [], B: []})
    assert by_kind["curriculum"][1] == (1, {A: [1.0, 0.0], B: [1.0, 0.0]})
    assert len(by_kind["reward"]) == len({episode for episode, _ in by_kind["reward"]}) == 8
    assert [set(rewards) for rewards, _ in by_kind["advantage"]] == [{0.0, 10.0}] * 4
    assert [line.get("played") for line in lines(config, "metrics.jsonl")] == [None, 4, 4]
    assert load_config(Path(config.run.dir) / "recipe.toml").plugins == config.plugins


@pytest.mark.slow
def test_a_resumed_run_keeps_the_order_of_its_epoch_and_the_history(module, tmp_path):
    name = module(
        "SEEN = []\n"
        "def order(tasks, epoch, history, rng):\n"
        "    SEEN.append((epoch, {name: len(scores) for name, scores in history.items()}))\n"
        "    return list(tasks) if len(SEEN) % 2 else list(tasks)[::-1]\n"
    )
    settings = (
        "--train.tasks_per_batch=1",
        "--train.tasks_per_update=1",
        f"--plugins.curriculum={name}:order",
    )
    Scripted.play({})
    config = small_config(tmp_path, [A, B], "--train.epochs=2", *settings)

    class Stopping(Trainer):
        async def _end_batch(self, *arguments):
            self.run.stopping = True
            await super()._end_batch(*arguments)

    with pytest.raises(AssertionError):
        train_to_end(Stopping, config)  # stops after one batch, in the middle of epoch 0
    train_to_end(Trainer, config)
    assert importlib.import_module(name).SEEN == [(0, {A: 0, B: 0}), (1, {A: 2, B: 2})]
    played = [
        line["task_id"] for line in lines(config, "trajectories.jsonl") if line["episode_id"][:5] == "batch"
    ]
    assert played == [A, A, B, B, B, B, A, A]


def test_a_faulty_tracker_is_named(module, tmp_path):
    name = module(
        "class Broken:\n"
        "    def __init__(self, config): ...\n"
        "    def log(self, step, metrics):\n"
        "        raise OSError('no route')\n"
        "    def close(self): ...\n"
        "class Half(Broken):\n"
        "    close = None\n"
    )
    Scripted.play({})
    with pytest.raises(
        UserError, match=rf"plugins.tracker = '{name}:Broken': OSError: no route \({name}.py:4\)"
    ):
        run_training(small_config(tmp_path, [A], f"--plugins.tracker={name}:Broken"))
    half = small_config(tmp_path, [A], f"--plugins.tracker={name}:Half", f"--run.dir={tmp_path / 'half'}")
    with pytest.raises(UserError, match="made a Half without the methods close: add them"):
        run_training(half)


def test_plugins_of_online_training_are_refused_offline():
    for kind in ("reward", "advantage", "curriculum"):
        with pytest.raises(
            UserError, match=f"plugins.{kind}: is 'm:f', must be empty with train.method = rft"
        ):
            load_config("desk", ["--train.method=rft", "--loss.kl=0", f"--plugins.{kind}=m:f"])
    with pytest.raises(UserError, match=r"train.curriculum: is middle, must be none with plugins.curriculum"):
        load_config("desk", ["--train.curriculum=middle", "--plugins.curriculum=m:f"])
