"""Any file of a run, damaged at random: resume, report and export work, or name the file and the remedy."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from arpo.cli.entry_point import main

pytestmark = pytest.mark.slow

TASKS = {"pool": ("pool-001", "pool-013"), "heldout": ("heldout-006",)}
SETTINGS = """
    --train.epochs 2 --train.tasks_per_batch 2 --train.tasks_per_update 2 --rollout.max_steps 2
    --eval.every 0 --eval.rollouts 1 --eval.heldout_rollouts 1 --run.threads 1
"""
FILES = (
    *("metrics.jsonl", "evaluations.jsonl", "timing.jsonl", "failures.jsonl", "trajectories.jsonl"),
    *("groups.jsonl", "format.json"),
    *("screenshots.pack", "recipe.toml", "summary.json", "report.html", ".lock", "skipped.json"),
    *("model/config.json", "checkpoints/step-000002/manifest.json", "checkpoints/step-000002/state.json"),
    *("checkpoints/step-000001/manifest.json", "checkpoints/step-000002/learner/learner.json"),
    *("checkpoints/step-000002/learner/weights.safetensors", "checkpoints/step-000002", "checkpoints"),
    *("checkpoints/step-000009", "checkpoints/step-abc", "model", "tensorboard"),
)
WRITTEN = ((".lock",), ("recipe.toml",), ("summary.json",), ("report.html",), ("model",), ("tensorboard",))
REMEDY = re.compile(
    r"restore|remove the run|move it to another folder|another --run\.dir|check the path|check the disk|"
    r"train it first|give the folder of a run|must be|cannot be read as TOML|unknown (key|section)",
)

Harm = Callable[[bytes, Random], bytes]
JUNK = (
    b"\xff\xfe",
    b"\x00" * 64,
    b'{"step":',
    b"[" * 100_000,
    b'{"a":' + b"9" * 5000 + b"}",
    b"{}",
    b"[]",
    b"3",
)


def _flip(content: bytes, rng: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 100))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _insert(content: bytes, rng: Random) -> bytes:
    """A damaged line in the middle."""
    at = content.find(b"\n", rng.randrange(len(content) + 1)) + 1
    return content[:at] + rng.choice(JUNK) + b"\n" + content[at:]


def _replace_a_value(content: bytes, rng: Random) -> bytes:
    """Another JSON value in the place of one: the text stays valid JSON."""
    values = list(
        re.finditer(rb'(?<=[:\[, ])("[^"\n]*"|-?[0-9][0-9.e-]*|true|false|null|\[\]|\{\})', content)
    )
    if not values:
        return content
    chosen = rng.choice(values)
    other = rng.choice((b"null", b'"x"', b"-1", b"1e999", b"NaN", b"[]", b"{}", b"true", b"9" * 400, b"0.5"))
    return content[: chosen.start()] + other + content[chosen.end() :]


HARMS: dict[str, Harm] = {
    "flip": _flip,
    "truncate": lambda content, rng: content[: rng.randrange(len(content) + 1)],
    "extend": lambda content, rng: content + rng.randbytes(rng.randrange(1, 300)),
    "empty": lambda content, rng: b"",
    "junk": lambda content, rng: rng.choice(JUNK) * rng.choice((1, 1, 1000)),
    "insert": _insert,
    "value": _replace_a_value,
}
KINDS = (*HARMS, "delete", "folder", "dangling link", "link to itself", "link to another file", "pipe")


def harm(path: Path, kind: str, rng: Random, elsewhere: Path) -> None:
    content = path.read_bytes() if path.is_file() else b""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        path.rename(elsewhere / path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "delete":
            pass
        case "folder":
            path.mkdir()
            (path / "inside").write_text("mine")
        case "dangling link":
            path.symlink_to(elsewhere / "nowhere" / "file")
        case "link to itself":
            path.symlink_to(path)
        case "link to another file":
            (elsewhere / "other").write_bytes(b"precious\n")
            path.symlink_to(elsewhere / "other")
        case "pipe":
            os.mkfifo(path)
        case _:
            path.write_bytes(HARMS[kind](content, rng))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    for name, ids in TASKS.items():
        counts = {task: {"successes": 0, "rollouts": 0} for task in ids}
        (folder / f"{name}.json").write_text(json.dumps({"source": f"desk:{name}", "tasks": counts}))
    assert main(train(folder, folder / "run")) == 0
    return folder


def train(folder: Path, run: Path) -> list[str]:
    tasks = ["--tasks.train", f"{folder}/pool.json", "--tasks.heldout", f"{folder}/heldout.json"]
    return ["train", "desk", *SETTINGS.split(), *tasks, "--run.dir", str(run)]


def copy_run(run: Path, target: Path) -> None:
    """A copy. Large files, which no command changes in place, are links to the same content."""

    def copy(source: str, destination: str) -> None:
        (os.link if Path(source).stat().st_size > 1_000_000 else shutil.copyfile)(source, destination)

    shutil.copytree(run, target, copy_function=copy)


def content_of(folder: Path) -> dict[str, object]:
    """Every entry of the folder that no command may change, with its content; large files by inode."""
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (path.stat().st_ino if path.stat().st_size > 1_000_000 else path.read_bytes())
        if path.is_file()
        else ""
        for path in folder.rglob("*")
        if path.relative_to(folder).parts[1:2] not in WRITTEN
    }


def check(
    command: str,
    name: str,
    kind: str,
    seed: int,
    healthy: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, elsewhere, out = folder / "run", folder / "elsewhere", folder / "exported"
    copy_run(healthy / "run", run)
    elsewhere.mkdir()
    harm(run / name, kind, Random(seed), elsewhere)
    before = content_of(folder)
    capsys.readouterr()
    words = {
        "report": ["report", str(run)],
        "export": ["export", str(run), str(out)],
        "train": train(healthy, run),
    }
    code = main(words[command])
    error = capsys.readouterr().err
    if code == 0:
        assert error == ""
        return
    assert code == 2, error
    assert error.count("\n") == 1, error
    assert str(run) in error and REMEDY.search(error.replace(str(run), "")), error
    after = content_of(folder)
    assert {path: after.get(path) for path in before} == before, "a refused command changes nothing"
    assert not out.exists()


@pytest.mark.parametrize(("command", "examples"), [("report", 80), ("export", 20), ("train", 20)])
def test_a_damaged_file_is_named_with_the_remedy_or_does_not_matter(
    command: str,
    examples: int,
    healthy: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    @settings(
        max_examples=int(os.environ.get("DAMAGE_EXAMPLES", examples)),
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(name=st.sampled_from(FILES), kind=st.sampled_from(KINDS), seed=st.integers(0, 2**32))
    def property_holds(name: str, kind: str, seed: int) -> None:
        folder = tmp_path_factory.mktemp("damaged")
        try:
            check(command, name, kind, seed, healthy, folder, capsys)
        finally:
            shutil.rmtree(folder)

    property_holds()
