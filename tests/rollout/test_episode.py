import asyncio
from dataclasses import replace

import pytest

from arpo.actions import CallUser, Click, Drag, Fail, Finished, Point, Type, Wait
from arpo.algorithms.samples import trajectory_samples
from arpo.config import RolloutConfig
from arpo.dialects.ui_tars import UI_TARS, UI_TARS_1_5
from arpo.errors import EngineError, PromptTooLong
from arpo.prompts.rendering import Renderer
from arpo.rollout.agent import Agent, begin, draw_seed
from arpo.rollout.episode import repeats_prompts, run_episode
from arpo.testing import FakeEnv, ScriptedEngine, screenshot, task
from arpo.types import Observation, StepResult, StopReason
from players import CLICK, DONE, RENDERER, TEMPLATE, TOKENIZER, WAIT, Asking, scripted


def settings(**changes):
    return RolloutConfig(
        **{"max_steps": 5, "max_images": 5, "max_answer_tokens": 99, "temperature": 0.7, **changes}
    )


def play(script, env=None, engine=None, dialect=UI_TARS_1_5, positions=None, **changes):
    agent = Agent(
        engine=engine or scripted(script),
        renderer=RENDERER,
        template=TEMPLATE,
        dialect=dialect,
        positions=positions,
    )
    run = run_episode(
        task("t"), env or FakeEnv(), agent, episode_id="0-0-0", settings=settings(**changes), seed=3
    )
    return asyncio.run(run)


def test_an_episode_from_start_to_verdict():
    env = FakeEnv(score=lambda actions: 1.0 if Finished() in actions else 0.0)
    trajectory = play([CLICK, DONE], env)
    assert env.calls == ["start", "step", "step", "evaluate"]
    assert (trajectory.score, trajectory.stop, trajectory.malformed) == (1.0, StopReason.FINISHED, False)
    assert [turn.actions for turn in trajectory.turns] == [(Click(point=Point(28, 14)),), (Finished(),)]
    assert [turn.screenshot for turn in trajectory.turns] == [screenshot(0), screenshot(1)]
    assert trajectory.final == screenshot(2)
    assert (trajectory.episode_id, trajectory.task_id) == ("0-0-0", "t")


def test_the_instruction_of_the_environment_replaces_that_of_the_task():
    def text(env):
        return TOKENIZER.decode(play([DONE], env).turns[0].context)

    assert "ring the bell" in text(Asking())
    assert "ring the bell" not in text(FakeEnv())
    assert text(Asking()).replace("ring the bell", task("t").instruction) == text(FakeEnv())
    assert [play([DONE], env).instruction for env in (Asking(), FakeEnv())] == ["ring the bell", ""]


def test_each_turn_is_shown_before_its_actions_are_done():
    env, shown = FakeEnv(), []
    agent = Agent(engine=scripted([CLICK, DONE]), renderer=RENDERER, template=TEMPLATE, dialect=UI_TARS_1_5)
    run = run_episode(
        task("t"),
        env,
        agent,
        episode_id="0-0-0",
        settings=settings(),
        seed=3,
        on_turn=lambda turn: shown.append((turn, len(env.steps))),
    )
    trajectory = asyncio.run(run)
    assert shown == [(trajectory.turns[0], 0), (trajectory.turns[1], 1)]


class Shown(FakeEnv):
    """Shows the given screenshots, one after the other."""

    def __init__(self, *shots):
        super().__init__()
        self.shots = iter(shots)

    async def start(self, task):
        return Observation(screenshot=next(self.shots))

    async def step(self, actions):
        return StepResult(observation=Observation(screenshot=next(self.shots)), terminated=False)


def test_each_distinct_screenshot_is_reported_once_with_the_one_before_it():
    first, second, third = (screenshot(shade) for shade in (1, 2, 3))
    reported = []
    agent = Agent(
        engine=scripted([CLICK, CLICK, DONE]), renderer=RENDERER, template=TEMPLATE, dialect=UI_TARS_1_5
    )
    run = run_episode(
        task("t"),
        Shown(first, second, first, third),
        agent,
        episode_id="0-0-0",
        settings=settings(),
        seed=3,
        on_screenshot=lambda *pair: reported.append(pair),
    )
    assert asyncio.run(run).final is third
    assert reported == [(first, None), (second, first), (third, second)]


