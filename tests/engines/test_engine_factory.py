"""Every command opens its engine through `open_engine`: `arpo eval` and `arpo screen` use a server, too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import torch

from arpo.cli.entry_point import main
from arpo.config.recipe import load_config
from arpo.engines.factory import model_id, open_engine
from arpo.engines.in_process import InProcessEngine
from arpo.engines.openai import OpenAIEngine
from arpo.engines.vllm import VllmEngine
from arpo.errors import UserError
from arpo.evaluation.evaluate import run_evaluation
from arpo.evaluation.screening import run_screening
from arpo.models import loading, memory_advice
from arpo.models.memory_plan import GIB
from arpo.prompts.rendering import Renderer
from arpo.storage.run_folder import RunFolderReader
from arpo.training.collect import run_collection
from openai_server import MODEL, tiny_model_server
from verdicts import A, B, select

GREEDY = ("--eval.temperature=0", "--eval.rollouts=1", "--tasks.heldout=", "--rollout.max_steps=3")


def settings(folder: Path, *more: str) -> list[str]:
    tasks = select(folder / "train.json", "desk:pool", [A, B])
    return [f"--tasks.train={tasks}", "--run.threads=1", f"--run.dir={folder / 'run'}", *more]


def test_the_name_chooses_the_engine() -> None:
    here = load_config("desk", ["--run.threads=1"])
    assert isinstance(open_engine(here).engine, InProcessEngine)
    assert open_engine(here).model is not None and model_id(here) == "base"
    served = load_config("desk", ["--engine.name=openai", "--server.model=ui-tars"])
    opened = open_engine(served)
    assert isinstance(opened.engine, OpenAIEngine)
    assert opened.model is None and model_id(served) == "ui-tars"


def test_an_engine_in_process_starts_and_closes_without_effect() -> None:
    engine = open_engine(load_config("desk", ["--run.threads=1"])).engine

    async def start_and_close() -> list[str]:
        messages = [*await engine.start()]
        await engine.close()
        return messages

    assert asyncio.run(start_and_close()) == []


@pytest.mark.slow
def test_eval_gives_the_same_scores_with_a_server(tmp_path: Path) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    words = settings(tmp_path, *GREEDY)
    assert run_evaluation(load_config("desk", words), here) == 0
    with tiny_model_server() as server:
        served = ("--engine.name=openai", f"--server.endpoints={server.url}", f"--server.model={MODEL}")
        assert run_evaluation(load_config("desk", [*words, *served]), there) == 0
        assert server.requests
    one, other = (json.loads(path.read_text("utf-8")) for path in (here, there))
    assert (one["model"], other["model"]) == ("base", MODEL)
    assert one["train"] == other["train"] and one["train"]["episodes"] == 2


@pytest.mark.slow
def test_screen_plays_with_a_server(tmp_path: Path) -> None:
    with tiny_model_server() as server:
        served = ("--engine.name=openai", f"--server.endpoints={server.url}", f"--server.model={MODEL}")
        config = load_config("desk", settings(tmp_path, *served, "--rollout.max_steps=6"))
        assert run_screening(config, config.tasks.train, 4, tmp_path / "kept.json") == 0
        assert server.requests
    report = json.loads((tmp_path / "kept.json.report.json").read_text("utf-8"))
    assert report["terms"]["model"] == MODEL and report["totals"]["rollouts"] == 8


@pytest.mark.slow
def test_a_teacher_with_the_weights_of_the_student_gives_the_same_tokens(tmp_path: Path) -> None:
    """The server samples with the same seeds, and returns text: nothing is lost on the way."""
    play = ("--rollout.max_steps=3", "--rollout.group_size=2", "--train.epochs=1")
    told: list[list[tuple[tuple[int, ...], ...]]] = []
    with tiny_model_server() as server:
        served = ("--engine.name=openai", f"--server.endpoints={server.url}", f"--server.model={MODEL}")
        for name, engine in (("own", ()), ("taught", served)):
            (tmp_path / name).mkdir()
            assert run_collection(load_config("desk", settings(tmp_path / name, *play, *engine))) == 0
            reader = RunFolderReader(tmp_path / name / "run")
            turns = [
                turn for one in sorted(reader.episode_ids()) for turn in reader.load_trajectory(one).turns
            ]
            told.append([(turn.context, turn.completion.token_ids) for turn in turns])
    assert told[0] == told[1] and len(told[0]) > 4


def test_training_refuses_an_engine_without_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *settings(tmp_path, "--engine.name=openai")]) == 2
    assert 'engine.name = "openai": a chat server returns text without tokens' in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_eval_osworld_plays_in_process_if_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "osworld", "desk", "--engine.name", "in_process", "--env", "desk", "--max-steps", "3"]
    words += ["--tasks", select(tmp_path / "tasks.json", "desk:pool", [A]), "--temperature", "0"]
    words += ["--result-dir", str(tmp_path / "results"), "--run.threads", "1", "--top-p", "0.9"]
    assert main(words) == 0
    assert "--top-p has no effect: it is for servers" in capsys.readouterr().err
    (score,) = (tmp_path / "results/pyautogui/screenshot/base/0").glob("*/*/result.txt")
    assert float(score.read_text("utf-8")) in (0.0, 1.0)


@pytest.mark.parametrize(
    "command",
    [
        ["train", "desk"],
        ["eval", "desk", "--out", "scores.json"],
        ["screen", "desk", "--tasks", "desk:32", "--out", "kept.json"],
    ],
)
def test_a_recipe_that_does_not_fit_into_the_gpu_is_refused_before_the_model_is_loaded(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then the same command with enough memory loads it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(memory_advice, "resolve_device", lambda device: "cuda")
    loaded: list[str] = []

    def load(*_: object) -> None:
        loaded.append("model")
        raise UserError("the model was loaded")

    monkeypatch.setattr(loading, "load_model", load)
    for free, expected in ((1, []), (8, ["model"])):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free * GIB, 80 * GIB))
        assert main(command) == 2
        assert loaded == expected
    first, second = capsys.readouterr().err.split("arpo: error: ")[1:]
    assert first.startswith("GPU memory:\n") and "does not fit into a GPU of 1 GiB" in first
    assert second == "the model was loaded\n"


def test_vllm_serves_without_weights_in_this_process_unless_a_learner_trains_them() -> None:
    config = load_config("desk", ["--engine.name=vllm", "--run.threads=1"])
    opened, learning = open_engine(config), open_engine(config, learning=True)
    assert isinstance(opened.engine, VllmEngine) and isinstance(learning.engine, VllmEngine)
    assert opened.model is None and learning.model is not None
    assert isinstance(opened.renderer, Renderer) and model_id(config) == "base"
    for section in ("rollout", "eval"):
        hot = load_config("desk", ["--engine.name=vllm", f"--{section}.temperature=2.5"])
        with pytest.raises(UserError, match=rf"{section}.temperature: is 2.5, vLLM accepts at most 2"):
            open_engine(hot)
