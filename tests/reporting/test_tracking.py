import importlib
import importlib.util
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from arpo.config import Config, RunConfig, StoreConfig
from arpo.errors import UserError
from arpo.reporting.tracking import Trackers, open_trackers
from arpo.storage.run_folder import METRICS, RunFolder
from arpo.testing import screenshot, task
from trajectories import trajectory, turn


def test_metrics_are_written_to_the_run_folder(tmp_path):
    store = RunFolder(tmp_path)
    tracker = Trackers(store, ())
    tracker.log(3, {"loss": 0.5})
    tracker.log(4, {"loss": math.nan})
    tracker.close()
    assert list(store.read_log(METRICS)) == [{"step": 3, "loss": 0.5}, {"step": 4, "loss": None}]


def test_tensorboard_hides_steps_that_a_resumed_run_logs_again(tmp_path):
    config = Config(store=StoreConfig(tensorboard=True))
    store = RunFolder(tmp_path)
    for first, value in ((0, 1.0), (2, 9.0)):  # the second life begins again at step 2
        tracker = open_trackers(config, store, next_step=first)
        for step in range(first, 4):
            tracker.log(step, {"loss": value, "odd": math.inf})
        tracker.close()
    files = sorted((tmp_path / "tensorboard").iterdir())
    assert files and all(b"loss" in path.read_bytes() for path in files)
    assert all(b"odd" not in path.read_bytes() for path in files)


def test_only_the_configured_trackers_are_opened(tmp_path):
    config = Config(store=StoreConfig(tensorboard=False))
    tracker = open_trackers(config, RunFolder(tmp_path), next_step=0)
    tracker.log(0, {"loss": 1.0})
    tracker.close()
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_missing_wandb_is_a_user_error(tmp_path):
    config = replace(Config(), store=StoreConfig(tensorboard=False, wandb_project="mine"))
    with pytest.raises(UserError, match=r"pip install 'arpo\[wandb\]'"):
        open_trackers(config, RunFolder(tmp_path), next_step=0)


FAKE_WANDB = """
import os
class Error(Exception): pass
class Image:
    def __init__(self, picture): self.size = picture.size
class Table:
    def __init__(self, columns): self.columns, self.data = columns, []
    def add_data(self, *row): self.data.append(row)
class Run:
    def __init__(self): self.logged = []
    def log(self, values, step): self.logged.append((step, values))
    def finish(self): pass
started = []
def init(**given):
    if os.environ.get("WANDB_ENTITY") == "strangers": raise Error("permission denied:\\n no such team")
    started.append((given, Run()))
    return started[-1][1]
"""


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """A module with the calls of wandb that the tracker makes. Checked by hand against wandb 0.31."""
    (tmp_path / "wandb.py").write_text(FAKE_WANDB, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield importlib.import_module("wandb")
    sys.modules.pop("wandb", None)


def tracked():
    run = RunConfig(dir="runs/mine")
    return Config(run=run, store=StoreConfig(tensorboard=False, wandb_project="gui"))


def test_wandb_takes_the_name_of_the_run_from_its_variable_or_the_folder(wandb, tmp_path, monkeypatch):
    open_trackers(tracked(), RunFolder(tmp_path / "a"), next_step=0).close()
    monkeypatch.setenv("WANDB_NAME", "first")
    open_trackers(tracked(), RunFolder(tmp_path / "b"), next_step=0).close()
    unnamed, named = (given for given, _ in wandb.started)
    assert (unnamed["project"], unnamed["name"]) == ("gui", "runs/mine")
    assert named["name"] == "first"


def test_a_refusal_of_wandb_is_one_line_with_the_remedy(wandb, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_ENTITY", "strangers")
    with pytest.raises(UserError) as refused:
        open_trackers(tracked(), RunFolder(tmp_path), next_step=0)
    assert str(refused.value) == (
        "store.wandb_project = 'gui': W&B refuses the run: permission denied: no such team. Log in with "
        "`wandb login`, or set WANDB_MODE=offline in the process environment"
    )


def test_an_evaluation_shows_a_few_episodes_on_wandb(wandb, tmp_path):
    tracker = open_trackers(tracked(), RunFolder(tmp_path), next_step=0)
    shot = screenshot(7)
    turns = [replace(turn((1,), (2,)), screenshot=shot), replace(turn((3,), (4,)), screenshot=shot)]
    played = [(task(name), replace(trajectory(1.0, *turns), final=shot)) for name in "abcdef"]
    tracker.log_episodes(10, "heldout", played)
    tracker.log(10, {"eval_heldout": 1.0})
    [(_, run)] = wandb.started
    (step, episodes), metrics = run.logged
    assert (step, list(episodes), metrics) == (10, ["episodes/heldout"], (10, {"eval_heldout": 1.0}))
    table = episodes["episodes/heldout"]
    assert table.columns == ["task", "instruction", "score", "step", "screenshot", "answer"]
    assert [(row[0], row[3]) for row in table.data] == [(name, step) for name in "abcd" for step in range(3)]
    assert table.data[2][4].size == shot.size and table.data[2][5] == "(end: finished)"


@pytest.mark.slow
def test_a_full_disk_is_an_error_with_the_folder_and_not_a_hang(tmp_path):
    code = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from arpo.reporting.tracking import TensorBoardTracker\n"
        "tracker = TensorBoardTracker(Path(sys.argv[1]) / 'tensorboard', 0)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "try:\n"
        "    for step in range(100): tracker.log(step, {f'metric {n}': 1.0 for n in range(25)})\n"
        "except OSError as error: print(error.strerror, error.filename)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == (f"File too large {tmp_path}/tensorboard\n", "")
