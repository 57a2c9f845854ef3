"""A small desktop-env for tests: the real one's names, calls and surprises, over a guest of plain values."""
