"""Every example of docs/python.md runs: the scripts in one folder, one after another, and all plug-ins."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import arpo
from arpo.plugins import KINDS
from verdicts import HELDOUT, select

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
FILES = {code.split("\n")[0].removeprefix("# "): code for code in BLOCKS if code.startswith("# my_")}
SCRIPTS = [code for code in BLOCKS if not code.startswith("# my_")]
(RECIPE,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
SMALL = """extends = "desk"
[run]
threads = 1
[tasks]
train = "train.json"
heldout = "heldout.json"
[train]
epochs = 1
tasks_per_batch = 2
tasks_per_update = 2
[rollout]
max_steps = 2
[eval]
rollouts = 1
[store]
tensorboard = false
"""


def small(code: str) -> str:
    return code.replace('"desk"', '"small.toml"')


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    select(tmp_path / "train.json", "desk:pool", ["pool-023", "pool-010"])
    select(tmp_path / "heldout.json", "desk:heldout", [HELDOUT])
    (tmp_path / "small.toml").write_text(SMALL, "utf-8")
    return tmp_path


def python(code: str, folder: Path) -> str:
    this_checkout = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", code]
    done = subprocess.run(command, cwd=folder, env=this_checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.replace("model:  runs/mine/model\n", "") == ""
    return done.stdout


def test_the_scripts_run_one_after_another(folder):
    first, look, watch = SCRIPTS
    assert len([line for line in first.splitlines() if line]) == 10
    printed = python(small(first), folder)
    assert re.match(r"success \d+% -> \d+%\n[\d.]+ \([\d., ]+\)\neval0-train-", printed), printed
    assert "\n1 " in printed
    python(small(look).replace("episode.score == 1", "True"), folder)
    assert (folder / "screen-1.png").is_file() and (folder / "action-1.png").is_file()
    printed = python(small(watch), folder)
    assert re.search(r"\n[01]\.0 (max_steps|finished|fail)\n$", printed), printed


def test_the_plugins_train_together(folder, monkeypatch):
    plugins = tomllib.loads(RECIPE)["plugins"]
    assert plugins.keys() == KINDS.keys()
    assert sorted(FILES) == sorted(f"{name.partition(':')[0]}.py" for name in plugins.values())
    for name, code in FILES.items():
        (folder / name).write_text(code, "utf-8")
        assert len([line for line in code.splitlines() if line.strip()]) <= 20
    (folder / "mine.toml").write_text(small(RECIPE), "utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    run = arpo.train(arpo.load("mine.toml", {"run.dir": folder / "run"}))
    base, batch = run.metrics
    assert 0 <= (batch["click_share"] or 0) <= 1 and "click_share" not in base
    assert (run.folder / "rewards.csv").read_text("utf-8").splitlines()[1].startswith("1,")
    assert set(run.config.plugins.reward.split(":")) == {"my_reward", "reward"}


def test_the_signatures_on_the_page_are_those_of_the_types():
    for kind, protocol in KINDS.items():
        needed = [name for name in protocol.__call__.__annotations__ if name != "return"]
        assert re.search(rf"{', '.join(f'{name}: [^:]+' for name in needed)}\)?", "".join(FILES.values())), (
            kind
        )
