"""Lessons for a judge: the question of `arpo judge`, and an answer with the evaluator's verdict."""

from __future__ import annotations

import random

import pytest

from arpo.actions import Fail, Finished
from arpo.envs.desk.env import set_up
from arpo.envs.desk.goals import FAMILIES, from_json
from arpo.envs.desk.goals.base import Step
from arpo.envs.desk.heldout import HELDOUT_APPLICATIONS, HELDOUT_FAMILIES
from arpo.envs.desk.random_tasks import random_task, rng_for, to_task
from arpo.prompts.judge_question import read_answer
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from arpo.types import Screenshot, Task
from tools.pretrain.batches import collate
from tools.pretrain.carelessness import Carelessness, demonstrate
from tools.pretrain.judging import Judged, judged, judged_episode, question_phrases
from tools.pretrain.ladder import CARELESS, JUDGING, Stage
from tools.pretrain.language import LANGUAGES
from tools.pretrain.lessons import LessonGenerator
from tools.pretrain.tiny import IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer

RENDERER = Renderer(desk_tokenizer(LANGUAGES["judge"].phrases), IMAGE_SETTINGS)


def verdict(judged: Judged) -> tuple[bool | None, str]:
    return read_answer(judged.answer, judged.question.mark)


def flag_mail() -> tuple[Task, list[Step]]:
    """A task and the solver's steps."""
    task = to_task(random_task(rng_for("pretrain", 1), [FAMILIES["FlagMail"]], "flag"))
    goals = from_json(task.evaluator["solution"])
    turns = demonstrate(
        random.Random(0), set_up(task), goals, Carelessness.of(0), look=lambda _: None, max_steps=15
    )
    return task, [step for _, step in turns]


def test_the_solver_succeeds_and_every_earlier_end_fails() -> None:
    task, steps = flag_mail()
    assert isinstance(steps[-1].action, Finished) and len(steps) > 2
    assert verdict(judged(task, steps)) == (True, "Nothing is left to do.")
    for count in range(len(steps) - 1):
        early = [*steps[:count], steps[-1]]
        assert verdict(judged(task, early)) == (False, f"{steps[count].thought} is left.")


def test_giving_up_is_right_if_the_task_cannot_be_done() -> None:
    assert verdict(judged(flag_mail()[0], [Step("", Fail())]))[0] is False
    other = to_task(random_task(rng_for("pretrain", 2), [FAMILIES["DeleteMissingMail"]], "missing"))
    assert verdict(judged(other, [Step("", Fail())])) == (True, "Nothing is left to do.")
    assert verdict(judged(other, [Step("", Finished())]))[0] is False


def test_no_goal_and_no_application_of_the_held_out_sets_is_judged() -> None:
    names = set()
    for number in range(300):
        episode = judged_episode(rng_for("pretrain", 800_000 + number), JUDGING.goals, 1.3)
        names.add(episode.question.instruction.partition(" ")[0])
        assert verdict(episode)[0] is not None
    assert names >= {"Flag", "Move", "Order", "Send", "Set", "Turn"}
    assert HELDOUT_FAMILIES == ("SetLanguage", "RenameFile", "ReplaceText", "AnswerMail")
    assert HELDOUT_APPLICATIONS == ("Calc",)
    assert not names & {"Rename", "Replace", "Answer", "Put", "Copy", "Clear"}


def test_a_lesson_has_the_tokens_of_question_and_answer_and_its_screens() -> None:
    language = LANGUAGES["judge"]
    generator = LessonGenerator(RENDERER, load_template("desk"), level=1.3, write=language.write)
    [lesson] = generator.lessons(random.Random(7), JUDGING)
    expected = judged_episode(after_choice(random.Random(7)), JUDGING.goals, 1.3)
    asked = RENDERER.render(expected.question.messages())
    learned = tuple(token for token, own in zip(lesson.token_ids, lesson.mask, strict=True) if own)
    assert lesson.token_ids == asked.token_ids + learned
    assert RENDERER.decode(learned) == expected.answer and learned[-1] == RENDERER.end_of_turn_id
    assert [Screenshot.of(screen.png()).sha256 for screen in lesson.screens] == [
        shot.sha256 for shot in asked.images
    ]
    assert collate([lesson], RENDERER).slots_I.numel() == 48 * len(lesson.screens)


def after_choice(rng: random.Random) -> random.Random:
    """`rng` after the generator has drawn the kind of lesson."""
    rng.random()
    return rng


def test_a_question_has_600_tokens_less_than_in_the_base_models_tokenizer() -> None:
    messages = judged_episode(rng_for("pretrain", 5), JUDGING.goals, 1.3).question.messages()
    base = Renderer(desk_tokenizer(), IMAGE_SETTINGS)
    assert len(base.render(messages).token_ids) - len(RENDERER.render(messages).token_ids) > 600
    assert len(question_phrases()) == len(set(question_phrases()))


@pytest.mark.parametrize(("name", "stage"), [("judge", JUDGING), ("ui_tars", CARELESS)])
def test_a_judge_has_another_last_stage(name: str, stage: Stage) -> None:
    assert LANGUAGES[name].last is stage
    assert (stage.lessons["act"] == 0) == (name == "judge")