def test_the_sequence_only_grows():
    engine = scripted([WAIT, CLICK, DONE])
    trajectory = play([], engine=engine)
    first, second, third = trajectory.turns
    assert [turn.restart for turn in trajectory.turns] == [True, False, False]
    assert engine.prompts[0].token_ids == first.context
    assert engine.prompts[1].token_ids == first.context + first.completion.token_ids + second.context
    assert (
        engine.prompts[2].token_ids
        == engine.prompts[1].token_ids + second.completion.token_ids + third.context
    )
    assert [len(prompt.images) for prompt in engine.prompts] == [1, 2, 3]
    assert [turn.images for turn in trajectory.turns] == [(screenshot(shade),) for shade in range(3)]


def test_a_continued_sequence_is_the_conversation_rendered_whole():
    engine = scripted([WAIT, CLICK, DONE])
    play([], engine=engine)
    for prompt in engine.prompts:
        whole = RENDERER.render(prompt.messages)
        assert (prompt.token_ids, prompt.images) == (whole.token_ids, whole.images)


def test_an_answer_that_ends_with_another_token_of_the_model_continues_the_sequence():
    renderer = Renderer(TOKENIZER, RENDERER.settings, end_ids=[RENDERER.pad_id])
    engine = ScriptedEngine([WAIT, CLICK, DONE], renderer.encode, renderer.pad_id)
    agent = Agent(engine=engine, renderer=renderer, template=TEMPLATE, dialect=UI_TARS_1_5)
    run = run_episode(task("t"), FakeEnv(), agent, episode_id="0-0-0", settings=settings(), seed=3)
    trajectory = asyncio.run(run)
    assert (trajectory.stop, len(trajectory.turns)) == (StopReason.FINISHED, 3)
    for turn in trajectory.turns[1:]:
        assert turn.context[0] == renderer.end_of_turn_id
    for prompt in engine.prompts:
        assert prompt.token_ids == renderer.render(prompt.messages).token_ids


def test_it_begins_anew_where_the_window_slides():
    engine = scripted([WAIT, WAIT, WAIT, DONE])
    trajectory = play([], engine=engine, max_images=2)
    assert [turn.restart for turn in trajectory.turns] == [True, False, True, True]
    assert engine.prompts[2].token_ids == trajectory.turns[2].context
    assert trajectory.turns[2].images == engine.prompts[2].images == (screenshot(1), screenshot(2))
    assert trajectory.turns[3].images == (screenshot(2), screenshot(3))


@pytest.mark.parametrize("turns", [50, 100])
@pytest.mark.parametrize("history", ["text", "blocks"])
def test_long_episodes_stay_within_a_budget_of_tokens(history, turns):
    """The lines of old steps grow. When they exceed the budget, the oldest ones are only counted."""
    budget = {"max_answer_tokens": 60, "max_context_tokens": 700}
    limits = {"max_steps": turns, "max_images": 4, "history": history}
    engine = scripted(["Thought: wait for it\nAction: wait()"] * (turns - 1) + [DONE])
    trajectory = play([], engine=engine, **limits, **budget)
    assert (len(trajectory.turns), trajectory.stop) == (turns, StopReason.FINISHED)
    assert len(engine.prompts) == turns
    assert max(len(prompt.token_ids) for prompt in engine.prompts) <= 700 - 60
    last = engine.prompts[-1]
    assert "earlier steps)\nStep" in last.messages[1].text
    assert len(last.images) > 1


@pytest.mark.parametrize(("history", "restarts"), [("answers", 47), ("text", 47), ("blocks", 17)])
def test_blocks_restart_rarely(history, restarts):
    """50 steps with at most 4 screenshots: a restart at each step from the fifth on, or at each third."""
    limits = {"max_steps": 50, "max_images": 4, "history": history}
    trajectory = play([WAIT] * 49 + [DONE], **limits, max_context_tokens=100_000)
    assert sum(turn.restart for turn in trajectory.turns) == restarts


