"""Durations of stages, calls of episodes, token statistics, and failed episodes of a run."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from arpo.config import Config
from arpo.errors import UserError
from arpo.learner.base import TokenStats
from arpo.reporting.display import PlainDisplay, format_seconds
from arpo.rollout.activity import EpisodeCalls
from arpo.storage.run_folder import RunFolder
from arpo.training.collect import run_collection
from arpo.training.reporting import CallLog, Timing, logged_seconds, report_failed_episodes, token_lines
from arpo.training.trainer import Trainer
from arpo.types import Answer, Failure
from trained import lines, train_to_end
from verdicts import A, B, Scripted, small_config


def timed(*moments: float, known: dict[str, float] | None = None) -> Timing:
    clock = iter((0.0, *moments))
    return Timing(known, clock=lambda: next(clock))


def test_stages_are_timed_until_they_are_taken() -> None:
    timing = timed(0.0, 2.0, 2.0, 5.0, 5.0, 6.0, 0.0, 4.0, 0.0, 1.0)
    for stage in ("rollout", "learn", "rollout"):
        with timing.stage(stage):
            pass
    assert timing.take(12) == {"rollout": 3.0, "learn": 3.0, "episodes_per_second": 4.0}
    with timing.stage("rollout"):
        pass
    assert timing.take(2) == {"rollout": 4.0, "episodes_per_second": 0.5}
    with timing.stage("learn"):
        pass
    timing.add({"rollout": 2.0})
    assert timing.take(8) == {"learn": 1.0, "rollout": 2.0, "episodes_per_second": 4.0}


def test_the_rest_of_a_batch_takes_as_long_as_the_last_time() -> None:
    stages = ("rollout", "learn", "save")
    timing = timed(0.0, 10.0, 100.0, 100.0, 104.0, 108.0, known={"rollout": 30.0, "learn": 8.0, "save": 2.0})
    with timing.stage("rollout"):
        assert timing.remaining(stages) == (30.0 - 10.0) + 8.0 + 2.0
    with timing.stage("learn"):  # the rollout took 100 s, which no longer matters
        assert timing.remaining(stages) == (8.0 - 4.0) + 2.0


def test_a_stage_that_takes_longer_than_the_last_time_ends_soon() -> None:
    timing = timed(0.0, 50.0, 50.0, known={"rollout": 30.0, "learn": 8.0})
    with timing.stage("rollout"):
        assert timing.remaining(("rollout", "learn")) == 8.0


def test_an_unknown_duration() -> None:
    assert timed(known={"rollout": 30.0}).about(("rollout", "learn")) == "duration unknown"
    assert timed(known={"save": 30.0}).about(("save",)) == "about 30 s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "1 s"), (20.4, "20 s"), (100.0, "2 min"), (7000.0, "2 h")]
)
def test_estimates_as_text(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_the_rate_of_asynchronous_training_is_over_waiting_and_learning() -> None:
    timing = timed(0.0, 1.0, 1.0, 4.0)
    with timing.stage("wait"):
        pass
    with timing.stage("learn"):
        pass
    assert timing.take(8) == {"wait": 1.0, "learn": 3.0, "episodes_per_second": 2.0}


def test_stages_have_the_moment_of_their_begin() -> None:
    timing = timed(1.0, 3.0, 4.0, 9.0)
    for stage in ("rollout", "learn"):
        with timing.stage(stage):
            pass
    assert timing.take_stages() == [("rollout", 1.0, 2.0), ("learn", 4.0, 5.0)]
    assert timing.take_stages() == []


CALLS = ["start", "engine", "step", "evaluate"]  # of an episode of one step


def test_times_count_from_the_start_of_the_run(tmp_path: Path) -> None:
    """The run is resumed at second 100 of its age, when the clock shows 7."""
    moments = iter([7.0])
    store = RunFolder(tmp_path)
    log = CallLog(store, 100.0, clock=lambda: next(moments))
    calls = (("start", 8.0, 0.50004), ("engine", 9.5, 2.0))
    log.add_episode(
        EpisodeCalls(episode_id="batch-4-0-1", host="http://a:8700", fault="EnvTimeout", calls=calls)
    )
    log.add_stages(4, [("rollout", 7.5, 30.0)])
    assert logged_seconds(store) == 130.5
    store.close()
    found = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text("utf-8").splitlines()]
    assert found == [
        {
            "episode": "batch-4-0-1",
            "host": "http://a:8700",
            "fault": "EnvTimeout",
            "calls": [["start", 101.0, 0.5], ["engine", 102.5, 2.0]],
        },
        {"step": 4, "calls": [["rollout", 100.5, 30.0]]},
    ]


def test_a_new_folder_has_no_logged_seconds(tmp_path: Path) -> None:
    store = RunFolder(tmp_path)
    assert logged_seconds(store) == 0.0
    store.close()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    store = RunFolder(tmp_path)
    (tmp_path / "calls.jsonl").write_text('{"step":1,"calls":[]}\n{"step":2}\n')
    with pytest.raises(UserError, match=r"calls\.jsonl: line 2: damaged"):
        logged_seconds(store)
    store.close()


def by_episode(config: Config) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines(config, "calls.jsonl"):
        if "episode" in line:
            found.setdefault(line["episode"], []).append(line)
    return found


def stages(config: Config) -> list[tuple[int, list[str]]]:
    return [
        (line["step"], [name for name, *_ in line["calls"]])
        for line in lines(config, "calls.jsonl")
        if "step" in line
    ]


def assert_in_order(config: Config) -> None:
    """No call begins before the one before it has ended, also across a resume."""
    for attempts in by_episode(config).values():
        for attempt in attempts:
            end = 0.0
            for _, began, seconds in attempt["calls"]:
                assert began >= end - 2e-4 and seconds >= 0  # each number is rounded
                end = began + seconds


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 1])
def test_every_episode_and_every_stage_of_a_run_is_timed(tmp_path: Path, staleness: int) -> None:
    """Stopped after one epoch and resumed; evaluations are timed, too."""
    Scripted.play({A: [0, 1] * 9, B: [1, 0] * 9})
    for epochs in (1, 2):
        settings = (f"--train.max_staleness={staleness}", "--env.parallel=4", f"--train.epochs={epochs}")
        config = small_config(tmp_path, [A, B], *settings, "--eval.every=1")
        train_to_end(Trainer, config)
    found = by_episode(config)
    played = {episode["episode_id"] for episode in lines(config, "trajectories.jsonl")}
    assert played <= found.keys()
    for attempts in found.values():
        [attempt] = attempts
        assert [name for name, *_ in attempt["calls"]] == CALLS
        assert (attempt["host"], attempt["fault"]) == ("", "")
    assert_in_order(config)
    rollouts = "wait" if staleness else "rollout"
    base, first, *_, last = stages(config)
    assert base == (0, ["evaluate"])
    assert first == (1, ["save", rollouts, "learn", "evaluate"])
    assert last[0] == 2 and last[1][-3:] == [rollouts, "learn", "evaluate"]
    begins = [line["calls"][0][1] for line in lines(config, "calls.jsonl") if "step" in line]
    assert begins == sorted(begins) and begins[0] >= 0


def test_each_attempt_at_an_episode_is_timed(tmp_path: Path) -> None:
    Scripted.play({})
    settings = ("--env.attempts=2", "--env.quarantine_after=99")
    config = small_config(tmp_path, [A, B], *settings, env="Fragile")
    train_to_end(Trainer, config)
    attempts = by_episode(config)["batch-1-0-0" if "batch-1-0-0" not in played_ids(config) else "batch-1-1-0"]
    assert [(one["fault"], [name for name, *_ in one["calls"]]) for one in attempts] == [
        ("EnvError", CALLS[:3]),
        ("EnvError", CALLS[:3]),
    ]


def played_ids(config: Config) -> set[str]:
    return {episode["episode_id"] for episode in lines(config, "trajectories.jsonl")}


def test_collected_episodes_are_timed(tmp_path: Path) -> None:
    Scripted.play({})
    config = small_config(tmp_path, [A, B])
    assert run_collection(config) == 0
    assert {name: len(found) for name, found in by_episode(config).items()} == {
        f"collect-{number}-0": 1 for number in range(4)
    }
    assert_in_order(config)


ON = ("--store.token_stats=true", "--rollout.max_answer_tokens=16")
# The base evaluation, two batches of two episodes, the final evaluation.
SCRIPT = {A: [0, 1, 0, 0, 0, 0], B: [0, 1, 0, 0, 0, 0]}
TWO_UPDATES = ("--train.epochs=2", "--train.tasks_per_update=1")


def test_a_line_has_the_rounded_values_of_one_answer() -> None:
    """A sample of two answers in the second update; the gradient of the other token was infinite."""
    answers = tuple(Answer(episode_id="batch-5-0-1", turn=turn, tokens=3 - turn) for turn in (1, 2))
    stats = TokenStats(
        answers=answers,
        replayed=True,
        entropy=(0.123456, 1.0, 2.5),
        ratio=(1.00004, float("inf"), 0.5),
        clipped=(False, True, False),
    )
    found = list(token_lines(5, [[], [stats]]))
    same = {"step": 5, "update": 2, "episode": "batch-5-0-1", "replayed": True}
    assert found == [
        {**same, "turn": 1, "entropy": [0.1235, 1.0], "ratio": [1.0, None], "clipped": [0, 1]},
        {**same, "turn": 2, "entropy": [2.5], "ratio": [0.5], "clipped": [0]},
    ]


def counted(config: Config) -> dict[tuple[int, int], list[tuple[str, bool]]]:
    """The episodes of each batch and update, and whether they were replayed."""
    found: dict[tuple[int, int], list[tuple[str, bool]]] = {}
    for line in lines(config, "token_stats.jsonl"):
        found.setdefault((line["step"], line["update"]), []).append((line["episode"], line["replayed"]))
    return found


def answer_lengths(config: Config) -> dict[str, int]:
    return {
        episode["episode_id"]: len(episode["turns"][0]["completion"]["logprobs"])
        for episode in lines(config, "trajectories.jsonl")
    }


@pytest.mark.slow
def test_every_trained_answer_has_a_line_and_nothing_else_changes(tmp_path: Path) -> None:
    """Two updates a batch. In the second batch, all fail: each group gets the success of its task."""
    configs = []
    for name, settings in (("with", ON), ("without", ON[1:])):
        (tmp_path / name).mkdir()
        Scripted.play(SCRIPT)
        configs.append(small_config(tmp_path / name, [A, B], *TWO_UPDATES, *settings))
        train_to_end(Trainer, configs[-1])
    recorded, plain = configs
    for name in ("metrics.jsonl", "trajectories.jsonl"):
        assert lines(recorded, name) == lines(plain, name)
    last = "checkpoints/step-000002/learner/weights.safetensors"
    ours, theirs = (load_file(Path(config.run.dir) / last) for config in configs)
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert lines(plain, "token_stats.jsonl") == []

    found = counted(recorded)
    assert {place: len(trained) for place, trained in found.items()} == {
        (1, 1): 2,
        (1, 2): 2,
        (2, 1): 2,
        (2, 2): 2,
    }
    replayed = [episode for update in ((2, 1), (2, 2)) for episode, again in found[update] if again]
    assert len(replayed) == 2 and all(name.startswith("batch-1-") for name in replayed)
    lengths = answer_lengths(recorded)
    written = lines(recorded, "token_stats.jsonl")
    for line in written:
        assert {len(line[name]) for name in ("entropy", "ratio", "clipped")} == {lengths[line["episode"]]}
    first = lines(recorded, "metrics.jsonl")[1]
    tokens = [line for line in written if line["step"] == 1]
    for name in ("entropy", "ratio"):
        values = [value for line in tokens for value in line[name]]
        assert sum(values) / len(values) == pytest.approx(first[name], abs=1e-4)
    assert all(set(line["ratio"]) == {1.0} for line in tokens if line["update"] == 1)  # π_θ is π_old


@pytest.mark.slow
def test_a_resumed_run_has_the_lines_of_an_uninterrupted_one(tmp_path: Path) -> None:
    configs: dict[str, Config] = {}
    for name, epochs in (("whole", (2,)), ("parts", (1, 2))):
        (tmp_path / name).mkdir()
        Scripted.play({task: [0, 1, 0, 0, 1, 0, 0] for task in (A, B)})
        for number in epochs:
            settings = (*ON, "--eval.every=1", f"--train.epochs={number}")
            configs[name] = small_config(tmp_path / name, [A, B], *settings)
            train_to_end(Trainer, configs[name])
            if (name, number) == ("parts", 1):  # written after the last checkpoint, before a kill
                log = Path(configs[name].run.dir) / "token_stats.jsonl"
                log.write_bytes(log.read_bytes() + b'{"step":2,"update":1}\n{"step":2,')
    whole, parts = (lines(configs[name], "token_stats.jsonl") for name in ("whole", "parts"))
    assert parts == whole and {line["step"] for line in whole} == {1, 2}


@pytest.mark.slow
def test_asynchronous_training_has_the_lines_of_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner's thread writes them: rollouts do not wait."""
    threads, write = set(), RunFolder.log_token_stats

    def watched(store: RunFolder, line: Mapping[str, Any]) -> None:
        threads.add(threading.current_thread().name)
        write(store, line)

    monkeypatch.setattr(RunFolder, "log_token_stats", watched)
    Scripted.play({A: [0, 1] * 9, B: [1, 0] * 9})
    settings = ("--train.max_staleness=1", "--env.parallel=4", "--train.epochs=2")
    config = small_config(tmp_path, [A, B], *settings, *ON)
    train_to_end(Trainer, config)
    assert threads == {"learner_0"}
    batches: dict[int, set[str]] = {}
    for line in lines(config, "groups.jsonl"):
        batches.setdefault(line["step"], set()).add(line["group"])
    trained: dict[int, set[str]] = {step: set() for step in batches}
    for line in lines(config, "token_stats.jsonl"):
        trained[line["step"]].add(line["episode"].rpartition("-")[0])
    live = {
        record["step"]: record["groups"] - record["without_signal"]
        for record in lines(config, "metrics.jsonl")[1:]
    }
    assert {step: len(groups) for step, groups in trained.items()} == live
    assert all(groups <= batches[step] for step, groups in trained.items()) and any(live.values())


