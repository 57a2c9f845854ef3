"""The window of one episode: its tabs, of which one is visible; dialogs; mouse and keyboard.

A dialog of a page (alert, confirm, prompt) is no part of the page: no screenshot shows it. Here it is a tab
of its own in front of the page. It shows the page behind the dialog, and its buttons answer the dialog.
"""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import suppress
from typing import Any

import arpo.actions as act
from arpo.actions import MAX_WAITS_SECONDS, Action, Direction, Point
from arpo.envs.browser.chromium import Context
from arpo.envs.browser.devtools import Json
from arpo.envs.browser.keys import MODIFIERS, key
from arpo.envs.browser.tab import Dialog, Tab
from arpo.errors import EnvError

MAX_TABS = 8  # of one episode: a page that opens more gets no window
MAX_DOWNLOADS, MAX_DOWNLOAD_BYTES = 16, 64 * 2**20  # of one episode; of one file
_DOWNLOAD_SECONDS = 5.0  # for running downloads at the end of an episode
_HOLD_SECONDS = 0.6  # long press
_MAX_DISMISSED = 8  # dialogs at the end of an episode
_WAIT_SECONDS = 1.0
_NOTCHES, _NOTCH_PIXELS = 5, 53  # of a mouse wheel, as in Chromium on Linux
_DRAG_STEPS = 8
_SELECTION = """(() => {
  const field = document.activeElement;
  const own = field && typeof field.selectionStart === 'number';
  return own ? field.value.slice(field.selectionStart, field.selectionEnd) : String(getSelection());
})()"""
_DIALOG = """((png, kind, message, value) => {
  document.body.style.cssText = `margin: 0; height: 100vh; font: 15px sans-serif;
    background: url(data:image/png;base64,${png}) 0 0 / 100% 100%`;
  const shade = document.createElement('div');
  shade.style.cssText =
    'position: fixed; inset: 0; background: #0004; display: flex; justify-content: center';
  const box = document.createElement('form');
  box.style.cssText = `background: #fff; color: #000; align-self: start; margin: 4vh 8px 0; padding: 16px;
    width: min(440px, 100vw - 48px); max-height: 80vh; overflow: auto;
    border-radius: 8px; box-shadow: 0 4px 24px #0008`;
  const text = document.createElement('div');
  text.textContent = message;
  text.style.cssText = 'white-space: pre-wrap; overflow-wrap: anywhere; margin-bottom: 14px';
  const field = document.createElement('input');
  field.value = value;
  field.style.cssText = 'width: 100%; box-sizing: border-box; margin-bottom: 14px; font: inherit';
  const buttons = document.createElement('div');
  buttons.style.cssText = 'display: flex; justify-content: end; gap: 8px';
  const button = (label, accept) => {
    const made = document.createElement('button');
    made.type = 'button'; made.textContent = label; made.style.cssText = 'font: inherit; padding: 4px 16px';
    made.onclick = () => { window.answer = {accept, text: field.value}; };
    buttons.append(made);
    return made;
  };
  const ok = button('OK', true);
  if (kind !== 'alert') button('Cancel', false);
  box.onsubmit = event => { event.preventDefault(); ok.click(); };
  addEventListener('keydown', event => {
    if (event.key === 'Escape') window.answer = {accept: false, text: ''};
  });
  box.append(text, ...(kind === 'prompt' ? [field] : []), buttons);
  shade.append(box); document.body.append(shade);
  (kind === 'prompt' ? field : ok).focus();
})"""


