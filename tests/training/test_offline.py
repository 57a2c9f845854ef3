"""The offline loop on Desk, with the shipped model: one step an episode and verdicts written here."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.errors import UserError
from arpo.reporting.display import Display
from arpo.storage.run_folder import RunFolder, RunFolderReader
from arpo.training.collect import run_collection
from arpo.training.offline import ONLINE_METRICS, OfflineTrainer, open_source
from arpo.training.trainer import run_training
from arpo.types import Failure
from clicking_model import clicking_model
from openai_server import MODEL, refuses, says, serving
from trained import lines, train_to_end
from trajectories import trajectory, turn
from verdicts import A, B, C, D, Scripted, small_config, without_evaluator


class Notes(Display):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def collect(folder: Path, tasks: list[str], *overrides: str) -> Path:
    """Two passes, two episodes of each task in each."""
    (folder / "source").mkdir(parents=True, exist_ok=True)
    settings = ("--train.epochs=2", "--env.parallel=1")
    assert run_collection(small_config(folder / "source", tasks, *settings, *overrides)) == 0
    return folder / "source" / "run"


def offline(folder: Path, method: str, source: Path, tasks: list[str], *overrides: str) -> Config:
    settings = (f"--train.method={method}", f"--offline.source={source}", "--offline.batch=2")
    return small_config(folder, tasks, *settings, *overrides)


def train(config: Config) -> OfflineTrainer:
    return train_to_end(OfflineTrainer, config)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A is solved twice in four, B once, C always, D never."""
    Scripted.play({A: [1, 0, 0, 1], B: [0, 0, 0, 1], C: [1, 1, 1, 1]})
    return collect(tmp_path_factory.mktemp("collected"), [A, B, C, D])


@pytest.mark.slow
def test_a_collection_is_the_recipes_whole_budget(source: Path) -> None:
    stored = RunFolderReader(source)
    assert sorted(stored.episode_ids()) == sorted(f"collect-{number}-0" for number in range(16))
    tasks = [stored.load_trajectory(f"collect-{number}-0").task_id for number in range(16)]
    assert tasks == 2 * [A, A, B, B, C, C, D, D]
    assert {path.name for path in source.iterdir()} >= {"recipe.toml", "failures.jsonl", "screenshots.pack"}


@pytest.mark.slow
def test_a_collection_says_what_it_holds_and_grows_with_its_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 0, 1, 1], B: [1, 1, 1, 1, 0]})
    folder = collect(tmp_path, [A, B])
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"{folder}: 8 episodes, 7 successes; 1 of 2 tasks were both solved and not"
    collect(tmp_path, [A, B], "--train.epochs=3")
    said = capsys.readouterr().out.splitlines()
    assert "collecting: 12 episodes, 8 already done" in said
    assert said[-1] == f"{folder}: 12 episodes, 7 successes; 2 of 2 tasks were both solved and not"
    collect(tmp_path, [A, B], "--train.epochs=3", "--train.method=dpo", "--optim.lr=1")  # no episode changes
    assert RunFolderReader(folder).read_changes() == ()
    capsys.readouterr()
    collect(tmp_path, [A, B], "--train.epochs=3", "--env.attempts=5")
    noted = RunFolderReader(folder).read_changes()
    assert [(one.key, one.after, one.batch) for one in noted] == [("env.attempts", "5", 4)]
    assert "changed setting: env.attempts = 5" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"must keep rollout\.temperature = .* choose another --run\.dir"):
        collect(tmp_path, [A, B], "--rollout.temperature=2")
    with pytest.raises(
        UserError, match=r"beyond these 8, for example collect-10-0\. Set train\.epochs at least as high"
    ):
        collect(tmp_path, [A, B])
    assert load_config(folder / "recipe.toml").train.epochs == 3
    played = [record["episodes"] for record in RunFolderReader(folder).read_log("metrics.jsonl")]
    assert (played[-1], played) == (12, sorted(played))
    assert all(record["rollout"] > 0 for record in RunFolderReader(folder).read_log("timing.jsonl"))