ROOM = {"where": "step", "message": "KeyError: 'room'\nmore", "place": "my_env.py:14"}
SCORE = {"where": "evaluate", "message": "returned 100, not a number in [0, 1]", "place": "my_env.py:30"}
ENGINE = {"where": "generate", "message": "out of memory", "kind": "EngineError"}
LATE = {
    "where": "evaluate",
    "message": "no answer within 60 s",
    "place": "my_env.py:30",
    "kind": "EnvTimeout",
}
UNJUDGED = {"where": "judge", "message": "no answer: status 503", "kind": "NoVerdict"}
QUARANTINED = {"where": "start", "message": "quarantined", "kind": "Quarantined"}


def report(folder: Path, failures: list[dict[str, str]], scores: list[float]) -> tuple[int, str]:
    """Exit code and line of a run with these failures and evaluated scores."""
    store = RunFolder(folder)
    for number, changes in enumerate(failures):
        fields = {"kind": "EnvError", "place": "", **changes}
        store.add_failure(Failure(episode_id=f"f{number}", task_id="a", attempts=3, **fields))
    store.log_evaluation({"step": 0, "episodes": 0, "landmark": "base", "sets": {"train": {"a": scores}}})
    written = io.StringIO()
    code = report_failed_episodes(store, PlainDisplay(written))
    store.close()
    return code, written.getvalue()


