"""The `arpo` command.

Each command is one small function that imports what it calls, so that help is instant and loads no torch. A
user's mistake is one line on stderr and exit code 2; anything else that escapes is a fault and shows as one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from arpo import __version__, published_flags
from arpo.config import Config
from arpo.errors import UserError
from arpo.recipe import describe, keys, load_config, nearest

_DOTTED = re.compile(r"--\w+\.[\w.-]+(=.*)?", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    # Before torch is loaded: threads that spin while they wait make it crawl on cores that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"arpo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "arpo: stopped; train, screen, pretrain and eval osworld go on with the same command",
            file=sys.stderr,
        )
        return 130


def _run(argv: Sequence[str]) -> int:
    words, overrides = split_overrides(argv)
    if words[:2] == ["eval", "osworld"]:
        words[:2] = ["eval osworld"]
    options, unknown = _parser().parse_known_args(words)
    if unknown:
        names = [f"--{key.name}" for key in keys()]
        raise UserError(f"{unknown[0]}: no such option{nearest(unknown[0], names)}")
    command: Command = options.command
    if overrides and not command.settings:
        raise UserError(f"{overrides[0]}: arpo {command.name} takes no settings")
    return command.run(options, overrides)


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """["train", "--loss.kl", "0.1", "desk"] -> ["train", "desk"], ["--loss.kl", "0.1"]"""
    plain: list[str] = []
    overrides: list[str] = []
    words = iter(argv)
    for word in words:
        if not _DOTTED.fullmatch(word):
            plain.append(word)
        elif "=" in word:
            overrides.append(word)
        else:
            overrides += [word, *([value] if (value := next(words, None)) is not None else [])]
    return plain, overrides


def _train(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if options.help_keys:
        print(describe())
        return 0
    config = load_config(options.recipe, overrides)
    from arpo.trainer import run_training

    code = run_training(config)
    if code == 0:
        from arpo.viewer.report import write_report

        print(f"report: {write_report(Path(config.run.dir))}")
    return code


def _eval(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.evaluate import run_evaluation

    return run_evaluation(config, options.out)


def _eval_osworld(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, [*published_flags.overrides(options), *overrides])
    for note in published_flags.notes(options, config):
        print(f"arpo: {note}", file=sys.stderr)
    from arpo.osworld_eval import run_osworld_evaluation

    return run_osworld_evaluation(config)


def _screen(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.screening import run_screening

    tasks = options.tasks or config.tasks.train
    return run_screening(config, tasks, config.screen.rollouts, options.out, config.screen.drop_always)


def _pretrain(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.models.pretrain import run_pretraining

    return run_pretraining(config, options.out)


def _export(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.models.export import export_model

    print(export_model(options.source, options.out, options.dtype, merged=options.merge))
    return 0


def _report(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.viewer.report import write_report

    print(write_report(options.run))
    return 0


def _env_host(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    short = {"env.name": options.env, "env.parallel": options.slots, "env.listen": options.listen}
    chosen = [f"--{key}={value}" for key, value in short.items() if value is not None]
    usual = "osworld_local" if options.env == "osworld" else "desk"
    config = load_config(options.recipe or usual, [*overrides, *chosen])
    from arpo.envs.host import run_host

    return run_host(config, options.ready_file, options.with_parent)


def _doctor(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.doctor import run_doctor, run_memory

    if options.recipe is None:
        return run_doctor()
    return run_memory(load_config(options.recipe, overrides))


def _check_env(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(None, [*overrides, f"--env.name={options.target}"])
    import asyncio

    from arpo.envs.check import check_env
    from arpo.envs.resolve import open_factory
    from arpo.tasks import choose, load_tasks

    tasks = choose(load_tasks(options.tasks or config.tasks.train, config.tasks.examples), config.tasks)
    checks = asyncio.run(check_env(open_factory(config), tasks, config.env))
    print(*checks, sep="\n")
    return 0 if all(check.ok or not check.required for check in checks) else 1


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _osworld(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.envs.osworld.fetch import fetch_cache
    from arpo.tasks import choose, load_tasks

    tasks = choose(load_tasks(options.tasks or config.tasks.train, config.tasks.examples), config.tasks)
    return fetch_cache(tasks, config.osworld, options.jobs or config.osworld.downloads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and its help: what it is for in one line, what one should know, how it is typed."""

    name: str
    run: Callable[[argparse.Namespace, Sequence[str]], int]
    purpose: str
    lesson: str
    example: str
    arguments: tuple[tuple[str, dict[str, Any]], ...] = ()
    settings: bool = False  # whether it takes --section.key VALUE


RECIPE: tuple[str, dict[str, Any]] = (
    "recipe",
    {
        "nargs": "?",
        "default": "desk",
        "metavar": "RECIPE",
        "help": "a TOML file or a shipped recipe (%(default)s); settings follow as --section.key VALUE",
    },
)

