"""What each command of `arpo` does, and the help that teaches it.

Each is one small function that imports what it calls, so that help is instant and loads no torch. Reading the
command line is `cli.py`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.cli import osworld_flags
from arpo.config import Config
from arpo.errors import UserError
from arpo.recipe import describe, load_config


def _train(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if options.help_keys:
        print(describe())
        return 0
    config = load_config(options.recipe, overrides)
    from arpo.training.trainer import run_training

    code = run_training(config)
    if code == 0:
        from arpo.viewer.report import write_report

        print(f"report: {write_report(Path(config.run.dir))}")
    return code


def _collect(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.training.collect import run_collection

    return run_collection(config)


def _eval(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.evaluation.evaluate import run_evaluation

    return run_evaluation(config, options.out)


def _eval_osworld(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, [*osworld_flags.overrides(options), *overrides])
    for note in osworld_flags.notes(options, config):
        print(f"arpo: {note}", file=sys.stderr)
    from arpo.evaluation.osworld import run_osworld_evaluation

    return run_osworld_evaluation(config)


def _screen(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.evaluation.screening import run_screening

    tasks = options.tasks or config.tasks.train
    return run_screening(config, tasks, config.screen.rollouts, options.out, config.screen.drop_always)


def _pretrain(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.envs.desk.base_model.pretrain import run_pretraining

    return run_pretraining(config, options.out)


def _export(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.training.export import export_model

    print(export_model(options.source, options.out, options.dtype, merged=options.merge))
    return 0


def _compare(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.viewer.comparison import write_comparison

    code = 0
    if options.report and overrides:
        raise UserError(f"{overrides[0]}: --report runs nothing, so it takes no settings")
    if not options.report:
        if not options.recipes or options.seeds is None:
            raise UserError("name recipes to compare and the number of --seeds, or ask for --report alone")
        from arpo.evaluation.compare import run_comparison

        code = run_comparison(
            options.recipes, options.seeds, options.jobs, options.out, options.against, overrides
        )
    if code != 130:
        print(write_comparison(options.out, options.recipes, options.seeds, options.against))
    return code


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
    from arpo.cli.doctor import run_doctor, run_memory

    if options.recipe is not None:
        return run_memory(load_config(options.recipe, overrides), options.gpu)
    if options.gpu is not None:
        raise UserError("--gpu: plans for a recipe; name it with --recipe")
    return run_doctor()


def _check_env(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(None, [*overrides, f"--env.name={options.target}"])
    import asyncio

    from arpo.envs.check import check_env
    from arpo.envs.factory import open_factory
    from arpo.envs.task_files import load_tasks, select_tasks

    tasks = select_tasks(load_tasks(options.tasks or config.tasks.train, config.tasks.examples), config.tasks)
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
    from arpo.envs.task_files import load_tasks, select_tasks

    tasks = select_tasks(load_tasks(options.tasks or config.tasks.train, config.tasks.examples), config.tasks)
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
desktop, two CPU cores, some minutes), paper (the published comparison on it), osworld_local (real desktops),
osworld_subset32 and osworld_full (the published runs, which need GPUs). Any setting can be given on the
command line by its dotted key. The run's folder (run.dir) gets the resolved recipe, metrics, episodes,
checkpoints, summary.json and report.html. Ctrl-C finishes the step and saves; stopped or killed in any way,
the same command goes on from the last checkpoint. With train.method rft, dpo or kto it learns offline, from
episodes stored in offline.source.""",
        example="""\
arpo train
arpo train desk --replay.enabled false --run.seed 1 --run.dir runs/plain-grpo
arpo train paper/dpo --offline.source runs/collected --run.dir runs/dpo
arpo train my-recipe.toml --optim.lr 1e-4""",
        arguments=(
            RECIPE,
            ("--help-keys", {"action": "store_true", "help": "list every setting with its default and exit"}),
        ),
        settings=True,
    ),
    Command(
        name="collect",
        run=_collect,
        purpose="play the training tasks without learning, to learn from them offline",
        lesson="""\
Plays as many episodes as training by the same recipe would: train.epochs times every training task,
rollout.group_size of each, with the model as it is, and stores them in run.dir. Stopped or killed in any
way, the same command goes on; more train.epochs add to what is there.""",
        example="""\
arpo collect paper --run.dir runs/collected
arpo train paper/rft --offline.source runs/collected --run.dir runs/rft""",
        arguments=(RECIPE,),
        settings=True,
    ),
    Command(
        name="eval",
        run=_eval,
        purpose="measure a model's success on the training and the held-out tasks",
        lesson="""\
Runs eval.rollouts episodes of each training task, eval.heldout_rollouts of each held-out one and
eval.overall_rollouts of each of tasks.overall at eval.temperature, and writes the rates with their counts as
JSON.""",
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
        arguments=((RECIPE[0], RECIPE[1] | {"default": "osworld_eval"}), *osworld_flags.arguments()),
        settings=True,
    ),
    Command(
        name="screen",
        run=_screen,
        purpose="keep the tasks that a model sometimes solves",
        lesson="""\
Runs screen.rollouts episodes of each task and writes a task file with those that had a success, and how
many (screen.drop_always leaves out those that always had one). OUT.report.json has the terms, the histogram
of successes, and for every task its count and why it was dropped: never solved, always solved, failed, or
not to be run here. Stopped or killed, the same command goes on.""",
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
        name="compare",
        run=_compare,
        purpose="train by several recipes over several seeds, and say which is better",
        lesson="""\
Every recipe is trained with the seeds 0 to N-1, each run in OUT/NAME/seed-S with its log beside it. Settings
are given to all. Methods that learn from stored episodes get those that the base model plays for them first
(OUT/collected). Then OUT gets compare.html, compare.md and compare.json: a table of success on training,
all and held-out tasks, learning curves, success by difficulty, times, and every method against one of them
with what could be luck: over seeds, over tasks, over both. Ctrl-C lets the runs save; killed, it takes them
with it. The same command goes on then, and what has ended is not run again. Exit code 1 if a run failed: the
others are reported all the same, and it is named.""",
        example="""\
arpo compare desk my-recipe.toml --seeds 3 --out runs/mine
arpo compare paper paper/grpo --seeds 3 --jobs 2 --out runs/paper --against paper/grpo --train.epochs 3
arpo compare --report --out runs/mine""",
        arguments=(
            ("recipes", {"nargs": "*", "metavar": "RECIPE", "help": "TOML files or shipped recipes"}),
            ("--seeds", {"type": _count, "metavar": "N", "help": "of each recipe; needed unless --report"}),
            ("--jobs", {"type": _count, "default": 1, "metavar": "J", "help": "runs at once (%(default)s)"}),
            ("--out", {"type": Path, "required": True, "metavar": "FOLDER", "help": "what gets all of it"}),
            (
                "--against",
                {
                    "metavar": "NAME",
                    "help": "what the others are measured by; else the first recipe named, or base",
                },
            ),
            ("--report", {"action": "store_true", "help": "run nothing: write up what there is in OUT"}),
        ),
        settings=True,
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
ARPO_HOST_TOKEN=SECRET arpo env-host osworld_local --slots 4 --listen 0.0.0.0:8700
ARPO_HOST_TOKEN=SECRET arpo train osworld_local --env.hosts http://desktops-1:8700,http://desktops-2:8700""",
        arguments=(
            (
                "recipe",
                {
                    "nargs": "?",
                    "metavar": "RECIPE",
                    "help": "a TOML file or a shipped recipe (desk, or osworld_local with --env osworld)",
                },
            ),
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
instead what that recipe's model will need of a GPU's memory; if that is too much, with which settings it
would fit, and which of them change what is learned. --gpu plans for another GPU than the one here, or where
there is none; with --model.weights random the model's folder needs no weights for it. Exit code 1 if the
recipe does not fit.""",
        example="""\
arpo doctor
arpo doctor --recipe osworld_full --model.path /models/UI-TARS-1.5-7B --model.train lora
arpo doctor --recipe osworld_subset32 --model.path /models/UI-TARS-1.5-7B --gpu 80""",
        arguments=(
            ("--recipe", {"metavar": "RECIPE", "help": "a TOML file or a shipped recipe"}),
            (
                "--gpu",
                {
                    "type": _count,
                    "metavar": "GIB",
                    "help": "memory of the GPU to plan for; else the one here",
                },
            ),
        ),
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
