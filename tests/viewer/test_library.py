"""What `arpo view` finds in its folders, and under which names."""

import pytest

from arpo.config import Config
from arpo.config.recipe import to_toml
from arpo.errors import UserError
from arpo.viewer.library import Library, find_sources


def run(folder, first=""):
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(to_toml(Config()))
    (folder / "trajectories.jsonl").write_text(first)
    return folder


def found(*folders):
    return [(one.id, one.kind, one.method, one.seed) for one, _ in find_sources(folders)]


def test_runs_collections_comparisons_and_osworld_results(tmp_path):
    run(tmp_path / "desk")
    run(tmp_path / "collected", '{"episode_id":"collect-0-0","task_id":"t"}\n')
    run(tmp_path / "compare" / "grpo" / "seed-1")
    run(tmp_path / ".hidden")
    run(tmp_path / "desk" / "checkpoints" / "inner")
    result = tmp_path / "results" / "agent" / "chrome" / "id"
    result.mkdir(parents=True)
    (result / "result.txt").write_text("1")
    (tmp_path / "link").symlink_to(tmp_path / "desk")
    assert found(tmp_path) == [
        ("collected", "collected", None, None),
        ("compare/grpo/seed-1", "run", "grpo", 1),
        ("desk", "run", None, None),
        ("results/agent", "osworld", None, None),
    ]
    comparison = [one.comparison for one, _ in find_sources([tmp_path]) if one.method]
    assert comparison == [str(tmp_path / "compare")]


def test_folders_of_the_same_name_have_different_ids_and_no_folder_appears_twice(tmp_path):
    run(tmp_path / "a" / "desk")
    run(tmp_path / "b" / "desk")
    assert [one[0] for one in found(tmp_path / "a" / "desk", tmp_path / "b" / "desk", tmp_path / "a")] == [
        "desk",
        "desk~2",
    ]


def test_too_many_runs_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("arpo.viewer.library.MAX_SOURCES", 2)
    for name in "abc":
        run(tmp_path / name)
    library = Library([tmp_path])
    assert list(library.sources) == ["a", "b"]
    assert "only the first 2 runs" in library.answer(["sources"], {})["errors"][0]
    library.close()


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        found(tmp_path / "missing")
