"""Tasks of verifiers as training tasks: each is played against ARPO's model; its rewards are the score.

Run it with a Python that has verifiers and uv (docs/inspect.md). The ids of ARPO's tasks are positions in
the taskset.
"""

import asyncio
import json
import os
import sys
from urllib.request import Request, urlopen

import verifiers.v1 as vf

TASKSET = "verifiers_taskset"  # an installed environment, or a module of this folder
AGENT = {
    "harness": {"id": "null"},
    "runtime": {"type": "subprocess"},
}  # a chat without tools, on this machine
URL = os.environ["ARPO_ENV_URL"]
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]  # the harness calls uv


async def play(position: int) -> float:
    env = vf.load_environment(vf.resolve_env_config({"taskset": {"id": TASKSET}, "agent": AGENT}))
    [task] = env.taskset.include(idx=[position])
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        episode = await env.run_episode(task, vf.ModelContext(model="policy", client=client))
    if not episode.ok:
        faults = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise SystemExit("verifiers: " + "; ".join(fault.message for fault in faults))
    [trace] = episode.traces
    return trace.reward


position = int(json.load(urlopen(f"{URL}/task"))["id"])
answer = {"do": "GiveAnswer", "text": str(asyncio.run(play(position)))}
urlopen(Request(f"{URL}/step", json.dumps({"actions": [answer]}).encode()))
