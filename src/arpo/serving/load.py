"""The load of vLLM servers: running and waiting requests, use of the cache, weights."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from rich.table import Table

from arpo.engines.http_exchange import read_bounded
from arpo.errors import printable
from arpo.reporting.numbers import NO_VALUE
from arpo.serving.servers import Server

_SECONDS = 5.0  # timeout of one question
_MAX_BYTES = 1 << 20
_MAX_LABEL = 40  # characters
_METRIC = re.compile(
    r"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{[^}]*\} (\S+)$", re.M
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests and share of the cache in use; `weights` names the loaded version."""

    running: int
    waiting: int
    cache: float
    weights: str


async def read_loads(session: aiohttp.ClientSession, servers: Sequence[Server]) -> list[Load | None]:
    """The load of each server; None for one that does not answer."""
    return await asyncio.gather(*(read_load(session, server.place.url) for server in servers))


async def read_load(session: aiohttp.ClientSession, url: str) -> Load | None:
    try:
        metrics = await _get(session, f"{url}/metrics")
        version = json.loads(await _get(session, f"{url}/weight_info"))
        return parse_load(metrics, version)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def parse_load(metrics: str, version: dict[str, str]) -> Load:
    """From vLLM's /metrics and /weight_info. Raises KeyError or ValueError if a value is missing."""
    values = {name: float(value) for name, value in _METRIC.findall(metrics)}
    return Load(
        running=int(values["num_requests_running"]),
        waiting=int(values["num_requests_waiting"]),
        cache=values["kv_cache_usage_perc"],
        weights=printable(str(version["weight_version"]))[:_MAX_LABEL],
    )


async def _get(session: aiohttp.ClientSession, url: str) -> str:
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with session.get(url, timeout=timeout, allow_redirects=False) as answer:
        answer.raise_for_status()
        return (await read_bounded(answer, _MAX_BYTES)).decode("utf-8", "replace")


def load_table(servers: Sequence[Server], loads: Sequence[Load | None]) -> Table:
    table = Table("server", "state", "running", "waiting", "cache", "weights", "restarts")
    for server, load in zip(servers, loads, strict=True):
        table.add_row(server.place.url, server.state, *_cells(load), str(server.restarts))
    return table


def load_line(servers: Sequence[Server], loads: Sequence[Load | None]) -> str:
    """One line for logs. Example: "2 of 2 servers healthy, 5 running, 0 waiting, 1 restart"."""
    healthy = sum(server.state == "healthy" for server in servers)
    known = [load for load in loads if load is not None]
    restarts = sum(server.restarts for server in servers)
    return (
        f"{healthy} of {len(servers)} servers healthy, {sum(load.running for load in known)} running, "
        f"{sum(load.waiting for load in known)} waiting, {restarts} restart{'' if restarts == 1 else 's'}"
    )


def _cells(load: Load | None) -> list[str]:
    if load is None:
        return [NO_VALUE] * 4
    return [str(load.running), str(load.waiting), f"{load.cache:.0%}", load.weights]
