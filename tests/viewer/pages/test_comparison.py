"""The page "Comparison": the viewer, an export and compare.html show what `arpo compare` computes."""

from pathlib import Path
from typing import Any

import pytest

from arpo.cli.entry_point import main
from arpo.comparison.methods import load_comparison
from arpo.comparison.tables import page_json
from arpo.errors import UserError
from arpo.viewer.export import write_export
from arpo.viewer.library import Library
from comparisons import RunRecords, write_run
from markup import answers, parsed


def scores(solved: int) -> dict[str, dict[str, list[float]]]:
    return {"train": {"a": [1.0] * solved + [0.0] * (4 - solved), "b": [1.0, 0.0]}}


def write_two(out: Path, first: str = "arpo") -> None:
    for seed in (0, 1):
        for name, solved in ((first, 4 - seed), ("grpo", 2)):
            records = RunRecords(base=scores(1), final=scores(solved), batches=((4, 1, 2, 3.0),))
            write_run(out / name / f"seed-{seed}", records)
    write_run(out / "grpo" / "seed-2", RunRecords(base=scores(1), batches=((4, 1, 0, 0.0),)))


@pytest.fixture
def library(tmp_path: Path):
    write_two(tmp_path / "out")
    opened = Library([tmp_path / "out"])
    yield opened
    opened.close()


def plain(value: Any) -> Any:
    """As JSON: lists in place of tuples."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("against", [None, "grpo"])
def test_the_viewer_shows_the_report_of_the_command(
    library: Library, tmp_path: Path, against: str | None
) -> None:
    out = tmp_path / "out"
    page = library.answer(["comparison", str(out)], {"against": against} if against else {})
    assert plain(page) == plain(page_json(*load_comparison(out, [], None, against)))
    assert "arpo: seed 2" in page["warning"] and "grpo: seed 2" in page["warning"]


def test_unknown_comparisons_and_baselines_are_errors(library: Library, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such comparison"):
        library.answer(["comparison", "/etc"], {})
    with pytest.raises(UserError, match="not part of this comparison"):
        library.answer(["comparison", str(tmp_path / "out")], {"against": "other"})


@pytest.mark.slow
def test_an_export_contains_the_comparison(library: Library, tmp_path: Path) -> None:
    write_export(library, tmp_path / "site", "")
    found = answers(tmp_path / "site" / "data" / "0.js")
    assert [path for path in found if path.startswith("/api/comparison/")]


def test_compare_html_is_one_file_and_names_stay_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)<|script>&\"'"
    write_two(tmp_path / "out", evil)
    assert main(["compare", "--report", "--out", str(tmp_path / "out")]) == 0
    page = tmp_path / "out" / "compare.html"
    tags = parsed(page)
    assert [tag for tag, _ in tags.seen].count("script") == 1
    assert not [name for _, attrs in tags.seen for name in attrs if name[:2] == "on"]
    policy = next(attrs["content"] for _, attrs in tags.seen if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    [(path, content)] = [item for item in answers(page).items() if item[0].startswith("/api/comparison/")]
    assert evil in content["methods"]
    assert f"/api{answers(page)['/api/sources']['start']}" == path
