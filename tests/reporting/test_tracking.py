import importlib.util
import math
import subprocess
import sys
from dataclasses import replace

import pytest

from arpo.config import Config, StoreConfig
from arpo.errors import UserError
from arpo.reporting.tracking import JsonlTracker, MultiTracker, NullTracker, open_tracker
from arpo.storage.run_folder import METRICS, RunFolder


def test_metrics_are_written_to_the_run_folder(tmp_path):
    store = RunFolder(tmp_path)
    tracker = MultiTracker([JsonlTracker(store), NullTracker()])
    tracker.log(3, {"loss": 0.5})
    tracker.log(4, {"loss": math.nan})
    tracker.close()
    assert list(store.read_log(METRICS)) == [{"step": 3, "loss": 0.5}, {"step": 4, "loss": None}]


def test_tensorboard_hides_steps_that_a_resumed_run_logs_again(tmp_path):
    config = Config(store=StoreConfig(tensorboard=True))
    store = RunFolder(tmp_path)
    for first, value in ((0, 1.0), (2, 9.0)):  # the second life begins again at step 2
        tracker = open_tracker(config, store, next_step=first)
        for step in range(first, 4):
            tracker.log(step, {"loss": value, "odd": math.inf})
        tracker.close()
    files = sorted((tmp_path / "tensorboard").iterdir())
    assert files and all(b"loss" in path.read_bytes() for path in files)
    assert all(b"odd" not in path.read_bytes() for path in files)


def test_only_the_configured_trackers_are_opened(tmp_path):
    config = Config(store=StoreConfig(tensorboard=False))
    tracker = open_tracker(config, RunFolder(tmp_path), next_step=0)
    tracker.log(0, {"loss": 1.0})
    tracker.close()
    assert not (tmp_path / "tensorboard").exists()


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed here")
def test_missing_wandb_is_a_user_error(tmp_path):
    config = replace(Config(), store=StoreConfig(tensorboard=False, wandb_project="mine"))
    with pytest.raises(UserError, match=r"pip install 'arpo\[wandb\]'"):
        open_tracker(config, RunFolder(tmp_path), next_step=0)


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
