"""Runs coroutines in a thread: Playwright keeps an event loop in the main thread."""

import asyncio
from concurrent.futures import ThreadPoolExecutor


def run_apart(coroutine):
    """`asyncio.run`, in a new thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, coroutine).result()
