from arpo.algorithms.rewards import is_example, reward
from trajectories import trajectory


def test_a_well_formed_episode_earns_the_checkers_score() -> None:
    assert reward(trajectory(1.0), format_weight=1.0) == 1.0
    assert reward(trajectory(0.25), format_weight=1.0) == 0.25
    assert reward(trajectory(0.0), format_weight=1.0) == 0.0


def test_a_malformed_answer_costs_the_format_weight() -> None:
    assert reward(trajectory(0.0, malformed=True), format_weight=1.0) == -1.0
    assert reward(trajectory(1.0, malformed=True), format_weight=1.0) == 0.0
    assert reward(trajectory(0.0, malformed=True), format_weight=0.5) == -0.5
    assert reward(trajectory(0.75, malformed=True), format_weight=0.0) == 0.75


def test_an_example_reached_its_goal_in_answers_that_parsed() -> None:
    assert is_example(0.5, False, 0.5) and not is_example(0.4, False, 0.5)
    assert not is_example(1.0, True, 0.5)
