"""Makes the tiny base model of Desk: `python -m tools.pretrain --out base-model`.

Trains a tiny Qwen2.5-VL or Qwen3.5 by supervised learning to read screens, to solve tasks, and to make the
faults of a careless demonstrator, which reinforcement learning can remove. Needs a GPU to be fast. If it is
interrupted, run the same command again to resume. At the end it measures reading, pointing and success on
unseen tasks: report.json in the output directory. `--dialect judge` makes a judge instead (`arpo judge`).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from arpo.config.recipe import load_config
from arpo.errors import UserError
from tools.pretrain.language import LANGUAGES
from tools.pretrain.report import write_report
from tools.pretrain.settings import Settings
from tools.pretrain.tiny import FAMILIES
from tools.pretrain.training import run_pretraining


def main(arguments: list[str] | None = None) -> None:
    default = Settings()
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        prog="python -m tools.pretrain",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="output directory")
    parser.add_argument("--report", action="store_true", help="measure the model in --out, without training")
    parser.add_argument(
        "--report-size", type=int, default=256, help="screens and tasks of the report; 0: none"
    )
    parser.add_argument(
        "--last-stage",
        action="store_true",
        help="repeat the last stage alone, from stored weights: 3 minutes on an H200",
    )
    parser.add_argument(
        "--family", choices=FAMILIES, default=default.family, help="kind of model (default: %(default)s)"
    )
    parser.add_argument(
        "--dialect",
        choices=LANGUAGES,
        default=default.dialect,
        help="language of the answers (default: %(default)s)",
    )
    for name, purpose in (
        ("steps", "number of updates"),
        ("carelessness", "level of the demonstrator's faults; 0: none, 2: twice as many"),
        ("minutes", "time limit; 0: none"),
        ("workers", "processes that make lessons; 0: number of cores - 1"),
        ("seed", "random seed"),
        ("device", "device of the model"),
    ):
        value = getattr(default, name)
        parser.add_argument(
            f"--{name}", type=type(value), default=value, help=f"{purpose} (default: %(default)s)"
        )
    options = vars(parser.parse_args(arguments))
    out, report_only, size = (options.pop(name) for name in ("out", "report", "report_size"))
    settings = Settings(**options)
    if report_only and not LANGUAGES[settings.dialect].dialect:
        parser.error("--report: a judge acts on no tasks. `arpo judge RUN --json` measures it")
    try:
        finished = report_only or run_pretraining(settings, out)
        if finished and size and LANGUAGES[settings.dialect].dialect:
            given = {"model.device": settings.device, "model.dialect": LANGUAGES[settings.dialect].dialect}
            write_report(load_config("desk", given), out, size)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
