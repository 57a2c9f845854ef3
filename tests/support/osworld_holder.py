"""A process that holds environments and is there to be killed.

    osworld_holder.py CONFIG ENV TASK

starts one environment (all three as JSON), says in one line who belongs to it, and waits.
"""

import asyncio
import json
import sys

from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.fork_server import private_root
from arpo.types import Task


async def hold(config, env, task):
    held = OSWorldEnv(OSWorldConfig(**config), EnvConfig(**env))
    await held.start(Task(**task))
    print(json.dumps({"worker": held.session.worker.pid, "root": str(private_root())}), flush=True)
    await asyncio.sleep(3600)


asyncio.run(hold(*(json.loads(text) for text in sys.argv[1:])))
