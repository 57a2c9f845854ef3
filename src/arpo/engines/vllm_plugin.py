"""Runs inside all processes of vLLM: corrects a fault of vLLM 0.32 that ends a server.

vLLM loads it as a plug-in; `serving/vllm_server.py` registers it. The scheduler sends a screenshot to the
workers only if the prefix cache does not cover it. If a running request is then preempted, because the cache
is full or was reset for new weights, the screenshot is computed again. The workers do not have it, and the
engine ends. The correction sends all screenshots of a request.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    from vllm.v1.core.sched import output  # type: ignore[import-not-found]

    assert hasattr(output, "strip_covered_mm_data"), "another version of vLLM: check if this is still needed"
    output.strip_covered_mm_data = _keep_all


def _keep_all(mm_features: Any, num_computed_tokens: int, uses_mrope: bool = False) -> Any:
    return mm_features
