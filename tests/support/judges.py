"""A served judge whose verdicts a test has written."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from aiohttp import web

from openai_server import Served, says, serving

Judge = Callable[[str, int], str | web.Response]  # the text of the question and its number -> verdict


def text_of(body: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in body["messages"][1]["content"])


def judged_by(judge: Judge) -> AbstractContextManager[Served]:
    """A server whose answers have the right form: `judge` returns SUCCESS or FAILURE, or a whole answer."""

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        text = text_of(body)
        verdict = judge(text, number)
        if isinstance(verdict, web.Response):
            return verdict
        (mark,) = set(re.findall(r"^BEGIN (\w+)$", text, re.MULTILINE))
        form = f"REASON: because {number}\nVERDICT {mark}: {verdict}"
        return says(form if verdict in ("SUCCESS", "FAILURE") else verdict)

    return serving(answer)
