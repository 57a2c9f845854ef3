"""`arpo view` opens the browser without showing its token to other users of the machine."""

import os
import signal
import stat
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote, urlsplit

from playwright.sync_api import expect


def test_the_browser_gets_a_private_file_that_leads_to_the_page(browser, runs, tmp_path):
    program = tmp_path / "browser"
    os.mkfifo(tmp_path / "arguments")
    program.write_text(f'#!/bin/sh\nprintf "%s" "$*" > "{tmp_path}/arguments"\n')
    program.chmod(0o700)
    command = [sys.executable, "-m", "arpo", "view", str(runs), "--at", "/s/first/batch/2"]
    environment = {**os.environ, "BROWSER": f"{program} %s", "TMPDIR": str(tmp_path)}
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server,
        ExitStack() as stack,
    ):
        stack.callback(server.kill)  # a failed check must not wait for it
        assert server.stdout
        printed = server.stdout.readline()
        arguments = (tmp_path / "arguments").read_text()
        assert arguments.startswith("file://") and "token" not in arguments
        file = Path(unquote(urlsplit(arguments).path))
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        context = browser.new_context()
        page = context.new_page()
        page.goto(arguments)
        expect(page.get_by_role("heading", level=1)).to_have_text("Batch 2")
        assert "token" not in page.url and page.url in printed.replace("?" + urlsplit(printed).query, "")
        context.close()
        server.send_signal(signal.SIGINT)
        server.communicate()
    assert not file.exists()
