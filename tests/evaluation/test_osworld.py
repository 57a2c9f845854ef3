"""`arpo eval osworld` from the command line: a real server, Desk's tasks, OSWorld's results."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import verdicts
from arpo.actions import Action
from arpo.cli import eval_osworld_command
from arpo.cli.entry_point import _parsers, main
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.envs.desk.env import DeskEnv
from arpo.evaluation.evaluate import evaluate
from arpo.evaluation.osworld_results import scores
from arpo.rollout.player import open_player
from arpo.tasks.lists import load_tasks
from arpo.testing import Times
from arpo.types import StepResult
from openai_server import MODEL, hangs, refuses, says, serving, tiny_model_server
from players import DONE
from verdicts import A, B, C, Scripted, select

PUBLISHED = """
    eval osworld --headless --observation_type screenshot --max_steps 15 --max_trajectory_length 15
    --temperature 0.6 --model ui-tars --action_space pyautogui --num_envs 8 --result_dir ./results/
    --test_all_meta_path ./evaluation_examples/test_all.json --trial-id 0 --server_ip http://127.0.0.1
"""


def command(url: str, folder: Path, tasks: Sequence[str], *more: str, env: str = "Scripted") -> list[str]:
    words = f"""
        eval osworld --endpoint {url} --model {MODEL} --env verdicts:{env} --num-envs 2 --max-steps 1
        --result-dir {folder / "results"} --tasks {select(folder / "tasks.json", "desk:pool", tasks)}
        --screen-width 224 --screen-height 168 --max-tokens 64 --model.prompt desk --env.attempts 1
    """
    return [*words.split(), *more]


def trial(folder: Path, name: str = "0") -> Path:
    return folder / "results" / "pyautogui" / "screenshot" / MODEL / name


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((trial(folder).parent / "summary.json").read_text("utf-8"))


async def done(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
    return says(DONE)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err.splitlines()[-1].removeprefix("arpo: error: ")


def test_the_environment_hosts_end_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = 0

    def close(source: object) -> None:
        nonlocal closed
        closed += 1

    monkeypatch.setattr("arpo.envs.pool.LocalEnvs.close", close)
    with serving(done) as server:
        assert main(command(server.url, tmp_path, [A])) == 0
    assert closed == 1


@pytest.mark.slow
def test_a_model_behind_a_server_plays_as_it_does_in_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ("pool-001", "pool-021", "pool-024")
    tasks = [task for task in load_tasks("desk:pool") if task.id in ids]
    config = load_config("desk", ["--run.threads=1", "--rollout.max_images=3", "--rollout.max_steps=6"])
    groups = asyncio.run(
        evaluate(
            open_player(config).scheduler,
            list(enumerate(tasks)),
            name="here",
            rollouts=1,
            temperature=0.0,
            on_episode=lambda *_: None,
        )
    )
    with tiny_model_server() as server:
        words = command(server.url, tmp_path, ids, "--max-trajectory-length", "3", "--temperature", "0")
        assert main([*words, "--env", "desk", "--max-steps", "6"]) == 0
    played = {group.task_id: group.trajectories[0] for group in groups}
    assert {played[name].score for name in ids} == {0.0, 1.0}
    for (domain, name), score in scores(trial(tmp_path)).items():
        lines = (trial(tmp_path) / domain / name / "traj.jsonl").read_text("utf-8").splitlines()
        assert score == played[name].score
        assert [json.loads(line)["response"] for line in lines] == [
            turn.completion.text for turn in played[name].turns
        ]
    assert len(scores(trial(tmp_path))) == 3
    assert "total     66.7%  20.8% to 93.9%          3" in capsys.readouterr().out


def test_trials_are_played_counted_and_not_played_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 0], B: [0, 0], C: [0.5, 1]})
    with serving(done) as server:
        words = command(server.url, tmp_path, [A, B, C], "--trial-id", "a", "--trial_id", "b")
        assert main(words) == 0
        assert len(server.requests) == 6
        first = capsys.readouterr().out.splitlines()
        assert main(words) == 0
        assert len(server.requests) == 6
    again = capsys.readouterr().out.splitlines()
    table = first[first.index(again[0]) :]
    assert table == again
    assert again[0].split() == ["domain", "success", "95%", "interval", "episodes"]
    assert "over trials a, b: pass@1 41.7% (3 tasks), pass@2 66.7% (3 tasks)" in again
    assert "ended: finished 6" in again
    assert again[-1] == f"results: {trial(tmp_path).parent}"
    written = summary(tmp_path)
    assert (written["total"]["score"], written["total"]["episodes"], written["missing"]) == (2.5, 6, 0)
    assert written["terms"]["temperature"] == 0.6
    arguments = json.loads((trial(tmp_path, "a") / "args.json").read_text("utf-8"))
    assert arguments["server"]["endpoints"] == server.url
    assert arguments["source"] == str(tmp_path / "tasks.json")


def test_thousandths_are_carried_out_in_pixels_and_are_another_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def click(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return says("Action: click(start_box='(500,250)')")

    Scripted.play({})
    with serving(click) as server:
        words = command(server.url, tmp_path, [A], "--model.dialect", "ui_tars")
        assert main(words) == 0
        [steps] = trial(tmp_path).rglob("traj.jsonl")
        assert "pyautogui.click(112, 42" in steps.read_text("utf-8")  # of a screen of 224x168
        other = refusal(capsys, *command(server.url, tmp_path, [A]))
    assert "dialect 'ui_tars', now 'ui_tars_1_5'" in other


def test_each_trial_draws_for_itself(tmp_path: Path) -> None:
    Scripted.play({})
    with serving(done) as server:
        assert main(command(server.url, tmp_path, [A], "--trial-id", "0", "--trial-id", "1")) == 0
    seeds = {sent["seed"] for sent in server.requests}
    assert len(seeds) == 2 and all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_stopped_or_killed_the_same_command_goes_on(tmp_path: Path, blow: signal.Signals) -> None:
    stuck = True

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return await hangs() if stuck and number else says(DONE)

    with serving(answer) as server:
        words = command(server.url, tmp_path, [A, B, C], "--num-envs", "1", env="Scripted")
        process = subprocess.Popen(
            [sys.executable, "-m", "arpo", *words],
            cwd=Path(__file__).parents[1] / "support",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while len(server.requests) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(blow)
        _, said = process.communicate()
        assert process.returncode == (130 if blow == signal.SIGINT else -9)
        if blow == signal.SIGINT:
            assert said.startswith("arpo: interrupted; to resume") and said.count("\n") == 1
        (before,) = trial(tmp_path).glob("*/*/result.txt")
        when = before.stat().st_mtime_ns
        stuck = False
        Scripted.play({})
        assert main(words) == 0
    assert len(scores(trial(tmp_path))) == 3
    assert len(server.requests) == 4  # one was played, one was cut off, and two were left
    assert before.stat().st_mtime_ns == when
    assert not (tmp_path / "results" / ".partial").exists()


def test_failures_are_no_results_and_are_played_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1], B: [1]})
    monkeypatch.setattr(verdicts.Chaos, "steps", Times(1))
    with serving(done) as server:
        words = command(server.url, tmp_path, [A, B], env="failing_at_first")
        assert main(words) == 1
        said = capsys.readouterr().out
        assert "an episode failed: task pool-001, step: RuntimeError: chaos at step" in said
        assert "1 episodes failed, not because of the model. Run the same command to retry them:" in said
        assert [record["task_id"] for record in summary(tmp_path)["failures"]] == [A]
        assert summary(tmp_path)["total"]["episodes"] == 1
        assert main(words) == 0
    assert summary(tmp_path)["failures"] == []
    assert summary(tmp_path)["total"]["episodes"] == 2
    assert len((trial(tmp_path) / "failures.jsonl").read_text("utf-8").splitlines()) == 1


def test_servers_that_fail_are_failures_that_name_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1]})

    async def answer(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return refuses(400, "At most 1 image(s)") if number else says(DONE)

    with serving(answer) as server:
        words = command(server.url, tmp_path, [A, B], "--num-envs", "1")
        assert main(words) == 1
    (record,) = summary(tmp_path)["failures"]
    assert (record["where"], record["kind"], record["task_id"]) == ("generate", "RequestRefused", B)
    assert record["message"] == f"{server.url}: status 400: At most 1 image(s)"


def test_an_evaluation_in_which_nothing_can_be_played_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(done) as server:
        said = refusal(capsys, *command(server.url, tmp_path, [A, B], env="lying"))
    assert said.startswith("all 2 episodes failed. First failure: task pool-0")
    assert "evaluate: returned None, not a number in [0, 1]" in said


def test_other_settings_do_not_mix_into_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Scripted.play({})
    with serving(done) as server:
        words = command(server.url, tmp_path, [A])
        assert main(words) == 0
        said = refusal(capsys, *words, "--temperature", "1")
        assert f"{trial(tmp_path)}: holds results of another evaluation (temperature 0.6, now 1.0)" in said
        assert main([*words, "--temperature", "1", "--trial-id", "warm"]) == 0


def test_no_server_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(capsys, *command("http://127.0.0.1:1/v1", tmp_path, [A]))
    assert said.startswith("no server answers: http://127.0.0.1:1/v1/models: ")


def test_tasks_that_cannot_run_are_never_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {
        "id": "mail-1",
        "instruction": "read it",
        "config": [],
        "evaluator": {"func": "infeasible"},
        "related_apps": ["vs_code"],
    }
    (tmp_path / "list.json").write_text(json.dumps([task]), "utf-8")
    words = ["eval", "osworld", "--tasks", str(tmp_path / "list.json"), "--result-dir", str(tmp_path / "r")]
    said = refusal(capsys, *words)
    assert said.startswith(f"{tmp_path / 'list.json'}: none of its 1 tasks can run here")
    assert "needs VS Code, which light desktops do not have" in said
    assert not (tmp_path / "r").exists()


def configured(*words: str) -> tuple[Config, list[str]]:
    options = _parsers()[0].parse_args(["eval osworld", *words])
    config = load_config(options.recipe, eval_osworld_command.flag_overrides(options))
    return config, eval_osworld_command.notes(options, config)


def test_the_published_command() -> None:
    config, notes = configured(*PUBLISHED.split()[2:])
    assert notes == []
    assert (config.rollout.max_steps, config.rollout.max_images, config.env.parallel) == (15, 15, 8)
    assert config.eval.temperature == 0.6
    options = _parsers()[0].parse_args(["eval osworld", *PUBLISHED.split()[2:]])
    assert (options.tasks, options.result_dir, options.trial_id) == (
        *("./evaluation_examples/test_all.json", "./results/", ["0"]),
    )
    assert config.server.endpoints == "http://127.0.0.1:9000-9007/v1"
    assert (config.server.model, config.server.top_p, config.rollout.max_answer_tokens) == (
        *("ui-tars", 0.9, 1500),
    )
    assert (config.env.name, config.env.width, config.env.height) == ("osworld", 1920, 1080)


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--endpoint http://a:1 --endpoint http://b:2", "server.endpoints", "http://a:1,http://b:2"),
        ("--server-ip gpu-7", "server.endpoints", "http://gpu-7:9000-9007/v1"),
        ("--top_p 0.5", "server.top_p", 0.5),
        ("--max_tokens 99", "rollout.max_answer_tokens", 99),
        ("--domain os", "tasks.domains", "os"),
        ("--domain all", "tasks.domains", ""),
        ("--test_config_base_dir evaluation_examples/", "tasks.examples", "evaluation_examples/examples"),
        ("--provider_name docker", "osworld.provider", "docker"),
        ("--path_to_vm vm.vmx", "osworld.machine", "vm.vmx"),
        ("--region eu", "osworld.region", "eu"),
        ("--sleep_after_execution 0.5", "osworld.pause", 0.5),
        ("--screen_width 1280", "env.width", 1280),
        ("--screen-height 720", "env.height", 720),
        ("--env desk", "env.name", "desk"),
    ],
)
def test_flags_are_settings(words: str, key: str, value: Any) -> None:
    config, _ = configured(*words.split())
    section, _, name = key.partition(".")
    assert getattr(getattr(config, section), name) == value


def test_every_flag_has_both_spellings() -> None:
    for flag in eval_osworld_command.FLAGS:
        assert {flag.name, "--" + flag.key} <= set(flag.spellings.split())


def test_a_flag_without_its_effect_says_so() -> None:
    words = ("--log_level DEBUG", "--client_password x", "--sleep_after_execution 1", "--region eu")
    _, notes = configured(*" ".join(words).split())
    assert [note.split(" has no effect: ")[0] for note in notes] == [
        *("--log-level", "--client-password", "--sleep-after-execution", "--region")
    ]
    _, notes = configured(*" ".join(words[2:]).split(), "--provider_name", "aws")
    assert notes == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--observation_type a11y_tree", "must be screenshot: this agent sees only screenshots"),
        ("--action_space computer_13", "must be pyautogui"),
        ("--log_level LOUD", "must be one of DEBUG, INFO"),
        ("--endpoint http://a --server_ip b", "use one of them"),
        ("--max_steps many", "rollout.max_steps: is 'many', must be an integer"),
        ("--nonsense 1", "unknown option"),
        ("--endpoint a:1 --tasks desk:32 --env desk --model.prompt desk", "server.endpoints: 'a:1'"),
        (
            "--trial-id ../x --tasks desk:32 --env desk",
            "--trial-id: '../x' cannot be the name of a results folder",
        ),
        (
            "--model ../x --tasks desk:32 --env desk",
            "server.model: '../x' cannot be the name of a results folder",
        ),
    ],
)
def test_what_is_asked_for_and_cannot_be_is_refused(
    words: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "eval", "osworld", "--result-dir", str(tmp_path / "r"), *words.split())
    assert reason in said


def test_half_characters_of_a_server_or_an_environment_end_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON can write half a surrogate pair. No file and no terminal can take it."""

    async def half(request: web.Request, body: dict[str, Any], number: int) -> web.StreamResponse:
        return says("Thought: \ud83d\nAction: type(content='\ude00')")

    async def step(env: Scripted, actions: tuple[Action, ...]) -> StepResult:
        if env.task.id == A:
            raise RuntimeError("no file caf\udce9 \x1b[2J")
        return await DeskEnv.step(env, actions)

    Scripted.play({B: [1]})
    monkeypatch.setattr(Scripted, "step", step)
    with serving(half) as server:
        assert main(command(server.url, tmp_path, [A, B])) == 1
    assert list(scores(trial(tmp_path)).values()) == [1.0]
    [steps] = trial(tmp_path).rglob("traj.jsonl")
    assert (
        json.loads(steps.read_text("utf-8"))["response"] == "Thought: \ufffd\nAction: type(content='\ufffd')"
    )
    [failure] = (trial(tmp_path) / "failures.jsonl").read_text("utf-8").splitlines()
    assert json.loads(failure)["message"] == "RuntimeError: no file caf\ufffd \ufffd[2J"
    assert "RuntimeError: no file caf\ufffd \ufffd[2J" in capsys.readouterr().out
