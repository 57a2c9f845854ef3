"""Kernels that compute wrong gradients are refused."""

from types import SimpleNamespace

import pytest
import torch

from arpo.errors import UserError
from arpo.models.linear_attention import check_training


def model(*kinds: str, device: str = "cuda") -> SimpleNamespace:
    layers = [SimpleNamespace(**{kind: None}) for kind in kinds]
    text = SimpleNamespace(layers=layers)
    return SimpleNamespace(model=SimpleNamespace(language_model=text), device=torch.device(device))


def check(one: SimpleNamespace, **versions: str) -> None:
    check_training(one, lambda package: versions.get(package.replace("-", "_"), ""))


LINEAR = ("linear_attn", "self_attn")


@pytest.mark.parametrize("triton", ["3.4.0", "3.6.0", "3.7.0+git1"])
def test_wrong_gradients_on_hopper_are_refused(monkeypatch: pytest.MonkeyPatch, triton: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(UserError, match=r"PyTorch to a version with Triton 3\.7\.1 or later"):
        check(model(*LINEAR), flash_linear_attention="0.6.0", triton=triton)
    check(model(*LINEAR), flash_linear_attention="0.6.0", triton="3.7.1")
    check(model(*LINEAR), flash_linear_attention="0.6.0", triton="3.3.1")
    check(model(*LINEAR), flash_linear_attention="0.6.0", triton=triton, tilelang="0.1.6")
    check(model(*LINEAR), triton=triton)  # torch's own operations
    check(model("self_attn"), flash_linear_attention="0.6.0", triton=triton)
    check(model(*LINEAR, device="cpu"), flash_linear_attention="0.6.0", triton=triton)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    check(model(*LINEAR), flash_linear_attention="0.6.0", triton=triton)
