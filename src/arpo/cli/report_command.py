"""`arpo report`: its arguments, its help, and the command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arpo.cli.command import Command, argument


class PrintMetrics(argparse.Action):
    """Prints the explanations of all metrics, and exits like --help: without the required arguments."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        from arpo.reporting.metrics import describe_metrics

        print(describe_metrics())
        parser.exit()


def run_report(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.viewer.export import write_report

    print(write_report(options.run, options.episodes))
    return 0


COMMAND = Command(
    name="report",
    run=run_report,
    purpose="write report.html for a run",
    lesson="""\
The report is one HTML file that works offline: learning curves with explanations, success by task before and
after training, reasons for failures, and episodes step by step with screenshots. Works during training, too.
It contains the pages of `arpo view` about these episodes.
By default it shows the same tasks before and after training. --episodes shows others. Its value is a list,
separated by commas, of:
  batch-4-0-1     an episode, by id
  task:pool-040   episodes of a task
  solved          episodes that reached the goal
  failed          episodes that did not
  replayed        successes that replay used again
  parse-errors    episodes that ended with an answer outside the action language
  before-after    tasks before and after training
Each of them shows up to 6, the first ones and the last ones. A number changes that: failed:20.""",
    example="""\
arpo report runs/desk
arpo report runs/desk --episodes task:pool-040
arpo report runs/desk --episodes before-after:12,failed:3,parse-errors:3
arpo report --help-metrics""",
    arguments=(
        argument("run", "run folder", type=Path, metavar="RUN"),
        argument("--episodes", "episodes to show (see above)", default="", metavar="LIST"),
        argument("--help-metrics", "explain all metrics and exit", action=PrintMetrics, nargs=0),
    ),
)