def test_without_failures_there_is_no_line(tmp_path: Path) -> None:
    assert report(tmp_path, [], [0.0]) == (0, "")


def test_a_few_failures_are_counted_with_the_most_frequent_reason(tmp_path: Path) -> None:
    code, line = report(tmp_path, [SCORE, ROOM, ROOM], [0.0, 0.5, 1.0, 1.0])
    assert (code, line) == (
        0,
        "3 episodes failed, most often step: KeyError: 'room' (my_env.py:14). See "
        f"{tmp_path / 'failures.jsonl'}\n",
    )


def test_more_than_half_of_all_episodes(tmp_path: Path) -> None:
    code, line = report(tmp_path, [QUARANTINED, QUARANTINED, ROOM], [1.0, 0.0])
    assert (code, line) == (
        1,
        "most episodes failed because of the environment (3 of 5), most often step: KeyError: 'room' "
        "(my_env.py:14). Correct it (`arpo check-env` helps), then start again in another --run.dir\n",
    )


def test_more_than_half_without_a_verdict(tmp_path: Path) -> None:
    code, line = report(tmp_path, [UNJUDGED, UNJUDGED, UNJUDGED], [1.0, 0.0])
    assert (code, line) == (
        1,
        "most episodes have no verdict of the judge (3 of 5), most often judge: no answer: status 503. Try "
        "the judge with `arpo judge`, then start again in another --run.dir\n",
    )


