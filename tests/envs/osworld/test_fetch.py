"""Downloads into the cache, from a local server with complete, failing, truncated and stalled responses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from arpo.cli.entry_point import main
from arpo.config import OSWorldConfig
from arpo.envs.osworld.fetch import fetch_cache
from arpo.envs.osworld.needs import needs
from arpo.envs.osworld.runnable import why_not_runnable
from arpo.errors import UserError
from arpo.types import Task
from installed import install_desktop

PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.site.requests.append(self.path)
        match urlsplit(self.path).path:
            case "/moved":
                self.send_response(302)
                self.send_header("Location", "/poem%20of%20roses?download=true")
                self.end_headers()
            case "/cut":
                self._begin(1000)
                self.wfile.write(b"roses")
            case "/never":
                self._begin(1000)
                self.wfile.write(b"roses")
                self.wfile.flush()
                self.site.closing.wait(60)
            case "/poem%20of%20roses" | "/long" as path:
                text = b"roses" if path != "/long" else b"violets " * 100_000
                self._begin(len(text))
                self.wfile.write(text)
            case _:
                self.send_error(404)

    def _begin(self, length: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    @property
    def site(self) -> Site:
        assert isinstance(self.server, Site)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Site(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str] = []
        self.closing = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{path}"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


def task(id: str, *urls: str) -> Task:
    files = [{"url": url, "path": f"/home/user/{number}.txt"} for number, url in enumerate(urls)]
    return Task(
        id=id,
        instruction="",
        snapshot="",
        config=({"type": "download", "parameters": {"files": files}},),
        evaluator={"func": "infeasible"},
    )


def settings(cache: Path) -> OSWorldConfig:
    return OSWorldConfig(cache=str(cache))


def contents(cache: Path) -> dict[str, str]:
    """All files of the cache, by task and file name on the desktop."""
    files = [path for path in cache.rglob("*") if path.is_file()]
    return {f"{path.parent.name}/{path.name.partition('_')[2]}": path.read_text()[:10] for path in files}


def test_files_of_all_tasks_are_fetched(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install_desktop(monkeypatch, tmp_path / "bin")
    tasks = [
        task("a", site.url("poem%20of%20roses"), site.url("moved")),
        task("b", site.url("long"), "arpo:shipped.txt"),
    ]
    assert fetch_cache(tasks, settings(tmp_path / "new" / "cache"), jobs=2) == 0
    assert contents(tmp_path / "new" / "cache") == {
        "a/0.txt": "roses",
        "a/1.txt": "roses",
        "b/0.txt": "violets vi",
    }
    assert all(why_not_runnable(each, settings(tmp_path / "new" / "cache")) is None for each in tasks)
    output = capsys.readouterr().out.splitlines()
    assert output[0] == f"3 files for 2 tasks, 0 already in {tmp_path}/new/cache"
    assert f"[3/3] {needs(tasks[1]).files[0].path}: 800,000 bytes" in output
    assert output[-1] == "3 files downloaded, 0 failed"


def test_cached_files_are_kept(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    both = task("a", site.url("long"), site.url("moved"))
    first = tmp_path / needs(both).files[0].path
    first.parent.mkdir()
    first.write_text("kept")
    assert fetch_cache([both], settings(tmp_path), jobs=8) == 0
    assert contents(tmp_path) == {"a/0.txt": "kept", "a/1.txt": "roses"}
    assert site.requests == ["/moved", "/poem%20of%20roses?download=true"]
    assert fetch_cache([both], settings(tmp_path), jobs=8) == 0
    assert len(site.requests) == 2
    assert capsys.readouterr().out.endswith(
        f"2 files for 1 task, 2 already in {tmp_path}\n0 files downloaded, 0 failed\n"
    )


def test_failures_are_listed_and_leave_no_files(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = f"http://127.0.0.1:{free_port()}/x"
    reasons = {
        site.url("gone"): "the server answered 404 Not Found",
        site.url("cut"): "the connection broke before the end of the file",
        "ftp://example.org/x": "not an HTTP URL",
        "nonsense": "not an HTTP URL",
        refused: "ClientConnectorError: Cannot connect to host",
    }
    one = task("a", *reasons, site.url("moved"))
    assert fetch_cache([one], settings(tmp_path), jobs=3) == 1
    assert contents(tmp_path) == {"a/5.txt": "roses"}
    output = capsys.readouterr().out
    assert "1 file downloaded, 5 failed" in output
    failures = output.partition("5 failed\n")[2].splitlines()
    for file in needs(one).files[:5]:
        index = failures.index(f"  {file.path}")
        assert failures[index + 1] == f"    {file.url}"
        assert failures[index + 2].startswith(f"    {reasons[file.url]}")
    assert failures[-1] == "run the same command again to retry"


def test_a_stalled_download_fails(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetch_cache([task("a", site.url("never"))], settings(tmp_path), jobs=1, seconds=0.2) == 1
    assert contents(tmp_path) == {}
    assert "no data for 0.2 s" in capsys.readouterr().out


def free_port() -> int:
    """Port of a server that has been closed."""
    with Site() as gone:
        return gone.server_port


def test_a_cache_that_cannot_be_written_is_a_user_error(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"osworld\.cache: cannot write .*0\.txt: Not a directory"):
        fetch_cache([task("a", site.url("moved"))], settings(tmp_path / "file"), jobs=4)


def test_the_command(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [
        {
            "id": name,
            "instruction": "",
            "config": list(task(name, url).config),
            "evaluator": {"func": "infeasible"},
        }
        for name, url in (("a", site.url("moved")), ("b", site.url("gone")))
    ]
    source, cache = tmp_path / "tasks.json", tmp_path / "cache"
    source.write_text(json.dumps(entries))
    command = ["osworld", "fetch-cache", "--tasks", str(source), "--osworld.cache", str(cache)]
    assert main([*command, "--jobs", "2"]) == 1
    assert main([*command, "--tasks.ids", "a"]) == 0
    assert contents(cache) == {"a/0.txt": "roses"}
    capsys.readouterr()
    assert main([*command, "--jobs", "none"]) == 2
    assert "is 'none', must be an integer >= 1" in capsys.readouterr().err
    assert main(["osworld", "fetch-cash"]) == 2
    assert "invalid choice: 'fetch-cash'" in capsys.readouterr().err
