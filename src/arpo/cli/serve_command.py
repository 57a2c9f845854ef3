"""`arpo serve`: starts vLLM servers for one model, watches them and shows their load."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from arpo.cli.command import RECIPE_HELP, Command, argument, count
from arpo.config.recipe import load_config


def run_serve(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Serve until SIGINT or SIGTERM."""
    flags = {
        "model.path": options.model,
        "engine.replicas": options.replicas,
        "engine.gpus": options.gpus,
        "engine.port": options.port,
    }
    given = [f"--{key}={value}" for key, value in flags.items() if value is not None]
    config = load_config(options.recipe, [*overrides, "--engine.name=vllm", *given])
    from arpo.cli.served_load import serve_until_cancelled
    from arpo.serving.servers import open_served

    servers = open_served(config, options.host)

    async def serve() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, _end_once, loop, task)
        try:
            await serve_until_cancelled(servers, options.log_dir)
        except asyncio.CancelledError:
            print("all servers have ended", flush=True)

    asyncio.run(serve())
    return 0


def _end_once(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """End the servers in order. A second signal ends this process, and the guards end the servers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
    print("ending all servers", flush=True)
    task.cancel()


COMMAND = Command(
    name="serve",
    run=run_serve,
    purpose="start vLLM servers of a model, for other commands",
    lesson="""\
Starts vLLM servers, one per GPU, and waits until they answer (about a minute). A server that dies or hangs is
started again. Ctrl-C ends all servers; so does a kill of this command.
Other commands use the servers with --engine.name vllm --engine.endpoints http://127.0.0.1:9000-9003. They
need the same model and the same keys of the recipe: model.*, rollout.max_images, rollout.max_context_tokens.
For training with LoRA, add --model.train lora.
By default the servers listen on 127.0.0.1 only. To listen on another address, set the environment variable
ARPO_ENGINE_KEY to the same secret (at least 16 characters) for the servers and for their callers.
Install vLLM with pip install 'arpo[vllm]', or in an environment of its own (engine.python).""",
    example="""\
arpo serve base
arpo serve /models/UI-TARS-1.5-7B --recipe osworld_128 --gpus 0-7
arpo train osworld_128 --engine.name vllm --engine.endpoints http://127.0.0.1:9000-9007
ARPO_ENGINE_KEY=SECRET arpo serve ORG/NAME --gpus 0-3 --host 0.0.0.0""",
    arguments=(
        argument("model", "model to serve; sets model.path", metavar="MODEL"),
        argument("--recipe", f"{RECIPE_HELP} (default: %(default)s)", default="desk", metavar="RECIPE"),
        argument(
            "--replicas", "number of servers (default: one per GPU of --gpus, or 1)", type=count, metavar="N"
        ),
        argument("--gpus", "GPUs, such as 0-3,6; sets engine.gpus", metavar="LIST"),
        argument("--port", "port of the first server; sets engine.port", metavar="PORT"),
        argument(
            "--host", "address to listen on (default: %(default)s)", default="127.0.0.1", metavar="HOST"
        ),
        argument(
            "--log-dir",
            "folder for logs (default: %(default)s)",
            type=Path,
            default=Path("runs/serve"),
            metavar="FOLDER",
        ),
    ),
    settings=True,
)