class Window:
    def __init__(self, context: Context, width: int, height: int, scale: float) -> None:
        self._context, self._size, self._scale = context, (width, height), scale
        self._tabs: list[Tab] = []
        self._front: Tab | None = None  # a dialog
        self._behind: tuple[Tab, Dialog] | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._making = asyncio.Lock()  # a new target is ours, or a page has opened it
        self._known: set[str] = set()
        self._downloads: set[str] = set()
        self._running_downloads: set[str] = set()
        self._downloads_ended = asyncio.Event()
        self._downloads_ended.set()
        self._last = b""  # the newest screenshot of a page
        self._held = 0  # modifiers
        self._pointer = Point(0, 0)
        self._clipboard = ""
        self.scripts: list[str] = []  # for the next page that `open` opens
        context.listen(self._on_event)

    @property
    def tab(self) -> Tab:
        """The tab in front, without a dialog. Raises EnvError if the pages have closed every tab."""
        if not self._tabs:
            raise EnvError("browser", "the page has closed its window")
        return self._tabs[-1]

    async def open(self, url: str) -> None:
        """Open a tab in front."""
        self._tabs.append(await self._new_tab())
        added = [
            await self.tab.call("Page.addScriptToEvaluateOnNewDocument", source=one) for one in self.scripts
        ]
        self.scripts.clear()
        await self.tab.navigate(url)
        await self.settle()
        for one in added:
            await self.tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=one["identifier"])

    async def screenshot(self) -> bytes:
        if self._front is not None:
            return await self._front.screenshot()
        self._last = await self.tab.screenshot()
        return self._last

    async def settle(self) -> None:
        """Wait until the tab in front is quiet; open, answer and close dialogs."""
        for _ in range(MAX_TABS):
            while self._adopting:
                await asyncio.wait(self._adopting)
            front = self._front or self.tab
            await front.settle()
            if self._front is not None:
                if not await self._answered():
                    return
            elif self.tab.dialog is not None:
                await self._show(self.tab.dialog)
                return
            elif not self._adopting and self._tabs and front is self.tab:
                return

    async def dismiss_dialogs(self) -> None:
        """Answer open dialogs with Escape: they block their pages, and so the checks."""
        for _ in range(_MAX_DISMISSED):
            if self._front is None:
                return
            await self.perform(act.Hotkey(keys=("esc",)))
            await self.settle()

    async def finish_downloads(self) -> None:
        """Wait for running downloads, some seconds at most: the checks look at their files."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._downloads_ended.wait(), _DOWNLOAD_SECONDS)

    async def perform(self, action: Action) -> None:
        """One action. Points are in pixels of the screenshot."""
        match action:
            case act.Click(point=point):
                await self._click(point)
            case act.DoubleClick(point=point):
                await self._click(point, count=2)
            case act.TripleClick(point=point):
                await self._click(point, count=3)
            case act.RightClick(point=point):
                await self._click(point, button="right")
            case act.MiddleClick(point=point):
                await self._click(point, button="middle")
            case act.MouseDown(point=point):
                await self._press(point)
            case act.MouseUp(point=point):
                await self._move(point, button="left", buttons=1)
                await self._mouse("mouseReleased", point, button="left", clickCount=1)
            case act.Hover(point=point):
                await self._move(point)
            case act.LongPress(point=point):
                await self._press(point)
                await asyncio.sleep(_HOLD_SECONDS)
                await self._mouse("mouseReleased", point, button="left", clickCount=1)
            case act.Drag(start=start, end=end):
                await self._drag(start, end)
            case act.Scroll(point=target, direction=direction, amount=amount):
                await self._scroll(target, direction, _NOTCHES if amount is None else amount)
            case act.Hotkey(keys=keys):
                await self._hotkey(keys)
            case act.KeyDown(key=name):
                await self._key(name, "keyDown")
            case act.KeyUp(key=name):
                await self._key(name, "keyUp")
            case act.Type(text=text, submit=submit):
                await self._type(text + "\n" * submit)
            case act.PressBack():
                await self._history(-1)
            case act.Wait(seconds=seconds):
                await asyncio.sleep(_WAIT_SECONDS if seconds is None else min(seconds, MAX_WAITS_SECONDS))
            case _:
                pass  # of phones, and terminal ones

    async def _input(self, method: str, **parameters: Any) -> None:
        await (self._front or self.tab).call(method, **parameters)

    async def _mouse(self, kind: str, point: Point, **parameters: Any) -> None:
        self._pointer = point
        x, y = point.x / self._scale, point.y / self._scale
        await self._input("Input.dispatchMouseEvent", type=kind, x=x, y=y, modifiers=self._held, **parameters)

    async def _move(self, point: Point, **parameters: Any) -> None:
        await self._mouse("mouseMoved", point, **parameters)

    async def _press(self, point: Point) -> None:
        await self._move(point)
        await self._mouse("mousePressed", point, button="left", buttons=1, clickCount=1)

    async def _click(self, point: Point, *, button: str = "left", count: int = 1) -> None:
        await self._move(point)
        for number in range(1, count + 1):
            await self._mouse("mousePressed", point, button=button, clickCount=number)
            await self._mouse("mouseReleased", point, button=button, clickCount=number)

    async def _drag(self, start: Point, end: Point) -> None:
        """A page may begin a drag of its own, as of a link. Its data goes to the end point then."""
        tab = self._front or self.tab
        tab.drag = None
        await self._press(start)
        for step in range(1, _DRAG_STEPS + 1):
            share = step / _DRAG_STEPS
            point = Point(start.x + share * (end.x - start.x), start.y + share * (end.y - start.y))
            await self._move(point, button="left", buttons=1)
        if tab.drag is not None:
            x, y = end.x / self._scale, end.y / self._scale
            for kind in ("dragEnter", "dragOver", "drop"):
                await self._input("Input.dispatchDragEvent", type=kind, x=x, y=y, data=tab.drag)
        await self._mouse("mouseReleased", end, button="left", clickCount=1)

    async def _scroll(self, target: Point | None, direction: Direction, notches: int) -> None:
        sign = 1 if direction in (Direction.DOWN, Direction.RIGHT) else -1
        distance = sign * notches * _NOTCH_PIXELS
        vertical = direction in (Direction.UP, Direction.DOWN)
        await self._mouse(
            "mouseWheel",
            target or self._pointer,
            deltaX=0 if vertical else distance,
            deltaY=distance if vertical else 0,
        )

    async def _hotkey(self, keys: tuple[str, ...]) -> None:
        if await self._browser_key(frozenset(keys)):
            return
        for name in keys:
            await self._key(name, "keyDown")
        for name in reversed(keys):
            await self._key(name, "keyUp")

    async def _browser_key(self, keys: frozenset[str]) -> bool:
        """Keys that a browser handles itself. The clipboard is that of the episode, not of the machine."""
        page = self._front or self.tab
        match sorted(keys):
            case ["c", "ctrl"] | ["ctrl", "x"]:
                self._clipboard = str(await page.evaluate(_SELECTION) or "")
                if "x" in keys and self._clipboard:
                    await self._hotkey(("delete",))
            case ["ctrl", "v"]:
                await self._insert(self._clipboard)
            case ["alt", "left"]:
                await self._history(-1)
            case ["alt", "right"]:
                await self._history(1)
            case ["f5"] | ["ctrl", "r"]:
                await self._input("Page.reload")
            case ["ctrl", "w"] if len(self._tabs) > 1:
                await self._context.call("Target.closeTarget", targetId=self.tab.target)
                self._drop(self.tab.target)
            case ["ctrl", "tab"] if self._tabs:
                self._tabs.insert(0, self._tabs.pop())
                await self._input("Page.bringToFront")
            case ["ctrl", "shift", "tab"] if self._tabs:
                self._tabs.append(self._tabs.pop(0))
                await self._input("Page.bringToFront")
            case _:
                return False
        return True

    async def _key(self, name: str, kind: str) -> None:
        if name in MODIFIERS:
            bit = MODIFIERS[name]
            self._held = self._held | bit if kind == "keyDown" else self._held & ~bit
        if (known := key(name)) is None:
            if kind == "keyDown":
                await self._insert(name)
            return
        await self._input("Input.dispatchKeyEvent", **known.event(kind, self._held))

    async def _type(self, text: str) -> None:
        for character in text:
            name = {"\n": "enter", "\r": "enter", "\t": "tab"}.get(character, character)
            if key(name) is None:
                await self._insert(character)
            else:
                await self._key(name, "keyDown")
                await self._key(name, "keyUp")

    async def _insert(self, text: str) -> None:
        await self._input("Input.insertText", text=text)

    async def _history(self, offset: int) -> None:
        with suppress(EnvError):  # the page asks before it is left
            await (self._front or self.tab).evaluate(f"history.go({offset})")

    async def _new_tab(self) -> Tab:
        async with self._making:
            made = await self._context.call(
                "Target.createTarget",
                url="about:blank",
                browserContextId=self._context.name,
                newWindow=True,
            )
            self._known.add(made["targetId"])
        return await self._attach(made["targetId"])

    async def _attach(self, target: str) -> Tab:
        return await Tab.attach(self._context.browser.devtools, target, *self._size, self._scale)

    async def _show(self, dialog: Dialog) -> None:
        page = self.tab
        if dialog.kind == "beforeunload":
            await page.call("Page.handleJavaScriptDialog", accept=True)
            return
        front = await self._new_tab()
        arguments = [base64.b64encode(self._last).decode(), dialog.kind, dialog.message, dialog.default]
        await front.evaluate(f"{_DIALOG}({', '.join(map(json.dumps, arguments))})")
        self._front, self._behind = front, (page, dialog)
        await front.settle()

    async def _answered(self) -> bool:
        """Whether the dialog in front has been answered, or the page has withdrawn it. Closes it then."""
        assert self._front is not None and self._behind is not None
        front, (page, dialog) = self._front, self._behind
        answer = await front.evaluate("window.answer || null")
        if page.dialog is dialog and answer is None:
            return False
        self._front = self._behind = None
        await self._context.call("Target.closeTarget", targetId=front.target)
        front.close()
        if page.dialog is dialog:
            page.dialog = None
            await page.call("Page.handleJavaScriptDialog", accept=answer["accept"], promptText=answer["text"])
        return True

    def _on_event(self, method: str, parameters: Json) -> None:
        match method:
            case "Target.targetCreated":
                task = asyncio.create_task(self._adopt(parameters["targetInfo"]["targetId"]))
                self._adopting.add(task)
                task.add_done_callback(self._adopting.discard)
            case "Target.targetDestroyed":
                self._drop(parameters["targetId"])
            case "Browser.downloadWillBegin":
                self._downloads.add(parameters["guid"])
                self._running_downloads.add(parameters["guid"])
                self._downloads_ended.clear()
                if len(self._downloads) > MAX_DOWNLOADS:
                    self._context.cancel(parameters["guid"])
            case "Browser.downloadProgress" if parameters["state"] != "inProgress":
                self._running_downloads.discard(parameters["guid"])
                if not self._running_downloads:
                    self._downloads_ended.set()
            case "Browser.downloadProgress" if parameters["receivedBytes"] > MAX_DOWNLOAD_BYTES:
                self._context.cancel(parameters["guid"])

    async def _adopt(self, target: str) -> None:
        """A page has opened a tab: it comes to the front."""
        async with self._making:
            pass  # `_new_tab` has noted its target
        if target in self._known:
            return
        self._known.add(target)
        try:
            if len(self._tabs) >= MAX_TABS:
                await self._context.call("Target.closeTarget", targetId=target)
            else:
                self._tabs.append(await self._attach(target))
        except EnvError:
            return  # closed at once

    def _drop(self, target: str) -> None:
        for tab in [tab for tab in self._tabs if tab.target == target]:
            tab.close()
            self._tabs.remove(tab)
