"""The commands of `arpo`: their functions, arguments and help texts.

Each command imports its modules when it runs: `arpo --help` is fast and imports no torch. `main.py`
parses the command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from arpo.cli import (
    check_env_command,
    cluster_command,
    compare_command,
    eval_command,
    osworld_flags,
    report_command,
    serve_command,
    view_command,
)
from arpo.cli.command import RECIPE, RECIPE_HELP, Command, argument, count
from arpo.config.recipe import describe, load_config
from arpo.errors import UserError
from arpo.interrupts import INTERRUPTED


def _train(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if options.help_keys:
        print(describe())
        return 0
    config = load_config(options.recipe, overrides)
    from arpo.training.trainer import run_training

    code = run_training(config)
    if code != INTERRUPTED:
        from arpo.viewer.report import write_report

        print(f"report: {write_report(Path(config.run.dir))}")
    return code


def _collect(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.training.collect import run_collection

    return run_collection(config)


def _eval_osworld(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, [*osworld_flags.overrides(options), *overrides])
    for note in osworld_flags.notes(options, config):
        print(f"arpo: {note}", file=sys.stderr)
    from arpo.evaluation.osworld import run_osworld_evaluation

    return run_osworld_evaluation(config)


def _play(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.cli.play_command import run_play

    return run_play(options.task, config, options.save)


def _screen(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.evaluation.screening import run_screening

    tasks = options.tasks or config.tasks.train
    return run_screening(config, tasks, config.screen.rollouts, options.out, config.screen.drop_always)


def _export(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.cli.export_command import run_export

    return run_export(
        options.source,
        options.out,
        options.dtype,
        merged=options.merge,
        push=options.push,
        public=options.public,
    )


def _env_host(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    flags = {"env.name": options.env, "env.parallel": options.slots, "env.listen": options.listen}
    given = [f"--{key}={value}" for key, value in flags.items() if value is not None]
    default = "osworld_local" if options.env == "osworld" else "desk"
    config = load_config(options.recipe or default, [*overrides, *given])
    from arpo.envs.host import run_host

    return run_host(config, options.ready_file, options.with_parent)


def _doctor(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.cli.doctor import run_doctor, run_memory

    if options.recipe is not None:
        return run_memory(load_config(options.recipe, overrides), options.gpu, options.gpus)
    if given := [name for name in ("gpu", "gpus") if getattr(options, name) is not None]:
        raise UserError(f"--{given[0]}: needs a recipe to plan for; add --recipe RECIPE")
    return run_doctor()


def _osworld(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.cli.osworld_command import run_install, run_osworld_action

    if options.action == "install":
        return run_install(config, options.python)
    return run_osworld_action(options.action, config, options.tasks, options.jobs, as_json=options.json)


def _recipes(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.cli.recipes_command import run_recipes

    return run_recipes(options.name)


ACTIONS = ("install", "list", "fetch-cache")
COMMANDS = (
    Command(
        name="train",
        run=_train,
        purpose="train a model with a recipe",
        lesson="""\
A recipe is a TOML file with config keys. `arpo recipes` lists the shipped ones.
Start your own recipe with the line `extends = "desk"`, then set the keys to change. Without this line, all
other keys have their defaults, not the values of desk. Paths in a recipe are relative to the recipe.

Output in run.dir: recipe.toml (all config keys), metrics.jsonl, trajectories.jsonl, checkpoints/, model/,
summary.json and report.html.
Exit code 1 if most episodes failed because of the environment; a line at the end names the reason.
Ctrl-C finishes the current batch and saves a checkpoint; an evaluation stops at once and keeps its finished
episodes. If a run is interrupted in any way, run the same command again: it resumes.
With train.method rft, dpo or kto, training is offline: it uses the stored episodes in offline.source.""",
        example="""\
arpo train
arpo train desk --replay.enabled false --run.seed 1 --run.dir runs/plain-grpo
arpo train paper/dpo --offline.source runs/collected --run.dir runs/dpo
arpo train my-recipe.toml --optim.lr 1e-4""",
        arguments=(
            (RECIPE[0], RECIPE[1] | {"default": "desk_fresh"}),
            argument("--help-keys", "list all config keys with defaults and exit", action="store_true"),
        ),
        settings=True,
    ),
    Command(
        name="recipes",
        run=_recipes,
        purpose="list the shipped recipes, or print one",
        lesson="""\
Prints one line for each shipped recipe: what it trains and what it needs. With NAME, prints the file.""",
        example="""\
arpo recipes
arpo recipes desk > mine.toml""",
        arguments=(argument("name", "name of a shipped recipe", nargs="?", metavar="NAME"),),
    ),
    Command(
        name="collect",
        run=_collect,
        purpose="record episodes of the training tasks, for offline training",
        lesson="""\
Plays the same number of episodes as `arpo train` with the same recipe, without training the model:
train.epochs x training tasks (or train.tasks) x rollout.group_size. Output in run.dir.
If it is interrupted, run the same command again: it plays the missing episodes. A larger train.epochs or
train.tasks adds episodes.""",
        example="""\
