"""Starts one environment and waits, to be killed by a test.

    osworld_holder.py CONFIG ENV TASK

All arguments are JSON. Prints one JSON line with the worker's pid and the root folder.
"""

import asyncio
import json
import sys

from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.fork_server import private_root
from arpo.types import Task


async def hold(config, env, task):
    environment = OSWorldEnv(OSWorldConfig(**config), EnvConfig(**env))
    await environment.start(Task(**task))
    print(json.dumps({"worker": environment.client.worker.pid, "root": str(private_root())}), flush=True)
    await asyncio.sleep(3600)


asyncio.run(hold(*(json.loads(text) for text in sys.argv[1:])))
