"""`arpo osworld list`. The tests of `fetch-cache` are in tests/envs/osworld/test_fetch.py."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from arpo.cli.entry_point import main
from arpo.envs.osworld.needs import needs
from arpo.types import Task
from installed import install_desktop
from task_parts import download, gold, put, step, task
from upstream import VERIFIED, needs_upstream

LIVE = step("execute", command="curl https://example.org")


@pytest.fixture(autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install_desktop(monkeypatch, tmp_path_factory.mktemp("installed") / "bin")


def tasks() -> list[Task]:
    return [
        task(id="plain", apps=("gimp",)),
        task(download(path="/home/user/my poem.docx"), LIVE, id="wanting", expected=gold()),
        task(id="code", apps=("chrome", "vscode")),
        task(step("login"), id="signed-in"),
        task(id="wrong", func="exact_mach"),
    ]


def listing(folder: Path, *words: str) -> list[str]:
    """The command line for a list of these tasks, with one file in the cache, and without desktop-env."""
    source, cache = folder / "tasks.json", folder / "cache"
    source.write_text(json.dumps([asdict(each) for each in tasks()]))
    put(cache / needs(tasks()[1]).files[0].path)
    keys = ["--osworld.cache", str(cache), "--osworld.python", "/none"]
    return ["osworld", "list", "--tasks", str(source), *keys, *words]


def test_each_task_is_listed_with_its_needs_and_the_reasons_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(listing(tmp_path)) == 0
    machine = 'run it on a virtual machine, for example with osworld.provider = "docker"'
    assert capsys.readouterr().out.splitlines() == [
        "runs  domain  task       needs",
        "yes   os      plain      gimp",
        "no    os      wanting    2 files (1 missing), network",
        "no    os      code       chrome, vs_code",
        "no    os      signed-in  network, Google account",
        "no    os      wrong      evaluator.func = 'exact_mach' (unusable)",
        "1 of 5 tasks can run here. The others:",
        "  1 x needs the network, which is off: --osworld.network on allows it",
        f"  1 x needs VS Code, which light desktops do not have: {machine}",
        f"  1 x needs a Google account, which light desktops do not have: {machine}",
        "  1 x evaluator.func = 'exact_mach': desktop-env has no metric exact_mach "
        "(did you mean 'exact_match'?)",
    ]


def test_without_bubblewrap_no_task_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(listing(tmp_path, "--tasks.ids", "plain")) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "no    os      plain  gimp",
        "0 of 1 task can run here. The others:",
        "  1 x needs bwrap, which this machine does not have: run `arpo osworld install`",
    ]


def test_json_has_the_same_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(listing(tmp_path, "--json", "--osworld.network", "on", "--tasks.ids", "plain,wanting")) == 0
    content: Any = json.loads(capsys.readouterr().out)
    reason = f"is not in the cache {tmp_path / 'cache'}: `arpo osworld fetch-cache` downloads it"
    assert content["runs"] == 1
    assert content["skipped"] == {f"a file {reason}": 1}
    plain, wanting = content["tasks"]
    assert plain == {
        "id": "plain",
        "domain": "os",
        "runs": True,
        "reason": None,
        "needs": {
            "applications": ["gimp"], "files": [], "missing_files": [], "network": False, "account": False
        },
        "unusable": None,
    }  # fmt: skip
    assert wanting["needs"]["missing_files"] == ["wanting/gold.docx"]
    assert len(wanting["needs"]["files"]) == 2 and wanting["needs"]["network"]
    assert wanting["reason"].endswith(reason) and not wanting["runs"]


def test_virtual_machines_and_hosts_do_not_use_this_machines_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--osworld.provider", "docker"], ["--env.hosts", "http://127.0.0.1:1"]):
        assert main(listing(tmp_path, *words, "--tasks.ids", "wanting", "--osworld.network", "on")) == 0
        said = capsys.readouterr().out.splitlines()
        assert said[1:] == ["yes   os      wanting  2 files, network", "1 of 1 task can run here"]


def test_a_wrong_source_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["osworld", "list", "--tasks", str(tmp_path / "none.json")]) == 2
    assert "no such task file" in capsys.readouterr().err
    assert main(["osworld", "lst"]) == 2
    assert "invalid choice: 'lst'" in capsys.readouterr().err


@pytest.mark.slow
@needs_upstream
def test_osworlds_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["osworld", "list", "--tasks", str(VERIFIED), "--osworld.cache", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) < 400 and all(len(line) < 200 for line in said)
    assert f"  206 x a file is not in the cache {tmp_path}: `arpo osworld fetch-cache` downloads it" in said