def test_refused_successes(tmp_path: Path) -> None:
    code, line = report(tmp_path, [SCORE], [0.0] * 99)
    assert (code, line) == (
        1,
        "most successes were refused: evaluate() failed in 1 episode, 0 scored above 0, most often evaluate: "
        "returned 100, not a number in [0, 1] (my_env.py:30). Correct it (`arpo check-env` helps), then "
        "start again in another --run.dir\n",
    )


def test_refused_successes_name_the_fault_of_evaluate(tmp_path: Path) -> None:
    code, line = report(tmp_path, [SCORE, ROOM, ROOM], [0.0] * 99)
    assert code == 1
    assert "0 scored above 0, most often evaluate: returned 100, not a number in [0, 1] (my_env.py:" in line


@pytest.mark.parametrize(
    ("failures", "scores"),
    [
        ([ROOM, ROOM], [0.0, 0.0]),  # half, and none at evaluate()
        ([ENGINE] * 3, [0.0]),  # not of the environment
        ([LATE], [0.0, 0.0]),  # a timeout is no refused score
        ([SCORE], [0.0, 0.25]),  # as many scored above 0
        ([SCORE | {"place": ""}], [0.0, 0.0]),  # not in the user's code
    ],
)
def test_other_runs_succeed(tmp_path: Path, failures: list[dict[str, str]], scores: list[float]) -> None:
    assert report(tmp_path, failures, scores)[0] == 0


def test_failures_of_older_runs_have_no_place(tmp_path: Path) -> None:
    RunFolder(tmp_path).close()
    line = '{"episode_id":"f","task_id":"a","kind":"EnvError","where":"step","message":"gone","attempts":3}\n'
    (tmp_path / "failures.jsonl").write_text(line, "utf-8")
    code, said = report(tmp_path, [], [0.0, 0.0])
    assert (code, said) == (
        0,
        f"1 episode failed, most often step: gone. See {tmp_path / 'failures.jsonl'}\n",
    )
