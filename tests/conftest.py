"""Ctrl-C reaches what the tests start, also where they themselves were started in the background."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell without job control leaves it
    signal.signal(signal.SIGINT, signal.default_int_handler)
