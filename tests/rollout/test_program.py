"""Episodes of agent programs: real processes, which call a scripted engine over HTTP."""

import asyncio
import os
import sys
import textwrap
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from reported_score import ReportedScore

from arpo.actions import Click, Finished, Hotkey, Point, Wait
from arpo.algorithms.samples import trajectory_samples
from arpo.config import EnvConfig, RolloutConfig
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.envs.slots import Slots
from arpo.errors import AgentError, EnvError, PromptTooLong
from arpo.rollout import program as module
from arpo.rollout.agent import Agent, AgentProgram
from arpo.rollout.episode import run_episode
from arpo.rollout.scheduler import Scheduler
from arpo.testing import FailingEnv, FakeEnv, Times, screenshot, task
from arpo.types import Failure, StopReason
from players import CLICK, DONE, RENDERER, TEMPLATE, WAIT, Asking, scripted
from processes import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "agent.py"
START = """
import base64, json, os, sys, time
from urllib.error import HTTPError
from urllib.request import Request, urlopen
ENV, MODEL = os.environ["ARPO_ENV_URL"], os.environ["OPENAI_BASE_URL"]
def post(url, **body):
    try:
        return json.load(urlopen(Request(url, json.dumps(body).encode())))
    except HTTPError as error:
        return {"status": error.code, **json.load(error)}
def step(**body): return post(f"{ENV}/step", **body)
def chat(messages, **more): return post(f"{MODEL}/chat/completions", messages=messages, **more)
def ask(*texts, **more):
    roles = ("user", "assistant") * len(texts)
    return chat([{"role": r, "content": t} for r, t in zip(roles, texts)], **more)
"""


def settings(**changes):
    return RolloutConfig(
        **{"max_steps": 5, "max_images": 5, "max_answer_tokens": 99, "temperature": 0.7, **changes}
    )


def agent_of(folder, source, script, seconds=60.0):
    """`source`: text of a program, or its file."""
    if isinstance(source, str):
        file = folder / "agent_program.py"
        file.write_text(START + textwrap.dedent(source))
    else:
        file = source
    program = None
    if source is not None:
        program = AgentProgram(
            command=(sys.executable, str(file)),
            logs=folder / "logs",
            start_seconds=60.0,
            call_seconds=seconds,
        )
    return Agent(
        engine=scripted(script), renderer=RENDERER, template=TEMPLATE, dialect=UI_TARS_1_5, program=program
    )


def play(folder, source, script, env=None, seconds=60.0, **changes):
    return asyncio.run(
        run_episode(
            task("t"),
            env or FakeEnv(),
            agent_of(folder, source, script, seconds),
            episode_id="batch-1-0-0",
            settings=settings(**changes),
            seed=3,
        )
    )


