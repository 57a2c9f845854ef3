"""The prompts of five episodes per dialect have the tokens of the published agents in desktop-env.

The agents (`mm_agents`) run unchanged, except that recorded answers take the place of their model server, and
that they do not resize screenshots: a model does that itself. Their messages are written in Qwen's format by
hand here, and tokenised whole. Differences on purpose:

- UI-TARS-1.5's agent of `uitars15_v1.py` adds <|box_start|> to coordinates of earlier answers. Here earlier
  answers keep their sampled tokens, as in its `uitars15_v2.py`.
- The tool-call agents invent a line such as "Performing click action" for an answer without "Action:". Here
  the line is the thought, or the call.
"""

import ast
import base64
import json
import os
import random
import types
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from arpo.config import RolloutConfig
from arpo.config.recipe import PROJECT
from arpo.dialects.base import AGENTS, Dialect
from arpo.dialects.pyautogui_code import OPENCUA
from arpo.dialects.tool_calls import GUI_OWL, QWEN2_5_VL, QWEN3_VL
from arpo.dialects.ui_tars import UI_TARS, UI_TARS_1_5
from arpo.prompts.rendering import END, IMAGE, START, VISION_END, VISION_START
from arpo.prompts.templates import load_template
from arpo.rollout.agent import Agent
from arpo.types import Completion, Screenshot
from players import RENDERER, TOKENIZER, scripted

EPISODES, SIZE = 5, (1920, 1080)
WORDS = [
    *["open", "the", "menu,", "then", "it's", "naïve"],
    "“Save”",
    "—",
    "文件",
    "{instruction}",
    "<|im_end|>",
    "{0}",
]


def load(file: str, **known: object) -> types.SimpleNamespace:
    """The names of an agent's file. Packages that are not installed are left out, and so are decorators."""
    found = sorted(PROJECT.glob(f"{AGENTS}/{file}"))
    if not found:
        pytest.skip("desktop-env is not installed: run make osworld")
    scope: dict[str, object] = {"__name__": "agent", "print": lambda *_: None}
    for node in ast.parse(found[0].read_text("utf-8")).body:
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef):
                inner.decorator_list = [
                    one for one in inner.decorator_list if getattr(one, "id", "") == "staticmethod"
                ]
        try:
            exec(compile(ast.Module(body=[node], type_ignores=[]), file, "exec"), scope)
        except ImportError:
            continue
    quiet = types.SimpleNamespace(**dict.fromkeys(("info", "error", "warning", "exception"), lambda *_: None))
    scope.update({"logger": quiet, **known})
    return types.SimpleNamespace(**scope)


class Recorded:
    """A model server: gives recorded answers, keeps the messages of each request."""

    def __init__(self, answers):
        self.answers, self.requests = list(answers), []
        self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=self.create))

    def reply(self, messages):
        self.requests.append(json.loads(json.dumps(messages)))
        return self.answers[len(self.requests) - 1]

    def create(self, messages, **_):
        message = types.SimpleNamespace(content=self.reply(messages))
        return types.SimpleNamespace(choices=[types.SimpleNamespace(message=message)])


def unchanged(png: bytes) -> str:
    return base64.b64encode(png).decode()


def qwen(file, name, server):
    agent = getattr(load(file, process_image=unchanged), name)()
    agent.call_llm = lambda payload, model: server.reply(payload["messages"])
    return agent


def owl(server):
    url = "data:image/png;base64,{}".format
    return load("owl_agent.py", OpenAI=lambda **_: server, get_image_url=url).OwlAgent()


def opencua(server):
    prompts = vars(load("opencua/prompts.py"))
    texts = {name: text for name, text in prompts.items() if isinstance(text, str)}
    agent = load("opencua/opencua_agent.py", encode_image=unchanged, **texts)
    made = agent.OpenCUAAgent(
        model="OpenCUA-7B",
        history_type="action_history",
        max_steps=100,
        coordinate_type="absolute",
        use_old_sys_prompt=True,
    )
    made.call_llm = lambda payload, model: server.reply(payload["messages"])
    return made


def ui_tars(server):
    prompts = {name: text for name, text in vars(load("prompts.py")).items() if isinstance(text, str)}
    made = load("uitars_agent.py", OpenAI=lambda **_: server, **prompts)
    return made.UITARSAgent(model="ui-tars", observation_type="screenshot")


def ui_tars_1_5(server):
    agent = load("uitars15_v2.py").UITarsAgent("ui-tars", "qwen25vl", 100, 1.0, 0.0, 50, 5)
    agent.inference_func = server.reply
    return agent


# answers of a model


def tool_calls(sentence: str, x: int, y: int) -> str:
    call = {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [x, y]}}
    return f"Action: {sentence}\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


def concluded(sentence: str, x: int, y: int) -> str:
    call = tool_calls("", x, y).removeprefix("Action: \n")
    return f"<thinking>{sentence}</thinking>\n{call}\n<conclusion>{sentence} ({x})</conclusion>"


def code(sentence: str, x: int, y: int) -> str:
    program = f"```python\npyautogui.click(x={x}, y={y})\n```"
    return f"## Thought:\n{sentence}\n\n## Action:\n{sentence} ({x})\n\n## Code:\n{program}"


