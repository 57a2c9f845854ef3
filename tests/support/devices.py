"""Devices for parametrised tests: the CPU, and a GPU if there is one."""

import pytest
import torch

NEEDS_A_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ("cpu", pytest.param("cuda", marks=NEEDS_A_GPU))