SCRIPTS = {
    "finished": ([CLICK, WAIT, DONE], {}),
    "slides": ([CLICK, WAIT, WAIT, CLICK, DONE], {"max_images": 2}),
    "one picture": ([CLICK, WAIT, DONE], {"max_images": 1}),
    "max_steps": ([CLICK, WAIT, WAIT], {"max_steps": 3}),
    "parse_error": ([CLICK, "nonsense"], {}),
    "cut": ([CLICK, WAIT], {"max_answer_tokens": 12}),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_built_in_loop_as_a_program_gives_the_same_episode(tmp_path, name):
    script, changes = SCRIPTS[name]
    expected = play(tmp_path, None, script, Asking(), **changes)
    assert play(tmp_path, EXAMPLE, script, Asking(), **changes) == expected
    assert expected.instruction == "ring the bell"
    assert len(expected.turns) > 1 or name == "cut"


def teach(folder, source, **changes):
    """Like `play`, for `arpo collect`."""
    agent = replace(agent_of(folder, source, []), student=RENDERER)
    return asyncio.run(
        run_episode(
            task("t"), FakeEnv(), agent, episode_id="batch-1-0-0", settings=settings(**changes), seed=3
        )
    )


@pytest.mark.parametrize("changes", [{}, {"max_images": 2}])
def test_a_program_that_answers_itself_is_recorded_as_the_built_in_loop(tmp_path, changes):
    script = [CLICK, WAIT, WAIT, CLICK, DONE]
    expected = play(tmp_path, None, script, **changes)
    given = [
        replace(turn, completion=replace(turn.completion, logprobs=(), versions=()))
        for turn in expected.turns
    ]
    taught = teach(tmp_path, f"for answer in {script!r}: step(answer=answer)", **changes)
    assert taught == replace(expected, turns=tuple(given))


def test_actions_of_a_program_that_answers_itself_are_written_in_the_dialect(tmp_path):
    program = """
        step(actions=[{"do": "Click", "point": {"x": 3, "y": 4}}], thought="Open it")
        step(pyautogui="pyautogui.rightClick(); pyautogui.write('a')")
        step(pyautogui="DONE")
    """
    taught = teach(tmp_path, program)
    answers = [
        "Thought: Open it\nAction: click(start_box='(3,4)')",
        "Action: right_single(start_box='(3,4)')\n\ntype(content='a')",
        "Action: finished()",
    ]
    assert [turn.completion.text for turn in taught.turns] == answers
    assert [turn.completion.token_ids for turn in taught.turns] == [
        (*RENDERER.encode(text), RENDERER.end_of_turn_id) for text in answers
    ]
    again = teach(tmp_path, f"for answer in {answers!r}: step(answer=answer)")
    assert taught == again


def test_actions_that_cannot_be_written_are_refused(tmp_path):
    program = f"""
        outside = {{"do": "Click", "point": {{"x": 3000, "y": 4}}}}
        refused = [step(actions=[{{"do": "Fail"}}], thought=3), step(pyautogui="import os")]
        refused.append(step(actions=[outside]))
        print([one["error"]["message"] for one in refused], flush=True)
        step(answer={DONE!r}); time.sleep(0.1)
    """
    taught = teach(tmp_path, program)
    assert [turn.completion.text for turn in taught.turns] == [DONE]
    (log,) = (tmp_path / "logs").iterdir()
    assert '"thought" must be a text' in (said := log.read_text())
    assert "the point (3000, 4) is outside the screen of" in said


def test_steps_of_a_program_that_asks_the_model_belong_to_the_answer(tmp_path):
    agent = replace(
        agent_of(tmp_path, "ask('x'); [step(pyautogui='pyautogui.click(3, 4)') for _ in 'ab']", [CLICK]),
        student=RENDERER,
    )
    played = asyncio.run(
        run_episode(task("t"), FakeEnv(), agent, episode_id="batch-1-0-0", settings=settings(), seed=3)
    )
    assert [len(turn.actions) for turn in played.turns] == [2]


def test_a_program_that_answers_itself_may_correct_an_answer(tmp_path):
    taught = teach(tmp_path, f"step(answer='nonsense'); step(answer={DONE!r})")
    assert [turn.completion.text for turn in taught.turns] == [DONE]  # nobody learns the other one
    assert (taught.stop, taught.turns[0].actions) == (StopReason.FINISHED, (Finished(),))


@pytest.mark.parametrize("end", ["", "; sys.exit(1)"])
def test_a_program_whose_answer_does_not_parse_fails_with_its_beginning(tmp_path, end):
    message = r"the answer does not parse \(the answer contains no 'Action:'\): 'I click on( it){63} '\. "
    with pytest.raises(AgentError, match=message) as caught:
        teach(tmp_path, f"step(answer='I click on' + 99 * ' it'){end}", max_answer_tokens=999)
    assert "never asked the model" not in str(caught.value)


def test_a_program_that_answers_itself_ends_at_the_length_of_the_context(tmp_path):
    program = f"""
        while "code" not in str(step(answer={WAIT!r})): pass
    """
    taught = teach(tmp_path, program, max_context_tokens=190)
    assert (taught.stop, 1 < len(taught.turns) < 5) == (StopReason.MAX_STEPS, True)


def test_the_built_in_loop_as_a_program_ends_at_the_length_of_the_context(tmp_path):
    changes = {"max_context_tokens": 190}
    expected = play(tmp_path, None, [CLICK] * 5, **changes)
    assert (expected.stop, 1 < len(expected.turns) < 5) == (StopReason.MAX_STEPS, True)
    assert play(tmp_path, EXAMPLE, [CLICK] * 5, **changes) == expected
    with pytest.raises(PromptTooLong, match="max_context_tokens = 110 is too small"):
        play(tmp_path, EXAMPLE, [CLICK], max_context_tokens=110)


def test_samples_and_seeds_are_those_of_the_built_in_loop(tmp_path):
    own, built_in = (agent_of(tmp_path, source, [CLICK, WAIT, DONE]) for source in (EXAMPLE, None))
    played = [
        asyncio.run(
            run_episode(task("t"), FakeEnv(), agent, episode_id="batch-1-0-0", settings=settings(), seed=3)
        )
        for agent in (own, built_in)
    ]
    assert own.engine.samplings == built_in.engine.samplings
    assert [prompt.token_ids for prompt in own.engine.prompts] == [
        prompt.token_ids for prompt in built_in.engine.prompts
    ]
    first, second = (list(trajectory_samples(one, 1.0, 0.5, replayed=False)) for one in played)
    assert first == second


def test_a_program_may_plan_without_a_screenshot_and_act_in_several_ways(tmp_path):
    env = FakeEnv(score=lambda actions: 1.0)
    program = """
        plan = ask("what to do?")["choices"][0]["message"]["content"]
        assert step(actions=[{"do": "Click", "point": {"x": 3, "y": 4}}]) == {"finished": False, "error": ""}
        ask("what to do?", plan, "and now?", temperature=0, top_p=0.5, max_tokens=50)
        step(pyautogui="pyautogui.click(5, 6)")
        step(pyautogui="DONE")
    """
    trajectory = play(tmp_path, program, ["my plan", "second"], env)
    assert (trajectory.stop, trajectory.score) == (StopReason.FINISHED, 1.0)
    assert [turn.completion.text for turn in trajectory.turns] == ["my plan", "second"]
    assert [turn.images for turn in trajectory.turns] == [(), ()]
    assert [turn.restart for turn in trajectory.turns] == [True, False]
    assert [turn.screenshot for turn in trajectory.turns] == [screenshot(0), screenshot(1)]
    assert trajectory.turns[0].actions == (Click(point=Point(3, 4)),)
    assert trajectory.turns[1].actions == (Click(point=Point(5, 6)), Finished())


def test_keys_of_a_program_become_canonical(tmp_path):
    env = FakeEnv()
    play(tmp_path, "ask('x'); step(actions=[{'do': 'Hotkey', 'keys': ['Control+A']}])", ["a"], env)
    assert env.steps == [(Hotkey(keys=("ctrl", "a")),)]


def test_a_program_may_bring_its_own_scorer(tmp_path):
    answer = '{"do": "GiveAnswer", "text": "0.75"}'
    program = f'ask("write a")\nstep(actions=[{answer}])'
    trajectory = play(tmp_path, program, ["a"], ReportedScore())
    assert (trajectory.score, len(trajectory.turns)) == (0.75, 1)
    with pytest.raises(EnvError, match="no score was reported"):
        play(tmp_path, 'ask("write a")', ["a"], ReportedScore())


def test_a_program_that_exits_ends_its_episode_and_may_ask_again_after_a_wrong_answer(tmp_path):
    program = """
        assert step(answer=ask("a")["choices"][0]["message"]["content"])["error"]
        step(answer=ask("b")["choices"][0]["message"]["content"])
    """
    trajectory = play(tmp_path, program, ["nonsense", WAIT])
    assert (trajectory.stop, trajectory.malformed) == (StopReason.FINISHED, False)
    assert trajectory.turns[0].error and trajectory.turns[1].actions == (Wait(),)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["inspect", "verifiers"])
