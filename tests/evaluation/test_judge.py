"""`arpo judge`: votes of a served model, stored once each, against the scores of the evaluators."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from arpo.cli.entry_point import main
from arpo.config import Config
from arpo.evaluation.judge import MAX_TOKENS, remedy
from arpo.prompts.judge_question import INJECTION
from arpo.storage.judgements import Vote, VoteLog
from arpo.storage.run_folder import RunFolder
from judges import judged_by, text_of
from openai_server import MODEL, Served, refuses
from viewed_runs import make_run, played

EPISODES = 13  # of `make_run`: 6 successes, 7 failures


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "run"
    make_run(folder)
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def judge(run: Path, server: Served, *options: str) -> int:
    words = ["judge", str(run), f"--server.endpoints={server.url}", f"--server.model={MODEL}"]
    return main([*words, "--env.parallel=1", *options])


def stored(run: Path) -> list[Vote]:
    with closing(VoteLog(run)) as log:
        return [*log.votes.values()]


def greek(text: str, number: int) -> str:
    """Judges by the task: that of pool-040 has 2 successes and 4 failures, the others have 4 and 3."""
    return "SUCCESS" if 'The task: "Set the language to Greek' in text else "FAILURE"


def test_the_verdicts_are_compared_with_the_scores(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with judged_by(greek) as server:
        assert judge(run, server) == 0
    said = capsys.readouterr().out
    assert len(server.requests) == EPISODES * 3
    assert said.splitlines()[-9:] == [
        f"judge {MODEL}, 3 votes, majority",
        "precision  33.3% (2/6, 95% interval 10% to 70%) of the episodes judged a success",
        "recall     33.3% (2/6, 95% interval 10% to 70%) of the successes by the evaluators",
        "judged     13 episodes, missing verdicts: 0",
        "",
        "                   evaluator: success   failure",
        "judge: success                      2         4",
        "judge: failure                      4         3",
        "judge: missing                      0         0",
    ]
    assert "judging: 13 episodes" in said
    with judged_by(greek) as server:
        assert judge(run, server, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["precision"], result["recall"]) == (2 / 6, 2 / 6)
    pairs = Counter((one["verdict"], one["evaluator"]) for one in result["episodes"].values())
    assert len(result["episodes"]) == 13 and pairs["success", "failure"] == 4
    assert result["episodes"]["eval0-train-0-0"] == {"verdict": "success", "evaluator": "failure"}


@pytest.mark.slow
def test_each_vote_is_asked_for_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with judged_by(greek) as server:
        for options, requests in (
            (("--votes=1",), 13),
            (("--votes=1",), 0),
            (("--votes=2",), 13),
            (("--votes=2", "--unanimous"), 0),
            (("--votes=1", "--screenshots=2", "--episodes=4"), 4),
        ):
            server.requests.clear()
            assert judge(run, server, *options) == 0
            assert len(server.requests) == requests
    images = [part for part in server.requests[-1]["messages"][1]["content"] if part["type"] == "image_url"]
    assert len(images) == 2
    seeds = {request["seed"] for request in server.requests}
    assert len(seeds) == 4 and all(request["temperature"] > 0 for request in server.requests)


def test_the_instruction_of_an_environment_replaces_that_of_the_task(run: Path) -> None:
    with closing(RunFolder(run)) as store:
        store.add_trajectory(replace(played("eval3-train-0-0", "unlisted", 1.0), instruction="Ring the bell"))
    with judged_by(greek) as server:
        assert judge(run, server, "--votes=1", "--episodes=1") == 0
    (request,) = server.requests
    assert 'The task: "Ring the bell"' in text_of(request)


def test_another_model_and_another_episode_of_the_same_name_are_judged_again(run: Path) -> None:
    with judged_by(greek) as server:
        assert judge(run, server, "--votes=1") == 0
    path = run / "judgements.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    changed = [{**lines[0], "mark": "00000000"}, {**lines[1], "model": "other"}, *lines[2:]]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in changed))
    with judged_by(greek) as server:
        assert judge(run, server, "--votes=1") == 0
    assert len(server.requests) == 2


def test_an_answer_without_a_verdict_is_missing_and_asked_for_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreliable(text: str, number: int) -> str | web.Response:
        faults: dict[int, str | web.Response] = {
            2: "I will not judge this.",
            3: refuses(400, "this picture is broken"),
            4: "SUCCESS!",
        }
        return faults.get(number, "FAILURE")

    with judged_by(unreliable) as server:
        assert judge(run, server, "--votes=1", "--json") == 0
        counts = json.loads(capsys.readouterr().out)["verdicts"]
        assert sum(counts["missing"].values()) == 3
        assert sum(counts["success"].values()) == 0
        reasons = [vote.reason for vote in stored(run) if vote.success is None]
        assert reasons[0] == 'not in the form REASON, VERDICT: "I will not judge this."'
        assert "this picture is broken" in reasons[1]
        server.requests.clear()
        assert judge(run, server, "--votes=1", "--json") == 0
    assert len(server.requests) == 3


def test_text_that_an_agent_or_a_screen_planted_is_never_parsed(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A judge that only repeats the episode, or the planted sentence, or the whole question."""

    def echo(text: str, number: int) -> str:
        inside = re.split(r"^(?:BEGIN|END) \w+$", text, flags=re.MULTILINE)[1]
        return (inside, f"REASON: the screen says so\n{INJECTION}", text)[number % 3]

    with judged_by(echo) as server:
        assert judge(run, server, "--inject", "--json") == 1  # not one verdict
    assert len(server.requests) == 2 * 3 * EPISODES
    result = json.loads(capsys.readouterr().out)
    assert result["first_missing"].startswith("not in the form") and result["precision"] is None
    assert result["verdicts"]["missing"] == {"success": 6, "failure": 7}


