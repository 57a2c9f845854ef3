"""Patches torchvision in .venv-vllm and .venv-trl. `make vllm` and `make trl` run this once.

vLLM and TRL import torchvision. The default package index has torchvision for GPUs only. Its compiled
operators do not load with a CPU build of torch. The import still fails for two operators, because torchvision
registers them without a check. This script appends their declarations to torchvision's extension.py.
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