def test_a_sample_of_another_package_is_scored_by_its_own_scorer(tmp_path, monkeypatch, package):
    """The examples unchanged, with the real packages (`make inspect verifiers`)."""
    monkeypatch.chdir(ROOT / "examples")
    program = AgentProgram(
        command=(str(ROOT / f".venv-{package}" / "bin" / "python"), f"{package}_agent.py"),
        logs=tmp_path,
        start_seconds=600.0,
        call_seconds=600.0,
    )
    for answer, score in ("It is 3.", 1.0), ("It is 4.", 0.0):
        agent = replace(agent_of(tmp_path, None, [answer]), program=program)
        trajectory = asyncio.run(
            run_episode(
                task("3"), ReportedScore(), agent, episode_id="batch-1-0-0", settings=settings(), seed=3
            )
        )
        [turn] = trajectory.turns
        assert (trajectory.score, turn.completion.text) == (score, answer)
        [prompt] = agent.engine.prompts
        assert [(one.role, one.text) for one in prompt.messages] == [("user", "Write the digit 3")]


def test_a_program_may_ask_for_a_stream(tmp_path):
    program = r"""
        reply = urlopen(Request(f"{MODEL}/chat/completions", json.dumps(
            {"stream": True, "messages": [{"role": "user", "content": "x"}]}).encode()))
        assert reply.headers["Content-Type"] == "text/event-stream"
        *events, end, empty = reply.read().decode().split("\n\n")
        first, last, usage = (json.loads(event.removeprefix("data: ")) for event in events)
        assert (end, empty) == ("data: [DONE]", "")
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": "good\nday"}
        assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
        assert (usage["choices"], usage["usage"]) == ([], ask("x")["usage"])
        step(actions=[{"do": "GiveAnswer", "text": "1"}])
    """
    trajectory = play(tmp_path, program, ["good\nday"] * 2, ReportedScore())
    assert (trajectory.score, trajectory.turns[0].completion.text) == (1.0, "good\nday")


