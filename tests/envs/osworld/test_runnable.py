"""Reasons why a task cannot run, with the remedies, and OSWorld's own tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config, OSWorldConfig
from arpo.config.recipe import load_config
from arpo.envs.osworld.needs import APPLICATIONS, needs
from arpo.envs.osworld.runnable import (
    NOT_ON_LIGHT_DESKTOPS,
    PROGRAMS,
    allows_network,
    split_runnable,
    why_not_runnable,
)
from arpo.errors import UserError
from arpo.tasks.lists import load_tasks
from arpo.types import Task
from installed import install_desktop
from task_parts import GOLD, POEM, POEM_NAME, download, gold, put, step, task, vm_file
from upstream import VERIFIED, needs_upstream

INSTALL = "which this machine does not have: run `arpo osworld install`"
WEB = "curl https://example.org"
MACHINE = 'run it on a virtual machine, for example with osworld.provider = "docker"'


@pytest.fixture(autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install_desktop(monkeypatch, tmp_path_factory.mktemp("installed") / "bin")


def settings(cache: Path, **more: Any) -> OSWorldConfig:
    return OSWorldConfig(cache=str(cache), **more)


def osworld(cache: Path, *overrides: str) -> Config:
    """Without an interpreter: the names are those of the desktop-env that `arpo osworld install` installs."""
    base = ["--env.name=osworld", f"--osworld.cache={cache}", "--osworld.python=/none"]
    return load_config(None, [*base, *overrides])


def test_missing_files_are_named_one_by_one(tmp_path: Path) -> None:
    wanted = task(download(), expected=gold())
    remedy = "`arpo osworld fetch-cache` downloads it"
    for name, url in ((POEM_NAME, POEM), ("gold.docx", GOLD)):
        assert why_not_runnable(wanted, settings(tmp_path)) == (
            f"file t/{name} ({url}) is not in the cache {tmp_path}: {remedy}"
        )
        put(tmp_path / "t" / name)
    assert why_not_runnable(wanted, settings(tmp_path)) is None
    assert why_not_runnable(task(download("arpo:poem.txt")), settings(tmp_path)) is None


def test_each_reason_has_its_own_remedy(tmp_path: Path) -> None:
    live, signed_in = task(step("execute", command=WEB)), task(step("login"))
    assert why_not_runnable(live, settings(tmp_path)) == (
        "needs the network, which is off: --osworld.network on allows it"
    )
    assert why_not_runnable(live, settings(tmp_path, network="on")) is None
    for network in ("off", "on"):
        assert why_not_runnable(signed_in, settings(tmp_path, network=network)) == (
            f"needs a Google account, which light desktops do not have: {MACHINE}"
        )
    assert why_not_runnable(replace(live, related_apps=("vscode",)), settings(tmp_path)) == (
        f"needs VS Code, which light desktops do not have: {MACHINE}"
    )


def test_a_program_that_is_not_installed_is_named(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, mail = task(), task(apps=("thunderbird", "libreoffice_calc"))
    (programs / "thunderbird").unlink()
    assert why_not_runnable(plain, settings(tmp_path)) is None
    assert why_not_runnable(mail, settings(tmp_path)) == f"needs {programs}/thunderbird, {INSTALL}"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert why_not_runnable(plain, settings(tmp_path)) == f"needs bwrap, {INSTALL}"
    assert why_not_runnable(plain, settings(tmp_path, network="on")) == (
        f"needs bwrap and slirp4netns and ip, {INSTALL}"
    )
    assert why_not_runnable(task(id="t", apps=("vscode",)), settings(tmp_path)) == (
        f"needs VS Code, which light desktops do not have: {MACHINE}"
    )


def test_a_run_on_this_machine_skips_tasks_without_programs(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "vlc").unlink()
    tasks = [task(id="a"), task(id="b", apps=("vlc",))]
    kept, skipped = split_runnable(tasks, osworld(tmp_path))
    assert (kept, skipped) == ((tasks[0],), [(tasks[1], f"needs {programs}/vlc, {INSTALL}")])
    monkeypatch.setenv("PATH", str(tmp_path))
    for elsewhere in ("--osworld.provider=docker", "--env.hosts=http://127.0.0.1:1"):
        assert split_runnable(tasks, osworld(tmp_path, elsewhere)) == (tuple(tasks), [])


def test_every_application_of_a_light_desktop_has_a_program() -> None:
    assert {*PROGRAMS, *NOT_ON_LIGHT_DESKTOPS} == APPLICATIONS


def test_virtual_machines_have_all_that_a_task_needs(tmp_path: Path) -> None:
    everything = task(download(), step("login"), apps=("vscode",))
    assert why_not_runnable(everything, settings(tmp_path, provider="docker")) is None
    with pytest.raises(UserError, match="leads out of the task's own folder"):
        why_not_runnable(task(result=vm_file(dest="../x")), settings(tmp_path, provider="docker"))


def test_a_file_may_say_which_tasks_are_allowed_the_network(tmp_path: Path) -> None:
    ids = put(tmp_path / "ids.txt", "a  # looks things up\n\n# b\nt\n")
    assert [allows_network(task(id=name), str(ids)) for name in ("a", "b", "t")] == [True, False, True]
    live = task(step("execute", command=WEB))
    assert why_not_runnable(live, settings(tmp_path, network=str(ids))) is None
    with pytest.raises(UserError, match=r"osworld\.network = 'yes': use on, off or a file of task ids"):
        allows_network(task(), "yes")


def test_split_runnable(tmp_path: Path) -> None:
    plain, wanting, live = task(id="a"), task(download(), id="b"), task(step("login"), id="c")
    kept, skipped = split_runnable([wanting, plain, live], osworld(tmp_path))
    assert kept == (plain,)
    assert [(left.id, reason.split()[0]) for left, reason in skipped] == [("b", "file"), ("c", "needs")]
    elsewhere = load_config(None, ["--env.name=desk", f"--osworld.cache={tmp_path}"])
    assert split_runnable((wanting, plain, live), elsewhere) == ((wanting, plain, live), [])


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_tasks_that_desktop_env_cannot_score_are_skipped_before_a_run(tmp_path: Path, provider: str) -> None:
    tasks = [
        task(id="a", func="exact_mach"),
        task(id="b", func="compare_image_text", apps=("vscode",)),
        task(download(), id="c", result={"type": "vm_filee"}),
        task(step("lunch"), id="d"),
    ]
    kept, skipped = split_runnable(tasks, osworld(tmp_path, f"--osworld.provider={provider}"))
    assert kept == ()
    assert {left.id: reason for left, reason in skipped} == {
        "a": "evaluator.func = 'exact_mach': desktop-env has no metric exact_mach "
        "(did you mean 'exact_match'?)",
        "b": "evaluator.func = 'compare_image_text': it needs easyocr, which is not installed: "
        "pip install easyocr",
        "c": "evaluator.result.type = 'vm_filee': desktop-env has no getter get_vm_filee "
        "(did you mean 'vm_file'?)",
        "d": "config[0].type = 'lunch': desktop-env has no setup step lunch (did you mean 'launch'?)",
    }


def test_a_malformed_task_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="config, step 0: must be an object"):
        split_runnable([task({"type": "launch"})], osworld(tmp_path))


def test_caches_of_remote_hosts_are_not_checked(tmp_path: Path) -> None:
    tasks = [task(download(), id="b"), task(step("login"), id="c"), task(id="d", func="exact_mach")]
    kept, skipped = split_runnable(tasks, osworld(tmp_path, "--env.hosts=http://127.0.0.1:1"))
    assert [left.id for left in kept] == ["b"]
    assert [left.id for left, _ in skipped] == ["c", "d"]


def fill_cache(cache: Path, tasks: tuple[Task, ...]) -> None:
    for file in (file for each in tasks for file in needs(each).files):
        put(cache / file.path, "")


@pytest.mark.slow
@needs_upstream
def test_osworlds_tasks_on_a_light_desktop(tmp_path: Path) -> None:
    """The table in docs/osworld.md."""
    tasks = load_tasks(str(VERIFIED))
    empty, full = tmp_path / "empty", tmp_path / "full"
    fill_cache(full, tasks)
    counts = {
        (cache.name, network): len(split_runnable(tasks, osworld(cache, f"--osworld.network={network}"))[0])
        for cache in (empty, full)
        for network in ("off", "on")
    }
    assert counts == {("empty", "off"): 39, ("empty", "on"): 81, ("full", "off"): 245, ("full", "on"): 321}


@needs_upstream
def test_reasons_of_osworlds_tasks(tmp_path: Path) -> None:
    _, skipped = split_runnable(load_tasks(str(VERIFIED)), osworld(tmp_path))
    kinds = {
        "file ": "file",
        "needs the network": "network",
        "needs VS Code": "VS Code",
        "needs a Google": "account",
        "would be solved": "solved",
        "evaluator.": "evaluator",
    }
    found = Counter(
        kind for _, reason in skipped for start, kind in kinds.items() if reason.startswith(start)
    )
    assert found == {
        "file": 206, "network": 76, "VS Code": 32, "account": 8, "evaluator": 6, "solved": 2
    }  # fmt: skip
    _, refused = split_runnable(load_tasks(str(VERIFIED)), osworld(tmp_path, "--osworld.provider=docker"))
    assert Counter(reason.partition(": ")[2].partition(" (")[0] for _, reason in refused) == {
        "desktop-env has no getter get_chrome_appearance_mode_ui": 1,
        "desktop-env has no metric check_play_and_exit": 1,
        "desktop-env has no metric check_structure_sim_with_threshold": 1,
        "it needs easyocr, which is not installed: pip install easyocr": 1,
        "it runs files of the model outside the sandbox": 2,
    }
