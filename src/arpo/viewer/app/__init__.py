"""The browser application of `arpo view`: server, index of episodes, static export."""
