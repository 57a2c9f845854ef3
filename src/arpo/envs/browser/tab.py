"""One tab: calls of its DevTools session, what it waits for, and when it is quiet."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from arpo.envs.browser.devtools import DevTools, Json
from arpo.errors import EnvError

LOAD_SECONDS = 10.0  # for a page to load; then the screenshot shows what is there
REQUEST_SECONDS = 3.0  # for requests of a loaded page: some pages never stop to ask
QUIET_MILLISECONDS = 40  # without a change of the page
STIR_MILLISECONDS = 500  # for a page that never stops to change, such as an animation
_ATTEMPTS = 5
# Connections that stay open: a page is quiet meanwhile.
_STREAMS = ("EventSource", "WebSocket", "Ping", "Media")
# Two frames are drawn, and then nothing changes for some time.
_QUIET = f"""new Promise(done => {{
  let timer;
  const wait = () => {{ clearTimeout(timer); timer = setTimeout(end, {QUIET_MILLISECONDS}); }};
  const seen = new MutationObserver(wait);
  const end = () => {{ seen.disconnect(); clearTimeout(timer); done(true); }};
  seen.observe(document, {{attributes: true, characterData: true, childList: true, subtree: true}});
  setTimeout(end, {STIR_MILLISECONDS});
  requestAnimationFrame(() => requestAnimationFrame(wait));
}})"""
# The list of a <select> is a window of its own, which no screenshot shows. This style draws it in the page.
_STYLE = "select:not([multiple]):not([size]), select::picker(select) { appearance: base-select }"
_ON_NEW_DOCUMENT = f"""
addEventListener('DOMContentLoaded', () => {{
  const sheet = new CSSStyleSheet(); sheet.replaceSync({json.dumps(_STYLE)});
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}});"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialog:
    """alert, confirm or prompt of a page, which waits for its answer."""

    kind: str
    message: str
    default: str


class Tab:
    def __init__(self, devtools: DevTools, target: str, session: str) -> None:
        self.target = target
        self.dialog: Dialog | None = None
        self.drag: Json | None = None  # data of a drag that a page has begun
        self._devtools, self._session = devtools, session
        self._loading: set[str] = set()  # frames
        self._requests: set[str] = set()
        self._changed = asyncio.Event()
        self._crashed = self._gone = False

    @classmethod
    async def attach(cls, devtools: DevTools, target: str, width: int, height: int, scale: float) -> Tab:
        """`width` and `height` are those of the screenshots, in pixels."""
        attached = await devtools.call("Target.attachToTarget", targetId=target, flatten=True)
        tab = cls(devtools, target, attached["sessionId"])
        devtools.listen(tab._session, tab._on_event)
        size = {"width": round(width / scale), "height": round(height / scale)}
        calls = [
            tab.send("Page.enable"),
            tab.send("Network.enable", maxTotalBufferSize=0, maxResourceBufferSize=0),
            tab.send("Inspector.enable"),
            tab.send("Page.addScriptToEvaluateOnNewDocument", source=_ON_NEW_DOCUMENT, runImmediately=True),
            tab.send("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=scale, mobile=False),
            tab.send("Emulation.setFocusEmulationEnabled", enabled=True),
            tab.send("Input.setInterceptDrags", enabled=True),
        ]
        await asyncio.gather(*calls)
        return tab

    def close(self) -> None:
        """The tab has gone. Whoever waits for it stops to wait."""
        self._gone = True
        self._changed.set()
        self._devtools.forget(self._session)

    def send(self, method: str, **parameters: Any) -> asyncio.Future[Json]:
        return self._devtools.send(method, self._session, **parameters)

    async def call(self, method: str, **parameters: Any) -> Json:
        """Raises EnvError, also if the page has crashed. Returns {} if the tab closes, or if a dialog opens.

        A dialog blocks its page.
        """
        sent = self.send(method, **parameters)
        while not sent.done():
            if self._crashed:
                raise EnvError("browser", "the page has crashed")
            if self._gone:
                return {}
            if self.dialog is not None and method.startswith(("Input.", "Runtime.", "Page.navigate")):
                return {}
            self._changed.clear()
            changed = asyncio.create_task(self._changed.wait())
            waiting: set[asyncio.Future[Any]] = {sent, changed}
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
        if self._gone:
            return {}
        return sent.result()

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of its promise. Raises EnvError if there is none."""
        result = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        if details := result.get("exceptionDetails"):
            thrown = details.get("exception", {})
            raise EnvError("browser", thrown.get("description") or details.get("text", "JavaScript error"))
        if "result" not in result:
            raise EnvError("browser", "the page did not answer: a dialog blocks it, or it has closed")
        return result["result"].get("value")

    async def navigate(self, url: str) -> None:
        answer = await self.call("Page.navigate", url=url)
        if (reason := answer.get("errorText")) and reason != "net::ERR_ABORTED":  # aborted: a download
            raise EnvError("start", f"{url}: {reason}")

    async def screenshot(self) -> bytes:
        for attempt in range(_ATTEMPTS):
            try:
                taken = await self.call("Page.captureScreenshot", format="png", optimizeForSpeed=True)
                return base64.b64decode(taken.get("data", ""))
            except EnvError:  # the page was replaced in the meantime
                if attempt == _ATTEMPTS - 1:
                    raise
                await asyncio.sleep(0.1)
        raise AssertionError

    async def settle(self) -> None:
        """Wait until the page has loaded, has its answers and stops changing, within limits."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while self.dialog is None and not self._crashed and not self._gone:
            limit = LOAD_SECONDS if self._loading else REQUEST_SECONDS if self._requests else 0.0
            left = begun + limit - loop.time()
            if left > 0:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
                continue
            with suppress(EnvError):  # the page was replaced
                await self.evaluate(_QUIET)
                if not self._loading and (not self._requests or loop.time() > begun + REQUEST_SECONDS):
                    return
            if loop.time() > begun + LOAD_SECONDS:
                return

    def _on_event(self, method: str, parameters: Json) -> None:
        match method:
            case "Page.frameStartedLoading":
                self._loading.add(parameters["frameId"])
            case "Page.frameStoppedLoading" | "Page.frameDetached":
                self._loading.discard(parameters["frameId"])
            case "Network.requestWillBeSent" if parameters.get("type") not in _STREAMS:
                self._requests.add(parameters["requestId"])
            case "Network.loadingFinished" | "Network.loadingFailed":
                self._requests.discard(parameters["requestId"])
            case "Page.javascriptDialogOpening":
                kind, message = parameters["type"], parameters["message"]
                self.dialog = Dialog(
                    kind=kind, message=message, default=parameters.get("defaultPrompt") or ""
                )
            case "Page.javascriptDialogClosed":
                self.dialog = None
            case "Input.dragIntercepted":
                self.drag = parameters["data"]
            case "Inspector.targetCrashed":
                self._crashed = True
            case _:
                return
        self._changed.set()
