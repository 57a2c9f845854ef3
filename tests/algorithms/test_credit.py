from collections.abc import Sequence
from typing import Any

from arpo.algorithms.credit import Credit
from arpo.config import LossConfig
from arpo.plugins import Plugin
from arpo.types import Group, Task, Trajectory
from trajectories import group, scored, trajectory


def plugin(function: Any) -> Plugin:
    return Plugin(key="plugins.any", name="mine:any", function=function)


def test_the_built_in_credit_has_the_settings_of_the_loss() -> None:
    credit = Credit(LossConfig(advantage="mean", format_weight=0.5))
    one = group(trajectory(1.0, malformed=True), trajectory(0.0))
    assert [credit.reward(episode) for episode in one.trajectories] == [0.5, 0.0]
    assert credit.advantages(one) == (0.25, -0.25)


def test_a_single_episode_is_compared_with_nothing() -> None:
    credit = Credit(LossConfig())
    assert credit.advantages(group(trajectory(1.0))) == (0.0,)
    assert credit.advantages(group()) == ()


def test_plug_ins_are_asked_once_for_an_episode_and_a_group() -> None:
    asked: list[str] = []

    def reward(episode: Trajectory, task: Task) -> float:
        asked.append(f"{task.id} {episode.episode_id}")
        return episode.score / 2

    def advantage(rewards: Sequence[float], group: Group) -> list[float]:
        asked.append(str(rewards))
        return [3.0, -3.0]

    tasks = {"t": Task(id="t", instruction="", snapshot="", config=(), evaluator={})}
    credit = Credit(LossConfig(), plugin(reward), plugin(advantage), tasks)
    one = scored(1, 0)
    for _ in range(2):
        assert credit.advantages(one) == (3.0, -3.0)
    assert asked == ["t t-0-0", "t t-0-1", "[0.5, 0.0]"]