def test_calls_are_refused_with_a_reason_and_change_nothing(tmp_path):
    program = r"""
        def refused(reply, status, text):
            assert reply["status"] == status and text in reply["error"]["message"], reply
        message = {"role": "user", "content": "x"}
        refused(chat([]), 400, "at least one message")
        refused(chat([message], tools=[{}]), 400, "tools: is not supported")
        refused(chat([message], n=2), 400, "n: must be 1")
        refused(chat([message], max_tokens=-1), 400, "max_tokens")
        refused(chat([{"role": "tool", "content": "x"}]), 400, "messages[0]: its role is 'tool'")
        refused(chat([{"role": "assistant", "content": "x"}]), 400, "must be of role user")
        for url in ("http://example.org/a.png", "data:image/png;base64,!!", "data:image/png;base64,AAAA"):
            part = {"type": "image_url", "image_url": {"url": url}}
            refused(chat([{"role": "user", "content": [part]}]), 400, "messages[0].content[0]")
        png = base64.b64encode(urlopen(f"{ENV}/screenshot").read()).decode()
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}}
        refused(chat([{"role": "user", "content": [part] * 6}]), 400, "6 images, must be at most 5")
        refused(step(), 400, "a step needs")
        refused(step(actions=[{"do": "Jump"}]), 400, "unknown action")
        far = {"do": "Click", "point": {"x": 10**400, "y": 1}}
        refused(step(actions=[far]), 400, "actions[0].point: must be {x, y} in finite numbers")
        scroll = {"do": "Scroll", "point": None, "direction": "up", "amount": 10**9}
        refused(step(actions=[scroll]), 400, "Scroll: amount is 1000000000, must be 0 to 1000")
        refused(step(actions=[{"do": "Wait"}] * 33), 400, "more than 32")
        refused(ask("caf\ud83d"), 400, "half a character (a lone surrogate) in 'caf")
        refused(step(answer="\udc00 a"), 400, "a lone surrogate")
        try:
            urlopen(Request(f"{ENV}/step", b"[" * 200_000))
        except HTTPError as error:
            assert error.code == 400 and b"not JSON" in error.read()
        try:
            urlopen(ENV.rpartition("/")[0] + "/other-key/task")
        except HTTPError as error:
            assert error.code == 404
        step(answer=ask("x")["choices"][0]["message"]["content"])
        refused(ask("x"), 410, "the episode has ended")
        refused(step(answer="x"), 410, "the episode has ended")
    """
    trajectory = play(tmp_path, program, [DONE])
    assert [turn.actions for turn in trajectory.turns] == [(Finished(),)]
    assert not (tmp_path / "logs").exists()  # no assertion of the program has failed


