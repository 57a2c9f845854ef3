"""OSWorld results of any agent: the layout is a convention, and everything in it is optional."""

import json

import pytest

from arpo.errors import UserError
from arpo.viewer.library import Library, NotFound
from arpo.viewer.osworld_source import _actions
from pngs import header
from pngs import png as chunks
from stored_episodes import small

TASK = "bb5e4c0d-f964-439c-97b6-bdb9747de3f4"


@pytest.fixture
def folder(tmp_path):
    """results/pyautogui/screenshot/agent/{chrome/TASK, os/broken}."""
    task = tmp_path / "results" / "pyautogui" / "screenshot" / "agent" / "chrome" / TASK
    task.mkdir(parents=True)
    lines = [
        {
            "step_num": 1,
            "action_timestamp": "20260131@235958500000",
            "action": "import pyautogui\npyautogui.click(3, 4)",
            "response": "Thought: open the menu\nAction: click",
            "done": False,
            "info": {},
            "screenshot_file": "step_1_b.png",
        },
        {
            "step_num": 2,
            "action_timestamp": "20260131@235959750000",
            "action": "DONE",
            "response": "It is finished",
            "done": True,
            "info": {"done": True},
            "screenshot_file": "step_2_c.png",
        },
    ]
    (task / "traj.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (task / "result.txt").write_text("1.0\n")
    for number, letter in enumerate("abc"):
        (task / f"step_{number}_{letter}.png").write_bytes(small(number).png)
    broken = task.parent.parent / "os" / "broken"
    broken.mkdir(parents=True)
    (broken / "result.txt").write_text("a lot")
    (broken / "traj.jsonl").write_text(
        'not json\n{"action": {"command": "pyautogui.scroll(-5)"}, "response": 7}\n'
    )
    return tmp_path / "results"


@pytest.fixture
def library(folder):
    library = Library([folder])
    while not library.refresh(5.0):
        pass
    yield library
    library.close()


NAME = "pyautogui/screenshot/agent"


def test_the_source_is_the_folder_of_the_model(library):
    (entry,) = library.answer(["sources"], {})["sources"]
    assert (entry["id"], entry["kind"], entry["episodes"]) == (NAME, "osworld", 2)
    assert entry["success"] == {"final": {"overall": 1.0}}
    assert entry["sets"] == {"overall": "all tasks"}
    assert len(entry["errors"]) == 2 and "is not a score" in entry["errors"][0]


def test_an_episode_with_screenshots_actions_and_times(library):
    episode = library.answer(["s", NAME, "episodes", f"chrome/{TASK}"], {})
    first, last = episode["steps_list"]
    assert (episode["score"], episode["solved"], episode["stop"], episode["task"]) == (
        1.0,
        True,
        "finished",
        TASK,
    )
    assert [first["shot"]["shot"], last["shot"]["shot"], episode["final"]["shot"]] == [
        f"chrome/{TASK}/step_{name}.png" for name in ("0_a", "1_b", "2_c")
    ]
    assert first["actions"] == [{"do": "Click", "point": {"x": 3.0, "y": 4.0}}]
    assert (first["thought"], last["action_text"]) == ("open the menu", "DONE")
    assert (first["seconds"], last["seconds"]) == (None, 1.25)
    assert library.source(NAME).picture(first["shot"]["shot"]).content == small(0).png


def test_a_broken_episode_is_shown_as_far_as_possible(library):
    episode = library.answer(["s", NAME, "episodes", "os/broken"], {})
    assert (episode["score"], episode["solved"], episode["final"]) == (None, False, None)
    assert episode["steps_list"][0]["actions"] == [{"do": "Scroll", "point": None, "direction": "down"}]


def test_search_and_tasks(library):
    rows = library.answer(["s", NAME, "episodes"], {"text": "menu"})["episodes"]
    assert [row["episode"] for row in rows] == [f"chrome/{TASK}"]
    assert [task["task"] for task in library.answer(["s", NAME, "tasks"], {})["tasks"]] == ["broken", TASK]
    with pytest.raises(NotFound):
        library.answer(["s", NAME, "metrics"], {})


def test_a_new_result_appears(folder, library):
    new = folder / NAME / "os" / "new"
    new.mkdir()
    (new / "result.txt").write_text("0")
    source = library.source(NAME)
    source._next_scan = 0.0
    while not source.refresh(5.0):
        pass
    assert library.answer(["s", NAME, "episodes"], {})["total"] == 3


def test_every_slice_of_indexing_adds_an_episode(folder):
    """A scan of a large folder takes longer than a slice."""
    library = Library([folder])
    [source] = library.sources.values()
    counts = []
    while not source.refresh(-1.0):
        counts.append(source.index.count("episodes"))
    assert (
        counts == list(range(1, len(counts) + 1)) and source.index.count("episodes") == len(counts) + 1 >= 2
    )
    library.close()


def test_a_growing_episode_is_replaced_and_the_others_stay(folder, library):
    before = {row["episode"] for row in library.answer(["s", NAME, "episodes"], {})["episodes"]}
    steps = folder / NAME / "chrome" / TASK / "traj.jsonl"
    count = len(steps.read_text().splitlines())
    with steps.open("a") as file:
        file.write('{"response": "a walrus appears", "action": "WAIT"}\n')
    source = library.source(NAME)
    generation, source._next_scan = source.index.generation, 0.0
    while not library.refresh(5.0):
        pass
    assert source.index.generation == generation  # the list was never empty
    rows = {row["episode"]: row for row in library.answer(["s", NAME, "episodes"], {})["episodes"]}
    assert rows.keys() == before and rows[f"chrome/{TASK}"]["steps"] == count + 1
    found = library.answer(["s", NAME, "episodes"], {"text": "walrus"})["episodes"]
    assert [row["episode"] for row in found] == [f"chrome/{TASK}"]


def test_only_pictures_of_episodes_are_served(folder, library):
    (folder / NAME / "secret.png").write_bytes(small(1).png)
    outside = folder / NAME / "chrome" / TASK / "link.png"
    outside.symlink_to("/etc/passwd")
    source = library.source(NAME)
    for shot in (
        "secret.png",
        "../secret.png",
        f"chrome/{TASK}/traj.jsonl",
        f"chrome/{TASK}/../{TASK}/x.png",
    ):
        with pytest.raises(UserError):
            source.picture(shot)
    with pytest.raises(UserError, match="symbolic link"):
        source.picture(f"chrome/{TASK}/link.png")


def test_an_absurd_picture_is_an_error_entry(folder, library):
    path = folder / NAME / "chrome" / TASK / "step_0_a.png"
    path.write_bytes(chunks(header(60_000, 60_000)))
    shot = library.answer(["s", NAME, "episodes", f"chrome/{TASK}"], {})["steps_list"][0]["shot"]
    assert shot["url"] is None and "60000x60000" in shot["error"]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("pyautogui.moveTo(1, 2); pyautogui.dragTo(3, 4)", ["Hover", "Drag"]),
        ("pyautogui.doubleClick(x=1, y=2)", ["DoubleClick"]),
        ("pyautogui.rightClick(1.5, 2)", ["RightClick"]),
        ("pyautogui.typewrite('x')", []),
        ("pyautogui.hscroll(3)", ["Scroll"]),
        ({"nested": ["odd"]}, []),
    ],
)
def test_mouse_actions_are_read_from_pyautogui(text, kinds):
    assert [type(action).__name__ for action in _actions({"action": text})] == kinds
