"""TRL's trainer plays Desk on `arpo env-host --openenv`."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from arpo.models.loading import resolve_model
from env_hosts import HostCommand

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-trl" / "bin" / "python"


@pytest.mark.slow
def test_trl_plays_desk_for_one_update(tmp_path):
    assert PYTHON.exists(), f"{PYTHON} is missing: run `make trl`"
    host = HostCommand(tmp_path, "desk", "--openenv", "--listen", "127.0.0.1:0")
    try:
        script = ROOT / "examples" / "openenv_trl.py"
        run = subprocess.run(
            [PYTHON, script, host.address, resolve_model("base")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        host.end()
    assert run.returncode == 0, run.stderr[-2000:]
    (line,) = re.findall(r"\{'loss'.*?\}", run.stdout)
    logged = {name: float(value) for name, value in ast.literal_eval(line).items()}
    assert 0 < logged["rewards/Desk/mean"] < 1
    assert logged["tools/call_frequency"] > 1
    assert logged["tools/failure_frequency"] < 0.1
    assert logged["grad_norm"] > 0
