"""The output of `arpo serve`: notes, and the load of the servers.

On a terminal, a table is refreshed in place. Otherwise a line is printed from time to time.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import aiohttp
from rich.console import Console
from rich.live import Live

from arpo.engines.vllm_access import key_headers
from arpo.serving.load import load_line, load_table, read_loads
from arpo.serving.servers import OwnServers, Server

TABLE_SECONDS = 2.0
LINE_SECONDS = 60.0


async def serve_until_cancelled(servers: OwnServers, log_dir: Path) -> None:
    """Run the servers and print their load. Raises UserError if one does not start."""
    console = Console(highlight=False, soft_wrap=True)

    def report(text: str) -> None:
        console.print(text, markup=False)

    async with (
        servers.running(log_dir, report) as started,
        aiohttp.ClientSession(headers=key_headers(servers.key)) as session,
    ):
        first, last = started[0].place, started[-1].place
        ports = f"-{last.port}" if last is not first else ""
        report(f"all servers are ready: --engine.name vllm --engine.endpoints {first.url}{ports}")
        await _show_load(console, session, started)


async def _show_load(console: Console, session: aiohttp.ClientSession, servers: list[Server]) -> None:
    """Runs until it is cancelled."""
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():
        while True:
            loads = await read_loads(session, servers)
            if live is not None:
                live.update(load_table(servers, loads), refresh=True)
                await asyncio.sleep(TABLE_SECONDS)
            else:
                console.print(load_line(servers, loads), markup=False)
                await asyncio.sleep(LINE_SECONDS)
