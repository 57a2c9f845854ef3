"""The model card (README.md) of an exported model: base model, method, scores, recipe, prompt and use.

A card may become public. It names local files by the last part of their path, and leaves out the settings of
this machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from arpo import __version__
from arpo.config import Config, ReplayConfig, TrainConfig
from arpo.config.changes import NEUTRAL
from arpo.config.recipe import changed, value
from arpo.config.task_set_names import GENERATED, HELDOUT, OVERALL, TRAIN, heldout_sets, set_label
from arpo.errors import UserError
from arpo.models.hub import HubModel, parse_hub_model
from arpo.prompts.templates import QWEN_SYSTEM, PromptTemplate
from arpo.rollout.player import open_template

CARD = "README.md"
PRIVATE = ("osworld.", "model.path")  # and NEUTRAL
OFFLINE_METHODS = {
    "rft": "RFT (supervised learning on successful episodes)",
    "sft": "SFT (supervised learning on successful episodes of a teacher)",
    "dpo": "DPO (direct preference optimisation)",
    "kto": "KTO (Kahneman-Tversky optimisation)",
}
LOAD = """\
# pip install transformers=={transformers} torch pillow
from transformers import AutoTokenizer, {processor}, Qwen2VLImageProcessorPil, pipeline

MODEL = "{title}"
{prompt}

class Processor({processor}):
    # For images only: transformers' processor of videos needs torchvision. Pillow resizes as in training.
    def __init__(self, image_processor, tokenizer):
        super().__init__(image_processor, tokenizer, None, tokenizer.chat_template)


processor = Processor(Qwen2VLImageProcessorPil.from_pretrained(MODEL), AutoTokenizer.from_pretrained(MODEL))
agent = pipeline("image-text-to-text", model=MODEL, processor=processor)
task = PROMPT.replace("{{instruction}}", "Open the file menu")
messages = [
    {{"role": "system", "content": [{{"type": "text", "text": SYSTEM}}]}},
    {{"role": "user", "content": [{{"type": "text", "text": task}}]}},
    {{"role": "user", "content": [{{"type": "image", "path": "screenshot.png"}}]}},
]
(answer,) = agent(text=messages, max_new_tokens=512, do_sample=False, return_full_text=False)
print(answer["generated_text"])
"""
LOAD_ADAPTERS = """\
# pip install transformers=={transformers} torch pillow peft
from peft import PeftModel
from transformers import AutoModelForImageTextToText

{prompt}
base = AutoModelForImageTextToText.from_pretrained("{base}")
model = PeftModel.from_pretrained(base, "{title}")
"""
MEASURE = """\
To measure the model with ARPO, save the recipe as recipe.toml:

```sh
arpo eval recipe.toml --model.path {title} --out scores.json
```
"""


def model_card(
    title: str,
    config: Config,
    *,
    step: int | None,
    summary: Mapping[str, Any],
    dtype: str,
    adapters: bool,
    processor: str,
) -> str:
    """The text of the card.

    `step` is the batch of the checkpoint, None if nothing was trained. `processor` is the model's processor
    class of transformers.
    """
    hub_model = parse_hub_model(config.model.path)
    base = hub_model.repo if hub_model else _last_part(config.model.path)
    shipped = " (the tiny model shipped with ARPO)" if base == "base" else ""
    facts = [f"- Base model: {_link(hub_model) if hub_model else base}{shipped}"]
    if step is not None:
        facts += [f"- Method: {_method(config.replay, config.train)}", f"- Trained batches: {step}"]
    facts += [f"- Weights: {'LoRA adapters, ' if adapters else ''}{dtype}", f"- Made by: ARPO {__version__}"]
    code = (LOAD_ADAPTERS if adapters else LOAD).format(
        title=title,
        base=base,
        processor=processor,
        prompt=_prompt(config if step is not None else None),
        transformers=version("transformers"),
    )
    metadata = [
        f"library_name: {'peft' if adapters else 'transformers'}",
        "pipeline_tag: image-text-to-text",
        *([f"base_model: {base}"] if hub_model else []),
        "tags: [arpo, gui-agent, computer-use, reinforcement-learning]",
    ]
    lines = [
        *("---", *metadata, "---", f"# {title}", ""),
        *("A vision-language model that uses a computer through screenshots, mouse and keyboard.", ""),
        *(*facts, ""),
        *_scores(config, summary),
        *(_recipe(config) if step is not None else ()),
        *("## Use", "", *_fenced("python", code)),
        *((MEASURE.format(title=title),) if step is not None and not adapters else ()),
    ]
    return "\n".join(lines)


def _prompt(config: Config | None) -> str:
    """SYSTEM and PROMPT as Python code: a plain prompt without a recipe, or if its package is missing."""
    template, note = PromptTemplate(system=QWEN_SYSTEM, user="{instruction}"), ""
    if config is not None:
        try:
            template = open_template(config)
        except UserError:
            note = f"  # insert the text of {_last_part(config.model.prompt)}"
    text = template.task("{instruction}").replace("\\", "\\\\").replace('"""', r"\"\"\"")
    return f'SYSTEM = {json.dumps(template.system)}\nPROMPT = """\\\n{text}"""{note}\n'


