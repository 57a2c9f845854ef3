"""Python functions of the user, named by tasks: "shop_checks:has_paid".

    from arpo.envs.browser.functions import Page, browser_function

    @browser_function
    async def has_paid(page: Page) -> bool:
        return "Paid" in await page.text()

A task can name only functions with this mark: a stranger's task file cannot call any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from arpo.envs.browser.tab import Tab
from arpo.errors import UserError
from arpo.plugins import import_attribute

_MARK = "is_browser_function"
_F = TypeVar("_F", bound=Callable[..., Any])


def browser_function(function: _F) -> _F:
    """Mark a function of one argument, a Page. Tasks may name it as set-up step or as check."""
    setattr(function, _MARK, True)
    return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page in front, for a function of the user."""

    tab: Tab
    session: str  # the text that replaces $SESSION
    downloads: Path  # folder with the downloaded files
    answer: str  # the text of the model's answer(content=…), or else of finished(content=…)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return await self.tab.evaluate(expression)

    async def text(self) -> str:
        """The visible text."""
        return str(await self.tab.evaluate("document.body.innerText"))

    async def url(self) -> str:
        return str(await self.tab.evaluate("location.href"))


def find_function(name: str, place: str) -> Callable[..., Any]:
    """Raises UserError if there is no such function, or if it is not marked."""
    function = import_attribute(place, name, "function")
    if not getattr(function, _MARK, False):
        raise UserError(
            f"{place}: {name} is not for browser tasks: put @browser_function before its definition "
            "(from arpo.envs.browser.functions import browser_function)"
        )
    return function


async def call_function(name: str, page: Page, place: str) -> Any:
    """The result of the function. Raises UserError as `find_function`."""
    result = find_function(name, place)(page)
    return await result if inspect.isawaitable(result) else result
