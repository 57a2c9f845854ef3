"""`arpo doctor`: checks this machine, or plans the memory of a recipe."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from arpo.cli.command import RECIPE_HELP, Command, argument, count
from arpo.config.recipe import load_config
from arpo.errors import UserError


def run_doctor(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.cli.doctor import check_machine, explain_gap, plan_recipe

    if options.gap is not None:
        if options.recipe is not None or overrides:
            raise UserError("--gap: has no other options: the settings are those of the run")
        return explain_gap(options.gap)
    if options.recipe is not None:
        return plan_recipe(load_config(options.recipe, overrides), options.gpu, options.gpus)
    if given := [name for name in ("gpu", "gpus") if getattr(options, name) is not None]:
        raise UserError(f"--{given[0]}: needs a recipe to plan for; add --recipe RECIPE")
    return check_machine()


COMMAND = Command(
    name="doctor",
    run=run_doctor,
    purpose="check this machine, plan the memory of a recipe, or explain why engine and learner disagree",
    lesson="""\
Without --recipe: checks packages, CPU, GPU, base model, vLLM, desktops and disk, and prints how to install
missing parts. With a GPU and vLLM, starts a server for a request: a minute or two. Changes nothing. Exit code
1 if training does not work.
With --recipe: prints the GPU memory that the recipe needs. If it does not fit, prints settings that fit, and
which of them change the training results. Exit code 1 if it does not fit. --gpu and --gpus plan for other
GPUs than those of this machine. Published models (Qwen-VL, UI-TARS) are planned by name.
With --gap: says why engine and learner of a run disagree about the probabilities of the same tokens. It loads
the model of a checkpoint, scores stored answers, and tries other sampling, pictures, template, weights and
dtype. It stores the result in the run, for its report. Exit code 1 if they disagree.""",
    example="""\
arpo doctor
arpo doctor --recipe osworld_128 --model.path /models/UI-TARS-1.5-7B --model.train lora
arpo doctor --recipe osworld_subset32 --model.path /models/UI-TARS-1.5-7B --gpu 80
arpo doctor --recipe osworld_full --model.path /models/UI-TARS-1.5-7B --gpus 64 --gpu 80
arpo doctor --gap runs/mine""",
    arguments=(
        argument("--recipe", RECIPE_HELP, metavar="RECIPE"),
        argument("--gap", "run whose engine and learner disagree", type=Path, metavar="RUN"),
        argument("--gpu", "GPU memory (default: that of this machine)", type=count, metavar="GIB"),
        argument("--gpus", "GPUs in total (default: those of this machine)", type=count, metavar="N"),
    ),
    settings=True,
)
