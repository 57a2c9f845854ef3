"""ARPO: reinforcement learning for agents that work a computer through screenshots, mouse and keyboard.

Importing this package loads nothing heavy: torch and transformers come with the rooms that use them.
"""

__version__ = "0.1.0"
