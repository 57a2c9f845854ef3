"""Inspect's samples as training tasks: each is played against ARPO's model; Inspect's scorer gives the score.

Run it with a Python that has inspect-ai and openai (docs/inspect.md). The ids of ARPO's tasks are those of
the samples.
"""

import json
import os
import tempfile
from urllib.request import Request, urlopen

from inspect_ai import eval
from inspect_ai.scorer import value_to_float

TASK = "inspect_task.py"  # the file of the Inspect task
CHAT = {"responses_api": False}  # ARPO answers chat completions

env = os.environ["ARPO_ENV_URL"]
sample = json.load(urlopen(f"{env}/task"))["id"]
with tempfile.TemporaryDirectory() as logs:
    [log] = eval(
        TASK, model="openai/policy", model_args=CHAT, sample_id=sample, display="plain", log_dir=logs
    )
    if log.status != "success" or not log.samples:
        raise SystemExit(f"inspect: {log.error}")
    [score] = (log.samples[0].scores or {}).values()
answer = {"do": "GiveAnswer", "text": str(value_to_float()(score.value))}
urlopen(Request(f"{env}/step", json.dumps({"actions": [answer]}).encode()))
