"""What runs inside the light desktop: the session, and a server that speaks OSWorld's guest protocol.

Started as `python3 -m arpo.envs.osworld.guest` by the guest's own Python. Of the package it sees this folder
alone, so it imports nothing else of it: the standard library, python-xlib, Pillow and, lazily, pyatspi.
"""
