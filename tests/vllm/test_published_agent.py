"""desktop-env's Qwen3-VL agent as an agent program: its file unchanged, with the real `openai` client.

The wheel of desktop-env lacks the agent's helper for sizes. Packages that only its other backend needs are
empty here.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from arpo.actions import Action, Click, Finished, Hotkey, Point, Type, Wait
from arpo.config import RolloutConfig
from arpo.dialects.tool_calls import QWEN3_VL
from arpo.rollout.agent import Agent, AgentProgram
from arpo.rollout.episode import run_episode
from arpo.testing import FakeEnv, task
from players import RENDERER, TEMPLATE, scripted
from real_vllm import PYTHON

ROOT = Path(__file__).parents[2]
DRIVER = """
import json, logging, os
from urllib.request import Request, urlopen
from mm_agents.qwen3vl_agent import Qwen3VLAgent

env = os.environ["ARPO_ENV_URL"]
task = json.load(urlopen(f"{env}/task"))
agent = Qwen3VLAgent(model="policy", api_backend="openai", history_n=3)
agent.reset(logging.getLogger("agent"))
finished = False
while not finished:
    screenshot = urlopen(f"{env}/screenshot").read()
    _, codes = agent.predict(task["instruction"], {"screenshot": screenshot})
    for code in codes:
        step = Request(f"{env}/step", json.dumps({"pyautogui": code}).encode())
        finished = json.load(urlopen(step))["finished"]
"""
STAND_INS = {
    "mm_agents/__init__.py": "",
    "mm_agents/utils/__init__.py": "",
    "mm_agents/utils/qwen_vl_utils.py": """
def smart_resize(height, width, factor, max_pixels):
    return round(height / factor) * factor, round(width / factor) * factor
""",
    "dashscope.py": "MultiModalConversation = None",
    "backoff.py": "constant = None\ndef on_exception(*_, **__): return lambda function: function",
    "google/__init__.py": "",
    "google/api_core/__init__.py": "",
    "google/api_core/exceptions.py": "InvalidArgument = ResourceExhausted = InternalServerError = BadRequest "
    "= OSError",
}


def answer(**arguments: object) -> str:
    call = {"name": "computer_use", "arguments": arguments}
    return f"Action: go on\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


def test_the_qwen3_vl_agent_of_desktop_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = sorted(ROOT.glob(".venv-osworld/lib/python3.*/site-packages/mm_agents/qwen3vl_agent.py"))
    if not found:
        pytest.skip("desktop-env is not installed: make osworld")
    for name, text in (*STAND_INS.items(), ("driver.py", DRIVER)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, "utf-8")
    shutil.copy(found[0], tmp_path / "mm_agents")
    monkeypatch.chdir(tmp_path)  # the agent writes its messages there
    script = [
        answer(action="left_click", coordinate=[500, 250]),
        answer(action="type", text="hello"),
        answer(action="key", keys=["ctrl", "s"]),
        answer(action="wait", time=1),
        answer(action="terminate", status="success"),
    ]
    agent = Agent(
        engine=scripted(script),
        renderer=RENDERER,
        template=TEMPLATE,
        dialect=QWEN3_VL,
        program=AgentProgram(
            command=(str(PYTHON), "driver.py"), logs=tmp_path / "logs", start_seconds=300, call_seconds=300
        ),
    )
    settings = RolloutConfig(max_steps=9, max_images=4, max_answer_tokens=200, max_context_tokens=20_000)
    episode = asyncio.run(
        run_episode(task("t"), FakeEnv(size=(1280, 720)), agent, episode_id="e", settings=settings, seed=0)
    )
    actions: list[tuple[Action, ...]] = [turn.actions for turn in episode.turns]
    assert actions == [
        (Click(point=Point(640, 180)),),
        (Type(text="hello"),),
        (Hotkey(keys=("ctrl", "s")),),
        (Wait(seconds=2.0),),
        (Finished(),),
    ]
    # The agent shows the last four screenshots: with the fifth, a new sequence begins.
    assert [turn.restart for turn in episode.turns] == [True, False, False, False, True]
