"""`arpo compare`: its help and the command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from arpo.cli.command import Command, argument, count
from arpo.errors import UserError
from arpo.interrupts import INTERRUPTED


def run_compare(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    code = 0
    if options.report and overrides:
        raise UserError(f"{overrides[0]}: not possible with --report, which trains nothing; remove it")
    if not options.report:
        if not options.methods:
            raise UserError(
                "compare needs recipes and --seeds N, run folders, or --report (see: arpo compare --help)"
            )
        from arpo.comparison.jobs import run_comparison

        code = run_comparison(
            options.methods, options.seeds, options.jobs, options.out, options.against, overrides
        )
    if code != INTERRUPTED:
        _write_report(options)
    return code


def _write_report(options: argparse.Namespace) -> None:
    """Write compare.json and compare.html, and print the tables."""
    from arpo.comparison.methods import load_comparison
    from arpo.comparison.tables import page_json, terminal_lines, to_json
    from arpo.storage.run_folder import write_atomically
    from arpo.viewer.export import write_comparison

    comparison, runs = load_comparison(options.out, options.methods, options.seeds, options.against)
    options.out.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out / "compare.json", to_json(comparison, runs))
    page = write_comparison(options.out, page_json(comparison, runs))
    print(*terminal_lines(comparison), "", page, sep="\n")


COMMAND = Command(
    name="compare",
    run=run_compare,
    purpose="train several recipes with several seeds, and compare the results",
    lesson="""\
Each argument is one method: a recipe to train, or finished runs.
  desk, mine.toml          a recipe; it is trained with the seeds 0 to N-1, in OUT/NAME/seed-S
  runs/mine                the folder of a finished run, or of several with different seeds
  NAME=runs/a,runs/b       finished runs with different seeds, and a name for the table
First prints the settings in which the methods differ. Config keys on the command line apply to all recipes.
For offline methods (rft, sft, dpo, kto) the base model first records episodes in OUT/collected.
Then prints tables, and writes compare.html and compare.json in OUT: success on training tasks and
on every set of held-out tasks, learning curves, success by difficulty, times, and the difference of every
method to the baseline with its 95% confidence interval over seeds and tasks, p, p corrected for the number of
comparisons (Holm), and the result in words. Use three seeds or more.
Ctrl-C lets all runs save a checkpoint. If it is interrupted, run the same command again: it resumes, and
skips finished runs. Exit code 1 if a run failed; the report then names it and contains the other runs.""",
    example="""\
arpo compare desk my-recipe.toml --seeds 3 --out runs/mine
arpo compare runs/first second=runs/s0,runs/s1 --out runs/compared
arpo compare paper paper/grpo --seeds 3 --jobs 2 --out runs/paper --against paper/grpo --train.epochs 3
arpo compare --report --out runs/mine""",
    arguments=(
        argument("methods", "recipes and finished runs (see above)", nargs="*", metavar="METHOD"),
        argument("--seeds", "number of seeds (required to train)", type=count, metavar="N"),
        argument("--jobs", "parallel runs (default: %(default)s)", type=count, default=1, metavar="J"),
        argument("--out", "output directory", type=Path, required=True, metavar="FOLDER"),
        argument(
            "--against",
            "baseline: a method or base (default: the first method; with --report alone, base)",
            metavar="NAME",
        ),
        argument("--report", "train nothing; write the report of the runs in OUT", action="store_true"),
    ),
    settings=True,
    resumable=True,
)
