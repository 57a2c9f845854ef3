"""The base model's card, with a fingerprint of everything its weights depend on.

A changed pixel, token or prompt makes the weights worthless without raising an error. Comparing fingerprints
detects it.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from arpo.config import Config
from arpo.envs.desk.base_model.lessons import LessonGenerator
from arpo.envs.desk.base_model.tiny import CHAT_TEMPLATE, IMAGE_SETTINGS
from arpo.envs.desk.base_model.tokenizer import desk_tokenizer
from arpo.envs.desk.canvas import PALETTE
from arpo.envs.desk.random_tasks import rng_for
from arpo.prompts.conversation import load_template
from arpo.prompts.rendering import Renderer

CARD = "README.md"
_LESSONS = 200
_LINE = re.compile(r"^fingerprint: `([0-9a-f]{64})`$", re.MULTILINE)


def fingerprint() -> str:
    """SHA-256 of the tokenizer, the prompt, the image settings, and the screens and tokens of 200 lessons."""
    tokenizer = desk_tokenizer()
    generator = LessonGenerator(Renderer(tokenizer, IMAGE_SETTINGS), load_template("desk"))
    digest = hashlib.sha256()
    for text in (tokenizer.to_str(), CHAT_TEMPLATE, repr(IMAGE_SETTINGS)):
        digest.update(text.encode())
    digest.update(PALETTE.tobytes())
    rng = rng_for("pretrain", 0)
    for _ in range(_LESSONS):
        lesson = generator.lesson(rng)
        digest.update(repr((lesson.token_ids, lesson.mask)).encode())
        for frame in lesson.frames:
            digest.update(frame.tobytes())
    return digest.hexdigest()


def read_fingerprint(folder: Path) -> str:
    """The fingerprint on a model folder's card; "" if there is none."""
    path = folder / CARD
    found = _LINE.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else ""


def card(config: Config, step: int, parameters: int, arithmetic: str) -> str:
    settings = config.pretrain
    return f"""---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
---
# Desk base model

A tiny Qwen2.5-VL ({parameters:,} parameters, half precision) that reads the screens of ARPO's built-in
desktop and answers in the UI-TARS action language. It is a starting point for training on that desktop and
useless elsewhere.

- Made by `arpo pretrain --out FOLDER --pretrain.steps {settings.steps}`, seed {config.run.seed}, {step} of
  {settings.steps} steps of {settings.tokens_per_step:,} tokens, AdamW {settings.lr:g}, {arithmetic}.
- Lessons: read every label with its coordinates, click one element, follow a solver's episode with short
  thoughts. Their desktops share no seed with any shipped task.
- Limits: it knows only Desk's words, Desk's prompt, and screens of 224x168 pixels.

fingerprint: `{fingerprint()}`
"""
