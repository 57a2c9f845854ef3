"""Small OSWorld tasks, made of setup steps and getters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from arpo.types import Task

POEM = "https://example.org/files/poem.docx"
GOLD = "https://example.org/files/gold.docx"
POEM_NAME = "2b999ab8-9a36-53bc-8cba-d3e6bbcc1880_my poem.docx"


def step(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"type": kind, "parameters": parameters}


def download(url: str = POEM, path: str = "/home/user/my poem.docx") -> dict[str, Any]:
    return step("download", files=[{"url": url, "path": path}])


def vm_file(**more: Any) -> dict[str, Any]:
    return {"type": "vm_file", "path": "/home/user/poem.docx", "dest": "poem.docx"} | more


def gold(**more: Any) -> dict[str, Any]:
    return {"type": "cloud_file", "path": GOLD, "dest": "gold.docx"} | more


def task(*config: dict[str, Any], id: str = "t", apps: tuple[str, ...] = ("os",), **evaluator: Any) -> Task:
    return Task(
        id=id,
        instruction="mend the poem",
        snapshot="os",
        config=config,
        evaluator={"func": "exact_match", "result": vm_file()} | evaluator,
        related_apps=apps,
        domain="os",
    )


def put(path: Path, content: str = "text") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path
