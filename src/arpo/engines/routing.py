"""Sticky, least-loaded routing: an episode stays on one server, so that its prefix is in the cache there."""

from __future__ import annotations

from collections import Counter
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
        self._episodes: Counter[Server] = Counter()

    def choose(self, episode_id: str, working: Collection[Server]) -> Server:
        """The episode's server, or the one with the fewest episodes if it is not among the working ones."""
        chosen = self._server_of.get(episode_id)
        if chosen is None or chosen not in working:
            self.release(episode_id)
            chosen = min(working, key=self.episodes_on)
            self._server_of[episode_id] = chosen
            self._episodes[chosen] += 1
        return chosen

    def release(self, episode_id: str) -> None:
        if (server := self._server_of.pop(episode_id, None)) is not None:
            self._episodes[server] -= 1

    def forget_all(self) -> None:
        """Choose again for all episodes: their prefixes are not in any cache after an update of weights."""
        self._server_of.clear()
        self._episodes.clear()

    def episodes_on(self, server: Server) -> int:
        return self._episodes[server]
