"""Checks of the end state of a browser task. Each gives a score of 0 to 1; "all" takes the lowest score,
"any" the highest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from arpo.envs.answers import matches
from arpo.envs.browser import http_calls, miniwob
from arpo.envs.browser.functions import Page, call_function
from arpo.envs.browser.spec import single_checks
from arpo.envs.browser.state import differences, value_at
from arpo.errors import EnvError

States = Mapping[str, Any]  # JSON by URL, before the first step


def state_urls(check: Mapping[str, Any]) -> set[str]:
    """The URLs of all checks of type "state"."""
    return {value["url"] for kind, value in single_checks(check) if kind == "state"}


async def score(check: Mapping[str, Any], page: Page, before: States) -> float:
    """Raises EnvError if something is broken: a check that cannot be made has no score."""
    [(kind, value)] = check.items()
    match kind:
        case "all":
            return min([await score(inner, page, before) for inner in value])
        case "any":
            return max([await score(inner, page, before) for inner in value])
        case "javascript":
            return as_score(await page.evaluate(value), f"javascript: {value}")
        case "url":
            return float(re.search(value, await page.url()) is not None)
        case "text":
            return float(value in await page.text())
        case "answer":
            return float(matches(page.answer, value))
        case "download":
            return float(any(fnmatchcase(file.name, value) for file in page.downloads.iterdir()))
        case "http":
            return await _http(value)
        case "state":
            return await _state(value, before)
        case "miniwob":
            return await miniwob.score(page.tab)
        case _:
            assert kind == "python"
            return as_score(await call_function(value, page, "evaluator"), value)


def as_score(value: Any, name: str) -> float:
    """True and false are 1 and 0. Raises EnvError for all but these and numbers of 0 to 1."""
    if isinstance(value, bool | int | float) and 0 <= value <= 1:
        return float(value)
    raise EnvError("evaluate", f"{name}: must give true, false or a number of 0 to 1, not {value!r}"[:500])


async def _http(check: Mapping[str, Any]) -> float:
    answer = await http_calls.call(check, "evaluate")
    if answer.status != check.get("status", 200):
        return 0.0
    if "contains" in check and check["contains"] not in answer.text:
        return 0.0
    if "equals" not in check:
        return 1.0
    value = value_at(answer.json("evaluate", check["url"]), check.get("path", ""))
    return float(value == check["equals"])


async def _state(check: Mapping[str, Any], before: States) -> float:
    """Exactly the given paths have changed, to the given values."""
    url = check["url"]
    after = (await http_calls.call_expecting({"url": url}, "evaluate")).json("evaluate", url)
    return float(differences(before[url], after, check.get("ignore", ())) == check.get("changes", {}))
