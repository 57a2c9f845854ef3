"""Names of desktop-env, read from source code, and the check of the names in a task."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.config.recipe import load_config
from arpo.envs.osworld import desktop_env_names
from arpo.envs.osworld.desktop_env_names import (
    SHIPPED,
    KnownNames,
    check_task,
    names_for,
    shipped_names,
    to_json,
)
from arpo.errors import EnvError
from arpo.types import Task

FAKES = Path(__file__).parents[2] / "support" / "fakes"
SOURCE = {
    "__init__.py": "raise ImportError('importing it would take seconds')",
    "controllers/setup.py": """
class Other:
    def _wrong_setup(self): ...
class SetupController:
    def setup(self): ...
    def _launch_setup(self): ...
    def _sleep_setup(self): ...
""",
    "evaluators/getters/__init__.py": "from .file import get_vm_file, get_cloud as get_cloud_file, helper",
    "evaluators/metrics/__init__.py": """
from .table import *
from .general import (
    exact_match,  # a comment
    compare_image_text,
)
import os
def infeasible(): ...
""",
    "evaluators/metrics/table.py": "def compare_table(a, b): ...\ndef _private(): ...",
}


def interpreter(folder: Path, source: Path | str) -> Path:
    """A Python program that finds the packages in `source`, and the installed ones."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{source}" exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


def osworld(python: Path | str, *overrides: str) -> desktop_env_names.KnownNames:
    config = load_config(None, ["--env.name=osworld", f"--osworld.python={python}", *overrides])
    return names_for(config.env, config.osworld)


def test_names_are_read_from_the_interpreters_desktop_env_without_importing_it(tmp_path: Path) -> None:
    for name, text in SOURCE.items():
        (tmp_path / "desktop_env" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "desktop_env" / name).write_text(text)
    names = osworld(interpreter(tmp_path, tmp_path))
    assert names.steps == {"launch", "sleep"}
    assert names.getters == {"vm_file", "cloud_file"}
    assert names.metrics == {"compare_table", "exact_match", "compare_image_text", "infeasible"}
    assert names.unusable.keys() == {"check_python_file_by_test_suite", "compare_image_text"}
    (tmp_path / "easyocr.py").write_text("")
    desktop_env_names._ask.cache_clear()
    assert osworld(tmp_path / "python").unusable.keys() == {"check_python_file_by_test_suite"}


def test_without_desktop_env_the_names_are_those_of_the_version_that_make_installs(tmp_path: Path) -> None:
    assert osworld("/none") == shipped_names()
    assert osworld(interpreter(tmp_path, tmp_path)) == shipped_names()
    assert {"vm_file", "rule"} < shipped_names().getters
    shipped = Path(desktop_env_names.__file__).with_name(SHIPPED).read_text("utf-8")
    assert to_json(shipped_names()) == shipped


@pytest.mark.parametrize(
    ("first", "last"),
    [("print('Welcome to {this} cluster')", ""), ("", "print('{}')"), ("os.write(1, b'\\xff\\n')", "")],
)
def test_other_output_of_the_interpreter_does_not_matter(tmp_path: Path, first: str, last: str) -> None:
    """A site configuration may print something whenever Python starts or exits."""
    code = f"import atexit, os\n{first}\natexit.register(lambda: {last or None})\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    python = interpreter(tmp_path, f"{FAKES}:{tmp_path}")
    assert osworld(python).getters == {"vm_file", "value", "rule", "fatal", "answer"}


def test_an_interpreter_without_an_answer_counts_as_one_without_desktop_env(tmp_path: Path) -> None:
    python = tmp_path / "python"
    for text in ("", "hello", '{\\n \\"steps\\": []}'):
        python.write_text(f'#!/bin/sh\nprintf "{text}"\n')
        python.chmod(0o755)
        desktop_env_names._ask.cache_clear()
        assert osworld(python) == shipped_names()


def test_asking_an_interpreter_runs_no_code_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert "fatal" in osworld(interpreter(tmp_path, FAKES)).getters
    assert not (tmp_path / "run").exists()


def test_hosts_are_assumed_to_have_the_version_that_make_installs(tmp_path: Path) -> None:
    python = interpreter(tmp_path, FAKES)
    assert osworld(python).getters == {"vm_file", "value", "rule", "fatal", "answer"}
    assert osworld(python, "--env.hosts=http://127.0.0.1:1") == shipped_names()


