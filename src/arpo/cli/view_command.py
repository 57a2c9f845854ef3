"""`arpo view`: its arguments, its help, and the command."""

from __future__ import annotations

import argparse
import asyncio
import re
import shlex
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from arpo.cli.command import Command, argument
from arpo.errors import UserError
from arpo.interrupts import run_interruptibly
from arpo.processes.bounded_log import bounded_log


def port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"is {text!r}, must be a port from 0 to 65535")
    return int(text)


def run_view(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    from arpo.viewer.library import Library

    folders = options.folders or [Path("runs")]
    if options.episodes and not options.export:
        raise UserError("--episodes: is for --export; in the browser, filter the list of episodes")
    library = Library(folders, shlex.join(["arpo", "view", *map(str, folders)]))
    try:
        if not library.sources:
            listed = ", ".join(map(str, folders))
            raise UserError(f"{listed}: contains no run and no results: give the folder of a run")
        if options.export:
            return _export(library, options.export, options.episodes)
        try:
            with bounded_log():
                run_interruptibly(_serve(library, options.port, options.at, opened=options.open))
        except KeyboardInterrupt:
            print("ended", flush=True)
        return 0
    finally:
        library.close()


def _export(library: Any, folder: Path, episodes: str) -> int:
    from arpo.viewer.export import write_export

    count = write_export(library, folder, episodes)
    print(f"{folder / 'index.html'}: {count:,} episodes")
    return 0


async def _serve(library: Any, number: int, at: str, *, opened: bool) -> None:
    """Serve until cancelled by Ctrl-C."""
    from arpo.viewer.server import ViewServer

    server = ViewServer(library)
    async with server.started(number):
        url = server.url(at)
        print(f"{url}\nCtrl-C ends the server", flush=True)
        with redirect(url) if opened else nullcontext() as file:
            if file:
                await asyncio.to_thread(webbrowser.open, file.as_uri())
            await asyncio.Event().wait()


@contextmanager
def redirect(url: str) -> Iterator[Path]:
    """A file that leads to an address. Other users see the arguments of the browser, and not this file."""
    with TemporaryDirectory(prefix="arpo-view-") as folder:
        file = Path(folder) / "open.html"
        file.touch(0o600)
        file.write_text(f'<meta http-equiv="refresh" content="0; url={escape(url)}">\n', "utf-8")
        yield file


COMMAND = Command(
    name="view",
    run=run_view,
    purpose="open runs and results in the browser",
    lesson="""\
Opens a page in the browser about runs (also during training), comparisons, collected episodes, and OSWorld
results of any agent: curves, batches, groups, episodes with screenshots, tokens, tasks, faults, recipes.
FOLDER is one of these, or a folder that contains several. The server listens on this machine only, and the
address has a token: nobody else can read the page. Ctrl-C ends the server.
An index file, .view-index.sqlite, is written beside each run. It can be deleted at any time.
--export writes a static site of chosen episodes instead. It opens from a file, without a server. --episodes
chooses them with the filters of the list of episodes, for example task=pool-040&solved=0&size=20.""",
    example="""\
arpo view
arpo view runs/desk runs/plain-grpo --no-open
arpo view runs/desk --at /s/desk/batch/3
arpo view runs/desk --export site --episodes 'replayed=1&size=20'""",
    arguments=(
        argument("folders", "folders (default: runs)", type=Path, nargs="*", metavar="FOLDER"),
        argument("--port", "port; 0: any free one (default: %(default)s)", type=port, default=0),
        argument(
            "--open",
            "browser window at the start (default: yes)",
            action=argparse.BooleanOptionalAction,
            default=True,
        ),
        argument("--at", "page to open: the part of the address after #", default="", metavar="PATH"),
        argument("--export", "output directory of a static site", type=Path, metavar="FOLDER"),
        argument("--episodes", "filters of the episodes to export", default="", metavar="FILTERS"),
    ),
)
