"""TRL trains a model for one update on `arpo env-host desk --openenv`: `python openenv_trl.py URL MODEL`.

TRL offers the methods of `Desk` to the model as tools, and runs those that the model calls. ARPO's tiny model
writes actions in the language of UI-TARS instead: TEMPLATE and `parse` translate. A model that calls tools
needs neither.
"""

import ast
import base64
import io
import re
import sys

from datasets import Dataset
from openenv.core import GenericEnvClient
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import GRPOConfig, GRPOTrainer

URL, MODEL = sys.argv[1:]
TASKS, EPISODES, STEPS = 8, 4, 8


class Desk:
    """One episode at a time, in a session of its own. An action returns the next screenshot."""

    def reset(self, index, **row):
        self._client = GenericEnvClient(base_url=URL).sync()
        self._client.connect()
        self._result = self._client.reset(split="train", index=index)
        return [{"type": "text", "text": self._result.observation["instruction"]}, *self._screen()]

    def click(self, start_box: str) -> list:
        """
        Click a point.

        Args:
            start_box: The point in pixels, such as (105,63)
        """
        x, y = map(int, re.findall(r"\d+", start_box))
        return self._act(action="Click", x=x, y=y)

    def type(self, content: str) -> list:
        """
        Type a text.

        Args:
            content: The text
        """
        return self._act(action="Type", text=content.removesuffix("\n"), submit=content.endswith("\n"))

    def hotkey(self, key: str) -> list:
        """
        Press keys together.

        Args:
            key: Their names, such as ctrl c
        """
        return self._act(action="Hotkey", key=key.replace(" ", "+"))

    def get_reward(self):
        """The score, at the end of the episode."""
        if not self._result.done:
            self._result = self._client.step({"action": "Finished"})
        self._client.close()
        return float(self._result.reward)

    def _act(self, **action):
        if not self._result.done:
            self._result = self._client.step(action)
        return self._screen()

    def _screen(self):
        png = base64.b64decode(self._result.observation["screenshot"])
        return [{"type": "image", "image": Image.open(io.BytesIO(png)).convert("RGB")}]


# A screenshot is a message of its own, as in ARPO.
TEMPLATE = """
{%- for message in messages %}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
{%- for part in message.content %}
{%- if part.type == 'image' %}
{{- '' if loop.first else '<|im_end|>\\n<|im_start|>user\\n' }}
{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- for call in message.tool_calls or [] %}
{{- call.function.name + call.function.arguments | string }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def parse(tokenizer, ids):
    """The answer as a message of an assistant. Its last action is the tool call; "finished" is none."""
    text = tokenizer.decode(ids, skip_special_tokens=True)
    message = {"role": "assistant", "content": text}
    try:
        call = ast.parse(text.rpartition("Action: ")[2], mode="eval").body
        arguments = {given.arg: ast.literal_eval(given.value) for given in call.keywords}
        if hasattr(Desk, call.func.id):
            function = {"name": call.func.id, "arguments": arguments}
            message["tool_calls"] = [{"type": "function", "function": function}]
    except (SyntaxError, ValueError, AttributeError):
        pass  # not an action: the episode ends
    return message


processor = AutoProcessor.from_pretrained(MODEL)
tokenizer = processor.tokenizer
processor.chat_template = tokenizer.chat_template = TEMPLATE
tokenizer.response_schema = {"type": "object"}  # asks TRL to call parse_response
tokenizer.parse_response = lambda ids, **given: parse(tokenizer, ids)
prompt = [{"role": "system", "content": "You use a computer."}, {"role": "user", "content": ""}]
trainer = GRPOTrainer(
    model=AutoModelForImageTextToText.from_pretrained(MODEL, dtype="float32"),
    processing_class=processor,
    environment_factory=Desk,
    train_dataset=Dataset.from_list([{"prompt": prompt, "index": index} for index in range(TASKS)]),
    args=GRPOConfig(
        output_dir="trl",
        max_steps=1,
        num_generations=EPISODES,
        per_device_train_batch_size=TASKS * EPISODES,
        max_completion_length=1024,
        max_tool_calling_iterations=STEPS,
        temperature=0.6,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        logging_steps=1,
        save_strategy="no",
    ),
)
trainer.train()
