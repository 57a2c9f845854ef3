"""Plays with the client of the package `openenv`: `python openenv_player.py URL TOKEN`, in its interpreter.

Reads {"reset": {…}} or {"step": {…}}, one per line, and writes the result of the client as a line of JSON.
"""

import json
import sys

from openenv.core import GenericEnvClient

url, token = sys.argv[1:]
with GenericEnvClient(base_url=url, headers={"Authorization": f"Bearer {token}"}).sync() as env:
    for line in sys.stdin:
        [(call, data)] = json.loads(line).items()
        result = env.reset(**data) if call == "reset" else env.step(data)
        answer = {"observation": result.observation, "reward": result.reward, "done": result.done}
        print(json.dumps(answer), flush=True)