arpo collect paper --run.dir runs/collected
arpo train paper/rft --offline.source runs/collected --run.dir runs/rft""",
        arguments=(RECIPE,),
        settings=True,
    ),
    Command(
        name="eval",
        run=eval_command.run_eval,
        purpose="measure the success rate of a model on training and held-out tasks",
        lesson=eval_command.LESSON,
        example=eval_command.EXAMPLE,
        arguments=eval_command.ARGUMENTS,
        settings=True,
    ),
    Command(
        name="eval osworld",
        run=_eval_osworld,
        purpose="evaluate a model on OSWorld tasks",
        lesson="""\
Plays every task once per trial, with a model behind OpenAI-compatible servers (--endpoint), or in this
process (--engine.name in_process --model.path FOLDER). Output files have the layout of OSWorld's runner:
  RESULT_DIR/pyautogui/screenshot/MODEL/TRIAL/DOMAIN/TASK/{result.txt, traj.jsonl, step_*.png}
OSWorld's own tools read a trial if you pass MODEL/TRIAL as the model name.
If it is interrupted, run the same command again: it skips tasks that have a result, and repeats episodes
that failed because of an environment or a server.
Prints success rates by domain with 95% confidence intervals, pass@k over all trials with the same settings,
failed episodes and skipped tasks. summary.json in the folder of the trials contains the same.
Exit code 1 if episodes failed. If the servers need an API key, set OPENAI_API_KEY in the environment.""",
        example="""\
