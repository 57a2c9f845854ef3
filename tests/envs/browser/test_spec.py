"""Browser tasks: what is read, and the errors of bad ones."""

import pytest

from arpo.envs.browser.spec import read_task
from arpo.errors import UserError
from arpo.types import Task

OPEN = {"type": "open", "parameters": {"url": "http://shop.test:8000/s/$SESSION/"}}
TEXT = {"text": "Thank you"}


def a_task(*config, checks=(TEXT,), func="all"):
    evaluator = {"func": func, "checks": list(checks)}
    return Task(id="t", instruction="", snapshot="", config=config, evaluator=evaluator)


def test_the_session_is_filled_in_everywhere():
    state = {"state": {"url": "http://shop.test/$SESSION", "changes": {"a": "$SESSION"}}}
    task = read_task(a_task(OPEN, checks=[{"any": [state, TEXT]}]), "abc")
    assert task.steps == (("open", {"url": "http://shop.test:8000/s/abc/"}),)
    filled = {"state": {"url": "http://shop.test/abc", "changes": {"a": "abc"}}}
    assert task.check == {"all": [{"any": [filled, TEXT]}]}


def test_pages_and_allowed_origins_can_be_reached():
    step = {"type": "open", "parameters": {"url": "http://shop.test", "allow": ["https://cdn.test"]}}
    assert read_task(a_task(step), "").allowed == {("shop.test", 80), ("cdn.test", 443)}


@pytest.mark.parametrize(
    ("config", "checks", "place"),
    [
        ([{"type": "opne"}], [TEXT], "config[0]: type must be one of open"),
        ([{"type": "open", "parameters": {}}], [TEXT], "config[0] (open): url is missing"),
        ([{"type": "open", "parameters": {"url": "file:///etc/passwd"}}], [TEXT], "must begin with http"),
        ([{"type": "open", "parameters": {"url": "http://a:b"}}], [TEXT], "is no URL"),
        ([{"type": "open", "parameters": {"url": "http://a", "alow": []}}], [TEXT], "unknown key 'alow'"),
        ([], [TEXT], "which page is shown first"),
        ([OPEN], [], "evaluator.all: has no check"),
        ([OPEN], [{"txt": "a"}], "evaluator.all[0]: unknown check 'txt'"),
        ([OPEN], [{"text": 3}], "evaluator.all[0].text: must be a text, not 3"),
        ([OPEN], [{"any": [{"url": "("}]}], "evaluator.all[0].any[0].url: '(' is no regular expression"),
        ([OPEN], [{"state": {"changes": {}}}], "evaluator.all[0].state: url is missing"),
        ([OPEN], ["text"], "a check is an object with one key"),
    ],
)
def test_an_error_names_the_task_and_the_place(config, checks, place):
    with pytest.raises(UserError) as error:
        read_task(a_task(*config, checks=checks), "")
    assert "task t" in str(error.value)
    assert place in str(error.value)


def test_the_function_of_an_evaluator_is_all_or_any():
    with pytest.raises(UserError, match='func must be "all" or "any", not \'exact\''):
        read_task(a_task(OPEN, func="exact"), "")
