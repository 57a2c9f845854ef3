"""The reward of an episode, r = r_t + w·r_f, and the definition of a success.

Only trajectories have a reward. A Failure has none.
"""

from __future__ import annotations

from arpo.types import Trajectory


def reward(trajectory: Trajectory, format_weight: float) -> float:
    """The checker's score, minus `format_weight` if an answer was malformed.

    Example: a solved task whose last answer does not parse has the reward 1 + 1·(−1) = 0.
    """
    format_reward = -1.0 if trajectory.malformed else 0.0
    return trajectory.score + format_weight * format_reward


def is_example(score: float, malformed: bool, threshold: float) -> bool:
    """True for a success: the score reaches the threshold, and every answer parsed."""
    return score >= threshold and not malformed