arpo eval osworld --endpoint http://127.0.0.1:8000/v1 --model ui-tars --tasks osworld:train
arpo eval osworld --headless --observation_type screenshot --max_steps 15 --max_trajectory_length 15 \\
    --temperature 0.6 --model ui-tars --action_space pyautogui --num_envs 8 --result_dir ./results/ \\
    --test_all_meta_path ./evaluation_examples/test_all.json --trial-id 0 --server_ip http://127.0.0.1""",
        arguments=((RECIPE[0], RECIPE[1] | {"default": "osworld_eval"}), *osworld_flags.arguments()),
        settings=True,
    ),
    Command(
        name="play",
        run=_play,
        purpose="play one task with a model, and print each step",
        lesson="""\
TASK is the id of a training or held-out task of the recipe, or random. Prints the time, the thought and the
actions of each step, and the score. The same task, model and run.seed give the same episode.""",
        example="""\
arpo play random
arpo play pool-023 --model.path runs/desk/model --save steps""",
        arguments=(
            argument("task", "task id, or random", metavar="TASK"),
            argument("--recipe", f"{RECIPE_HELP} (default: %(default)s)", default="desk", metavar="RECIPE"),
            argument("--save", "folder for screenshots with the actions drawn", type=Path, metavar="FOLDER"),
        ),
        settings=True,
    ),
    Command(
        name="screen",
        run=_screen,
        purpose="select the tasks that a model can sometimes solve",
        lesson="""\
Plays screen.rollouts episodes of each task. Writes a task file with the tasks that succeeded at least once
and their counts; screen.drop_always removes tasks that always succeed. screen.count instead keeps this many
tasks of medium difficulty: those nearest to 50% success, and of two at the same distance the harder one.
OUT.report.json contains the settings, a histogram of successes, and for each task its count and the reason
if it was dropped: never solved, always solved, failed, or cannot run on this machine.
If it is interrupted, run the same command again: it plays only the missing episodes.
To select again from a finished screening, run the same command with another screen.count or
screen.drop_always: it reads OUT.report.json and plays nothing.""",
        example="""\
arpo screen --tasks desk:pool --out kept.json
arpo screen --tasks desk:pool --out kept.json --screen.count 32
arpo train desk --tasks.train kept.json --run.dir runs/kept""",
        arguments=(
            RECIPE,
            argument("--tasks", "tasks to screen (default: tasks.train)", metavar="SOURCE"),
            argument("--out", "output file (task list)", type=Path, required=True, metavar="FILE"),
        ),
        settings=True,
    ),
    Command(
        name="export",
        run=_export,
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
    ),
    Command(
        name="compare",
        run=compare_command.run_compare,
        purpose="train several recipes with several seeds, and compare the results",
        lesson=compare_command.LESSON,
        example=compare_command.EXAMPLE,
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
    ),
    report_command.COMMAND,
    view_command.COMMAND,
    Command(
        name="env-host",
        run=_env_host,
        purpose="serve environments to runs in other processes or on other machines",
        lesson="""\
A run connects to hosts with --env.hosts http://HOST:PORT,… and then starts no environments itself. Use the
same recipe for host and run.
By default the host listens on 127.0.0.1 only. To listen on another address, set the environment variable
ARPO_HOST_TOKEN to the same secret (at least 16 characters) for the host and for the run.
Ctrl-C closes all environments and exits.""",
        example="""\
arpo env-host --env desk --slots 8
ARPO_HOST_TOKEN=SECRET arpo env-host osworld_local --slots 4 --listen 0.0.0.0:8700
ARPO_HOST_TOKEN=SECRET arpo train osworld_local --env.hosts http://desktops-1:8700,http://desktops-2:8700""",
        arguments=(
            (
                RECIPE[0],
                RECIPE[1]
                | {
                    "default": None,
                    "help": f"{RECIPE_HELP} (default: desk, or osworld_local with --env osworld)",
                },
            ),
            argument("--env", "environment to serve; sets env.name", metavar="NAME"),
            argument("--slots", "number of environments; sets env.parallel", metavar="N"),
            argument("--listen", "address; port 0: any free port; sets env.listen", metavar="HOST:PORT"),
            argument("--ready-file", "file that receives the address (JSON)", type=Path, metavar="FILE"),
            argument("--with-parent", "exit when stdin is closed", action="store_true"),
        ),
        settings=True,
    ),
    Command(
        name="serve",
        run=serve_command.run_serve,
        purpose="start vLLM servers of a model, for other commands",
        lesson=serve_command.LESSON,
        example=serve_command.EXAMPLE,
        arguments=serve_command.ARGUMENTS,
        settings=True,
    ),
    Command(
        name="cluster",
        run=cluster_command.run_cluster,
        purpose="show the nodes and roles of a Ray cluster",
        lesson=cluster_command.LESSON,
        example=cluster_command.EXAMPLE,
        arguments=cluster_command.ARGUMENTS,
    ),
    Command(
        name="doctor",
        run=_doctor,
        purpose="check this machine and the installation, or plan the memory of a recipe",
        lesson="""\
Without --recipe: checks packages, CPU, GPU, base model, desktops and disk, and prints how to install missing
parts. Changes nothing. Exit code 1 if training does not work.
With --recipe: prints the GPU memory that the recipe needs. If it does not fit, prints settings that fit, and
which of them change the training results. Exit code 1 if it does not fit. --gpu and --gpus plan for other
GPUs than those of this machine. With --model.weights random, the model folder needs no weights.""",
        example="""\
arpo doctor
arpo doctor --recipe osworld_128 --model.path /models/UI-TARS-1.5-7B --model.train lora
arpo doctor --recipe osworld_subset32 --model.path /models/UI-TARS-1.5-7B --gpu 80
arpo doctor --recipe osworld_full --model.path /models/UI-TARS-1.5-7B --gpus 64 --gpu 80""",
        arguments=(
            argument("--recipe", RECIPE_HELP, metavar="RECIPE"),
            argument("--gpu", "GPU memory (default: that of this machine)", type=count, metavar="GIB"),
            argument("--gpus", "GPUs in total (default: those of this machine)", type=count, metavar="N"),
        ),
        settings=True,
    ),
    Command(
        name="osworld",
        run=_osworld,
        purpose="install real desktops; list OSWorld tasks with their needs; download their files",
        lesson="""\
install: installs Debian packages (with root or sudo), and desktop-env in the virtual environment of
osworld.python. `make osworld` does the same.
list: prints for each task if it can run here, and its needs: applications, files, network, account. Then the
number of tasks that can run, and the reasons and remedies for the others. Works without desktop-env.
fetch-cache: downloads input files and expected results of the tasks to osworld.cache. Runs read them from
there, and skip tasks with missing files. Existing files are kept. If it is interrupted or a download fails,
run the same command again. Exit code 1 if a download failed.""",
        example="""\
arpo osworld install
arpo osworld list --tasks evaluation_examples/test_all.json --osworld.network on
arpo osworld fetch-cache --tasks evaluation_examples --tasks.domains libreoffice_calc,gimp --jobs 16""",
        arguments=(
            argument("action", "install, list or fetch-cache", choices=ACTIONS, metavar="ACTION"),
            (RECIPE[0], RECIPE[1] | {"default": "osworld_local"}),
            argument("--tasks", "tasks (default: tasks.train)", metavar="SOURCE"),
            argument("--jobs", "parallel downloads (default: 8)", type=count, metavar="N"),
            argument("--json", "list: print JSON", action="store_true"),
            argument("--python", "install: Python 3.11 or later (default: this one)", metavar="PROGRAM"),
        ),
        settings=True,
    ),
    Command(
        name="check-env",
        run=check_env_command.run_check_env,
        purpose="test your own environment with the conformance suite",
        lesson=check_env_command.LESSON,
        example="arpo check-env my_package.my_env:MyEnv --tasks my-tasks.json --env.step_seconds 5",
        arguments=(
            argument("target", "class to check", metavar="MODULE:CLASS"),
            argument(
                "--tasks",
                "tasks for the checks (default: tasks.train; required for your own class)",
                metavar="SOURCE",
            ),
        ),
        settings=True,
    ),
)