@pytest.mark.slow
def test_failed_episodes_of_a_collection_are_counted_and_not_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({B: [1, 0, 1, 0]})
    for _ in range(2):
        (tmp_path / "fragile").mkdir(exist_ok=True)
        settings = ("--train.epochs=2", "--env.attempts=1", "--env.quarantine_after=9")
        config = small_config(tmp_path / "fragile", [A, B], *settings, env="Fragile")
        assert run_collection(config) == 0
        assert [failure["task_id"] for failure in lines(config, "failures.jsonl")] == [A] * 4
        assert len(lines(config, "trajectories.jsonl")) == 4
    out = capsys.readouterr().out
    assert "collecting: 8 episodes, " not in out
    assert "run: 4 episodes, 2 successes, 4 could not be played; 1 of 1 tasks were both solved" in out
    learned = train(offline(tmp_path, "rft", Path(config.run.dir), [A, B], "--offline.passes=1"))
    assert (learned.run.progress.episodes, learned.run.progress.failures) == (4, 4)


def test_where_nothing_can_be_played_the_same_command_tries_again(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--env.attempts=1", env="lying")
    for _ in range(2):
        with pytest.raises(UserError, match="all 2 episodes failed"):
            run_collection(config)
    assert lines(config, "failures.jsonl") == []


@pytest.mark.slow
def test_a_run_and_a_collection_do_not_share_a_folder(source: Path, tmp_path: Path) -> None:
    Scripted.play({})
    with pytest.raises(UserError, match=r"holds collected episodes. Choose another --run.dir"):
        run_training(small_config(tmp_path, [A], f"--run.dir={source}"))
    assert len(RunFolderReader(source).episode_ids()) == 16
    config = small_config(tmp_path, [A])
    assert run_training(config) == 0
    with pytest.raises(UserError, match=r"holds a training run\. Choose another --run\.dir"):
        run_collection(config)


@pytest.mark.slow
def test_each_method_takes_what_it_can_learn_from(source: Path, tmp_path: Path) -> None:
    sizes = {}
    for method, more in (("rft", ()), ("dpo", ()), ("kto", ("--offline.batch=5",))):
        (tmp_path / method).mkdir()
        Scripted.play({})
        config = offline(tmp_path / method, method, source, [A, B, C, D], "--offline.passes=2", *more)
        trainer = train(config)
        sizes[method] = [sum(map(len, update)) for update in trainer._updates(0)]
        _, *updates = lines(config, "metrics.jsonl")
        assert len(updates) == 2 * len(sizes[method])
        assert {update["episodes"] for update in updates} == {16}
        assert not ONLINE_METRICS & set().union(*updates) - {"loss"}
        assert trainer.run.progress.episodes == 16 and trainer.run.progress.groups == {}
        assert [line["landmark"] for line in lines(config, "evaluations.jsonl")] == ["base", "final"]
    # Seven successes; two pairs of A and one of B; all sixteen, in updates as equal as may be.
    assert sizes == {"rft": [1, 2, 2, 2], "dpo": [2, 2, 2], "kto": [4, 4, 4, 4]}


@pytest.mark.slow
def test_a_pass_has_an_order_of_its_own_and_pairs_of_one_task(source: Path, tmp_path: Path) -> None:
    Scripted.play({})
    trainer = train(offline(tmp_path, "dpo", source, [A, B, C, D], "--offline.passes=1"))
    stored = RunFolderReader(source)
    drawn = []
    for number in range(6):
        pairs = [pair for update in trainer._updates(number) for pair in update]
        assert len(pairs) == 3  # two successes of A, one of B
        for won, lost in pairs:
            better, worse = stored.load_trajectory(won), stored.load_trajectory(lost)
            assert (better.task_id, better.score, worse.score) == (worse.task_id, 1.0, 0.0)
        drawn.append(pairs)
    assert trainer._updates(3) == trainer._updates(3) and len({str(pairs) for pairs in drawn}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_more_passes_go_on_where_fewer_ended(source: Path, tmp_path: Path, method: str) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    settings = ("--eval.every=2", "--offline.batch=6", "--optim.lr=1e-3")
    Scripted.play({})
    whole = offline(tmp_path / "whole", method, source, [A, B, C, D], *settings, "--offline.passes=2")
    train(whole)
    for passes in (1, 2):
        parts = offline(
            tmp_path / "parts", method, source, [A, B, C, D], *settings, f"--offline.passes={passes}"
        )
        train(parts)
    ours, theirs = lines(parts, "metrics.jsonl"), lines(whole, "metrics.jsonl")
    measured = ("eval_train", "eval_heldout")
    assert [{k: v for k, v in line.items() if k not in measured} for line in ours] == [
        {k: v for k, v in line.items() if k not in measured} for line in theirs
    ]
    fewer = offline(tmp_path / "parts", method, source, [A, B, C, D], *settings, "--offline.passes=1")
    with pytest.raises(UserError, match=r"offline.passes = 1: the run in .* has already done 2"):
        run_training(fewer)
    assert not (Path(fewer.run.dir) / "recipe.toml").exists()  # what is refused is not written down


@pytest.mark.slow
def test_a_run_goes_on_with_the_episodes_that_it_began_with(source: Path, tmp_path: Path) -> None:
    Scripted.play({A: [1, 0, 0, 1]})
    train(offline(tmp_path, "rft", source, [A, B, C, D], "--offline.passes=1"))
    other = collect(tmp_path / "other", [A, B, C, D])
    with pytest.raises(
        UserError, match=r"offline.source: .* holds other episodes than when this run started"
    ):
        train(offline(tmp_path, "rft", other, [A, B, C, D], "--offline.passes=2"))


def test_an_online_runs_own_episodes_are_a_source_too(tmp_path: Path) -> None:
    # The base evaluation, a batch of two groups of two, the final evaluation.
    Scripted.play({A: [1, 1, 0, 0, 1, 1]})
    (tmp_path / "online").mkdir()
    online = small_config(tmp_path / "online", [A], "--train.epochs=2")
    assert run_training(online) == 0
    found, _ = open_source(offline(tmp_path, "dpo", Path(online.run.dir), [A]), Display())
    assert found.played == 4
    stored = RunFolderReader(Path(online.run.dir))
    scores = {
        f"batch-1-{g}-{e}": stored.load_trajectory(f"batch-1-{g}-{e}").score for g in (0, 1) for e in (0, 1)
    }
    assert sorted(scores.values()) == [0, 0, 1, 1]
    assert found.successes == {A: [name for name, score in scores.items() if score == 1]}
    assert found.failures == {A: [name for name, score in scores.items() if score == 0]}


@pytest.mark.slow
def test_a_student_learns_from_the_episodes_of_a_teacher(tmp_path: Path) -> None:
    """The server knows only text. Its episodes are stored as if the student had answered."""

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return says("Thought: click\nAction: click(start_box='(90,60)')")

    two_steps = "--rollout.max_steps=2"
    with serving(answer) as server:
        teacher = ("--engine.name=openai", f"--server.endpoints={server.url}", f"--server.model={MODEL}")
        Scripted.play({A: [1, 0, 1, 1]})
        taught = collect(tmp_path / "taught", [A], two_steps, *teacher)
        texts = [message["content"] for message in server.requests[1]["messages"]]
    for other in ([], ["--engine.name=person"], [*teacher, "--server.model=other"]):
        with pytest.raises(UserError, match=rf"the server model {MODEL} has played its episodes, not"):
            collect(tmp_path / "taught", [A], two_steps, *other)
    own = collect(tmp_path / "own", [A], two_steps)
    ours, theirs = (RunFolderReader(folder).load_trajectory("collect-0-0") for folder in (own, taught))
    assert [one.context for one in theirs.turns] == [one.context for one in ours.turns]
    for given, sampled in zip(theirs.turns, ours.turns, strict=True):
        said = given.completion
        assert said.text in texts and (said.logprobs, said.versions) == ((), ())
        assert len(said.token_ids) == len(sampled.completion.token_ids)
        assert said.token_ids[-1] == sampled.completion.token_ids[-1]  # the end of the turn
    losses = []
    for name, passes in (("whole", 2), ("parts", 1), ("parts", 2)):
        (tmp_path / name).mkdir(exist_ok=True)
        config = offline(tmp_path / name, "sft", taught, [A], two_steps, f"--offline.passes={passes}")
        train(config)
        losses.append([line["loss"] for line in lines(config, "metrics.jsonl") if "loss" in line])
    whole, _, resumed = losses
    assert len(whole) == 4 and resumed == whole
    assert whole[-1] < whole[0]
    assert not {"logprob_gap", "engine_kl"} & lines(config, "metrics.jsonl")[-1].keys()


def test_an_episode_that_the_student_cannot_write_is_left_out_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tokenizer writes é as one character. The first answer has two."""
    student = shutil.copytree(clicking_model(), tmp_path / "student")
    tokenizer = json.loads((student / "tokenizer.json").read_text("utf-8"))
    tokenizer["normalizer"] = {"type": "NFC"}
    (student / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return says("Thought: cafe" + ("" if number else "\u0301") + "\nAction: wait()")

    with serving(answer) as server:
        teacher = ("--engine.name=openai", f"--server.endpoints={server.url}", f"--server.model={MODEL}")
        Scripted.play({A: [1, 1, 1]})
        folder = collect(tmp_path, [A], f"--model.path={student}", "--env.attempts=1", *teacher)
    said = capsys.readouterr().out
    assert f"{folder}: 3 episodes, 3 successes, 1 could not be played" in said
    assert "1 episode failed, most often generate: the tokenizer of model.path cannot represent" in said


def test_episodes_that_the_engine_failed_are_played_by_the_next_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return refuses(400, "out of credit") if number in (1, 2) else says("Thought: look\nAction: wait()")

    Scripted.play({A: [1, 1, 1, 1]})
    with serving(answer) as server:
        settings = (f"--server.endpoints={server.url}", f"--server.model={MODEL}", "--env.attempts=1")
        config = small_config(
            tmp_path, [A], "--train.epochs=2", "--env.parallel=1", "--engine.name=openai", *settings
        )
        assert run_collection(config) == 1
        said = capsys.readouterr().out
        assert (
            "missing because of the engine: 2 episodes (collect-1-0, collect-2-0), most often generate: "
            in said
        )
        assert "status 400: out of credit. Run the same command again" in said
        assert lines(config, "failures.jsonl") == []
        assert run_collection(config) == 0
    assert len(lines(config, "trajectories.jsonl")) == 4


def test_episodes_that_the_server_refuses_for_good_are_not_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second batch has two episodes, and both are refused."""

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        if number in (4, 5):
            return refuses(400, "a picture is not allowed")
        return says("Thought: x\nAction: wait()")

    Scripted.play({A: [1, 1, 1, 1]})
    with serving(answer) as server:
        settings = (f"--server.endpoints={server.url}", f"--server.model={MODEL}", "--env.attempts=1")
        config = small_config(
            tmp_path, [A], "--train.epochs=3", "--env.parallel=1", "--engine.name=openai", *settings
        )
        assert run_collection(config) == 0
        assert "2 episodes failed, most often generate: " in capsys.readouterr().out
        assert [line["episode_id"] for line in lines(config, "failures.jsonl")] == [
            "collect-4-0",
            "collect-5-0",
        ]
        assert run_collection(config) == 0
        assert len(server.requests) == 6
        assert "status 400: a picture is not allowed. See" in capsys.readouterr().out
        (Path(config.run.dir) / "failures.jsonl").unlink()
        assert run_collection(config) == 0
    assert len(lines(config, "trajectories.jsonl")) == 6


def test_a_server_that_refuses_everything_is_a_mistake_of_the_settings(tmp_path: Path) -> None:
    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return refuses(400, "this model reads no pictures")

    with serving(answer) as server:
        settings = (f"--server.endpoints={server.url}", f"--server.model={MODEL}", "--engine.name=openai")
        config = small_config(tmp_path, [A], "--train.epochs=3", "--env.attempts=1", *settings)
        with pytest.raises(UserError, match=r"all 4 episodes failed.*this model reads no pictures"):
            run_collection(config)
    assert lines(config, "failures.jsonl") == []


def test_a_collection_needs_evaluators(tmp_path: Path) -> None:
    """Also in a recipe with a judge, which is asked in training only."""
    config = small_config(tmp_path, [A, C], "--reward.judge=1", f"--server.model={MODEL}")
    without_evaluator(tmp_path, C)
    with pytest.raises(
        UserError, match=rf"1 training task without an evaluator, for example {C}: .* asks no judge"
    ):
        run_collection(config)


def test_a_success_of_the_judge_alone_is_no_success(source: Path, tmp_path: Path) -> None:
    whole = RunFolderReader(source).load_trajectory("collect-0-0")
    store = RunFolder(tmp_path / "judged")
    store.add_trajectory(replace(whole, score=1.0, evaluated=0.0))
    store.add_trajectory(replace(whole, episode_id="collect-1-0", score=1.0, evaluated=1.0))
    store.close()
    found, _ = open_source(offline(tmp_path, "kto", tmp_path / "judged", [A]), Notes())
    assert (found.successes, found.failures) == ({A: ["collect-1-0"]}, {A: ["collect-0-0"]})


def test_what_cannot_be_trained_on_is_left_out_and_told(source: Path, tmp_path: Path) -> None:
    stored = RunFolderReader(source)
    store = RunFolder(tmp_path / "mixed")
    whole = stored.load_trajectory("collect-0-0")
    store.add_trajectory(whole)
    store.add_trajectory(trajectory(1.0, turn([], [], restart=True), name="text", task=A))
    store.add_trajectory(trajectory(1.0, name="pruned", task=A))
    store.add_trajectory(replace(whole, episode_id="other", task_id=B))
    store.add_trajectory(replace(whole, episode_id="eval3-train-0-0"))
    store.prune(["collect-0-0", "other"])
    for name, task in (("collect-9-0", A), ("eval3-train-0-1", A), ("collect-8-0", B)):
        failure = Failure(episode_id=name, task_id=task, kind="E", where="step", message="", attempts=1)
        store.add_failure(failure)
    store.close()
    display, mixed = Notes(), f"{tmp_path}/mixed: 1 episodes are left out:"
    found, _ = open_source(offline(tmp_path, "rft", tmp_path / "mixed", [A]), display)
    assert (found.played, found.failed) == (3, 1)
    assert (found.successes, found.failures) == ({A: ["collect-0-0"]}, {})
    assert display.notes == [
        f"{mixed} they belong to other tasks",
        f"{mixed} they have answers without tokens, like those of a chat server",
        f"{mixed} their screenshots are not in screenshots.pack (pruned, or the file was truncated)",
    ]


def test_episodes_whose_screenshots_were_cut_off_are_left_out_and_told(source: Path, tmp_path: Path) -> None:
    store = RunFolder(tmp_path / "cut")
    store.add_trajectory(RunFolderReader(source).load_trajectory("collect-0-0"))
    store.add_trajectory(trajectory(1.0, name="cut", task=A))
    store.close()
    pack = tmp_path / "cut" / "screenshots.pack"
    os.truncate(pack, pack.stat().st_size - 1)
    display = Notes()
    found, _ = open_source(offline(tmp_path, "rft", tmp_path / "cut", [A]), display)
    assert found.successes == {A: ["collect-0-0"]}
    assert display.notes == [
        f"{tmp_path}/cut: 1 episodes are left out: "
        "their screenshots are not in screenshots.pack (pruned, or the file was truncated)"
    ]


def test_an_episode_cut_within_its_line_is_told(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source, tmp_path / "cut")
    lines = tmp_path / "cut" / "trajectories.jsonl"
    os.truncate(lines, lines.stat().st_size - 200)
    display = Notes()
    open_source(offline(tmp_path, "rft", tmp_path / "cut", [A]), display)
    incomplete = "the last line of trajectories.jsonl is incomplete: 1 episode is left out"
    assert f"{tmp_path}/cut: {incomplete}" in display.notes


def test_a_malformed_episode_is_no_success(source: Path, tmp_path: Path) -> None:
    store = RunFolder(tmp_path / "malformed")
    store.add_trajectory(replace(RunFolderReader(source).load_trajectory("collect-0-0"), malformed=True))
    store.close()
    with pytest.raises(UserError, match="no successes among its 1 episodes of the training tasks"):
        open_source(offline(tmp_path, "rft", tmp_path / "malformed", [A]), Display())


def test_a_source_with_nothing_to_learn_is_refused(source: Path, tmp_path: Path) -> None:
    def refused(method: str, folder: Path | str, tasks: list[str], *overrides: str) -> str:
        with pytest.raises(UserError) as caught:
            open_source(offline(tmp_path, method, Path(folder), tasks, *overrides), Display())
        return str(caught.value)

    assert "is empty, and rft learns from stored episodes" in refused("rft", "", [A], "--offline.source=")
    wrong = refused("rft", tmp_path / "nowhere", [A])
    assert wrong.startswith("offline.source: ") and "nowhere: not found. Name a folder of" in wrong
    (tmp_path / "other").mkdir()
    assert "other: not a run folder" in refused("rft", tmp_path / "other", [A])
    for name in ("trajectories.jsonl", "screenshots.pack"):
        (tmp_path / "other" / name).touch()
    assert "other: has no episodes. Collect some" in refused("rft", tmp_path / "other", [A])
    damaged = tmp_path / "damaged"
    shutil.copytree(source, damaged)
    os.truncate(damaged / "screenshots.pack", 500)
    assert "no episode of the training tasks can be used (4: their screenshots are not in" in refused(
        "rft", damaged, [A]
    )
    assert "is run.dir" in refused("rft", tmp_path / "run", [A])
    assert "no successes among its 4 episodes" in refused("rft", source, [D])
    assert "no successes among its 4 episodes" in refused("kto", source, [D])
    assert "no successes and failures of one task" in refused("dpo", source, [C, D])
    assert "none of its 16 episodes belongs to tasks.train" in refused("rft", source, ["pool-002"])
    assert (
        "4 of its 4 episodes have other prompts or tokens than this run. Its recipe has model.max_pixels = "
        in (refused("rft", source, [A], "--model.max_pixels=20000"))
    )


def test_episodes_of_another_text_of_the_task_are_left_out_and_told(source: Path, tmp_path: Path) -> None:
    """The task file has another instruction for A than when its episodes were collected."""
    config, display = offline(tmp_path, "rft", source, [A, C]), Notes()
    path = tmp_path / "train-tasks.json"
    a, c = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps([{**a, "instruction": "Do nothing"}, c]), "utf-8")
    found, _ = open_source(config, display)
    assert (found.played, list(found.successes), list(found.failures)) == (8, [C], [])
    left_out = "4 episodes are left out: their prompts or tokens are not those of this run (another text of"
    assert left_out in display.notes[-1]
    path.write_text(json.dumps([{**one, "instruction": "Do nothing"} for one in (a, c)]), "utf-8")
    with pytest.raises(
        UserError, match=r"8 of its 8 episodes have other prompts .* Check model\.path and the task"
    ):
        open_source(config, display)


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("--loss.ratio=behaviour", "loss.ratio: is behaviour, must be recompute with train.method = dpo"),
        ("--loss.kl=0.1", "loss.kl: is 0.1, must be 0 with train.method = dpo"),
        ("--loss.kl=0.2", "current policy, and stored answers are older. Add --loss.kl 0"),
        ("--train.curriculum=middle", "train.curriculum: is middle, must be none with train.method = dpo"),
        (
            "--train.dynamic_sampling=true",
            "train.dynamic_sampling: is true, must be false with train.method = dpo",
        ),
    ],
)
def test_what_only_the_policys_own_episodes_allow_is_refused(setting: str, refused: str) -> None:
    online = ["--replay.enabled=false", setting]
    load_config(None, online)
    with pytest.raises(UserError, match=re.escape(refused)):
        load_config(None, [*online, "--train.method=dpo"])