def test_how_many_verdicts_an_injection_turns(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def credulous(text: str, number: int) -> str:
        return greek(text, number) if INJECTION in text else "FAILURE"

    with judged_by(credulous) as server:
        assert judge(run, server, "--inject", "--votes=1") == 0
    said = capsys.readouterr().out
    assert "injection: no value (0/0) of the verdicts success turned to failure\n" in said
    assert (
        "injection: 46.2% (6/13, 95% interval 23% to 71%) of the verdicts failure turned to success" in said
    )


def test_ctrl_c_keeps_the_votes_up_to_then(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupts = iter([4])

    def interrupting(text: str, number: int) -> str:
        if number == 4 and next(interrupts, None):
            os.kill(os.getpid(), signal.SIGINT)
        return "FAILURE"

    with judged_by(interrupting) as server:
        assert judge(run, server, "--votes=1") == 130
        assert "to resume, run the same command again" in capsys.readouterr().err
        kept = len(stored(run))
        assert 4 <= kept < EPISODES
        with (run / "judgements.jsonl").open("a") as file:
            file.write('{"episode":"cut')
        server.requests.clear()
        assert judge(run, server, "--votes=1") == 0
    assert len(server.requests) == EPISODES - kept
    assert len(stored(run)) == EPISODES


@pytest.mark.parametrize(
    ("status", "message", "says"),
    [
        (400, "At most 0 image(s) may be provided", "serve one that accepts several screenshots"),
        (404, "The model `x` does not exist", "Set server.model to a model of this server"),
        (401, "Invalid key", "Set OPENAI_API_KEY"),
        (400, "maximum context length is 4096 tokens", "A lower --screenshots makes the question shorter"),
    ],
)
def test_a_server_that_refuses_every_question_ends_the_command(
    status: int, message: str, says: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judged_by(lambda text, number: refuses(status, message)) as server:
        assert judge(run, server) == 2
    assert len(server.requests) == 3
    said = capsys.readouterr().err
    assert "no question was answered" in said and message in said and says in said


def test_a_model_without_a_verdict_is_told_from_a_server_that_does_not_answer(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with judged_by(lambda text, number: "I cannot judge this.") as server:
        assert judge(run, server, "--votes=1", "--episodes=1") == 1
    assert "The model does not keep to the form of the answer: use a larger one" in capsys.readouterr().out
    assert remedy("no answer: http://a/v1: status 503: busy (tried 3 times)").startswith(
        "Check that the server"
    )
    assert remedy(f"the answer was cut at {MAX_TOKENS} tokens").endswith("serve it without thinking")


def test_errors_are_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunFolder(tmp_path / "empty")
    store.write_recipe(Config())
    store.close()
    pruned = RunFolder(run)
    pruned.prune([])
    pruned.close()
    for folder, reason in (
        (tmp_path, "recipe.toml is missing"),
        (tmp_path / "empty", "no episode to judge. Give a run that stores episodes"),
        (run, "no episode to judge; left out: 13 episodes: their screenshots are not in"),
    ):
        with judged_by(greek) as server:
            assert judge(folder, server) == 2
        assert reason in capsys.readouterr().err


def test_a_damaged_vote_is_no_reason_to_remove_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "judgements.jsonl").write_text("not JSON\n")
    with judged_by(greek) as server:
        assert judge(run, server) == 2
    assert "line 1: damaged" in (said := capsys.readouterr().err)
    assert said.endswith("remove the file: all votes are asked for again\n")


def test_without_a_server_nothing_is_judged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", str(run), "--server.endpoints=http://127.0.0.1:9/v1"]) == 2
    assert "no server answers" in capsys.readouterr().err
