"""`arpo export`: writes a model as a Hugging Face folder, and uploads it to the hub if asked to."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from arpo.cli.command import Command, argument
from arpo.errors import UserError


def run_export(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Export to `out`, and to the hub repository `push`. One of them may be None.

    The repository is created first: a missing permission is reported before minutes of work.
    """
    source, out, push = options.source, options.out, options.push
    if out is None and push is None:
        raise UserError("export needs an output directory, or --push ORG/NAME (see: arpo export --help)")
    if options.public and push is None:
        raise UserError("--public: needs --push ORG/NAME")
    from arpo.models.hub import create_repository, require_login, upload

    if push is not None:
        require_login(push)
    from arpo.training.export import export_model, find_source  # here: it loads torch

    if push is not None:
        find_source(source, options.dtype, merged=options.merge)
        create_repository(push, private=not options.public)
    with ExitStack() as stack:
        if out is None:
            # Not in /tmp, which is often too small for a model.
            parent = stack.enter_context(TemporaryDirectory(dir=Path.cwd(), prefix="arpo-export-"))
            folder = Path(parent) / "model"
        else:
            folder = out
        export_model(source, folder, options.dtype, merged=options.merge, title=push or "")
        if out is not None:
            print(out)
        if push is not None:
            print(upload(folder, push, f"Export of {source.resolve().name} by ARPO"))
    return 0


COMMAND = Command(
    name="export",
    run=run_export,
    purpose="write a trained model as a Hugging Face directory, or upload it to the hub",
    lesson="""\
The source is a run folder (its newest complete checkpoint), one checkpoint, a model folder, or a model of the
hub (ORG/NAME). transformers and vLLM load the result, which has a model card (README.md) with scores.
LoRA adapters are merged into the weights. --no-merge writes only the adapters, in the format of PEFT.
--push uploads the model as a new commit. A new repository is private, unless you add --public. Without
FOLDER, the model is written to a temporary folder in the current directory.""",
    example="""\
arpo export runs/desk exported
arpo export runs/desk/checkpoints/step-000010 exported --dtype bfloat16
arpo export runs/desk --push my-name/my-agent""",
    arguments=(
        argument("source", "run, checkpoint, model folder or ORG/NAME", type=Path, metavar="RUN"),
        argument("out", "output directory (new or empty)", type=Path, nargs="?", metavar="FOLDER"),
        argument("--push", "hub repository to upload to", metavar="ORG/NAME"),
        argument("--public", "make a new hub repository public", action="store_true"),
        argument("--dtype", "float32 or bfloat16 (default: as in the source)", default=""),
        argument("--no-merge", "LoRA: write only the adapters", dest="merge", action="store_false"),
    ),
)
