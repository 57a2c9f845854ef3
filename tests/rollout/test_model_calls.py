"""Training sequences from model calls, on real tokens."""

from dataclasses import replace
from itertools import chain
from random import Random

import pytest

from arpo.algorithms.samples import trajectory_samples
from arpo.rollout.model_calls import ModelCalls
from arpo.testing import screenshot
from arpo.types import Completion, Message, StopReason, Trajectory
from players import CLICK, RENDERER, TOKENIZER

SYSTEM = Message(role="system", text="You use a computer.")


def user(text, *shades):
    return Message(role="user", text=text, more=tuple(screenshot(shade) for shade in shades))


def said(text):
    return Message(role="assistant", text=text)


def completion(text, token_ids=None):
    ids = token_ids or (*RENDERER.encode(text), RENDERER.end_of_turn_id)
    return Completion(
        token_ids=ids, logprobs=(-0.5,) * len(ids), text=text, finish="stop", versions=(0,) * len(ids)
    )


def asked(calls, messages, answer):
    answer = completion(answer) if isinstance(answer, str) else answer
    return calls.end(calls.begin(messages), answer, screenshot(0))


def episode(turns):
    return Trajectory(
        episode_id="e",
        task_id="t",
        turns=tuple(turns),
        final=screenshot(0),
        score=1.0,
        malformed=False,
        stop=StopReason.FINISHED,
    )


def samples(turns):
    return list(trajectory_samples(episode(turns), 1.0, 1.0, replayed=False))


def test_calls_that_go_on_are_one_sequence_as_the_template_renders_them():
    calls, opening = ModelCalls(RENDERER), [SYSTEM, user("do it", 1)]
    first = asked(calls, opening, "wait()")
    second = asked(calls, [*opening, said("wait()"), user("", 2)], "finished()")
    assert [turn.restart for turn in (first, second)] == [True, False]
    whole = RENDERER.render([*opening, said("wait()"), user("", 2)])
    [sample] = samples([first, second])
    assert sample.token_ids == (*whole.token_ids, *second.completion.token_ids)
    assert sample.images == (screenshot(1), screenshot(2))
    assert sum(sample.mask) == len(first.completion.token_ids) + len(second.completion.token_ids)


def test_a_branch_is_a_sequence_of_its_own_and_no_token_is_trained_twice():
    calls, opening = ModelCalls(RENDERER), [SYSTEM, user("do it", 1)]
    base = asked(calls, opening, "plan a")
    left = asked(calls, [*opening, said("plan a"), user("left")], "wait()")
    right = asked(calls, [*opening, said("plan a"), user("right")], "finished()")
    turns = [base, left, right]
    assert [turn.restart for turn in turns] == [True, False, True]
    both = samples(turns)
    assert [len(sample.answers) for sample in both] == [2, 1]
    assert sum(sum(sample.mask) for sample in both) == episode(turns).sampled_tokens
    answer = base.completion.token_ids
    assert TOKENIZER.decode(both[1].token_ids).count("plan a") == 1
    assert not any(both[1].mask[: -len(right.completion.token_ids)]) and answer[0] in both[1].token_ids


def test_interleaved_conversations_go_on_with_their_own_sequences():
    calls = ModelCalls(RENDERER)
    planner, actor = [SYSTEM, user("plan")], [SYSTEM, user("act", 1)]
    turns = []
    for number in range(3):
        for history in (planner, actor):
            turns.append(asked(calls, history, f"answer {number}"))
            history += [said(f"answer {number}"), user("next", number + 2)]
    assert [turn.after for turn in turns] == [0, 0, 1, 2, 3, 4]
    assert episode(turns).sequences() == [[0, 2, 4], [1, 3, 5]]
    for sample, history in zip(samples(turns), (planner, actor), strict=True):
        assert sample.token_ids == (
            *calls.begin(history[:-2]).prompt.token_ids,
            *turns[-1].completion.token_ids,
        )


def test_an_answer_without_the_spaces_around_it_keeps_its_tokens():
    calls, opening = ModelCalls(RENDERER), [SYSTEM, user("do it")]
    asked(calls, opening, "wait()\n")
    assert not asked(calls, [*opening, said("wait()"), user("go on")], "x").restart


def test_an_edited_answer_begins_a_new_sequence():
    calls, opening = ModelCalls(RENDERER), [SYSTEM, user("do it")]
    asked(calls, opening, "wait()")
    assert asked(calls, [*opening, said("wait(1)"), user("go on")], "x").restart


def spelled(text):
    """Its letters as one token each, which the tokenizer would join."""
    return tuple(chain(*map(RENDERER.encode, text)))


@pytest.mark.slow
def test_a_thousand_calls_without_a_token_mismatch():
    """Three conversations that drop old screenshots. Tokenising an answer again gives other tokens."""
    rng, calls = Random(0), ModelCalls(RENDERER)
    engine: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # what it read and sampled
    turns, continued = [], 0
    histories: list[list[Message]] = [[SYSTEM, user(f"agent {name}")] for name in range(3)]
    for number in range(1000):
        history = rng.choice(histories)
        history.append(user("", rng.randrange(200)))
        if len(history) > 12 and rng.random() < 0.3:
            del history[2:10]
        call = calls.begin([replace(message, token_ids=None) for message in history])
        assert call.prompt == RENDERER.render(history)
        text = f"{CLICK} {number}"
        ids = (*spelled(text), RENDERER.end_of_turn_id)
        assert RENDERER.decode(ids) == text and RENDERER.encode(text) != ids[:-1]
        engine.append((call.prompt.token_ids, ids))
        turns.append(calls.end(call, completion(text, ids), screenshot(0)))
        continued += not turns[-1].restart
        history.append(replace(said(text), token_ids=ids))
    assert continued > 500
    trained: dict[int, tuple[int, ...]] = {}
    for sample in samples(turns):
        end = 0
        for answer in sample.answers:
            end = bytes(sample.mask).index(1, end) + answer.tokens
            trained[answer.turn] = sample.token_ids[:end]
    assert [trained[number] for number in range(1, 1001)] == [(*prompt, *ids) for prompt, ids in engine]


def test_turns_that_do_not_fit_together_are_refused():
    calls = ModelCalls(RENDERER)
    turn = asked(calls, [SYSTEM, user("do it")], "wait()")
    for wrong in (
        [replace(turn, restart=False)],
        [turn, replace(turn, restart=False, after=3)],
        [turn, replace(turn, restart=False), replace(turn, restart=False, after=1)],
    ):
        try:
            episode(wrong).sequences()
        except ValueError as error:
            assert "ends no sequence" in str(error)
        else:
            raise AssertionError(wrong)
