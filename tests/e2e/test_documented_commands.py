"""The commands of the pages that train, play or export on Desk are run, with tiny settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from documentation import PAGES, ROOT, shown_commands
from tiny_runs import PLAYING, tiny_settings
from verdicts import HELDOUT, select

# Commands that are not run, by the word that tells them.
NEEDS = {
    "--help": "tests/test_documentation.py runs them",
    "--push": "the hub",
    "wandb": "an account",
    "openai": "a server",
    "person": "a person: tests/browser/test_person_plays.py",
    "osworld": "desktops",
    "--watch": "waits for Ctrl-C: tests/cli/test_play_command.py",
    "shop": "a server and a browser: tests/browser/test_browser_env.py",
    "miniwob": "a browser: tests/browser/test_miniwob.py",
    "openenv": "an OpenEnv server: tests/envs/openenv/test_openenv_package.py",
    "gymnasium:": "an environment of the reader: tests/envs/gymnasium",
    "browsergym:": "a browser: tests/browser/test_browsergym.py",
    "my_agent.py": "the package openai: tests/vllm",
    "inspect_agent.py": "the package inspect-ai: tests/rollout/test_program.py",
    "verifiers_agent.py": "the package verifiers: tests/rollout/test_program.py",
    "--cluster.ray": "Ray",
    "--reward.judge": "a server: tests/training/test_judged_scores.py",
    "prompt.txt": "a prompt and a model of the reader",
    "step-000010": "a longer run",
    "desk base": "a folder of the reader",
    "--seeds": "several runs: tests/e2e/test_compared_runs.py",
    "--report": "a comparison: tests/e2e/test_compared_runs.py",
    "desk:validation": "512 episodes",
    "desk:test": "512 episodes",
    "desk:pool": "369 episodes",
    "--train.epochs 36": "576 groups",
    "runs/kept.json": "tasks that the model sometimes solves: tests/e2e/test_example.py",
    "--train.method sft": "a teacher: tests/training/test_offline.py",
    "--replay.seeds": "a teacher: tests/training/test_seeds.py",
    "my_script.py": "a script of the reader: tests/rollout/test_program.py",
    "paper/rft": "successes: tests/e2e/test_offline_resume.py",
}


def can_run(words: list[str]) -> bool:
    line = " ".join(words)
    runs = words[0] in (*PLAYING, "export", "compare", "report") or "--export" in words
    return runs and len(words) > 1 and not any(word in line for word in NEEDS)


def prepare(folder: Path) -> None:
    """The files and runs that the pages assume."""
    shutil.copytree(
        ROOT / "examples", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    select(folder / "train.json", "desk:pool", ["pool-023", "pool-010"])
    select(folder / "heldout.json", "desk:heldout", [HELDOUT])
    select(folder / "kept.json", "desk:pool", ["pool-023", "pool-010"])
    (folder / "mine.toml").write_text('extends = "desk"\n[run]\ndir = "runs/own"\n')
    for name, *settings in (
        ("runs/desk",),
        ("runs/s1", "--run.seed", "1"),
        ("runs/lora", "--model.train", "lora"),
    ):
        words = ["train", "desk", "--run.dir", name, *settings]
        assert main([*words, *tiny_settings(words)]) == 0
    for name in ("first", "s0", "mine", "arpo", "sft"):
        shutil.copytree("runs/desk", f"runs/{name}")


@pytest.mark.slow
def test_the_commands_run_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    prepare(tmp_path)
    ran = []
    for page in PAGES:
        for words in filter(can_run, shown_commands(page)):
            if words not in ran:
                code = main([*words, *tiny_settings(words)])
                assert code == 0, (page, words, capsys.readouterr().err)
                ran.append(words)
    assert len(ran) >= 12
