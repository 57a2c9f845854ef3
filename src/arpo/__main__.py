"""`python -m arpo` is the `arpo` command."""

import sys

from arpo.cli import main

sys.exit(main())
