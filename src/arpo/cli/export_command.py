"""`arpo export`: writes a model as a Hugging Face folder, and uploads it to the hub if asked to."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from arpo.errors import UserError
from arpo.models.hub import create_repository, require_login, upload


def run_export(
    source: Path, out: Path | None, dtype: str, *, merged: bool, push: str | None, public: bool
) -> int:
    """Export to `out`, and to the hub repository `push`. One of them may be None.

    The repository is created first: a missing permission is reported before minutes of work.
    """
    if out is None and push is None:
        raise UserError("export needs an output directory, or --push ORG/NAME (see: arpo export --help)")
    if public and push is None:
        raise UserError("--public: needs --push ORG/NAME")
    if push is not None:
        require_login(push)
    from arpo.training.export import export_model, find_source  # here: it loads torch

    if push is not None:
        find_source(source, dtype, merged=merged)
        create_repository(push, private=not public)
    with ExitStack() as stack:
        if out is None:
            # Not in /tmp, which is often too small for a model.
            parent = stack.enter_context(TemporaryDirectory(dir=Path.cwd(), prefix="arpo-export-"))
            folder = Path(parent) / "model"
        else:
            folder = out
        export_model(source, folder, dtype, merged=merged, title=push or "")
        if out is not None:
            print(out)
        if push is not None:
            print(upload(folder, push, f"Export of {source.resolve().name} by ARPO"))
    return 0
