"""Commands of `arpo` and their help. `main` is the entry point."""

from arpo.cli.entry_point import main as main
