"""`arpo osworld fetch-cache`: download what tasks need into the cache, so that they run without a network.

Files that are there are kept, so the same command goes on where it was stopped. A download has a name of its
own until it is whole. Nothing is tried twice in one go: what failed is told with its reason at the end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import aiohttp

from arpo.config import OSWorldConfig
from arpo.envs.osworld.needs import NeededFile, needs
from arpo.errors import UserError
from arpo.types import Task

CHUNK = 1 << 16
NETWORK_FAULTS = (aiohttp.ClientError, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A file that did not come, and why."""

    file: NeededFile
    reason: str


def fetch_cache(tasks: Sequence[Task], settings: OSWorldConfig, jobs: int) -> int:
    """Fetch what is not there yet, `jobs` at a time; 1 when something failed, else 0."""
    cache = Path(settings.cache)
    wanted = [file for task in tasks for file in needs(task).files if not file.shipped]
    absent = [file for file in wanted if not (cache / file.path).is_file()]
    print(f"{len(wanted)} files of {len(tasks)} tasks, {len(wanted) - len(absent)} of them in {cache}")
    failures = asyncio.run(_fetch_all(absent, cache, settings.download_seconds, jobs))
    print(f"{len(absent) - len(failures)} files fetched, {len(failures)} failed")
    for failed in failures:
        print(f"  {failed.file.path}\n    {failed.file.url}\n    {failed.reason}")
    if failures:
        print("the same command tries them again")
    return 1 if failures else 0


async def _fetch_all(absent: Sequence[NeededFile], cache: Path, seconds: float, jobs: int) -> list[Failed]:
    """Workers take from one list until it is empty."""
    left = iter(enumerate(absent, 1))
    failures: list[Failed] = []
    patience = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)

    async def work(session: aiohttp.ClientSession) -> None:
        for number, file in left:
            try:
                told = f"{await _fetch(session, file.url, cache / file.path):,} bytes"
            except NETWORK_FAULTS as error:
                told = f"failed: {_reason(error, seconds)}"
                failures.append(Failed(file=file, reason=_reason(error, seconds)))
            print(f"[{number}/{len(absent)}] {file.path}: {told}", flush=True)

    async with aiohttp.ClientSession(timeout=patience, trust_env=True) as session:
        await asyncio.gather(*(work(session) for _ in range(jobs)))
    return failures


async def _fetch(session: aiohttp.ClientSession, url: str, path: Path) -> int:
    try:
        async with session.get(url, raise_for_status=True) as response:
            with _whole(path) as part:
                async for chunk in response.content.iter_chunked(CHUNK):
                    part.write(chunk)
                return part.tell()
    except NETWORK_FAULTS:
        raise
    except OSError as error:
        raise UserError(f"osworld.cache: {path}: cannot be written: {error.strerror}") from error


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """A file beside `path`, which gets that name if the block ends well and else is gone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as part:
        beside = Path(part.name)
        try:
            yield part
            part.flush()
            os.fsync(part.fileno())
            beside.chmod(0o644)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def _reason(error: Exception, seconds: float) -> str:
    match error:
        case aiohttp.ClientResponseError(status=status, message=message):
            return f"the server answered {status} {message}"
        case TimeoutError():
            return f"nothing came for {seconds:g} s"
        case aiohttp.ClientPayloadError():
            return "the connection broke before the end of the file"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "this is no http address"
    return f"{type(error).__name__}: {error}"