def test_the_interpreter_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("arpo.config.recipe.PROJECT", tmp_path / "project")
    (tmp_path / "project" / ".venv-osworld" / "bin").mkdir(parents=True)
    interpreter(tmp_path / "project" / ".venv-osworld" / "bin", FAKES)
    config = load_config("osworld_eval")
    assert "fatal" in names_for(config.env, config.osworld).getters


def test_a_worker_with_a_placeholder_for_easyocr_reads_the_same_names() -> None:
    code = (
        "from arpo.envs.osworld.worker import add_placeholder; add_placeholder('easyocr');"
        "from arpo.envs.osworld.desktop_env_names import *; print(to_json(installed_names()), end='')"
    )
    environment = {**os.environ, "PYTHONPATH": str(FAKES)}
    outputs = [
        subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True)
        for words in (("-c", code), ("-m", "arpo.envs.osworld.desktop_env_names"))
    ]
    assert outputs[0].stdout == outputs[1].stdout != ""


KNOWN = KnownNames(
    steps=frozenset({"launch", "execute", "download"}),
    getters=frozenset({"vm_file", "cloud_file", "cache_file", "rule"}),
    metrics=frozenset({"exact_match", "compare_table", "infeasible"}),
    unusable={"compare_table": "it needs a ruler: pip install ruler"},
)
GOOD = {"func": "exact_match", "result": {"type": "vm_file", "path": "/a", "dest": "a"}}


def error_of(*config, evaluator=GOOD, id="t"):
    task = Task(id=id, instruction="", snapshot="", config=config, evaluator=evaluator)
    with pytest.raises(EnvError) as caught:
        check_task(task, KNOWN)
    assert caught.value.where == "start"
    return caught.value.message


def test_valid_tasks_pass():
    check_task(Task(id="t", instruction="", snapshot="", config=(), evaluator={"func": "none"}), KNOWN)
    step = {"type": "execute", "parameters": {"command": "ls", "stdout": "ls.out"}}
    several = {
        "func": ["exact_match", "exact_match"],
        "conj": "or",
        "result": [GOOD["result"], {"type": "cache_file", "path": "ls.out"}],
        "expected": [{"type": "cloud_file", "path": ["u", "v"], "dest": ["u", "v"], "multi": True}, None],
        "postconfig": [step],
    }
    for evaluator in (GOOD, several, {"func": "infeasible"}, {**GOOD, "expected": {}}):
        task = Task(id="t", instruction="", snapshot="", config=(step,), evaluator=evaluator)
        check_task(task, KNOWN)


@pytest.mark.parametrize(
    ("evaluator", "message"),
    [
        (
            {**GOOD, "result": {"type": "vm_fil"}},
            "task t: evaluator.result.type = 'vm_fil': desktop-env has no getter get_vm_fil "
            "(did you mean 'vm_file'?)",
        ),
        (
            {"func": ["exact_match", "zzz"], "result": [GOOD["result"]] * 2},
            "task t: evaluator.func[1] = 'zzz': desktop-env has no metric zzz",
        ),
        ({}, "task 't': evaluator: key 'func' must be a name or a list of names"),
        ({"func": ["exact_match", 3], "result": [GOOD["result"]] * 2}, "desktop-env has no metric 3"),
        ({**GOOD, "func": "compare_table"}, "'compare_table': it needs a ruler: pip install ruler"),
        (
            {"func": ["exact_match"] * 2, "result": [GOOD["result"]]},
            "task t: evaluator.result: must be a list, one for each of 2 metrics",
        ),
        ({"func": ["exact_match"], "result": [GOOD["result"]], "conj": "xor"}, "evaluator.conj: is 'xor'"),
        (
            {**GOOD, "postconfig": [{"type": "lunch", "parameters": {}}]},
            "evaluator.postconfig[0].type = 'lunch': desktop-env has no setup step lunch "
            "(did you mean 'launch'?)",
        ),
    ],
)
def test_error_names_the_key(evaluator, message):
    assert message in error_of(evaluator=evaluator)


@pytest.mark.parametrize("name", ["../.bashrc", "/etc/passwd", ".."])
def test_names_leading_out_of_the_folder_are_rejected(name):
    assert repr(name) in error_of(id=name)
    assert repr(name) in error_of({"type": "execute", "parameters": {"command": "x", "stdout": name}})
    assert repr(name) in error_of(evaluator={**GOOD, "result": {"type": "cache_file", "path": name}})


def test_malformed_step_is_rejected():
    assert "config, step 1: must be an object" in error_of({"type": "launch", "parameters": {}}, "launch")
