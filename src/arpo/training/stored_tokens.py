"""Loads stored episodes to train on, and checks their tokens: a wrong one would fail inside the model."""

from __future__ import annotations

from arpo.errors import UserError
from arpo.prompts import vision
from arpo.rollout.player import Player
from arpo.storage.files import RESTORE_OR_LEAVE
from arpo.storage.run_folder import TRAJECTORIES, RunFolderReader
from arpo.types import Trajectory


def load_checked(reader: RunFolderReader, episode_id: str, player: Player) -> Trajectory:
    """Load an episode. Raises UserError if the player's model cannot have sampled its tokens."""
    trajectory = reader.load_trajectory(episode_id)
    _check_tokens(trajectory, reader, player)
    return trajectory


def load_outline(reader: RunFolderReader, episode_id: str, player: Player) -> Trajectory:
    """The same checks without decoding: the screenshots of the result have a size, but no pixels."""
    outline = reader.load_outline(episode_id)
    _check_tokens(outline, reader, player)
    return outline


def _check_tokens(trajectory: Trajectory, reader: RunFolderReader, player: Player) -> None:
    renderer, rows = player.token_renderer, player.model.config.text_config.vocab_size
    for turn in trajectory.turns:
        tokens = (*turn.context, *turn.completion.token_ids)
        slots = sum(vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in turn.images)
        if not 0 <= min(tokens) <= max(tokens) < rows or turn.context.count(renderer.image_token_id) != slots:
            raise UserError(
                f"{reader.folder / TRAJECTORIES}: damaged, the tokens of episode {trajectory.episode_id!r} "
                f"do not fit the model and the screenshots: {RESTORE_OR_LEAVE}"
            )
