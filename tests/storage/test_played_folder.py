"""The folder of a played episode, as the viewer reads it while the episode grows."""

from contextlib import closing
from dataclasses import replace

import pytest

from arpo.errors import UserError
from arpo.storage.played_folder import PlayedFolder
from arpo.viewer.export import index_all
from arpo.viewer.library import Library
from viewed_runs import config, make_run, played

WHOLE = played("play", "pool-040", 1.0)
HALF = replace(WHOLE, turns=WHOLE.turns[:2], final=WHOLE.turns[1].screenshot, score=0.0)


def seen(folder):
    with closing(Library([folder])) as library:
        index_all(library)
        episode = library.answer(["s", folder.name, "episodes", "play"], {})
    return len(episode["steps_list"]), episode["score"], episode["end"], bool(episode["final"])


def test_an_episode_has_no_score_and_no_end_until_it_is_finished(tmp_path):
    folder = PlayedFolder(tmp_path / "steps", config())
    folder.write(HALF)
    assert seen(folder.folder) == (2, None, "it is being played", False)
    folder.close()
    assert seen(folder.folder) == (2, None, "interrupted: only the steps before that are known", False)
    with closing(PlayedFolder(folder.folder, config())) as folder:  # the next episode replaces it
        folder.finish(WHOLE)
    assert seen(folder.folder) == (4, 1.0, "solved: the model called finished()", True)


def test_an_open_viewer_shows_a_step_that_came_after_its_index(tmp_path):
    with (
        closing(PlayedFolder(tmp_path / "steps", config())) as folder,
        closing(Library([tmp_path])) as library,
    ):
        library.discover()
        for episode, steps in ((HALF, 2), (WHOLE, 4)):  # each step replaces the file
            folder.write(episode)
            library.discover()
            page = library.answer(["s", "steps", "episodes", "play"], {})
            assert len(page["steps_list"]) == steps


def test_a_run_and_a_recipe_of_the_user_are_refused(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "recipe.toml").write_text("[run]\n")
    for name in ("run", "own"):
        with pytest.raises(UserError, match=f"{name}: contains a run: choose another folder"):
            PlayedFolder(tmp_path / name, config())
    assert (tmp_path / "own" / "recipe.toml").read_text() == "[run]\n"
