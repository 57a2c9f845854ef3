"""Run once by `make vllm`, under its interpreter: a torchvision built for GPUs beside a torch that is not.

vLLM needs torchvision, which the usual package index has built for GPUs only. Its compiled operators cannot
be loaded beside the CPU's torch. It allows for that, except for two which it describes to torch in any case,
and torch knows nothing of them. Here they are declared, for every process of the environment.
"""

from importlib.util import find_spec
from pathlib import Path

DECLARATIONS = """

if not _has_ops():
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor boxes, Tensor scores, float share) -> Tensor")
"""


def main() -> None:
    spec = find_spec("torchvision")
    assert spec is not None and spec.submodule_search_locations, "torchvision is not installed"
    file = Path(spec.submodule_search_locations[0]) / "extension.py"
    text = file.read_text("utf-8")
    if not text.endswith(DECLARATIONS):
        file.write_text(text + DECLARATIONS, "utf-8")


main()
