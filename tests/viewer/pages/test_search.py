"""The search of `arpo view`: batches, evaluations, families, tasks and episodes by their names."""

from contextlib import closing

import pytest

from arpo.config import Config, TasksConfig
from arpo.storage.run_folder import RunFolder
from arpo.viewer.export import index_all
from arpo.viewer.library import Library
from viewed_runs import make_run, played


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    make_run(folder)
    with closing(RunFolder(folder)) as store:
        store.write_recipe(Config(tasks=TasksConfig(train="desk:fresh", heldout="desk:heldout", distinct=8)))
        store.add_trajectory(played("batch-29-0-0", "fresh-0-7-SetTheme+DeleteMail", 1.0, 2))
    with closing(Library([folder])) as library:
        index_all(library)

        def ask(text):
            places = library.answer(["search"], {"text": text})["places"]
            return [(one["kind"], one["title"], "/".join(one["parts"]), one["query"]) for one in places]

        yield ask


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("batch 29", ("batch", "batch 29", "batch/29", {})),
        ("Batch29", ("batch", "batch 29", "batch/29", {})),
        ("evaluation before", ("evaluation", "evaluation before training", "episodes", {"phase": "eval0"})),
        ("eval2", ("evaluation", "evaluation after batch 2", "episodes", {"phase": "eval2"})),
        ("batch-29-0-0", ("episode", "batch-29-0-0", "episode/batch-29-0-0", {})),
        ("DeleteMail", ("family", "DeleteMail", "tasks", {"family": "DeleteMail"})),
        ("delete mail", ("family", "DeleteMail", "tasks", {"family": "DeleteMail"})),
        ("fresh-0-7", ("task", "fresh-0-7-SetTheme+DeleteMail", "task/fresh-0-7-SetTheme+DeleteMail", {})),
        ("theme", ("task", "fresh-0-7-SetTheme+DeleteMail", "task/fresh-0-7-SetTheme+DeleteMail", {})),
    ],
)
def test_it_finds_views_by_their_names(search, text, expected):
    assert expected in search(text)


@pytest.mark.parametrize("text", ["batch 30", "eval7", "NoSuchFamily", "zz-29", '"%_', "\0"])
def test_it_finds_nothing_else(search, text):
    assert search(text) == []
