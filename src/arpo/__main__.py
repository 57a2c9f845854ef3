"""`python -m arpo` is the `arpo` command."""

import sys

from arpo.cli.main import main

sys.exit(main())