def test_pictures_may_have_another_size_and_format(tmp_path):
    program = """
        import io
        from PIL import Image
        def part(format, size):
            file = io.BytesIO()
            Image.new("RGB", size, "red").save(file, format)
            url = f"data:image/{format.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
            return {"type": "image_url", "image_url": {"url": url}}
        parts = [{"type": "text", "text": "a"}, part("PNG", (112, 56)), {"type": "text", "text": "b"}]
        chat([{"role": "user", "content": [*parts, part("JPEG", (28, 28))]}])
        step(answer="Action: click(start_box='(14,14)')")
    """
    [turn] = play(tmp_path, program, [CLICK], max_steps=1).turns
    assert [image.size for image in turn.images] == [(112, 56), (28, 28)]
    assert turn.actions == (Click(point=Point(28, 28)),)  # in the pixels of the last picture: 28x28


ACTOR_AND_CRITIC = """
    import io
    from PIL import Image
    file = io.BytesIO()
    Image.new("RGB", (28, 28)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    answer = chat([{"role": "user", "content": [part]}])["choices"][0]["message"]["content"]
    assert ask(f"is this right: {answer}")["choices"][0]["message"]["content"] == "yes"
    print(step(answer=answer), flush=True)
"""


def test_a_step_belongs_to_the_call_that_gave_its_answer(tmp_path):
    env = FakeEnv()
    answer = "Action: click(start_box='(14,14)')"
    trajectory = play(tmp_path, ACTOR_AND_CRITIC, [answer, "yes"], env)
    click = Click(point=Point(28, 28))  # in the middle of the picture of 28x28, and of the screen of 56x56
    assert env.steps == [(click,)]
    assert [turn.actions for turn in trajectory.turns] == [(click,), ()]


def test_a_cut_answer_is_no_step_after_another_call_either(tmp_path):
    script = ["Action: click(start_box='(14,14)')", "yes"]
    trajectory = play(tmp_path, ACTOR_AND_CRITIC, script, max_answer_tokens=9)
    assert [bool(turn.error) for turn in trajectory.turns] == [True, False]
    assert trajectory.stop == StopReason.LENGTH


def test_the_tokens_of_an_episode_are_limited(tmp_path):
    program = """
        for number in range(100):
            reply = ask(f"call {number}", max_tokens=4)
            if "error" in reply:
                assert reply["error"]["code"] == "context_length_exceeded"
                sys.exit(reply["error"]["message"])
    """
    trajectory = play(tmp_path, program, lambda prompt, sampling: "a b c d e f g h", max_answer_tokens=10)
    assert trajectory.sampled_tokens == 50 and trajectory.stop == StopReason.MAX_STEPS
    assert "all of its 50 tokens" in (tmp_path / "logs" / "batch-1-0-0.log").read_text()


