"""What an episode is worth: its reward, r = r_t + w·r_f, and whether it is one to learn from.

It judges trajectories only; a failure never gets here.
"""

from __future__ import annotations

from arpo.types import Trajectory


def reward(trajectory: Trajectory, format_weight: float) -> float:
    """The checker's score, less the format weight when an answer was outside the action language.

    A solved task whose last answer does not parse: 1 + 1·(−1) = 0.
    """
    format_reward = -1.0 if trajectory.malformed else 0.0
    return trajectory.score + format_weight * format_reward


def is_example(score: float, malformed: bool, threshold: float) -> bool:
    """Whether an episode is a success to learn from: its goal is reached, and every answer in it parsed."""
    return score >= threshold and not malformed
