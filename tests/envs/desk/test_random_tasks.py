"""Random worlds and tasks: determined by their seed, disjoint between purposes."""

import json
from pathlib import Path

import pytest

from arpo.config.task_set_names import GENERATED
from arpo.envs.desk import words
from arpo.envs.desk.apps import APPS
from arpo.envs.desk.canvas import COLUMNS, ROWS
from arpo.envs.desk.env import set_up
from arpo.envs.desk.goals import FAMILIES, FEASIBLE
from arpo.envs.desk.random_tasks import SEEDS, random_task, random_windows, random_world, rng_for
from arpo.tasks.lists import load_tasks
from desks import task_of


def test_the_same_seed_gives_the_same_task() -> None:
    for number, family in enumerate(FAMILIES.values()):
        first, second = (random_task(rng_for("pool", number), [family], "same") for _ in range(2))
        assert json.dumps(first) == json.dumps(second)


def test_purposes_have_seeds_of_their_own() -> None:
    assert set(SEEDS) == {"pool", "heldout", "pretrain", *GENERATED.values()}
    assert len(set(SEEDS.values())) == len(SEEDS)
    draws = {
        (purpose, number): rng_for(purpose, number).random() for purpose in SEEDS for number in range(2000)
    }
    assert len(set(draws.values())) == len(draws)
    with pytest.raises(KeyError):
        rng_for("test", 0)


def test_purposes_share_no_world() -> None:
    worlds = {
        purpose: {json.dumps(random_world(rng_for(purpose, number))) for number in range(500)}
        for purpose in SEEDS
    }
    assert all(len(each) == 500 for each in worlds.values())
    assert len(set.union(*worlds.values())) == 500 * len(SEEDS)


def test_a_world_meets_the_requirements_of_tasks() -> None:
    for number in range(200):
        world = random_world(rng_for("pretrain", number))
        names = [name for folder in world["files"].values() for name in folder]
        assert len(set(names)) == len(names) and set(names) <= set(words.FILES)
        assert 2 <= len(world["files"][""]) <= 5 and 1 <= len(world["files"]) - 1 <= 3
        senders = [mail["from"] for mail in world["mail"]["In"]]
        assert len(set(senders)) == len(senders) and 2 <= len(senders) <= 5
        assert not world["mail"]["In"][0]["flag"]
        assert world["conf"]["Volume"] in range(0, 101, 10) and world["conf"]["Theme"] in words.THEMES
        assert 3 <= len(world["calc"]) <= 6 and world["orders"] == []


def test_windows_are_on_the_screen_and_the_app_is_in_front_half_of_the_time() -> None:
    in_front = 0
    for number in range(400):
        windows = random_windows(rng_for("pretrain", number), "Mail")
        apps = [window["app"] for window in windows]
        assert len(set(apps)) == len(apps) <= 3
        assert "Mail" not in apps[:-1]
        in_front += apps[-1:] == ["Mail"]
        for window in windows:
            kind = APPS[window["app"]]
            assert window["column"] % 2 == 0 and window["column"] + kind.columns <= COLUMNS
            assert window["row"] + kind.rows < ROWS
    assert 160 < in_front < 240


def test_a_task_lists_its_open_windows_with_positions() -> None:
    for number in range(50):
        raw = random_task(rng_for("pool", number), [FAMILIES["SetTheme"]], "t")
        desktop = set_up(task_of(raw))
        opened = [step["parameters"] for step in raw["config"][1:]]
        assert [(type(w), w.column, w.row) for w in desktop.windows] == [
            (APPS[each["app"]], each["column"], each["row"]) for each in opened
        ]


def test_the_evaluator_lists_only_changed_parts() -> None:
    raw = random_task(rng_for("pool", 5), [FEASIBLE["SetTheme"], FEASIBLE["PutValue"]], "two")
    assert set(raw["evaluator"]["expected"]["rules"]) == {"conf", "calc"}
    assert raw["snapshot"] == "SetTheme+PutValue" and raw["related_apps"] == ["Conf", "Calc"]
    infeasible = random_task(rng_for("pool", 5), [FAMILIES["DeleteMissingFile"]], "none")
    assert infeasible["evaluator"]["func"] == "infeasible"


def test_tasks_are_read_by_the_loader(tmp_path: Path) -> None:
    rows = [
        random_task(rng_for("heldout", number), [family], f"task-{number}")
        for number, family in enumerate(FAMILIES.values())
    ]
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    loaded = load_tasks(str(path))
    assert [task.instruction for task in loaded] == [row["instruction"] for row in rows]
    assert [list(task.config) for task in loaded] == [row["config"] for row in rows]


def test_word_lists_do_not_overlap() -> None:
    lists = (
        words.FILES, words.FOLDERS, words.TEXTS, words.PEOPLE, words.SUBJECTS, words.ITEMS, words.CITIES,
        words.LANGUAGES, words.THEMES, words.SIZES, words.SWITCHES, words.MISSING_SWITCHES,
    )  # fmt: skip
    every = [word for each in lists for word in each]
    assert len(set(every)) == len(every)
    assert all(word.isascii() and word.isalpha() and len(word) <= 8 for word in every)
    assert set(every) <= set(words.vocabulary()) and len(set(words.vocabulary())) == len(words.vocabulary())
