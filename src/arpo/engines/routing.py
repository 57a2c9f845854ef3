"""Sticky, least-loaded routing: an episode stays on one server, so that its prefix is in the cache there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Generic, TypeVar

Server = TypeVar("Server")


class Router(Generic[Server]):
    """Remembers the server of each episode.

    >>> router = Router[str]()
    >>> router.choose("episode-0", ["a", "b"]), router.choose("episode-1", ["a", "b"])
    ('a', 'b')
    >>> router.choose("episode-1", ["a"])  # b does not work: the episode continues on a, and stays there
    'a'
    """

    def __init__(self) -> None:
        self._server_of: dict[str, Server] = {}

    def choose(self, episode_id: str, working: Collection[Server]) -> Server:
        """The episode's server, or the one with the fewest episodes if it is not among the working ones."""
        chosen = self._server_of.get(episode_id)
        if chosen is None or chosen not in working:
            self._server_of.pop(episode_id, None)
            chosen = min(working, key=self.episodes_on)
            self._server_of[episode_id] = chosen
        return chosen

    def release(self, episode_id: str) -> None:
        self._server_of.pop(episode_id, None)

    def forget_all(self) -> None:
        """Choose again for all episodes: their prefixes are not in any cache after an update of weights."""
        self._server_of.clear()

    def episodes_on(self, server: Server) -> int:
        return sum(other is server for other in self._server_of.values())
