"""HTTP calls of set-up steps and checks, from this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from arpo.engines.http_exchange import read_bounded
from arpo.errors import EnvError

MAX_BYTES = 2**22  # of an answer
_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    text: str

    def json(self, where: str, url: str) -> Any:
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise EnvError(where, f"{url}: the answer is no JSON: {error}") from None


async def call(step: Mapping[str, Any], where: str) -> Answer:
    """Send the request of a step or check. Raises EnvError if there is no answer."""
    url, method = step["url"], step.get("method", "GET")
    body = {"json": step["json"]} if "json" in step else {"data": step["body"]} if "body" in step else {}
    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=_SECONDS), trust_env=False) as client,
            client.request(method, url, headers=step.get("headers"), **body) as response,
        ):
            content = await read_bounded(response, MAX_BYTES)
            if len(content) > MAX_BYTES:
                raise EnvError(where, f"{url}: the answer has more than {MAX_BYTES:,} bytes")
            return Answer(status=response.status, text=content.decode("utf-8", "replace"))
    except (ClientError, OSError, TimeoutError, ValueError) as error:
        raise EnvError(where, f"{method} {url}: {error or type(error).__name__}") from error


async def call_expecting(step: Mapping[str, Any], where: str) -> Answer:
    """`call`, and raise EnvError unless the answer has the status of the step, or 200 to 299."""
    answer = await call(step, where)
    wanted = step.get("status")
    if answer.status != wanted if wanted else not 200 <= answer.status < 300:
        raise EnvError(
            where, f"{step['url']}: the answer has the status {answer.status}: {answer.text[:200]}"
        )
    return answer
