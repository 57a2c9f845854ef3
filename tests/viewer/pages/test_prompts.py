"""Prompts of steps as messages, from the stored tokens of an episode."""

from contextlib import closing
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest

from arpo.errors import UserError
from arpo.prompts.rendering import Renderer
from arpo.storage.run_folder import RunFolder
from arpo.types import Message
from arpo.viewer.export import index_all
from arpo.viewer.library import Library
from viewed_runs import config, played

BASE = Path(str(files("arpo"))) / "envs" / "desk" / "base_model" / "weights"


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    """An episode of four steps with real prompts. The third one begins anew, without the first screenshot."""
    folder = tmp_path_factory.mktemp("runs") / "desk"
    renderer, plain = Renderer.from_folder(BASE), played("batch-1-0-0", "pool-040", 1.0)
    system = Message(role="system", text="You use a computer.")
    turns = []
    for number, turn in enumerate(plain.turns):
        user = Message(role="user", text=f"look {number} <|im_end|>", screenshot=turn.screenshot)
        restart = number in (0, 2)
        rendered = renderer.render([system, user]) if restart else renderer.continuation(user)
        turns.append(replace(turn, context=rendered.token_ids, images=rendered.images, restart=restart))
    with closing(RunFolder(folder)) as store:
        store.write_recipe(config())
        store.add_trajectory(replace(plain, turns=tuple(turns)))
        store.add_trajectory(
            replace(plain, episode_id="batch-1-0-1", turns=(replace(turns[0], context=(), images=()),))
        )
        branches = (*turns[:3], replace(turns[3], after=2))  # the fourth step goes on with the first sequence
        store.add_trajectory(replace(plain, episode_id="batch-1-0-2", turns=branches))
    with closing(Library([folder])) as library:
        index_all(library)
        yield lambda name, step: library.answer(["s", "desk", "episodes", name, "prompts", str(step)], {})


def test_a_prompt_has_the_answers_before_it(prompt):
    found = prompt("batch-1-0-0", 2)
    assert (found["first"], found["note"]) == (1, "")
    assert [(one["role"], one["text"], one["images"], one["step"]) for one in found["messages"]] == [
        ("system", "You use a computer.", 0, None),
        ("user", "look 0 <|im_end|>", 1, None),
        ("assistant", "Thought: Open the settings\nAction: click(start_box='(60,200)')", 0, 1),
        ("user", "look 1 <|im_end|>", 1, None),
    ]


def test_a_prompt_that_begins_anew_has_nothing_before_that(prompt):
    found = prompt("batch-1-0-0", 4)
    assert found["first"] == 3
    assert [one["text"][:6] for one in found["messages"]] == ["You us", "look 2", "Though", "look 3"]


def test_prompts_of_a_server_are_not_stored_and_a_wrong_step_is_an_error(prompt):
    assert "not stored: a server received them" in prompt("batch-1-0-1", 1)["note"]
    with pytest.raises(UserError, match="the episode has 1 steps"):
        prompt("batch-1-0-1", 2)


def test_a_prompt_goes_on_with_its_own_sequence(prompt):
    found = prompt("batch-1-0-2", 4)
    assert (found["first"], [one["step"] for one in found["messages"] if one["step"]]) == (1, [1, 2])
    assert [one["text"] for one in found["messages"] if one["role"] == "user"] == [
        f"look {number} <|im_end|>" for number in (0, 1, 3)
    ]
