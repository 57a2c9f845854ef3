"""Which screenshots and answers are in the prompt, and what is left of older steps."""

import pytest

from arpo.dialects.base import History, Layout
from arpo.dialects.pyautogui_code import OPENCUA
from arpo.dialects.tool_calls import GUI_OWL
from arpo.prompts.conversation import Conversation
from arpo.prompts.templates import DESK, PromptTemplate
from arpo.types import Completion, Message, Screenshot

SCREENS = [Screenshot.of(f"screen {index}".encode()) for index in range(4)]


def answer(*token_ids: int) -> Completion:
    text = f"answer {token_ids}"
    return Completion(
        token_ids=token_ids,
        logprobs=(0.0,) * len(token_ids),
        text=text,
        finish="stop",
        versions=(0,) * len(token_ids),
    )


def begin(template: PromptTemplate, instruction: str, max_images: int, **changes: object) -> Conversation:
    return Conversation(template=template, instruction=instruction, max_images=max_images, **changes)  # type: ignore[arg-type]


def sketch(conversation: Conversation) -> list[object]:
    """Each message in one word: its tokens, its screenshot's number, or its text."""
    return [
        message.token_ids
        or (SCREENS.index(message.screenshot) if message.screenshot is not None else message.text)
        for message in conversation.messages()
    ]


def test_messages_of_the_first_turn() -> None:
    talk = begin(DESK, "Open {notes}", 15).look(SCREENS[0])
    assert talk.messages() == (
        Message(role="system", text="You use a computer."),
        Message(role="user", text="Open {notes}"),
        Message(role="user", screenshot=SCREENS[0]),
    )
    assert not talk.slid


def test_while_the_window_grows_messages_are_only_added() -> None:
    talk = begin(PromptTemplate(system="s", user="Do: {instruction}"), "it", 2).look(SCREENS[0])
    later = talk.answer(answer(7, 8)).look(SCREENS[1])
    assert sketch(later) == ["s", "Do: it", 0, (7, 8), 1]
    assert later.messages()[: len(talk.messages())] == talk.messages()
    assert not later.slid
    assert sketch(talk) == ["s", "Do: it", 0]


def test_a_full_window_slides_and_keeps_the_answers() -> None:
    talk = begin(PromptTemplate(system="s", user="{instruction}"), "it", 2)
    slid = []
    for screen in SCREENS:
        talk = talk.look(screen)
        slid.append(talk.slid)
        talk = talk.answer(answer(1, SCREENS.index(screen)))
    assert slid == [False, False, True, True]
    assert sketch(talk) == ["s", "it", (1, 0), (1, 1), 2, (1, 2), 3, (1, 3)]


def test_the_same_screen_twice_is_two_looks() -> None:
    talk = begin(DESK, "it", 2)
    for _ in range(3):
        talk = talk.look(SCREENS[0]).answer(answer(5))
    assert sketch(talk)[2:] == [(5,), 0, (5,), 0, (5,)]


def test_an_answer_without_tokens_is_text() -> None:
    talk = begin(DESK, "it", 1).look(SCREENS[0]).answer(answer())
    assert talk.messages()[-1] == Message(role="assistant", text="answer ()")


def test_no_window_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="max_images = 0"):
        begin(DESK, "it", 0)


def test_the_task_stands_after_the_first_screenshot_and_stays_when_it_leaves() -> None:
    template = PromptTemplate(system="s", user="Do: {instruction}", layout=Layout.WITH_FIRST_SCREENSHOT)
    talk = begin(template, "it", 1).look(SCREENS[0])
    system, first = talk.messages()
    assert (system.role, first.text, first.screenshot, first.image_first) == (
        "system",
        "Do: it",
        SCREENS[0],
        True,
    )
    talk = talk.answer(answer()).look(SCREENS[1])
    assert talk.slid
    _, task, _, newest = talk.messages()
    assert (task.text, task.screenshot) == ("Do: it", None)
    assert (newest.text, newest.screenshot, newest.image_first) == ("", SCREENS[1], False)


def said(text: str) -> Completion:
    return Completion(token_ids=(), logprobs=(), text=text, finish="stop", versions=())


SHORT = PromptTemplate(system="s", user="{instruction}")


