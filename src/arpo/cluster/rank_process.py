"""`python -m arpo.cluster.rank_process NUMBER STORE`: a learner rank that ends with its actor."""

from __future__ import annotations

import ctypes
import signal
import sys

from arpo.learner import sharded

_PR_SET_PDEATHSIG = 1  # prctl option: signal to receive when the parent ends

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sharded.main(int(sys.argv[1]), sys.argv[2])
