"""The pages with results contain the numbers that the stored results give, and no others."""

from __future__ import annotations

import json
import re

import pytest
from claims import FOLDER, THIRD
from recompute import NUMBER, PAGES, Page, claims_of, described, problems, read_parts, rewrite

CLAIM = "GRPO ⟦79.8⟧, ARPO ⟦90.3⟧ (⟦−0.3⟧ to ⟦+3.6⟧)"


@pytest.mark.parametrize("page", PAGES, ids=[page.path.name for page in PAGES])
def test_every_number_of_the_page_is_recomputed(page: Page) -> None:
    """Also: each of some changed numbers is found. Numbers in code and links are names."""
    _, text, _ = read_parts(page)
    claims, known = claims_of(page), described()
    assert problems(text, claims, known) == [], "run: python benchmarks/recompute.py"
    names = re.compile(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|(?m:^\d+\. )")
    outside = names.sub(lambda name: " " * len(name[0]), text)
    numbers = list(re.finditer(rf"(?<![\w.]){NUMBER}", outside))
    for number in numbers[:: max(1, len(numbers) // 6)]:
        changed = text[: number.start()] + "7.77" + text[number.end() :]
        assert problems(changed, claims, known), number


def test_every_run_of_the_current_base_model_has_the_score_of_every_task() -> None:
    for run in json.loads((FOLDER / THIRD).read_text("utf-8")):
        after = {**run.get("after", {}), **run.get("test", {})}
        sums = {tasks: sum(scores) for tasks, scores in run["successes_by_task"].items()}
        assert sums == {tasks: successes for tasks, (successes, _) in (after or run["before"]).items()}


def test_a_claim_may_be_broken_into_lines() -> None:
    assert problems("GRPO 79.8,\n  ARPO 90.3 (−0.3\nto +3.6)", [CLAIM], []) == []


def test_another_number_and_a_number_without_a_source_are_named() -> None:
    missing, other = problems("GRPO 79.8, ARPO 90.4 (−0.3 to +3.6)", [CLAIM], [])
    assert "ARPO 90.3" in missing and "90.4" in other
    text = "GRPO 79.8, ARPO 90.3 (−0.3 to +3.6) in 128 tasks on an H200, see `desk:32` and 12.5"
    assert [problem.partition(":")[0] for problem in problems(text, [CLAIM], ["in 128 tasks"])] == [
        "no source for 12.5"
    ]


def test_numbers_are_written_into_the_text() -> None:
    text = "1. GRPO 1, ARPO 22.2\n(0.0 to −1e-4) and 5"
    assert rewrite(text, CLAIM) == "1. GRPO 79.8, ARPO 90.3\n(−0.3 to +3.6) and 5"
    assert rewrite("GRPO and ARPO", CLAIM) == "GRPO and ARPO"
    assert rewrite(text * 2, CLAIM) == text * 2  # ambiguous
