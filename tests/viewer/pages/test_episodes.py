"""Lists of episodes: filters, search, and titles of phases."""

import pytest

from arpo.errors import UserError
from arpo.viewer.library import Library
from arpo.viewer.pages.episodes import phase_title, snippet
from played_episodes import played
from viewed_runs import make_run


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "desk"
    make_run(folder)
    library = Library([folder])
    while not library.refresh(5.0):
        pass
    yield library
    library.close()


@pytest.fixture
def found(library):
    def find(**filters):
        answer = library.answer(["s", "desk", "episodes"], filters)
        assert answer["total"] == len(answer["episodes"]) or "size" in filters
        return [row["episode"] for row in answer["episodes"]]

    return find


def test_filters(found):
    assert found(task="pool-013") == ["batch-1-1-0", "batch-1-1-1", "batch-2-1-0", "batch-2-1-1"]
    assert found(stop="parse_error") == found(malformed="1") == ["batch-2-1-1"]
    assert found(replayed="1") == ["batch-1-0-0"]
    assert len(found(replayed="0")) == 12
    assert (
        found(batch="1", solved="1")
        == found(phase="batch1", min_score="0.5")
        == ["batch-1-0-0", "batch-1-2-0"]
    )
    assert found(phase="eval2") == ["eval2-train-0-0"]
    assert found(group="batch-2-0", max_score="0.4") == ["batch-2-0-0", "batch-2-0-1"]
    assert found(shown="0") == []


def test_order_and_pages(found):
    assert found(sort="-order")[0] == "eval2-train-0-0"
    assert found(sort="steps")[0] == "batch-2-1-1"
    assert found(size="2", page="1") == ["batch-1-0-1", "batch-1-1-0"]


def test_search(library, found):
    assert found(text="jump") == ["batch-2-1-1"]
    assert found(text="language Type") and len(found(text="language Type")) == 12
    assert found(text="batch-1-2-0") == ["batch-1-2-0"]
    assert found(text="100% \"quoted' AND NOT ( * ^ x") == []
    results = library.answer(["search"], {"text": "jump"})
    assert (results["total"], results["results"][0]["source"]) == (1, "desk")
    assert "jump()" in results["results"][0]["snippet"]
    assert library.answer(["search"], {"text": "  "})["results"] == []


def test_a_text_with_a_nul_or_half_a_character_is_searched_without_it(found):
    assert found(text="ju\0mp") == found(text="ju mp") and found(text="jump\0") == found(text="jump")
    assert found(text="\ud800") == [] and found(task="\ud800") == []


def test_phases_without_batches(library):
    answer = library.answer(["s", "desk", "episodes"], {})
    assert [(one["phase"], one["episodes"]) for one in answer["phases"]] == [("eval0", 1), ("eval2", 1)]
    assert answer["stops"] == ["finished", "parse_error"]


@pytest.mark.parametrize(
    "filters",
    [
        {"sort": "id; DROP TABLE episodes"},
        {"page": "-1"},
        {"size": "x"},
        {"min_score": "x"},
        {"solved": "maybe"},
    ],
)
def test_a_bad_filter_is_one_error(found, filters):
    with pytest.raises(UserError, match=next(iter(filters))):
        found(**filters)


def test_a_snippet_shows_the_surroundings():
    body = "a " * 100 + "needle" + " b" * 100
    assert snippet(body, "NEEDLE").startswith("…a a")
    assert "needle b" in snippet(body, "needle") and snippet(body, "needle").endswith("b…")
    assert snippet("short", "other") == "short"


def test_phases_have_titles():
    titles = {"eval0": "evaluation before training", "eval1200": "evaluation after batch 1,200"}
    titles |= {"batch1": "training batch 1", "batch1536": "training batch 1,536", "collect": "collected"}
    assert {phase: phase_title(phase) for phase in titles} == titles


def test_a_group_in_no_batch_has_a_phase_of_its_own() -> None:
    assert phase_title(played("group-3-0").phase) == "training, in no batch"
