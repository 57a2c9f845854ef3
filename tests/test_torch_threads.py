"""The number of torch threads of a test or a fixture does not reach the next test."""

import pytest
import torch


@pytest.fixture(scope="module")
def threads() -> int:
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    return 3


@pytest.mark.parametrize("number", [1, 2])
def test_a_test_begins_with_one_torch_thread(threads: int, number: int) -> None:
    assert torch.get_num_threads() == 1
    torch.set_num_threads(threads)
