"""The commands in sequence: train, then report, export, eval and screen; and their error messages."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from arpo.cli.entry_point import main
from arpo.models.loading import resolve_model
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.storage.run_folder import RunFolderReader
from arpo.tasks.lists import load_tasks
from arpo.types import Trajectory
from clicking_model import clicking_model
from tiny_vlm import QWEN3_5
from verdicts import Scripted

TASKS = {"train": ("desk:pool", "pool-013", "pool-021"), "heldout": ("desk:heldout", "heldout-006")}
SMALL = """
    --run.threads 1 --train.epochs 1 --train.tasks_per_batch 2 --train.tasks_per_update 2
    --rollout.max_steps 2 --rollout.temperature 2 --rollout.max_answer_tokens 24 --loss.kl 0 --optim.lr 1e-3
    --eval.every 0 --eval.rollouts 2 --eval.heldout_rollouts 1 --eval.temperature 0.5
"""


def settings(folder: Path) -> list[str]:
    words = SMALL.split()
    for name, (source, *ids) in TASKS.items():
        counts = {task: {"successes": 0, "rollouts": 0} for task in ids}
        (folder / f"{name}.json").write_text(json.dumps({"source": source, "tasks": counts}), "utf-8")
        words += [f"--tasks.{name}", str(folder / f"{name}.json")]
    return words


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    assert main(["train", "desk", *settings(folder), "--run.dir", str(folder / "run")]) == 0
    return folder / "run"


def test_train_writes_all_promised_files(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    promised = {"recipe", "seed", "episodes", "success", "groups", "failures", "seconds"}
    assert promised <= summary.keys()
    assert {when: sorted(rates) for when, rates in summary["success"].items()} == {
        "base": ["heldout", "train"],
        "final": ["heldout", "train"],
    }
    assert summary["groups"].keys() == {"total", "without_signal", "rescued"}
    assert (summary["episodes"], summary["groups"]["total"], summary["failures"]) == (4, 2, 0)
    assert sorted(path.name for path in run.iterdir() if not path.name.startswith(".")) == [
        *("calls.jsonl", "checkpoints", "evaluations.jsonl", "failures.jsonl", "format.json", "groups.jsonl"),
        *("metrics.jsonl", "model", "recipe.toml", "report.html", "screenshots.pack", "summary.json"),
        *("tensorboard", "timing.jsonl", "token_stats.jsonl", "trajectories.jsonl"),
    ]


@pytest.mark.slow
def test_report_writes_the_same_page_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run / "report.html"
    made_by_train = page.read_text("utf-8")
    page.unlink()
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text("utf-8") == made_by_train
    assert "training tasks" in made_by_train


def logprobs(
    model: torch.nn.Module, renderer: Renderer, episode: Trajectory, temperature: float
) -> list[float]:
    """Log-probabilities of the sampled tokens, by plain transformers with its own positions and masks."""
    tokens: list[int] = []
    positions: list[int] = []
    for turn in episode.turns:
        tokens += turn.context
        positions += range(len(tokens), len(tokens) + len(turn.completion.token_ids))
        tokens += turn.completion.token_ids
    images = [image for turn in episode.turns for image in turn.images]
    ids = torch.tensor([tokens])
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            mm_token_type_ids=(ids == renderer.image_token_id).int(),
            pixel_values=torch.from_numpy(
                np.concatenate([vision.patchify(image, renderer.settings) for image in images])
            ),
            image_grid_thw=torch.tensor([renderer.grid(image) for image in images]),
        ).logits[0]
    logp_TV = (logits / temperature).log_softmax(-1)
    return [float(logp_TV[position - 1, tokens[position]]) for position in positions]


@pytest.mark.slow
def test_plain_transformers_loads_the_exported_final_policy(run: Path, tmp_path: Path) -> None:
    check_export(run, exported_base(tmp_path), tmp_path / "exported")


@pytest.mark.slow
def test_a_model_with_linear_attention_is_trained_and_exported(tmp_path: Path) -> None:
    base, run = clicking_model(QWEN3_5), tmp_path / "run"
    Scripted.play({"pool-013": [0, 0, 1, 0], "pool-021": [0, 0, 0, 1]})  # two of the base model first
    words = ["--model.path", base, "--model.dialect", "ui_tars_1_5", "--env.name", "verdicts:Scripted"]
    assert main(["train", "desk", *settings(tmp_path), *words, "--run.dir", str(run)]) == 0
    with closing(RunFolderReader(run)) as store:
        evaluated = [store.load_trajectory(name) for name in store.episode_ids() if name.startswith("eval1-")]
    assert {len(episode.turns) for episode in evaluated} == {2}
    check_export(run, Path(base), tmp_path / "exported")


def check_export(run: Path, before: Path, out: Path) -> None:
    """The exported weights give the log-probabilities of the last evaluation; those `before` do not."""
    assert main(["export", str(run), str(out)]) == 0
    trained = AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32)
    base = AutoModelForImageTextToText.from_pretrained(before, dtype=torch.float32)
    renderer = Renderer.from_folder(out, 3136, 2116800)
    store = RunFolderReader(run)
    last = [name for name in store.episode_ids() if name.startswith("eval1-")]
    assert len(last) == 3
    moved = 0.0
    for name in last:
        episode = store.load_trajectory(name)
        assert {turn.completion.policy_version for turn in episode.turns} == {1}
        played = [logprob for turn in episode.turns for logprob in turn.completion.logprobs]
        assert logprobs(trained, renderer, episode, 0.5) == pytest.approx(played, abs=1e-4)
        moved = max(moved, np.abs(np.subtract(logprobs(base, renderer, episode, 0.5), played)).max())
    store.close()
    assert moved > 1e-3
    assert (run / "model" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def exported_base(folder: Path) -> Path:
    assert main(["export", str(resolve_model("base")), str(folder / "base")]) == 0
    return folder / "base"


@pytest.mark.slow
def test_eval_measures_the_exported_model(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    assert main(["eval", *settings(tmp_path), "--model.path", str(run / "model"), "--out", str(out)]) == 0
    scores = json.loads(out.read_text("utf-8"))
    assert (scores["model"], scores["temperature"]) == (str(run / "model"), 0.5)
    for which, tasks, episodes in (("train", 2, 4), ("heldout", 1, 1)):
        assert (len(scores[which]["tasks"]), scores[which]["episodes"]) == (tasks, episodes)
        assert scores[which]["success"] == scores[which]["successes"] / episodes
    again = tmp_path / "again.json"
    assert main(["eval", *settings(tmp_path), "--model.path", str(run / "model"), "--out", str(again)]) == 0
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.slow
def test_screen_writes_a_task_list_for_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tasks of one step at the default temperature: some of eight rollouts succeed.
    few = {task: {"successes": 0, "rollouts": 0} for task in ("pool-001", "pool-010", "pool-002")}
    (tmp_path / "few.json").write_text(json.dumps({"source": "desk:pool", "tasks": few}), "utf-8")
    monkeypatch.chdir(tmp_path)
    words = ["--rollout.max_steps", "2", "--run.threads", "1", "--rollouts", "8"]
    assert main(["screen", "--tasks", "few.json", "--out", "kept.json", *words]) == 0
    assert capsys.readouterr().out.endswith("written to kept.json\n")
    kept = json.loads(Path("kept.json").read_text("utf-8"))
    assert kept["source"] == "few.json"
    assert all(count["rollouts"] == 8 and 1 <= count["successes"] <= 8 for count in kept["tasks"].values())
    assert {task.id for task in load_tasks("kept.json")} <= few.keys()


@pytest.mark.slow
def test_doctor_accepts_the_shipped_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "32 tasks in desk:32, screens of 224x168" in printed
    assert printed.endswith("Training works on this machine: arpo train\n")
    assert list(tmp_path.iterdir()) == []


MISTAKES = {
    "train desk --tasks.train desk:nothing": "desk:nothing: no such shipped task list",
    "train desk --tasks.train broken.json": "broken.json: line 1, column 2: not JSON",
    "train desk --tasks.heldout desk:pool": "is also training task",
    "train desk --env.name nowhere:Env": "env.name = 'nowhere:Env'",
    "train desk --model.path nowhere": "model.path needs 'base'",
    "train desk --model.prompt nowhere.txt": "nowhere.txt",
    "train --run.dir broken.json": "broken.json: the folder of the run cannot be written: File exists",
    "train desk --rollout.max_context_tokens 70": "max_context_tokens = 70 is too small",
    "collect desk --rollout.max_context_tokens 70": "is too small: prompt and answer need",
    "eval --out .": "--out .: is a folder. Name a file in it",
    "eval --out broken.json/scores.json": "cannot create its folder",
    "eval --out a.json --eval.rollouts none": "eval.rollouts",
    "screen --out a.json --tasks nowhere.json": "nowhere.json: no such task file",
    "export . broken.json": "broken.json: exists and is not empty",
    "export nowhere out": "nowhere: is not a run folder, a checkpoint, a model folder or ORG/NAME of the hub",
    "report nowhere": "nowhere: not a run folder",
}


def test_a_run_with_a_setting_of_an_earlier_version_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run, tmp_path / "run")
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text("utf-8").replace("\ndialect = ", "\ncoordinates = "), "utf-8")
    assert main(["train", "--run.dir", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "an earlier version wrote this run" in error and "model.coordinates" in error


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{nothing", "utf-8")
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("arpo: error: ") and error.count("\n") == 1
    assert MISTAKES[words] in error
