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
    trajectory, renderer = reader.load_trajectory(episode_id), player.token_renderer
    rows = player.model.config.text_config.vocab_size
    for turn in trajectory.turns:
        tokens = (*turn.context, *turn.completion.token_ids)
        slots = sum(vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in turn.images)
        if not 0 <= min(tokens) <= max(tokens) < rows or turn.context.count(renderer.image_token_id) != slots:
            raise UserError(
                f"{reader.folder / TRAJECTORIES}: damaged, the tokens of episode {episode_id!r} do not fit "
                f"the model and the screenshots: {RESTORE_OR_LEAVE}"
            )
    return trajectory
