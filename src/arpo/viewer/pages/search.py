"""Page "Search": batches, evaluations, goal families, tasks and episodes of all sources with a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from arpo.viewer.index import storable
from arpo.viewer.pages.episodes import MAX_TEXT, MAX_WORDS, PAGE, episodes_page, phases
from arpo.viewer.pages.tasks import read_evaluations, task_sets
from arpo.viewer.source import Json, Source

MAX_PLACES = 20  # of one kind in one source
_BATCH = re.compile(r"(?:training )?batch[ -]?(\d{1,9})")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def search_page(sources: Iterable[Source], query: Mapping[str, str]) -> Json:
    """`places` are views with the text in their names, `results` episodes with it in their answers."""
    text = query.get("text", "")
    places: list[Json] = []
    results: list[Json] = []
    total = 0
    for source in sources:
        name = source.identity.id
        if words := _words(text):
            places += [{"source": name, **place} for place in _places(source, words)]
            found = episodes_page(source, {"text": text, "size": str(PAGE), "sort": "-order"})
            total += found["total"]
            results += [{"source": name, **row} for row in found["episodes"]]
    return {"text": text, "total": total, "places": places, "results": results[:PAGE]}


def _words(text: str) -> list[str]:
    return storable(text[:MAX_TEXT].replace("\0", " ")).lower().split()[:MAX_WORDS]


def _places(source: Source, words: list[str]) -> Iterator[Json]:
    """Each with its kind, title, detail, and the rest of its address: parts and query."""
    yield from _batches(source, " ".join(words))
    yield from _evaluations(source, words)
    yield from _episodes(source, " ".join(words))
    yield from _tasks(source, words)


def _batches(source: Source, text: str) -> Iterator[Json]:
    match = _BATCH.fullmatch(text)
    count = source.index.count("episodes WHERE batch = ?", (int(match[1]),)) if match else 0
    if match and count:
        yield _place(
            "batch", f"batch {int(match[1]):,}", f"{count:,} episodes", ["batch", str(int(match[1]))]
        )


def _evaluations(source: Source, words: list[str]) -> Iterator[Json]:
    for one in phases(source.index):
        names = f"{one['title']} {one['phase']}".lower()
        if _has(names, words):
            detail = f"{one['episodes']:,} episodes"
            yield _place("evaluation", one["title"], detail, ["episodes"], {"phase": one["phase"]})


def _episodes(source: Source, text: str) -> Iterator[Json]:
    """Episodes whose ids begin with the text."""
    if len(text) < 3 or " " in text:
        return
    rows = source.index.rows(
        "SELECT id, task FROM episodes WHERE substr(lower(id), 1, ?) = ? ORDER BY n LIMIT ?",
        (len(text), text, MAX_PLACES),
    )
    for row in rows:
        detail = source.instruction(row["task"]) or row["task"]
        yield _place("episode", row["id"], detail, ["episode", row["id"]])


def _tasks(source: Source, words: list[str]) -> Iterator[Json]:
    """Goal families by their names; tasks by their ids, families and instructions."""
    played = source.index.counts("episodes", "task")
    sets = task_sets(read_evaluations(source))
    families: Counter[str] = Counter()
    tasks = []
    for task in dict.fromkeys([*played, *sets]):
        kinds = source.kinds(task)
        families.update(kind for kind in kinds if _has(_spelled(kind), words))
        if _has(f"{task} {source.instruction(task)} {' '.join(map(_spelled, kinds))}".lower(), words):
            tasks.append(task)
    for family, count in families.most_common(MAX_PLACES):
        yield _place("family", family, f"{count:,} tasks", ["tasks"], {"family": family})
    for task in [task for task in tasks if task in played][:MAX_PLACES]:
        detail = ", ".join(filter(None, [source.instruction(task), sets.get(task)]))
        yield _place("task", task, detail, ["task", task])


def _spelled(family: str) -> str:
    """The name of a family as one word and as several: "DeleteMail" gives "deletemail delete mail"."""
    return f"{family} {_CAMEL.sub(' ', family)}".lower()


def _has(text: str, words: list[str]) -> bool:
    return all(word in text for word in words)


def _place(kind: str, title: str, detail: str, parts: list[str], query: Json | None = None) -> Json:
    return {"kind": kind, "title": title, "detail": detail, "parts": parts, "query": query or {}}