@pytest.mark.parametrize("history", ["answers", "text", "blocks"])
def test_training_sees_what_sampling_saw(history):
    """Every prompt is the conversation rendered whole, and the start of a training sample."""
    engine = scripted([WAIT] * 9 + [DONE])
    trajectory = play([], engine=engine, max_steps=10, max_images=4, history=history)
    seen = iter(engine.prompts)
    for sample in trajectory_samples(trajectory, 1.0, 1.0, False):
        begun = 0
        for answer in sample.answers:
            start = sample.mask.index(1, begun)
            prompt = next(seen)
            whole = RENDERER.render(prompt.messages)
            assert sample.token_ids[:start] == prompt.token_ids == whole.token_ids
            shown = len(prompt.images)
            assert sample.images[:shown] == prompt.images == whole.images
            begun = start + answer.tokens
    assert next(seen, None) is None


def test_stored_prompts_are_those_of_the_same_settings_only():
    """In the second episode, prompts are folded to fit into 700 tokens."""

    def repeats(episode, instruction="", **limits):
        text = instruction or task("t").instruction
        begun = begin(TEMPLATE, UI_TARS_1_5, text, settings(**limits))
        return repeats_prompts(episode, begun, RENDERER, settings(**limits))

    three = {"max_steps": 6, "max_images": 3}
    episode = play([WAIT] * 5 + [DONE], **three)
    assert repeats(episode, **three) and repeats(episode, **three, temperature=0.1)
    assert not repeats(episode, "another task", **three)
    assert not repeats(episode, max_images=4)
    assert not repeats(episode, **three, history="text")
    shorter = replace(episode, turns=episode.turns[:3])
    assert repeats(shorter, max_images=4) and not repeats(shorter, max_images=2)
    folded = {"max_steps": 30, "history": "blocks", "max_answer_tokens": 60, "max_context_tokens": 700}
    episode = play(["Thought: wait for it\nAction: wait()"] * 29 + [DONE], **folded)
    assert repeats(episode, **folded)
    assert not repeats(episode, **{**folded, "max_context_tokens": 9999})


def test_places_are_scaled_once_from_the_models_pixels_to_the_screens():
    env = FakeEnv(size=(112, 112))
    assert RENDERER.model_size(screenshot(0, (112, 112))) == (56, 56)
    play([CLICK, DONE], env)
    assert env.steps[0] == (Click(point=Point(56, 28)),)


def test_thousandths_are_of_the_screens_sides_whatever_the_model_sees_of_it():
    """500/1000 of 1920 is 960, 250/1000 of 1080 is 270; 1000 is the last pixel; a move has two places."""
    env = FakeEnv(size=(1920, 1080))
    drag = "Action: drag(start_box='(10,333)', end_box='(999,1000)')"
    play(["Action: click(start_box='(500,250)')", drag, DONE], env, dialect=UI_TARS)
    assert env.steps[0] == (Click(point=Point(960, 270)),)
    assert env.steps[1] == (Drag(start=Point(19, 360), end=Point(1918, 1079)),)
    play(["Action: click(start_box='(28,14)')", DONE], pixels := FakeEnv(size=(1920, 1080)))
    assert RENDERER.model_size(screenshot(0, (1920, 1080))) == (56, 28)
    assert pixels.steps[0] == (Click(point=Point(960, 540)),)


@pytest.mark.parametrize(
    ("answer", "last", "reason"),
    [
        ("Action: finished()\n\nwait()", Finished(), StopReason.FINISHED),
        ("Action: error_env()", Fail(), StopReason.FAIL),
        ("Action: call_user()", CallUser(), StopReason.CALL_USER),
    ],
)
def test_a_terminal_action_reaches_the_environment_and_is_the_last(answer, last, reason):
    env = FakeEnv()
    trajectory = play([answer], env)
    assert env.steps == [(last,)]
    assert trajectory.stop == reason