def call(sentence: str, x: int, y: int) -> str:
    return f"Thought: {sentence}\nAction: click(start_box='({x},{y})')"


def point(sentence: str, x: int, y: int) -> str:
    return f"Thought: {sentence}\nAction: click(point='<point>{x} {y}</point>')"


PROMPT = (
    f"{AGENTS}/prompts.py:UITARS_USR_PROMPT_THOUGHT,action_space=UITARS_CALL_USR_ACTION_SPACE,"
    "language=Chinese"
)
PROMPT_1_5 = f"{AGENTS}/uitars15_v2.py:COMPUTER_USE_DOUBAO,language=Chinese"
CASES = {
    "qwen2_5_vl": (QWEN2_5_VL, tool_calls, lambda s: qwen("qwen25vl_agent.py", "Qwen25VLAgent", s), 5, ""),
    "qwen3_vl": (QWEN3_VL, tool_calls, lambda s: qwen("qwen3vl_agent.py", "Qwen3VLAgent", s), 5, ""),
    "gui_owl": (GUI_OWL, concluded, owl, 1, ""),
    "opencua": (OPENCUA, code, opencua, 3, ""),
    "ui_tars": (UI_TARS, call, ui_tars, 5, PROMPT),
    "ui_tars_1_5": (UI_TARS_1_5, point, ui_tars_1_5, 5, PROMPT_1_5),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_prompts_have_the_tokens_of_the_published_agent(name, tmp_path, monkeypatch):
    dialect, write, make, images, prompt = CASES[name]
    monkeypatch.chdir(tmp_path)  # Qwen3-VL's agent writes its messages to a folder
    monkeypatch.setitem(os.environ, "DOUBAO_API_URL", "http://localhost")
    monkeypatch.setitem(os.environ, "DOUBAO_API_KEY", "none")
    rng = random.Random(name)
    for episode in range(EPISODES):
        steps = rng.randint(2, 9) if episode else 9
        answers = [write(sentence(rng), rng.randrange(1000), rng.randrange(1000)) for _ in range(steps)]
        server = Recorded(answers)
        agent = make(server)
        instruction = sentence(rng)
        for number in range(steps):
            agent.predict(instruction, {"screenshot": shot(number).png, "accessibility_tree": None})
        ours = our_prompts(dialect, instruction, answers, images, prompt or dialect.prompt)
        theirs = [their_prompt(messages) for messages in server.requests]
        assert len(ours) == len(theirs) == steps
        for number, (mine, published) in enumerate(zip(ours, theirs, strict=True)):
            assert mine == published, f"episode {episode}, step {number + 1}"


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))


def shot(number: int) -> Screenshot:
    file = BytesIO()
    Image.new("RGB", SIZE, (number * 20, 0, 0)).save(file, "PNG")
    return Screenshot.of(file.getvalue())


def our_prompts(dialect: Dialect, instruction: str, answers, images: int, prompt: str):
    """Tokens of each prompt, with one token per image; and the shades of its images."""
    agent = Agent(
        engine=scripted([]),
        renderer=RENDERER,
        template=load_template(prompt, dialect.layout),
        dialect=dialect,
    )
    talk = agent.begin(instruction, RolloutConfig(max_images=images))
    found = []
    for number, text in enumerate(answers):
        talk = talk.look(shot(number))
        rendered = RENDERER.render(talk.messages())
        pad = RENDERER.image_token_id
        tokens = rendered.token_ids
        kept = [one for at, one in enumerate(tokens) if one != pad or at == 0 or tokens[at - 1] != pad]
        found.append((kept, [shade(image.png) for image in rendered.images]))
        tokens = (*RENDERER.encode(text), RENDERER.end_of_turn_id)
        sampled = Completion(
            token_ids=tokens,
            logprobs=(0.0,) * len(tokens),
            text=text,
            finish="stop",
            versions=(0,) * len(tokens),
        )
        talk = talk.answer(sampled)
    return found


def their_prompt(messages: list[dict[str, Any]]) -> tuple[list[int], list[int]]:
    if messages[0]["role"] != "system":  # as the chat template of Qwen models
        messages = [{"role": "system", "content": "You are a helpful assistant."}, *messages]
    ids = TOKENIZER.get_vocab()
    tokens: list[int] = []
    shades: list[int] = []
    for message in messages:
        tokens.append(ids[START])
        text = message["role"] + "\n"
        content = message["content"]
        parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts:
            if part["type"] == "text":
                text += part["text"]
                continue
            shades.append(shade(base64.b64decode(part["image_url"]["url"].partition(",")[2])))
            tokens += [*RENDERER.encode(text), ids[VISION_START], ids[IMAGE], ids[VISION_END]]
            text = ""
        tokens += [*RENDERER.encode(text), ids[END], *RENDERER.encode("\n")]
    return [*tokens, ids[START], *RENDERER.encode("assistant\n")], shades


def shade(png: bytes) -> int:
    return int(np.asarray(Image.open(BytesIO(png)))[0, 0, 0])
