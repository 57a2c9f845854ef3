"""The base model's card, with a fingerprint of everything its weights depend on.

A changed pixel, token, prompt or thought of the solver makes the weights worthless without raising an error.
Comparing fingerprints detects it. The mix of lessons and the demonstrator's faults are not part of it: they
change how a model is made, not what it needs.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from arpo.envs.desk.canvas import PALETTE
from arpo.envs.desk.env import set_up
from arpo.envs.desk.goals import FAMILIES, from_json
from arpo.envs.desk.random_tasks import random_task, rng_for, to_task
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from tools.pretrain.carelessness import Carelessness, demonstrate
from tools.pretrain.judging import judged
from tools.pretrain.ladder import LADDER, Stage
from tools.pretrain.language import LANGUAGES
from tools.pretrain.lessons import MAX_STEPS, LessonGenerator
from tools.pretrain.settings import Settings
from tools.pretrain.tiny import CHAT_TEMPLATE, IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer
from tools.pretrain.word_canvas import draw

CARD = "README.md"
NAMES = {"qwen2_5_vl": "Qwen2.5-VL", "qwen3_5": "Qwen3.5"}  # of families
_TASKS_PER_FAMILY = 4
_REPORT = "\n## Report\n"
_LINE = re.compile(r"^fingerprint: `([0-9a-f]{64})`$", re.MULTILINE)


def fingerprint(dialect: str) -> str:
    """SHA-256 of the tokenizer, prompt and image settings, and of the screens and tokens of solved tasks."""
    language = LANGUAGES[dialect]
    tokenizer = desk_tokenizer(language.phrases)
    generator = LessonGenerator(Renderer(tokenizer, IMAGE_SETTINGS), load_template("desk"))
    digest = hashlib.sha256()
    for text in (tokenizer.to_str(), CHAT_TEMPLATE, repr(IMAGE_SETTINGS)):
        digest.update(text.encode())
    digest.update(PALETTE.tobytes())
    for number in range(_TASKS_PER_FAMILY * len(FAMILIES)):
        rng = rng_for("pretrain", number)
        raw = random_task(rng, [list(FAMILIES.values())[number % len(FAMILIES)]], str(number))
        task = to_task(raw)
        goals = from_json(task.evaluator["solution"])
        turns = demonstrate(rng, set_up(task), goals, Carelessness.of(0), look=draw, max_steps=MAX_STEPS)
        answers = [(screen, language.write([step.action], step.thought)) for screen, step in turns]
        lesson = generator.sequence(task.instruction, answers)
        if not language.dialect:
            lesson = generator.judgement(judged(task, [step for _, step in turns]))
        digest.update(repr((lesson.token_ids, lesson.mask)).encode())
        for screen in lesson.screens:
            digest.update(screen.pixels.tobytes())
    return digest.hexdigest()


def read_fingerprint(folder: Path) -> str:
    """The fingerprint on a model folder's card; "" if there is none."""
    path = folder / CARD
    found = _LINE.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else ""


def card(settings: Settings, step: int, parameters: int, arithmetic: str) -> str:
    model, language = NAMES[settings.family], LANGUAGES[settings.dialect]
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---
# Desk base model

A tiny {model} ({parameters:,} parameters, half precision) that reads the screens of ARPO's built-in
desktop. {language.purpose} It is useless elsewhere.

- Made by `python -m tools.pretrain --out FOLDER --steps {settings.steps}{_options(settings)}`, seed
  {settings.seed}, {step} of {settings.steps} steps of {settings.tokens_per_step:,} tokens, AdamW
  {settings.lr:g}, {arithmetic}.
- Lessons: read a page of words; read the elements of a screen, of a window or of one kind; tell the element
  at a point, or the state of an element; point at an element; follow a demonstration with short thoughts.
  Their desktops share no seed with any shipped task.
- Limits: it knows only Desk's words, Desk's prompt, and screens of 224x168 pixels.

Share of lessons by stage (percent):

{_ladder_table((*LADDER[:-1], language.last))}

Faults of the demonstrator in the last stage (level {settings.carelessness:g}):

{_faults_table(settings.carelessness)}

fingerprint: `{fingerprint(settings.dialect)}`
"""


def _options(settings: Settings) -> str:
    last_stage = " --last-stage" if settings.last_stage else ""
    other = [name for name in ("family", "dialect") if getattr(settings, name) != getattr(Settings(), name)]
    return last_stage + "".join(f" --{name} {getattr(settings, name)}" for name in other)


def with_report(text: str, table: str) -> str:
    """The card with this report in place of an older one."""
    return f"""{text.partition(_REPORT)[0]}{_REPORT}
Screens and tasks that no lesson contains. Elements: share of right answers at temperature 0. Tasks: success
by temperature.

{table}
"""


def _ladder_table(ladder: Sequence[Stage]) -> str:
    kinds = list(ladder[-1].lessons)
    rows = [
        f"| {stage.name} | {stage.until:.0%} | "
        + " | ".join(
            f"{100 * stage.lessons.get(kind, 0) / sum(stage.lessons.values()):.0f}" for kind in kinds
        )
        + f" | {':'.join(f'{share:g}' for share in stage.goals)} |"
        for stage in ladder
    ]
    head = f"| stage | until | {' | '.join(kinds)} | tasks with 1:2:3 goals |"
    return "\n".join([head, "| --- " * (len(kinds) + 3) + "|", *rows])


def _faults_table(level: float) -> str:
    faults = Carelessness.of(level)
    rows = [
        f"| {each.name.replace('_', ' ')} | {getattr(faults, each.name):g} | {each.metadata['description']} |"
        for each in fields(faults)
    ]
    return "\n".join(["| fault | probability | description |", "| --- | --- | --- |", *rows])