def test_the_prompts_of_an_episode_are_limited(tmp_path):
    """A planner with short answers: each call is a sequence of its own."""
    program = """
        for number in range(100):
            reply = ask(f"call {number}")
            if "error" in reply:
                assert reply["error"]["code"] == "context_length_exceeded"
                sys.exit(reply["error"]["message"])
    """
    trajectory = play(tmp_path, program, lambda prompt, sampling: "a", max_context_tokens=120)
    read = sum(len(turn.context) for turn in trajectory.turns)
    assert (500 < read <= 600, trajectory.stop) == (True, StopReason.MAX_STEPS)
    log = (tmp_path / "logs" / "batch-1-0-0.log").read_text()
    assert "the episode has read all of its 600 tokens (rollout.max_steps x rollout.max_context" in log


FAULTS = {
    "crash": ("ask('x'); print('so far'); raise KeyError('room')", "exit code 1.*KeyError: 'room'"),
    "refused": (
        "ask('x'); step(actions=[{'do': 'Klick'}]); sys.exit('Bad Request')",
        r"exit code 1. Its last refused call: actions\[0\]: unknown action 'Klick'.*Bad Request",
    ),
    "killed": ("ask('x'); os.kill(os.getpid(), 9)", "killed by SIGKILL"),
    "hang": ("ask('x'); print('I wait'); time.sleep(600)", "no step for 1.5 s.*env.step_seconds.*I wait"),
    "poll": (
        """
        ask('x'); print('I poll')
        while "the episode" not in str(step(answer='nonsense') | ask('x', n=2)):
            urlopen(f'{ENV}/screenshot').read()
        """,
        "got no answer and took no step for 1.5 s.*env.step_seconds.*I poll",
    ),
    "no model": (f"step(answer={WAIT!r}); print('bye')", "never asked the model.*bye"),
    "no call": ("print('bye')", "never asked the model.*bye"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_program_is_no_reward_and_names_its_output(tmp_path, name):
    program, message = FAULTS[name]
    env = FakeEnv(score=lambda actions: 1.0)
    with pytest.raises(AgentError, match=f"(?s){message}.*batch-1-0-0.log"):
        play(tmp_path, program, [WAIT], env, seconds=1.5)
    assert "evaluate" not in env.calls


def test_a_fault_of_the_environment_stays_one(tmp_path):
    with pytest.raises(EnvError, match="step: RuntimeError: chaos at step"):
        play(tmp_path, EXAMPLE, [WAIT], FailingEnv(FakeEnv(), "step", Times(1)))


def test_a_call_that_nobody_expects_costs_its_own_episode(tmp_path):
    def break_down(text):
        raise TypeError("no such text")

    agent = agent_of(tmp_path, "print(ask('x')); step(answer='a')", [WAIT])
    agent = replace(agent, dialect=replace(agent.dialect, parse=break_down))
    with pytest.raises(AgentError, match="agent: TypeError: no such text"):
        asyncio.run(
            run_episode(task("t"), FakeEnv(), agent, episode_id="batch-1-0-0", settings=settings(), seed=3)
        )


def test_a_crash_costs_its_own_episode(tmp_path):
    """The second episode of the group crashes in each attempt."""
    program = """
        if json.load(urlopen(f"{ENV}/task"))["id"] == "bad":
            sys.exit("no luck")
        step(answer=ask("x")["choices"][0]["message"]["content"])
    """
    pool = EnvPool(LocalEnvs(FakeEnv, 4), EnvConfig(attempts=2, width=56, height=56))
    agent = agent_of(tmp_path, program, [DONE])
    scheduler = Scheduler(pool=pool, agent=agent, settings=settings(group_size=2), seed=0)
    good, bad = asyncio.run(
        scheduler.play("batch-1", [(0, task("good")), (1, task("bad"))], lambda index, outcome: None)
    )
    assert [one.stop for one in good.trajectories] == [StopReason.FINISHED] * 2
    assert not bad.trajectories and len(bad.failures) == 2
    failure = bad.failures[0]
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.where, failure.attempts) == ("AgentError", "agent", 2)
    assert "no luck" in failure.message and "bad" not in pool.quarantine


def test_a_cancelled_episode_ends_all_processes_of_its_program(tmp_path):
    program = """
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        ask("x")
        print(os.getpid(), child.pid)
        time.sleep(600)
    """
    log = tmp_path / "logs" / "batch-1-0-0.log"

    async def run():
        agent = agent_of(tmp_path, program, [WAIT])
        playing = asyncio.create_task(
            run_episode(task("t"), FakeEnv(), agent, episode_id="batch-1-0-0", settings=settings(), seed=0)
        )
        assert await asyncio.to_thread(wait_until, lambda: log.exists() and "\n" in log.read_text())
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    asyncio.run(run())
    for number in map(int, log.read_text().split()):
        assert not os.path.exists(f"/proc/{number}")


def play_many(agent, count):
    pool = EnvPool(LocalEnvs(FakeEnv, count), EnvConfig(parallel=count, attempts=1, width=56, height=56))
    scheduler = Scheduler(pool=pool, agent=agent, settings=settings(group_size=count), seed=0)
    played = scheduler.play("batch-1", [(0, task("t"))], lambda index, outcome: None)
    [group] = asyncio.run(played)
    return group


@pytest.mark.slow
def test_programs_start_one_after_the_other_if_there_is_one_slot(tmp_path):
    """A start takes a second, and may take 2.5."""
    program = """
        print("start", time.monotonic())
        time.sleep(1)
        print("call", time.monotonic(), flush=True)
        step(answer=ask("x")["choices"][0]["message"]["content"])
    """
    agent = agent_of(tmp_path, program, [DONE])
    assert agent.program is not None
    agent = replace(agent, program=replace(agent.program, starts=Slots(1), start_seconds=2.5))
    group = play_many(agent, 4)
    assert [one.stop for one in group.trajectories] == [StopReason.FINISHED] * 4
    logs = [dict(map(str.split, log.read_text().splitlines())) for log in (tmp_path / "logs").iterdir()]
    times = sorted((float(log["start"]), float(log["call"])) for log in logs)
    assert all(call < start for (_, call), (start, _) in pairwise(times))


def test_logs_of_running_programs_stay(tmp_path, monkeypatch):
    """The first program has the oldest log, and runs until the second one has ended."""
    monkeypatch.setattr(module, "MAX_LOGS", 1)
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "old.log").write_text("x")
    program = f"""
        from pathlib import Path
        print("x")
        try:
            os.mkdir({str(tmp_path / "first")!r})
        except FileExistsError:
            ask("x"), sys.exit()
        [own] = Path({str(logs)!r}).glob("batch-*.log")
        os.utime(own, (0, 0))
        ask("x")
        deadline = time.monotonic() + 60
        while Path({str(logs / "old.log")!r}).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert own.exists()
    """
    agent = agent_of(tmp_path, program, [WAIT])
    assert agent.program is not None
    agent = replace(agent, program=replace(agent.program, starts=Slots(1)))
    assert [one.stop for one in play_many(agent, 2).trajectories] == [StopReason.FINISHED] * 2
    assert len(list(logs.iterdir())) == 1


@pytest.mark.parametrize("tick", [0.02, 60.0])
def test_the_output_of_programs_is_bounded(tmp_path, monkeypatch, tick):
    """It is cut while the program runs, or only at its end."""
    monkeypatch.setattr(module, "TICK_SECONDS", tick)
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(module.MAX_LOGS + 5):
        (logs / f"old-{number}.log").write_text("x")
    limit = module.MAX_LOG_BYTES if tick < 1 else 10**9
    program = f"""
        import os, time
        for _ in range(30):
            print("x" * 100_000)
        ask("x")
        while os.fstat(1).st_size > {limit}:  # a cut loses what is written at the same moment
            time.sleep(0.01)
        print("the end")
    """
    play(tmp_path, program, [WAIT])
    assert len(list(logs.iterdir())) == module.MAX_LOGS
    text = (logs / "batch-1-0-0.log").read_text()
    assert len(text) <= module.MAX_LOG_BYTES and "the end\n" in text
