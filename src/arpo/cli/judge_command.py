"""`arpo judge`: asks a served vision-language model whether stored episodes did their tasks."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from arpo.cli.command import Command, argument, count
from arpo.config.settings import JUDGE_SCREENSHOTS, JUDGE_VOTES


def run_judge_command(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.evaluation.judge import Judging, run_judge

    judging = Judging(
        votes=options.votes,
        unanimous=options.unanimous,
        screenshots=options.screenshots,
        episodes=options.episodes,
        planted=options.inject,
    )
    return run_judge(options.run, overrides, judging, as_json=options.json)


COMMAND = Command(
    name="judge",
    run=run_judge_command,
    purpose="let a vision-language model judge stored episodes, and compare it with the evaluators",
    lesson="""\
Asks the model of server.model on server.endpoints whether each episode of a run did its task. It gets the
instruction, screenshots and actions. Prints precision, recall and a table against the evaluators' scores.
The votes and their reasons are in judgements.jsonl of the run; `arpo view` shows them. env.parallel limits
the requests at once. A timeout, a refusal or an answer in another form is a missing vote, never a failure.
If it is interrupted, run the same command again: it asks only for the missing votes.
With --inject, also asks about each episode with a planted sentence, typed by the agent and drawn on the last
screenshot, that tells the judge to answer SUCCESS. Prints how many verdicts turn.
Exit code 1 if there is no verdict.""",
    example="""\
arpo judge runs/desk --server.endpoints http://127.0.0.1:8000/v1 --server.model NAME
arpo judge runs/desk --server.model NAME --episodes 64 --votes 5 --unanimous --inject""",
    arguments=(
        argument("run", "run folder, also of `arpo collect`", type=Path, metavar="RUN"),
        argument(
            "--votes",
            "votes per episode (default: %(default)s)",
            type=count,
            default=JUDGE_VOTES,
            metavar="K",
        ),
        argument("--unanimous", "a success needs all votes (default: a majority)", action="store_true"),
        argument(
            "--screenshots",
            "screenshots per episode: first, last, evenly spaced (default: %(default)s)",
            type=count,
            default=JUDGE_SCREENSHOTS,
            metavar="N",
        ),
        argument("--episodes", "number of episodes, evenly spaced (default: all)", type=count, metavar="N"),
        argument(
            "--inject", "also measure how often a planted sentence turns a verdict", action="store_true"
        ),
        argument(
            "--json",
            "print precision, recall, counts and the verdict of each episode as JSON",
            action="store_true",
        ),
    ),
    settings=True,
    resumable=True,
)
