"""A running Chromium in a sandbox without a network, and its isolated contexts, one for each episode."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from arpo.envs.browser.devtools import DevTools, Json, OnEvent
from arpo.envs.browser.proxy import PORT, Access, Proxy
from arpo.envs.osworld.cleanup import delete_at_exit
from arpo.envs.osworld.limits import MEBIBYTE
from arpo.envs.osworld.sandbox import namespace_remedy
from arpo.envs.osworld.sandbox_layout import BWRAP_ENVIRONMENT, NOBODY, browser_arguments, sandbox_user
from arpo.errors import EnvError, UserError

_log = logging.getLogger("arpo")
DOWNLOADS = "/downloads"  # in the sandbox: a folder of the host, with a folder for each episode
START_SECONDS = 60.0
_MEMORY_MEGABYTES = 4096  # of one process: its private memory
_TMP_MEGABYTES = 512  # each of the profile, /tmp and /dev/shm
LOG, _LOG_BYTES = "log", 4096
# Debian's Chromium and Google Chrome without their start scripts, then what the search path has.
_PROGRAMS = (
    "/usr/lib/chromium/chromium",
    "/opt/google/chrome/chrome",
    "/usr/lib/chromium-browser/chromium-browser",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-quic",
    "--no-first-run", "--no-default-browser-check", "--disable-default-apps",
    "--disable-background-networking",
    "--disable-component-update", "--disable-domain-reliability", "--disable-sync", "--disable-dev-shm-usage",
    "--disable-extensions", "--disable-client-side-phishing-detection", "--disable-field-trial-config",
    "--disable-features=AutofillServerCommunication,OptimizationHints,MediaRouter,Translate,"
    # Pages of the address bar: in Chromium 156, two processes per window, which cost two thirds of a start.
    "WebUIOmniboxPopup,WebUIOmniboxAimPopup",
    "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
    "--disable-backgrounding-occluded-windows", "--disable-ipc-flooding-protection", "--mute-audio",
    "--no-pings", "--password-store=basic", "--use-mock-keychain", "--force-color-profile=srgb",
    "--force-device-scale-factor=1", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--user-data-dir=/home/user/profile", "about:blank",
)  # fmt: skip
# Runs first in the sandbox: opens the proxy's listening socket in the sandbox's network, sends it out, and
# becomes the browser, whose DevTools protocol uses the descriptors 3 and 4.
_LAUNCHER = f"""
import os, resource, socket, sys
devtools, outside = int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
listening = socket.create_server(("0.0.0.0", {PORT}), backlog=512)
socket.send_fds(outside, [b"x"], [listening.fileno()])
listening.close(), outside.close()
resource.setrlimit(resource.RLIMIT_DATA, (({_MEMORY_MEGABYTES} * {MEBIBYTE}),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
copy = os.dup(devtools) if devtools < 5 else devtools
for number in (3, 4):
    os.dup2(copy, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_program(named: str) -> Path:
    """The browser's program. Raises UserError if there is none, or no bubblewrap."""
    if shutil.which("bwrap") is None:
        raise UserError(
            "env.name = browser: bubblewrap is missing, which isolates the browser. On Debian or Ubuntu, "
            "install it with: apt-get install bubblewrap"
        )
    found = installed_browser(named)
    if found is None:
        raise UserError(
            "env.name = browser: Chromium is missing. On Debian or Ubuntu, install it with: "
            "apt-get install chromium; or set browser.program to the file of Chromium or Chrome"
        )
    return found


def installed_browser(named: str) -> Path | None:
    """The program of that name, or an installed Chromium. Raises UserError if `named` is no program."""
    if named:
        if os.access(named, os.X_OK):
            return Path(named).resolve()
        raise UserError(f"browser.program: {named} is not a program: name the file of Chromium or Chrome")
    found = [name for name in _PROGRAMS if os.access(name, os.X_OK)]
    found += [path for name in _NAMES if (path := shutil.which(name))]
    return Path(found[0]).resolve() if found else None


class Context:
    """The part of the browser that belongs to one episode: cookies, storage, tabs, downloads."""

    def __init__(self, browser: Chromium, access: Access, name: str, proxy: str, downloads: Path) -> None:
        self.browser, self.access, self.name, self.downloads = browser, access, name, downloads
        self.on_event: OnEvent = lambda method, parameters: None
        self._proxy = proxy

    def listen(self, handler: OnEvent) -> None:
        """Call the handler at each event of the browser that concerns this context."""
        self.on_event = handler

    async def call(self, method: str, **parameters: Any) -> Json:
        return await self.browser.devtools.call(method, **parameters)

    def cancel(self, download: str) -> None:
        self.browser.devtools.send("Browser.cancelDownload", guid=download, browserContextId=self.name)

    async def close(self) -> None:
        with suppress(EnvError):
            await self.browser.devtools.call("Target.disposeBrowserContext", browserContextId=self.name)
        self.browser.forget(self)
        self.browser.proxy.remove(self._proxy)
        await asyncio.to_thread(shutil.rmtree, self.downloads, ignore_errors=True)


class Chromium:
    def __init__(
        self, process: subprocess.Popen[bytes], devtools: DevTools, proxy: Proxy, folder: Path
    ) -> None:
        self.devtools, self.proxy = devtools, proxy
        self.contexts: dict[str, Context] = {}
        self._process, self._folder = process, folder
        self._owners: dict[str, Context] = {}  # of tabs and downloads
        devtools.listen("", self._on_event)

    @classmethod
    async def start(cls, program: Path) -> Chromium:
        """Raises EnvError if the browser does not start."""
        process, own, receiver, folder = _launch(program)
        proxy = Proxy()
        try:
            with receiver:
                listening = await asyncio.to_thread(_receive_socket, receiver)
            await proxy.start(listening)
            devtools = await DevTools.connect(own)
            browser = cls(process, devtools, proxy, folder)
            async with asyncio.timeout(START_SECONDS):
                await devtools.call("Target.setDiscoverTargets", discover=True)
        except (EnvError, OSError, TimeoutError) as error:
            process.kill()
            process.wait()
            proxy.close()
            raise EnvError("start", f"the browser did not start: {error}{_end_of(folder / LOG)}") from error
        return browser

    @property
    def ended(self) -> bool:
        return self.devtools.ended or self._process.poll() is not None

    async def open(self, access: Access) -> Context:
        proxy = self.proxy.add(access)
        made = await self.devtools.call(
            "Target.createBrowserContext",
            disposeOnDetach=True,
            proxyServer=proxy,
            proxyBypassList="<-loopback>",
        )
        name = made["browserContextId"]
        downloads = self._folder / "downloads" / name
        _make_writable(downloads)
        context = self.contexts[name] = Context(self, access, name, proxy, downloads)
        await self.devtools.call(
            "Browser.setDownloadBehavior",
            behavior="allow",
            browserContextId=name,
            downloadPath=f"{DOWNLOADS}/{name}",
            eventsEnabled=True,
        )
        return context

    def forget(self, context: Context) -> None:
        self.contexts.pop(context.name, None)
        self._owners = {name: owner for name, owner in self._owners.items() if owner is not context}

    def _on_event(self, method: str, parameters: Json) -> None:
        """Pass an event to its context. A download names the frame that began it: that of the tab, mostly."""
        if method == "Target.targetCreated":
            info = parameters["targetInfo"]
            owner = self.contexts.get(info.get("browserContextId", "")) if info["type"] == "page" else None
            name = info["targetId"]
        elif method == "Browser.downloadWillBegin":
            owner, name = self._owners.get(parameters["frameId"]), parameters["guid"]
            if owner is None:
                self.devtools.send("Browser.cancelDownload", guid=name)
                _log.warning(
                    "cancelled the download of %s: a frame inside a page began it, only tabs may",
                    parameters.get("url"),
                )
        else:
            name = parameters.get("targetId") or parameters.get("guid") or ""
            owner = self._owners.get(name)
        if owner is not None:
            self._owners[name] = owner
            owner.on_event(method, parameters)

    def close(self) -> None:
        self._process.kill()  # bubblewrap: its sandbox ends with it
        self._process.wait()
        self.devtools.close()
        self.proxy.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class SharedBrowser:
    """One Chromium for all episodes of this process. It starts with the first, and again if it has ended."""

    def __init__(self, program: str) -> None:
        self.program = find_program(program)
        self._reported: set[str] = set()  # blocked origins
        self._starting: asyncio.Task[Chromium] | None = None
        self._running: Chromium | None = None

    async def get(self) -> Chromium:
        if self._running is not None and self._running.ended:
            self.close()
        if self._running is None:
            if self._starting is None:
                self._starting = asyncio.create_task(Chromium.start(self.program))
                self._starting.add_done_callback(self._started)
            return await asyncio.shield(self._starting)
        return self._running

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None

    def report_blocked(self, access: Access, task: str) -> None:
        """Log the origins that pages could not reach, each once."""
        for origin in access.blocked.keys() - self._reported:
            self._reported.add(origin)
            _log.warning(
                "a page of task %s asked for %s, which is not allowed: if the task needs it, add it to "
                '"allow" of its step "open"',
                task,
                origin,
            )

    def _started(self, task: asyncio.Task[Chromium]) -> None:
        self._starting = None
        if not task.cancelled() and task.exception() is None:
            self._running = task.result()


def _receive_socket(receiver: socket.socket) -> socket.socket:
    receiver.settimeout(START_SECONDS)
    _, descriptors, _, _ = socket.recv_fds(receiver, 1, 1)
    if not descriptors:
        raise OSError("the sandbox has ended")
    return socket.socket(fileno=descriptors[0])


def _launch(program: Path) -> tuple[subprocess.Popen[bytes], socket.socket, socket.socket, Path]:
    """The process, the socket of its DevTools, the socket that receives the proxy's, and its folder."""
    folder = Path(tempfile.mkdtemp(prefix="arpo-browser-"))
    delete_at_exit(folder)
    folder.chmod(0o755)  # as root, the sandbox belongs to another user
    downloads = folder / "downloads"
    _make_writable(downloads)
    own, theirs = socket.socketpair()
    receiver, sender = socket.socketpair()
    arguments = browser_arguments(program.parent, downloads, DOWNLOADS, home_bytes=_TMP_MEGABYTES * MEBIBYTE)
    with open(folder / LOG, "wb") as log, theirs, sender:
        launcher = ["/usr/bin/python3", "-I", "-c", _LAUNCHER, str(theirs.fileno()), str(sender.fileno())]
        process = subprocess.Popen(
            ["bwrap", *arguments.words, *launcher, str(program), *_FLAGS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=[theirs.fileno(), sender.fileno(), *arguments.descriptors],
            env=BWRAP_ENVIRONMENT,
            **sandbox_user(),
        )
    arguments.close()
    return process, own, receiver, folder


def _make_writable(folder: Path) -> None:
    """Make a folder that the browser may write to."""
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)


def _end_of(log: Path) -> str:
    text = log.read_text("utf-8", "replace")[-_LOG_BYTES:].strip()
    return f"; last output: {text}{namespace_remedy(text)}" if text else ""
