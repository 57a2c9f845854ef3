from arpo.rewards import reward
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
