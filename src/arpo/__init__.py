"""ARPO: reinforcement learning for agents that use a computer through screenshots, mouse and keyboard.

`import arpo` is fast. It does not import torch or transformers.
"""

__version__ = "0.1.0"