def _fenced(language: str, text: str) -> list[str]:
    """The text as a code block of Markdown. Its fence is longer than any in the text."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return [fence + language, text.removesuffix("\n"), fence, ""]


def _last_part(text: str) -> str:
    """The names of files or folders without their paths. Other text stays: "desk:128"."""
    parts = text.split(",")
    return ",".join(Path(one).name if "/" in one and one not in GENERATED else one for one in parts)


def _link(model: HubModel) -> str:
    commit = f", commit `{model.revision}`" if model.revision else ""
    return f"[{model.repo}](https://huggingface.co/{model.repo}){commit}"


def _method(replay: ReplayConfig, train: TrainConfig) -> str:
    if train.method != "online":
        return OFFLINE_METHODS[train.method]
    if train.dynamic_sampling:
        return "GRPO with dynamic sampling"
    return "ARPO (GRPO with a replay buffer of each task's successes)" if replay.enabled else "GRPO"


def _scores(config: Config, summary: Mapping[str, Any]) -> list[str]:
    """A table of success rates before and after training. Empty without the summary of a finished run."""
    counts = summary.get("counts", {})
    named = {name: f"{name}: {_last_part(str(value(config, f'tasks.{name}')))}" for name in (TRAIN, OVERALL)}
    named |= {
        name: f"{name}: {_last_part(source)}" if name == HELDOUT else set_label(name)
        for name, source in heldout_sets(config.tasks.heldout).items()
    }
    rows = [
        f"| {named.get(task_set, task_set)} "
        f"| {_rate(counts['base'].get(task_set, (0, 0)))} | {_rate(final)} |"
        for task_set, final in counts.get("final", {}).items()
        if final[1]
    ]
    if not rows:
        return []
    conditions = f"Success rates at temperature {config.eval.temperature:g}, seed {config.run.seed}:"
    table = ["| tasks | base model | this model |", "| --- | --- | --- |", *rows]
    return ["## Scores", "", conditions, "", *table, ""]


def _rate(count: tuple[float, int]) -> str:
    successes, episodes = count
    return f"{successes / episodes:.1%} ({successes:g} of {episodes})" if episodes else "–"


def _recipe(config: Config) -> list[str]:
    """The settings that differ from ARPO's defaults, as TOML."""
    lines = []
    for key in changed(Config(), config):
        if key not in NEUTRAL and not key.startswith(PRIVATE):
            setting = value(config, key)
            shown = _last_part(setting) if isinstance(setting, str) else setting
            lines.append(f"{key} = {json.dumps(shown, ensure_ascii=False)}")
    intro = "Settings that differ from ARPO's defaults:" if lines else "ARPO's default settings."
    return ["## Recipe", "", intro, "", *(_fenced("toml", "\n".join(lines)) if lines else [])]
