"""ARPO: reinforcement learning for agents that use a computer through screenshots, mouse and keyboard.

`import arpo` is fast. It does not import torch or transformers; the modules that use them do.
"""

__version__ = "0.1.0"
