"""Commands on a real full disk and on a read-only one: a tmpfs, in a mount namespace of its own.

`test_resume.py` has the same faults by a limit of file sizes, on machines that permit no mounts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOUNT = "mount -t tmpfs -o size=12m tmpfs {disk}"
NAMESPACE = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
SCRIPT = r"""
import contextlib, io, json, os, subprocess, sys
from pathlib import Path
from arpo.cli.entry_point import main

disk, out = Path(sys.argv[1]), Path(sys.argv[2])
settings = sys.argv[3:]
results = []

def arpo(*words):
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main(words)
    files = sorted(str(path.relative_to(disk)) for path in disk.rglob("*") if "tmp" in path.name)
    results.append([" ".join(words[:1]), code, errors.getvalue(), files])

def remount(options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)

train = ("train", "desk", *settings, "--run.dir", str(disk / "run"))
arpo(*train)
remount("size=200m")
arpo(*train)
arpo("train", "desk", *settings, "--run.dir", str(out / "reference"))
for name in ("metrics.jsonl", "trajectories.jsonl", "model/model.safetensors"):
    assert (disk / "run" / name).read_bytes() == (out / "reference" / name).read_bytes(), name
remount("ro")
arpo(*train)
arpo("report", str(disk / "run"))
arpo("export", str(disk / "run"), str(disk / "exported"))
arpo("export", str(disk / "run"), str(out / "exported"))
arpo("collect", *settings, "--run.dir", str(disk / "new"))
arpo("eval", *settings, "--out", str(disk / "scores.json"))
arpo("screen", *settings, "--tasks.ids", "pool-013", "--out", str(disk / "kept.json"))
arpo("compare", "desk", "--seeds", "1", "--out", str(disk / "compared"))
arpo("compare", "--report", "--out", str(disk))
print(json.dumps(results))
"""
SMALL = """
    --run.threads 1 --train.epochs 1 --train.tasks_per_batch 1 --train.tasks_per_update 1
    --rollout.max_steps 1 --rollout.max_answer_tokens 16 --eval.every 0 --eval.rollouts 1
    --tasks.ids pool-013,heldout-006 --tasks.train desk:pool --tasks.heldout desk:heldout
"""


@pytest.mark.slow
def test_full_and_read_only_disks_are_one_line(tmp_path: Path) -> None:
    disk, out = tmp_path / "disk", tmp_path / "out"
    disk.mkdir()
    out.mkdir()
    mount = MOUNT.format(disk=disk)
    if subprocess.run([*NAMESPACE, mount], capture_output=True, check=False).returncode:
        pytest.skip("this machine permits no mounts; test_resume.py tests a full disk in another way")
    command = f'{mount} && exec "$@"'
    arguments = [sys.executable, "-c", SCRIPT, str(disk), str(out), *SMALL.split()]
    done = subprocess.run(
        [*NAMESPACE, command, "sh", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    full, resumed, reference, *read_only = json.loads(done.stdout.splitlines()[-1])
    assert full[:2] == ["train", 2]
    assert full[2].startswith(f"arpo: error: {disk}/run/checkpoints/step-000001: No space left on device (")
    assert full[2].endswith(
        "MiB free): free some space, then run the same command again; it resumes after batch 0\n"
    )
    assert full[3] == []  # no part of a checkpoint
    assert (resumed[1:], reference[1:]) == ([0, "", []], [0, "", []])
    codes = [(name, code) for name, code, _, _ in read_only]
    assert codes == [
        *[("train", 2), ("report", 2), ("export", 2), ("export", 0), ("collect", 2), ("eval", 2)],
        *[("screen", 2), ("compare", 2), ("compare", 2)],
    ]
    for name, code, error, _ in read_only:
        assert error.count("\n") == (1 if code else 0), (name, error)
        assert not code or error.startswith((f"arpo: error: {disk}", f"arpo: error: --out {disk}")), error