def test_one_answer_is_one_step():
    env = FakeEnv()
    play(["Action: wait()\n\ntype(content='x\\n')", DONE], env)
    assert env.steps[0] == (Wait(), Type(text="x", submit=True))


def test_the_rules_end_it():
    assert play([WAIT] * 5).stop == StopReason.MAX_STEPS
    assert len(play([WAIT] * 5, max_steps=2).turns) == 2
    ended = play([WAIT] * 5, FakeEnv(ends_after=2))
    assert (ended.stop, len(ended.turns)) == (StopReason.TERMINATED, 2)


def test_an_answer_outside_the_language_ends_it_and_is_judged():
    env = FakeEnv(score=lambda actions: 0.5)
    trajectory = play([WAIT, "Action: explode()"], env)
    assert (trajectory.stop, trajectory.malformed, trajectory.score) == (StopReason.PARSE_ERROR, True, 0.5)
    assert trajectory.turns[1].actions == ()
    assert trajectory.turns[1].error == "unknown function 'explode'"
    assert trajectory.final == screenshot(1)
    assert env.calls == ["start", "step", "evaluate"]


def test_an_answer_cut_by_length_ends_it_even_where_it_would_parse():
    trajectory = play([CLICK], max_answer_tokens=3)
    assert (trajectory.stop, trajectory.malformed) == (StopReason.LENGTH, True)
    assert trajectory.turns[0].error == "the answer was cut at 3 tokens"
    assert len(trajectory.turns[0].completion.token_ids) == 3


def test_the_context_limit_ends_it_before_an_answer():
    whole = play([WAIT] * 5)
    lengths = [len(turn.context) + len(turn.completion.token_ids) for turn in whole.turns]
    limit = sum(lengths[:2]) + 99
    env = FakeEnv()
    trajectory = play([WAIT] * 5, env, max_context_tokens=limit)
    assert (trajectory.stop, len(trajectory.turns), trajectory.malformed) == (StopReason.MAX_STEPS, 2, False)
    assert env.calls[-1] == "evaluate"
    assert trajectory.final == screenshot(2)


def test_a_first_prompt_that_leaves_no_space_for_an_answer_says_what_would():
    need = len(play([DONE]).turns[0].context) + 99
    with pytest.raises(PromptTooLong) as refused:
        play([WAIT], max_context_tokens=100)
    assert refused.value.message == (
        f"rollout.max_context_tokens = 100 is too small: prompt and answer need {need - 99} + 99 tokens: set "
        f"it to {need} or more, lower model.max_pixels or rollout.max_answer_tokens, or shorten the "
        "instruction"
    )
    assert play([DONE], max_context_tokens=need).stop is StopReason.FINISHED
    with pytest.raises(PromptTooLong, match=r"and the model has 80 positions: lower model\.max_pixels or"):
        play([WAIT], max_context_tokens=100, positions=80)


def test_draws_are_keyed_by_their_place():
    engine = scripted([WAIT, DONE])
    play([], engine=engine)
    assert [s.seed for s in engine.samplings] == [draw_seed(3, "t", "0-0-0", turn) for turn in range(2)]
    assert {(s.temperature, s.max_tokens) for s in engine.samplings} == {(0.7, 99)}
    places = [(3, "t", "e", 0), (4, "t", "e", 0), (3, "u", "e", 0), (3, "t", "f", 0), (3, "t", "e", 1)]
    seeds = [draw_seed(*place) for place in places]
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_batches_are_drawn_as_when_ids_counted_them_from_0():
    assert draw_seed(3, "t", "batch-4-0-1", 2) == 3537709391099448045
    assert draw_seed(3, "t", "check-3-batch-4-0-1", 0) == 2501927490219845829


def test_an_engine_that_dies_is_named_and_still_released():
    def dies(prompt, sampling):
        raise ConnectionError("gone")

    engine = scripted(dies)
    with pytest.raises(EngineError, match="generate: ConnectionError: gone"):
        play([], engine=engine)
    assert engine.released == ["0-0-0"]
