"""The HTTP server of an agent program's episode."""

import asyncio
import base64
import os
import threading
from io import BytesIO

import aiohttp
import pytest
from PIL import Image

from arpo.rollout.endpoint import serving
from arpo.testing import screenshot
from arpo.types import Completion


class Episode:
    """Answers each call with the number of its pictures."""

    def task(self):
        return {}

    def refused(self, reason):
        pass

    def screenshot(self):
        return screenshot(0)

    async def step(self, body):
        return {}

    async def answer(self, messages, max_tokens):
        count = str(sum(len(message.images) for message in messages))
        return Completion(token_ids=(), logprobs=(), text=count, finish="stop", versions=()), 0

    def guarded(self, call):
        return call


def picture(side):
    """Noise: it does not become smaller."""
    file = BytesIO()
    Image.frombytes("RGB", (side, side), os.urandom(3 * side * side)).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


@pytest.mark.parametrize(("side", "threads"), [(64, False), (640, True)])
def test_large_pictures_are_read_in_a_thread(side, threads):
    async def ask():
        async with serving(Episode()) as url, aiohttp.ClientSession() as session:
            before = threading.active_count()
            parts = [{"type": "image_url", "image_url": {"url": picture(side)}}]
            body = {"messages": [{"role": "user", "content": parts}]}
            async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
                assert (await reply.json())["choices"][0]["message"]["content"] == "1"
            return threading.active_count() > before

    assert asyncio.run(ask()) is threads
