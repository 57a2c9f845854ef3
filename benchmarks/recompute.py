"""Recomputes the numbers in README.md, docs/results.md and results/earlier.md from the JSON files of results.

    python benchmarks/recompute.py            # names every number that differs or has no source
    python benchmarks/recompute.py --write    # writes the recomputed numbers into the pages

Every number of a page belongs to a claim (`claims.py`), or to a line of `results/described.txt`: pieces of
text whose numbers describe a run or come from elsewhere. To add a result, add its runs to a JSON file, a
claim to `claims.py`, and the text to the page with any numbers: `--write` replaces them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import claims as of
from claims import FOLDER, ROOT

NUMBER = r"[+−]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e-\d+)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page with claims. `part`: its first and last line that count; the whole page if empty."""

    path: Path
    claims: tuple[Callable[[], Iterator[str]], ...]
    part: tuple[str, str] = ("", "")


PAGES = (
    Page(
        path=ROOT / "README.md",
        claims=(of.claims_of_readme,),
        part=("<!-- results: begin -->", "<!-- results: end -->"),
    ),
    Page(
        path=ROOT / "docs" / "results.md",
        claims=(
            of.claims_of_make_train,
            of.claims_of_published,
            of.claims_of_longer_tasks,
            of.claims_of_base_models,
            of.claims_of_qwen3_5,
            of.claims_of_web_pages,
            of.claims_of_judges,
            of.claims_of_small_judge,
            of.claims_of_seeds,
            of.claims_of_earlier_models,
            of.claims_of_task_pool,
        ),
    ),
    Page(
        path=FOLDER / "earlier.md",
        claims=(
            of.claims_of_base_model_before,
            of.claims_of_number_of_tasks,
            of.claims_of_replay_before,
            of.claims_of_options,
            of.claims_of_asynchrony,
        ),
    ),
)


def claims_of(page: Page) -> list[str]:
    return [claim for claims in page.claims for claim in claims()]


def described() -> list[str]:
    return (FOLDER / "described.txt").read_text("utf-8").splitlines()


def rewrite(text: str, claim: str) -> str:
    """The text with the numbers of the claim. Unchanged if it has no place for the claim, or several."""
    found = list(re.finditer(_pattern(claim, exact=False), text))
    if len(found) != 1:
        return text
    pieces, last = [], 0
    for group, value in enumerate(re.findall("⟦(.*?)⟧", claim), 1):
        pieces += [text[last : found[0].start(group)], value]
        last = found[0].end(group)
    return "".join(pieces) + text[last:]


def problems(text: str, claims: Sequence[str], described: Sequence[str]) -> list[str]:
    """Claims that the text does not contain, and numbers that belong to no claim and no description."""
    found = []
    for claim in claims:
        text, count = re.subn(_pattern(claim, exact=True), " ", text)
        if not count:
            found.append(f"recomputed, but not in the text: {claim.replace('⟦', '').replace('⟧', '')}")
    for piece in described:
        text = re.sub(_pattern(piece, exact=True), " ", text)
    text = re.sub(r"`[^`]*`|\]\([^)]*\)|<!--.*?-->|(?m:^\d+\. )", " ", text)
    for line in text.splitlines():
        if numbers := re.findall(rf"(?<![\w.]){NUMBER}", line):
            found.append(f"no source for {', '.join(numbers)}: {' '.join(line.split())}")
    return found


def _pattern(piece: str, *, exact: bool) -> str:
    """A regular expression for a claim, at any line breaks. Not exact: with any numbers, each a group."""
    texts = []
    for part in re.split("(⟦.*?⟧)", piece):
        if not part.startswith("⟦"):
            texts.append(r"\s+".join(map(re.escape, re.split(r"\s+", part))))
        else:
            texts.append(re.escape(part[1:-1]) if exact else f"({NUMBER})")
    return "".join(texts)


def read_parts(page: Page) -> tuple[str, str, str]:
    """The text of the page: before the part with claims, this part, and after it."""
    text, (begin, end) = page.path.read_text("utf-8"), page.part
    start = text.index(begin)
    stop = text.index(end, start) if end else len(text)
    return text[:start], text[start:stop], text[stop:]


def main(write: bool) -> int:
    """Print the problems of all pages. Returns the exit code."""
    failed = False
    for page in PAGES:
        before, text, after = read_parts(page)
        claims = claims_of(page)
        if write:
            text = reduce(rewrite, claims, text)
            page.path.write_text(before + text + after, "utf-8")
        for problem in problems(text, claims, described()):
            failed = True
            print(f"{page.path.relative_to(ROOT)}: {problem}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv))
