"""External needs of tasks, and names in the cache."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.envs.osworld.needs import NeededFile, needs, stage_files
from arpo.errors import UserError
from arpo.tasks.lists import load_tasks
from arpo.types import Task
from task_parts import GOLD, POEM, POEM_NAME, download, gold, put, step, task, vm_file
from upstream import FOLDER, VERIFIED, needs_upstream


def error_of(wrong: Task) -> str:
    with pytest.raises(UserError) as caught:
        needs(wrong)
    return str(caught.value)


def test_a_setup_file_is_named_by_its_url_and_name() -> None:
    assert needs(task(download())).files == (NeededFile(url=POEM, path=f"t/{POEM_NAME}"),)


def test_files_of_the_evaluator_are_needed_too() -> None:
    two = gold(multi=True, path=[GOLD, POEM], dest=["gold.docx", "a/poem.docx"], gives=[0, 1])
    judged = task(func=["f", "g"], result=[vm_file(), gold()], expected=[None, two], postconfig=[download()])
    assert [(file.url, file.path) for file in needs(judged).files] == [
        (POEM, f"t/{POEM_NAME}"),
        (GOLD, "t/gold.docx"),
        (POEM, "t/a/poem.docx"),
    ]


def test_a_browsing_history_needs_a_file() -> None:
    (file,) = needs(task(step("update_browse_history", history=[]))).files
    assert file.path == "t/history_new.sqlite"
    assert file.url.endswith("/history_empty.sqlite?download=true")


@pytest.mark.parametrize(
    "live",
    [
        task(step("chrome_open_tabs", urls_to_open=["chrome://version", "https://example.org"])),
        task(step("login", platform="googledrive", settings_file="x")),
        task(step("googledrive", operation=["delete"], args=[{}])),
        task(step("execute", command="echo {CLIENT_PASSWORD} | sudo -S apt-get install -y jq", shell=True)),
        task(step("command", command=["pip", "install", "pysrt"])),
        task(step("execute", command=["git clone", POEM])),
        task(step("execute", command=f"cd /tmp && wget -q {POEM}", shell=True)),
        task(result={"type": "active_tab_info"}),
        task(expected={"type": "info_from_website", "url": POEM, "infos": []}),
        task(id="94d95f96-9699-4208-98ba-3c3119edf9c2"),
    ],
)
def test_tasks_that_need_a_network(live: Task) -> None:
    assert needs(live).network


@pytest.mark.parametrize(
    "quiet",
    [
        task(),
        task(step("chrome_open_tabs", urls_to_open=["chrome://settings", "file:///home/user/a.html"])),
        task(step("update_browse_history", history=[{"url": POEM}])),
        task(step("execute", command=["apt", "list", "--installed"])),
        task(step("execute", command="curl http://localhost:8080/status.xml", shell=True)),
        task(download(), expected={"type": "rule", "rules": {"expected": POEM}}),
        task(result={"type": "bookmarks"}),
    ],
)
def test_tasks_that_need_no_network(quiet: Task) -> None:
    assert not needs(quiet).network


def test_tasks_that_need_an_account() -> None:
    for kind in ("login", "googledrive"):
        assert needs(task(step(kind))).account
    assert needs(task(result={"type": "googledrive_file"})).account
    assert not needs(task(result={"type": "active_tab_info"})).account


def test_applications_by_any_of_their_names() -> None:
    assert needs(task(apps=("libreoffice calc", "Writer", "pdf", "vscode"))).applications == {
        "libreoffice_calc",
        "libreoffice_writer",
        "vs_code",
    }
    assert needs(replace(task(), domain="thunderbird")).applications == {"thunderbird"}
    assert needs(replace(task(), snapshot="gimp", domain="multi_apps")).applications == {"gimp"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (task(id="../t"), "task '../t': its id names its folder in the cache"),
        (task({"type": "open"}), "task 't': config, step 0: must be an object {type, parameters}"),
        (task(postconfig=[3]), "evaluator: key 'postconfig', step 0: must be an object {type, parameters}"),
        (task(postconfig=None), "evaluator: key 'postconfig', step 0: must be an object"),
        (task(step("download", files=5)), "config, step 0 (download): key 'files' must be a list"),
        (task(step("download", files=[{"url": POEM}])), "key 'files' must be a list of {url, path}"),
        (
            task(step("download", files=[{"url": 3, "path": "a"}])),
            "key 'files' must be a list of {url, path}",
        ),
        (task(step("chrome_open_tabs", urls_to_open="x")), "key 'urls_to_open' must be a list"),
        (task(step("chrome_open_tabs", urls_to_open=[3])), "key 'urls_to_open' must be a list of strings"),
        (task(step("upload_file", files=[])), "would read files of this machine: use a 'download'"),
        (task(step("execute", command="ls", stdout="../out")), "'../out' leads out of the task's own folder"),
        (task(step("command", command="ls", stderr="/etc/x")), "'/etc/x' leads out of the task's own folder"),
        (task(func=None), "evaluator: key 'func' must be a name or a list of names"),
        (task(result=None), "evaluator: key 'result' is missing"),
        (task(result="poem"), "key 'result': must be an object {type, …}"),
        (task(result=[vm_file()]), "key 'result' must be a list if and only if 'func' is a list"),
        (task(func=["f"]), "key 'result' must be a list if and only if"),
        (task(func=["f", "g"], result=[vm_file(), None]), "key 'result': must be an object {type, …}"),
        (task(expected={"rules": {}}), "key 'expected': must be an object {type, …}"),
        (task(result=vm_file(dest="../poem")), "key 'result' (vm_file): '../poem' leads out of"),
        (task(result=vm_file(multi=True, path=["a"], dest=["a", "/b"])), "'/b' leads out of"),
        (task(result={"type": "cache_file", "path": "../../x"}), "'../../x' leads out of"),
        (task(expected=gold(dest=3)), "key 'expected' (cloud_file): key 'dest' must be a list"),
        (task(expected=gold(dest="")), "'' leads out of the task's own folder"),
        (task(expected=gold(path=None)), "key 'expected' (cloud_file): key 'path' must be a string"),
        (task(expected=gold(multi=True, path=[GOLD], dest=["a", "b"])), "1 URLs in 'path', but 2 names"),
    ],
)
def test_tasks_that_desktop_env_cannot_run_are_rejected(wrong: Task, message: str) -> None:
    assert error_of(wrong).startswith("task ")
    assert message in error_of(wrong)


def test_an_infeasible_task_needs_no_files() -> None:
    infeasible = Task(id="t", instruction="", snapshot="", config=(), evaluator={"func": "infeasible"})
    assert needs(infeasible).files == ()
    assert needs(replace(infeasible, evaluator={"func": "none"})).files == ()


def test_stage_files_copies_the_needed_files(tmp_path: Path) -> None:
    cache, into = tmp_path / "cache", tmp_path / "into"
    put(cache / "t" / POEM_NAME, "roses")
    put(cache / "t" / "unasked", "weeds")
    stage_files(task(download(), expected=gold()), cache, into)
    assert [str(file.relative_to(into)) for file in into.rglob("*") if file.is_file()] == [f"t/{POEM_NAME}"]
    (into / "t" / POEM_NAME).write_text("overwritten")
    assert (cache / "t" / POEM_NAME).read_text() == "roses"
    stage_files(task(id="nothing"), cache, into)
    assert (into / "nothing").is_dir()


def test_nothing_is_staged_outside_the_folder(tmp_path: Path) -> None:
    for wrong in (task(id="../out"), task(expected=gold(dest="../../out"))):
        with pytest.raises(UserError):
            stage_files(wrong, tmp_path / "cache", tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_shipped_files_are_never_missing_and_stay_in_their_folder(tmp_path: Path) -> None:
    assert needs(task(download("arpo:poem.txt"))).files[0].shipped
    for name in ("arpo:no such file", "arpo:../train.json", "arpo:/etc/hostname"):
        with pytest.raises(UserError, match=f"{name}: no such file in the package"):
            stage_files(task(download(name)), tmp_path, tmp_path / "into")


def test_import_loads_no_heavy_packages() -> None:
    heavy = ("torch", "transformers", "numpy", "aiohttp", "desktop_env", "rich")
    code = f"import sys, arpo.envs.osworld.needs; print(*sorted(set({heavy}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@needs_upstream
def test_osworlds_offline_tasks() -> None:
    tasks = load_tasks(str(VERIFIED))
    found = {task.id: needs(task) for task in tasks}
    rows = (FOLDER / "offline_tasks.tsv").read_text("utf-8").splitlines()
    listed = {row.split("\t")[1] for row in rows}
    assert {name for name, need in found.items() if not need.files and not need.network} == listed
    assert sum(bool(need.files) for need in found.values()) == 270
    assert sum(len(need.files) for need in found.values()) == 713

    proxied = {
        task.id
        for task in tasks
        if json.loads((VERIFIED / "examples" / task.domain / f"{task.id}.json").read_text("utf-8"))["proxy"]
    }
    # it only clears the history
    assert {name for name in proxied if not found[name].network} == {"44ee5668-ecd5-4366-a6ce-c1c9b8d4e938"}