def test_older_steps_become_lines_of_the_task() -> None:
    talk = begin(SHORT, "it", 2, history=History.TEXT)
    slid = []
    for number, screen in enumerate(SCREENS):
        talk = talk.look(screen)
        slid.append(talk.slid)
        talk = talk.answer(said(f"Thought: look {number}\nAction: wait()"))
    assert slid == [False, False, True, True]
    lines = "it\n\nPrevious steps:\nStep 1: look 0\nStep 2: look 1"
    answers = [f"Thought: look {number}\nAction: wait()" for number in (2, 3)]
    assert sketch(talk) == ["s", lines, 2, answers[0], 3, answers[1]]


def test_blocks_leave_at_once_so_that_the_prompt_restarts_rarely() -> None:
    """Of at most 4 screenshots, 2 stay. So every second step after the fourth restarts."""
    talk = begin(SHORT, "it", 4, history=History.BLOCKS)
    slid, shown = [], []
    for number in range(10):
        talk = talk.look(SCREENS[number % 4])
        slid.append(talk.slid)
        shown.append(sum(message.screenshot is not None for message in talk.messages()))
        talk = talk.answer(said(f"a{number}"))
    assert shown == [1, 2, 3, 4, 2, 3, 4, 2, 3, 4]
    assert [number for number, one in enumerate(slid) if one] == [4, 7]


def test_a_conversation_is_folded_until_one_screenshot_is_left() -> None:
    """Of 26 steps, 4 are shown and 22 are lines: the lines shrink to 20, then screenshots become lines."""
    talk = begin(SHORT, "it", 4, history=History.TEXT).look(SCREENS[0])
    for number in range(25):
        talk = talk.answer(said(f"a{number}")).look(SCREENS[number % 4])
    seen = []
    while (folded := talk.folded()) is not None:
        talk = folded
        assert folded.slid
        shown = [message for message in folded.messages() if message.screenshot is not None]
        lines = folded.messages()[1].text.removeprefix("it\n\nPrevious steps:\n").split("\n")
        seen.append((len(shown), len(lines) - 1, lines[0], lines[-1]))
    assert seen == [
        (4, 20, "(2 earlier steps)", "Step 22: a21"),
        (2, 22, "(2 earlier steps)", "Step 24: a23"),
        (2, 20, "(4 earlier steps)", "Step 24: a23"),
        (1, 21, "(4 earlier steps)", "Step 25: a24"),
        (1, 20, "(5 earlier steps)", "Step 25: a24"),
        (1, 10, "(15 earlier steps)", "Step 25: a24"),
        (1, 5, "(20 earlier steps)", "Step 25: a24"),
        (1, 2, "(23 earlier steps)", "Step 25: a24"),
        (1, 1, "(24 earlier steps)", "Step 25: a24"),
        (1, 0, "(25 earlier steps)", "(25 earlier steps)"),
    ]
    assert begin(SHORT, "it", 15).look(SCREENS[0]).folded() is None


def test_the_task_stands_with_the_newest_screenshot_and_answers_are_shortened() -> None:
    template = PromptTemplate(system="s", user="{instruction}", layout=Layout.WITH_NEWEST_SCREENSHOT)
    talk = begin(template, "it", 2, history=History.TEXT, summary=OPENCUA.summary)
    for number, screen in enumerate(SCREENS[:3]):
        talk = talk.look(screen)
        assert talk.slid == bool(number)
        talk = talk.answer(said(f"## Action:\nopen {number}\n## Code:\n```python\n```"))
    steps = [f"# Step {number}:\n## Action:\nopen {number - 1}\n" for number in (1, 2)]
    assert [message.text for message in talk.messages()[:-1]] == ["s", steps[0], "", steps[1], "it"]
    task = talk.messages()[-2]
    assert (task.screenshot, task.image_first) == (SCREENS[2], True)
    kept = begin(template, "it", 2)
    for number, screen in enumerate(SCREENS[:3]):
        kept = kept.answer(said(f"a{number}")).look(screen) if number else kept.look(screen)
    assert sketch(kept) == ["s", "a1", 1, "a2", 2]


def test_one_message_with_all_steps_and_the_newest_screenshot() -> None:
    template = PromptTemplate(
        system="s", user="{instruction}: {history|-}", layout=Layout.NEWEST_SCREENSHOT_ALONE
    )
    talk = begin(template, "it", 5, summary=GUI_OWL.summary).look(SCREENS[0])
    assert talk.messages()[1].text == "it: -Current screenshot:\n"
    talk = talk.answer(said("<thinking>a</thinking><conclusion>b</conclusion>")).look(SCREENS[1])
    _, only = talk.messages()
    assert (only.text, only.screenshot, talk.slid) == (
        "it: Step 1: b\nCurrent screenshot:\n",
        SCREENS[1],
        True,
    )