COMMANDS = (
    Command(
        name="train",
        run=_train,
        purpose="train a model by a recipe",
        lesson="""\
A recipe is a TOML file, or the name of a shipped one: desk (the default: a tiny model on the embedded
desktop, two CPU cores, some minutes), osworld_local (real desktops), osworld_subset32 and osworld_full
(the published runs, which need GPUs). Any setting can be given on the command line by its dotted key. The
run's folder (run.dir) gets the resolved recipe, metrics, episodes, checkpoints, summary.json and report.html.
Ctrl-C finishes the step and saves; stopped or killed in any way, the same command goes on from the last
checkpoint.""",
        example="""\
arpo train
arpo train desk --replay.enabled false --run.seed 1 --run.dir runs/plain-grpo
arpo train my-recipe.toml --optim.lr 1e-4""",
        arguments=(
            RECIPE,
            ("--help-keys", {"action": "store_true", "help": "list every setting with its default and exit"}),
        ),
        settings=True,
    ),
    Command(
        name="eval",
        run=_eval,
        purpose="measure a model's success on the training and the held-out tasks",
        lesson="""\
Runs eval.rollouts episodes of each training task and eval.heldout_rollouts of each held-out one at
eval.temperature, and writes the rates with their counts as JSON.""",
        example="""\
arpo eval --out base.json
arpo eval --model.path exported --eval.rollouts 16 --out after.json""",
        arguments=(
            RECIPE,
            ("--out", {"type": Path, "required": True, "metavar": "FILE", "help": "the JSON file to write"}),
        ),
        settings=True,
    ),
    Command(
        name="eval osworld",
        run=_eval_osworld,
        purpose="measure a model behind OpenAI-compatible servers on OSWorld",
        lesson="""\
Every task is played once in each trial, and its result written as OSWorld's own runner writes it:
  RESULT_DIR/pyautogui/screenshot/MODEL/TRIAL/DOMAIN/TASK/{result.txt, traj.jsonl, step_*.png}
(its tools read a trial when MODEL/TRIAL is given as the model). Tasks that have a result are not played
again: stopped, the same command goes on, and episodes that failed for reasons that are not the model's are
tried again. Then the success of each domain is printed with its 95% interval, pass@k over all trials of the
same settings, what failed and what was skipped; summary.json beside the trials holds the same. Exit code 1
if episodes failed. A key, where the servers want one, is taken from OPENAI_API_KEY alone.""",
        example="""\
arpo eval osworld --endpoint http://127.0.0.1:8000/v1 --model ui-tars --tasks desktop:train
arpo eval osworld --headless --observation_type screenshot --max_steps 15 --max_trajectory_length 15 \\
    --temperature 0.6 --model ui-tars --action_space pyautogui --num_envs 8 --result_dir ./results/ \\
    --test_all_meta_path ./evaluation_examples/test_all.json --trial-id 0 --server_ip http://127.0.0.1""",
        arguments=((RECIPE[0], RECIPE[1] | {"default": "osworld_eval"}), *published_flags.arguments()),
        settings=True,
    ),
    Command(
        name="screen",
        run=_screen,
        purpose="keep the tasks that a model sometimes solves",
        lesson="""\
Runs screen.rollouts episodes of each task and writes a task file with those that had a success, and how
many (screen.drop_always leaves out those that always had one). Stopped, the same command goes on.""",
        example="""\
arpo screen --tasks desk:pool --out kept.json
arpo train --tasks.train kept.json""",
        arguments=(
            RECIPE,
            ("--tasks", {"metavar": "SOURCE", "help": "the tasks to screen; without it, tasks.train"}),
            ("--out", {"type": Path, "required": True, "metavar": "FILE", "help": "the task file to write"}),
        ),
        settings=True,
    ),
    Command(
        name="pretrain",
        run=_pretrain,
        purpose="make the tiny base model",
        lesson="""\
Teaches a tiny Qwen2.5-VL to read the embedded desktop's screens and to answer in the action language,
from solved tasks. Wants a GPU. Stopped, the same command goes on.""",
        example="arpo pretrain --out base-model --pretrain.minutes 20",
        arguments=(
            RECIPE,
            ("--out", {"type": Path, "required": True, "metavar": "FOLDER", "help": "the folder to write"}),
        ),
        settings=True,
    ),
    Command(
        name="export",
        run=_export,
        purpose="write a trained model as a plain Hugging Face directory",
        lesson="""\
Takes a run folder (its newest whole checkpoint), one checkpoint, or a model folder. The adapters of a LoRA
run are merged into the weights; --no-merge writes them alone, in the layout of the PEFT library.""",
        example="""\
arpo export runs/desk exported
arpo export runs/desk/checkpoints/step-000010 exported --dtype bfloat16""",
        arguments=(
            ("source", {"type": Path, "metavar": "RUN", "help": "a run, a checkpoint or a model folder"}),
            ("out", {"type": Path, "metavar": "FOLDER", "help": "the new folder to write"}),
            ("--dtype", {"default": Config().model.dtype, "help": "float32 or bfloat16 (%(default)s)"}),
            ("--no-merge", {"dest": "merge", "action": "store_false", "help": "LoRA: the adapters alone"}),
        ),
    ),
    Command(
        name="report",
        run=_report,
        purpose="write a run's report.html",
        lesson="One page that needs no network: curves, and episodes step by step. The run may go on.",
        example="arpo report runs/desk",
        arguments=(("run", {"type": Path, "metavar": "RUN", "help": "a run's folder"}),),
    ),
    Command(
        name="env-host",
        run=_env_host,
        purpose="serve environments to runs in other processes and on other machines",
        lesson="""\
A run uses hosts with --env.hosts http://HOST:PORT,… and needs no environment of its own then. Give host and
run the same recipe. The host listens on this machine only; beyond it, set ARPO_HOST_TOKEN to a secret of at
least 16 letters for the host and for the run. Ctrl-C closes every environment and ends it.""",
        example="""\
arpo env-host --env desk --slots 8
arpo env-host osworld_local --slots 4 --listen 0.0.0.0:8700
arpo train osworld_local --env.hosts http://desktops-1:8700,http://desktops-2:8700""",
        arguments=(
            ("recipe", {"nargs": "?", "metavar": "RECIPE", "help": "a TOML file or a shipped recipe"}),
            ("--env", {"metavar": "NAME", "help": "what to serve: env.name"}),
            ("--slots", {"metavar": "N", "help": "environments at once: env.parallel"}),
            ("--listen", {"metavar": "HOST:PORT", "help": "env.listen; port 0: any that is free"}),
            (
                "--ready-file",
                {"type": Path, "metavar": "FILE", "help": "gets the address as JSON when it listens"},
            ),
            ("--with-parent", {"action": "store_true", "help": "end when stdin does"}),
        ),
        settings=True,
    ),
    Command(
        name="doctor",
        run=_doctor,
        purpose="say what works on this machine, what is missing and how to get it",
        lesson="""\
Tries the processor, a GPU, the base model, the desktops and the disk. Changes nothing. With --recipe it says
instead what that recipe's model will need of a GPU's memory, and what to change if it does not fit.""",
        example="""\
arpo doctor
arpo doctor --recipe osworld_full --model.path /models/UI-TARS-1.5-7B --model.train lora""",
        arguments=(("--recipe", {"metavar": "RECIPE", "help": "a TOML file or a shipped recipe"}),),
        settings=True,
    ),
    Command(
        name="osworld",
        run=_osworld,
        purpose="fetch the files of OSWorld's tasks, for desktops without a network",
        lesson="""\
Downloads what the tasks put on the desktop and what their verdicts are compared with into osworld.cache,
where a run looks for it. Files that are there are kept: stopped, or where some failed, the same command goes
on. Exit code 1 if a file could not be fetched. Tasks whose files are missing are left out of a run.""",
        example="""\
arpo osworld fetch-cache --tasks evaluation_examples/test_all.json
arpo osworld fetch-cache --tasks evaluation_examples --tasks.domains libreoffice_calc,gimp --jobs 16""",
        arguments=(
            ("action", {"choices": ["fetch-cache"], "metavar": "fetch-cache", "help": "what to do"}),
            (RECIPE[0], RECIPE[1] | {"default": "osworld_local"}),
            ("--tasks", {"metavar": "SOURCE", "help": "whose files to fetch; without it, tasks.train"}),
            ("--jobs", {"type": _count, "metavar": "N", "help": "downloads at once; else osworld.downloads"}),
        ),
        settings=True,
    ),
    Command(
        name="check-env",
        run=_check_env,
        purpose="run an environment of your own through the conformance suite",
        lesson="""\
MODULE:CLASS names a class that is called without arguments and has the four calls start, step, evaluate
and close. Prints each check; exit code 1 if one that is required fails.""",
        example="arpo check-env my_package.my_env:MyEnv --tasks my-tasks.json --env.step_seconds 5",
        arguments=(
            ("target", {"metavar": "MODULE:CLASS", "help": "the class to check"}),
            ("--tasks", {"metavar": "SOURCE", "help": "tasks to check it with; without it, tasks.train"}),
        ),
        settings=True,
    ),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see: {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="arpo",
        description="Train agents that work a computer through screenshots, mouse and keyboard.",
        epilog="New here? `arpo doctor` says what works on this machine; `arpo train` trains on it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"arpo {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        example = "\n".join(f"  {line}" for line in command.example.splitlines())
        listing = "\n\nevery setting: arpo train --help-keys" if command.settings else ""
        own = commands.add_parser(
            command.name,
            help=command.purpose,
            description=f"{command.purpose[0].upper()}{command.purpose[1:]}.\n\n{command.lesson}",
            epilog=f"example:\n{example}{listing}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for names, details in command.arguments:
            own.add_argument(*names.split(), **details)
        own.set_defaults(command=command)
    return parser
