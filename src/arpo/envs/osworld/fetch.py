"""`arpo osworld fetch-cache`: downloads the files of tasks into the cache for runs without a network.

Cached files are kept: after an interrupt, the same command resumes. A download has a temporary name until it
is complete. Each file is tried once; failures are listed with their reasons at the end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import aiohttp

from arpo.config import OSWorldConfig
from arpo.envs.osworld.needs import NeededFile, needs
from arpo.errors import UserError
from arpo.interrupts import run_interruptibly
from arpo.reporting.display import count_noun
from arpo.types import Task

CHUNK = 1 << 16
STALLED_SECONDS = 60.0
NETWORK_FAULTS = (aiohttp.ClientError, TimeoutError)


def fetch_cache(
    tasks: Sequence[Task], settings: OSWorldConfig, jobs: int, seconds: float = STALLED_SECONDS
) -> int:
    """Downloads uncached files, `jobs` at a time. Returns the exit code: 1 if a download failed.

    A download without progress for `seconds` fails.
    """
    cache = Path(settings.cache)
    needed = [file for task in tasks for file in needs(task).files if not file.shipped]
    uncached = [file for file in needed if not (cache / file.path).is_file()]
    files, wanting = count_noun(len(needed), "file"), count_noun(len(tasks), "task")
    print(f"{files} for {wanting}, {len(needed) - len(uncached)} already in {cache}")
    failures = run_interruptibly(_fetch_all(uncached, cache, seconds, jobs))
    print(f"{count_noun(len(uncached) - len(failures), 'file')} downloaded, {len(failures)} failed")
    for file, reason in failures.items():
        print(f"  {file.path}\n    {file.url}\n    {reason}")
    if failures:
        print("run the same command again to retry")
    return 1 if failures else 0


async def _fetch_all(
    uncached: Sequence[NeededFile], cache: Path, seconds: float, jobs: int
) -> dict[NeededFile, str]:
    """Reasons of failed downloads. `jobs` coroutines share one iterator of files."""
    remaining = iter(enumerate(uncached, 1))
    failures: dict[NeededFile, str] = {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)

    async def download(session: aiohttp.ClientSession) -> None:
        for number, file in remaining:
            try:
                outcome = f"{await _fetch(session, file.url, cache / file.path):,} bytes"
            except NETWORK_FAULTS as error:
                failures[file] = _reason(error, seconds)
                outcome = f"failed: {failures[file]}"
            print(f"[{number}/{len(uncached)}] {file.path}: {outcome}", flush=True)

    async with aiohttp.ClientSession(timeout=timeout, trust_env=True) as session:
        await asyncio.gather(*(download(session) for _ in range(jobs)))
    return failures


async def _fetch(session: aiohttp.ClientSession, url: str, path: Path) -> int:
    try:
        async with session.get(url, raise_for_status=True) as response:
            with _atomic_write(path) as part:
                async for chunk in response.content.iter_chunked(CHUNK):
                    part.write(chunk)
                return part.tell()
    except NETWORK_FAULTS:
        raise
    except OSError as error:
        raise UserError(f"osworld.cache: cannot write {path}: {error.strerror}") from error


@contextmanager
def _atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file, renamed to `path` if the block succeeds, else deleted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as part:
        temporary = Path(part.name)
        try:
            yield part
            part.flush()
            os.fsync(part.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _reason(error: Exception, seconds: float) -> str:
    match error:
        case aiohttp.ClientResponseError(status=status, message=message):
            return f"the server answered {status} {message}"
        case TimeoutError():
            return f"no data for {seconds:g} s"
        case aiohttp.ClientPayloadError():
            return "the connection broke before the end of the file"
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError():
            return "not an HTTP URL"
    return f"{type(error).__name__}: {error}"
