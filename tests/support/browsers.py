"""`arpo view` as a process of its own, and Debian's Chromium with a page that records every fault."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Dialog,
    Error,
    Page,
    Request,
    TimeoutError,
    expect,
    sync_playwright,
)

CHROMIUM = "/usr/bin/chromium"
TIMEOUT = 60_000  # milliseconds, for a busy machine
expect.set_options(timeout=TIMEOUT)
FOREIGN = "foreign.test"  # a name of another site, for loopback
# Chromium's own sandbox needs rights that a container does not have.
ARGUMENTS = ("--no-sandbox", f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1")


@contextmanager
def serving(*folders: Path) -> Iterator[str]:
    """The address of `arpo view` on these folders, with its token."""
    command = [sys.executable, "-m", "arpo", "view", *map(str, folders), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            first = server.stdout.readline()
            found = re.search(r"http://\S+", first)
            assert found, f"arpo view has printed no address, but: {first}"
            yield found[0]
        finally:
            server.terminate()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Visit:
    """A page, its address without token, and all faults so far: of scripts, and requests to other places."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address.split("?")[0]
        self._own = self.address.rpartition("/")[0] + "/"
        self.faults: list[str] = []
        page.on("pageerror", self._failed)
        page.on("console", self._logged)
        page.on("dialog", self._asked)
        page.on("request", self._requested)
        page.set_default_timeout(TIMEOUT)
        page.goto(address)

    def _failed(self, error: Error) -> None:
        self.faults.append(f"error: {error}")

    def _logged(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.faults.append(message.text)

    def _asked(self, dialog: Dialog) -> None:
        self.faults.append("a dialog was opened")
        dialog.dismiss()

    def _requested(self, request: Request) -> None:
        if not request.url.startswith(self._own):
            self.faults.append(f"request to {request.url}")

    def open(self, fragment: str) -> Page:
        """Open a view, such as "/s/first/batch/2", and wait until it is drawn."""
        self.page.goto(f"{self.address}#{fragment}")
        self.page.wait_for_selector("main:not([aria-busy]) > *")
        with suppress(TimeoutError):  # a live view never stops asking
            self.page.wait_for_load_state("networkidle", timeout=3000)  # curves come after the page
        return self.page


@contextmanager
def visiting(browser: Browser, address: str, **options: Any) -> Iterator[Visit]:
    """A fresh page; fails afterwards if a script failed, or if a request left the server."""
    context = browser.new_context(viewport={"width": 1366, "height": 820}, **options)
    try:
        visit = Visit(context.new_page(), address)
        yield visit
        assert visit.faults == [], visit.faults
    finally:
        context.close()


def violations(page: Page, *rules: str) -> list[tuple[str, str, str]]:
    """The violations that axe finds on a page: rule, element, summary. `rules`: only these; none: all."""
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    return [
        (violation["id"], node["html"][:200], node["failureSummary"])
        for violation in Axe().run(page, options=options).response["violations"]
        for node in violation["nodes"]
    ]


def choose_replayed_success(page: Page) -> None:
    """Filter the 13 episodes of the run "first": 6 are solved, and replay used one of these."""
    total = page.locator("h1 small")
    expect(total).to_have_text("13")
    page.get_by_label("Solved").select_option("1")
    expect(total).to_have_text("6")
    page.get_by_label("Replayed").select_option("1")
    expect(total).to_have_text("1")
    expect(page.locator("tbody tr")).to_contain_text("batch-1-0-0")
