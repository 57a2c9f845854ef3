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


def nested(depth):
    check: dict[str, object] = dict(TEXT)
    for _ in range(depth):
        check = {"all": [check]}
    return check


def test_functions_of_a_host_are_found_there():
    task = a_task(OPEN, checks=[{"python": "no_such_module:f"}])
    assert read_task(task, "", functions=False).check == {"all": [{"python": "no_such_module:f"}]}


def test_checks_may_be_nested():
    assert read_task(a_task(OPEN, checks=[nested(20)]), "").check == {"all": [nested(20)]}


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
        ([{"type": []}], [TEXT], "config[0]: type must be one of open"),
        (
            [{"type": "open", "parameters": {"url": "http://a", "allow": [5]}}],
            [TEXT],
            "config[0] (open).allow: must be a list of texts, not [5]",
        ),
        (
            [{"type": "storage", "parameters": {"items": {}}}, OPEN],
            [TEXT],
            "config[0] (storage): url is missing",
        ),
        (
            [{"type": "cookies", "parameters": {"cookies": ["a"]}}, OPEN],
            [TEXT],
            "config[0] (cookies).cookies: must be a list of objects, not ['a']",
        ),
        (
            [{"type": "http", "parameters": {"url": "http://a", "headers": {"a": 3}}}, OPEN],
            [TEXT],
            "config[0] (http).headers: must be an object of texts",
        ),
        (
            [OPEN],
            [{"state": {"url": "http://a", "ignore": [3]}}],
            "evaluator.all[0].state.ignore: must be a list of texts, not [3]",
        ),
        ([OPEN], [{"any": [{"python": "no_such_module:f"}]}], "no module no_such_module"),
        ([OPEN], [{"python": "os:getcwd"}], "put @browser_function before its definition"),
        (
            [{"type": "python", "parameters": {"function": "no_such_module:f"}}, OPEN],
            [TEXT],
            "config[0] (python): function = 'no_such_module:f': no module",
        ),
        ([OPEN], [nested(3000)], "is nested too deeply, must have at most 64 levels"),
    ],
)
def test_an_error_names_the_task_and_the_place(config, checks, place):
    with pytest.raises(UserError) as error:
        read_task(a_task(*config, checks=checks), "")
    assert "task t" in str(error.value)
    assert place in str(error.value)


def test_the_function_of_an_evaluator_is_all_or_any():
    with pytest.raises(UserError, match=r"func must be \"all\".*, not 'exact'"):
        read_task(a_task(OPEN, func="exact"), "")
    assert read_task(a_task(OPEN, func="none"), "").check == {"all": []}
