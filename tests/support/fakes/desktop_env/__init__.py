"""Fake desktop-env: the names, calls and quirks of the real one, without a real machine."""
