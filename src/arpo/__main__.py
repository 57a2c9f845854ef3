"""Entry point of `python -m arpo`, which is the same as the command `arpo`."""

import sys

from arpo.cli.entry_point import main

sys.exit(main())
