"""The pages of a run with worked numbers: batches, groups, episodes, tokens, tasks (see viewed_runs)."""

import json
from contextlib import closing
from dataclasses import asdict, replace

import pytest

from arpo.config import PluginsConfig
from arpo.errors import UserError
from arpo.storage.judgements import Vote, VoteLog
from arpo.storage.run_folder import RunFolder, RunFolderReader
from arpo.types import Group
from arpo.viewer.library import Library
from stored_episodes import desktop, pixels_of
from viewed_runs import add_group, config, failure, make_run, played


def opened(*folders):
    library = Library(folders)
    while not library.refresh(5.0):
        pass
    return library


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "desk"
    make_run(folder)
    library = opened(folder)
    yield library
    library.close()


@pytest.fixture
def get(library):
    return lambda *parts, **query: library.answer(["s", "desk", *parts], query)


def test_the_list_of_sources(library):
    entry = library.answer(["sources"], {})["sources"][0]
    assert (entry["id"], entry["kind"], entry["episodes"], entry["failures"]) == ("desk", "run", 13, 1)
    assert (entry["live"], entry["finished"], entry["batches"], entry["indexing"]) == (False, True, 2, None)
    assert entry["success"] == {
        "base": {"train": 0.25, "heldout": 0.5},
        "final": {"train": 0.75, "heldout": 0.0},
        "intervals": entry["success"]["intervals"],
    }
    (low, high), (lowest, _) = (entry["success"]["intervals"][name] for name in ("train", "heldout"))
    assert low < 0.5 < high and lowest < -0.5
    assert entry["errors"] == []


def test_batches_have_counts(get):
    batches = get("batches")["batches"]
    assert batches[0] == {
        "batch": 1, "groups": 3, "episodes": 5, "solved": 2, "failed": 1, "rescued": 0,
        "without_signal": 1.0, "dropped": 0,
    }  # fmt: skip
    assert batches[1]["rescued"] == 1


def test_a_group_with_replay(get):
    batch = get("batches", "2")
    assert (batch["previous"], batch["next"], batch["metrics"]["success"]) == (1, None, 0.5)
    rescued, malformed, solved = batch["groups"]
    assert [dot["kind"] for dot in rescued["dots"]].count("replayed") == 1
    stored = next(dot for dot in rescued["dots"] if dot["kind"] == "replayed")
    assert (stored["episode"], stored["origin_batch"], stored["age"]) == ("batch-1-0-0", 1, 1)
    assert stored["replaced"] in ("batch-2-0-0", "batch-2-0-1")
    assert sorted(dot["advantage"] for dot in rescued["dots"]) == [-1.0, 1.0]
    assert (rescued["mean"], rescued["sigma"], rescued["signal"], rescued["solved"]) == (0.5, 0.5, True, 0)
    # The score 0 and the format reward −1 give −1: the mean is 0, σ is 1.
    assert [(dot["reward"], dot["advantage"]) for dot in malformed["dots"]] == [(1.0, 1.0), (-1.0, -1.0)]
    assert [dot["advantage"] for dot in solved["dots"]] == [0.0, 0.0]
    assert not solved["signal"]


def test_a_failed_episode_is_an_error_dot_and_a_group_of_one_is_dropped(get):
    group = get("batches", "1")["groups"][2]
    assert [dot["kind"] for dot in group["dots"]] == ["solved", "error"]
    assert group["dots"][1]["error"] == "EnvTimeout in step: no answer within 60 s"
    assert group["dots"][1]["score"] is None
    assert group["dropped"].startswith("fewer than two episodes")


def test_a_group_shows_its_steps_and_what_was_replaced(get):
    group = get("groups", "batch-2-0")
    assert (group["previous"], group["next"]) == ("batch-1-2", "batch-2-1")
    member = next(one for one in group["members"] if one["kind"] == "replayed")
    assert len(member["steps_list"]) == 4
    assert member["replaced_dot"]["episode"] == member["replaced"]
    replaced = get("episodes", member["replaced"])
    assert replaced["replaced_by"] == {"episode": "batch-1-0-0", "batch": 2, "age": 1}
    assert get("episodes", "batch-1-0-0")["replayed_in"] == [2]


def test_an_episode_with_its_steps(get):
    episode = get("episodes", "batch-1-0-0")
    assert (episode["reward"], episode["advantage"], episode["phase_title"]) == (1.0, 1.0, "training batch 1")
    assert (episode["previous"], episode["next"]) == ("eval0-train-0-0", "batch-1-0-1")
    assert episode["end"] == "solved: the model called finished()"
    first, drag, text, _ = episode["steps_list"]
    assert (first["thought"], first["action_text"]) == ("Open the settings", "click(start_box='(60,200)')")
    assert first["actions"] == [{"do": "Click", "point": {"x": 60, "y": 200}}]
    assert drag["actions"][0]["end"] == {"x": 200, "y": 90}
    assert text["labels"] == ["type “Greek”"]
    assert (first["shot"]["width"], first["shot"]["height"]) == (320, 240)
    assert first["mean_logprob"] == pytest.approx((-0.1 - 2.3 - 0.02 - 0.001) / 4)
    assert first["shot"]["url"] == f"/api/s/desk/shots/{first['shot']['shot']}"


def test_a_screenshot(library, get):
    steps = get("episodes", "batch-1-0-0")["steps_list"]
    assert library.source("desk").picture(steps[0]["shot"]["shot"]).content.startswith(b"\x89PNG")
    with pytest.raises(UserError, match="64 hexadecimal"):
        library.source("desk").picture("../../etc/passwd")


def test_tokens_have_log_probabilities_and_nothing_is_invented(get):
    answer = get("episodes", "batch-1-0-1", "tokens", "1")
    assert answer["stored"] == {"logprob": True, "entropy": False, "ratio": False, "clipped": False}
    assert [token["logprob"] for token in answer["tokens"]] == [-0.1, -2.3, -0.02, -0.001]
    assert answer["tokens"][0]["ratio"] is None
    assert all(isinstance(token["text"], str) for token in answer["tokens"])
    with pytest.raises(UserError, match="has 4 steps"):
        get("episodes", "batch-1-0-0", "tokens", "5")


def test_tasks_are_sorted_by_difficulty(get):
    tasks = get("tasks")["tasks"]
    assert [task["task"] for task in tasks] == ["heldout-006", "pool-013", "pool-021", "pool-040"]
    last = tasks[-1]
    assert (last["before"], last["after"], last["change"], last["task_set"]) == (0.0, 1.0, 1.0, "training")
    assert (last["trained"], last["solved"], last["rescued"]) == (4, 1, 1)
    assert tasks[2]["failures"] == 1


def test_a_task_over_time(get):
    task = get("tasks", "pool-040")
    assert task["curve"] == [
        {"batch": 1, "solved": 1, "episodes": 2},
        {"batch": 2, "solved": 0, "episodes": 2},
    ]
    assert task["before_episode"]["episode"] == "eval0-train-0-0"
    assert task["after_episode"]["episode"] == "eval2-train-0-0"
    assert task["evaluations"] == [{"step": 0, "scores": [0, 0]}, {"step": 2, "scores": [1, 1]}]


def test_failures_by_kind_and_host(tmp_path):
    make_run(tmp_path / "desk")
    store = RunFolder(tmp_path / "desk")
    lost = replace(failure("batch-2-9-0", "t"), host="http://10.0.0.7:8700")
    store.add_failure(lost)
    store.add_failure(replace(lost, episode_id="batch-2-9-1"))
    store.close()
    library = opened(tmp_path)
    found = library.answer(["s", "desk", "failures"], {})
    assert [(one["kind"], one["host"], one["count"]) for one in found["by_kind"]] == [
        ("EnvTimeout", "http://10.0.0.7:8700", 2),
        ("EnvTimeout", "", 1),
    ]
    assert found["newest"][0]["episode"] == "batch-2-9-1"
    library.close()


def test_a_failure_of_an_older_version_has_no_host(tmp_path):
    make_run(tmp_path / "desk")
    record = asdict(failure("batch-2-9-0", "t"))
    del record["host"]
    with (tmp_path / "desk" / "failures.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    library = opened(tmp_path)
    newest, first = library.answer(["s", "desk", "failures"], {})["newest"]
    assert (newest["host"], first["host"]) == ("not stored", "")
    library.close()


def test_metrics_from_a_row_on(get):
    answer = get("metrics", **{"from": "2"})
    assert (answer["next"], [row["step"] for row in answer["rows"]]) == (3, [2])
    assert answer["explained"]["success"]["title"] == "Success rate of training episodes"
    assert get("timeline")["rows"][1]["learn"] == 2.0


def test_a_live_run_grows_and_a_resumed_one_is_indexed_again(tmp_path):
    folder = tmp_path / "run"
    store = RunFolder(folder)
    store.write_recipe(config())
    store.add_trajectory(played("batch-1-0-0", "pool-040", 1.0))
    sizes = store.offsets()
    library = opened(folder)
    source = library.source("run")

    def names():
        while not source.refresh(5.0):
            pass
        return [row["episode"] for row in library.answer(["s", "run", "episodes"], {})["episodes"]]

    assert library.answer(["sources"], {})["sources"][0]["live"]
    assert names() == ["batch-1-0-0"]
    store.add_trajectory(played("batch-1-0-1", "pool-040", 0.0))
    assert names() == ["batch-1-0-0", "batch-1-0-1"]
    store.rewind(sizes)
    store.add_trajectory(played("batch-1-0-9", "pool-013", 0.0))
    assert names() == ["batch-1-0-0", "batch-1-0-9"]
    assert library.answer(["s", "run", "episodes"], {"text": "settings"})["total"] == 2
    store.close()
    library.close()


def test_pruned_screenshots_are_reported(tmp_path):
    folder = tmp_path / "run"
    store = RunFolder(folder)
    store.write_recipe(config())
    for name in ("batch-1-0-0", "batch-1-0-1"):
        store.add_trajectory(played(name, "pool-040", 1.0))
    library = opened(folder)
    store.prune({"batch-1-0-0"})
    store.close()
    while not library.refresh(5.0):
        pass
    rows = library.answer(["s", "run", "episodes"], {})["episodes"]
    assert [row["shown"] for row in rows] == [True, False]
    shot = library.answer(["s", "run", "episodes", "batch-1-0-1"], {})["steps_list"][0]["shot"]
    assert shot["url"] is None and "store.prune_every" in shot["error"]
    library.close()


def test_large_screenshots_are_restored_from_their_changes(tmp_path):
    """Stored as lossless changes; the pixels are those of the original."""
    folder = tmp_path / "run"
    store = RunFolder(folder)
    store.write_recipe(config())
    shots = [desktop(1), desktop(1, 10), desktop(1, 200)]
    episode = played("batch-1-0-0", "pool-040", 1.0)
    turns = [
        replace(turn, screenshot=shot, images=(shot,))
        for turn, shot in zip(episode.turns, shots, strict=False)
    ]
    store.add_trajectory(replace(episode, turns=tuple(turns), final=shots[-1]))
    store.close()
    library = opened(folder)
    source = library.source("run")
    reader = RunFolderReader(folder)
    stored = reader.load_trajectory("batch-1-0-0")
    for turn in stored.turns:
        assert source.picture(turn.screenshot.sha256).media_type in ("image/png", "image/webp")
        restored = source._pack.pixels(turn.screenshot.sha256)
        assert (restored == pixels_of(turn.screenshot)).all()
    reader.close()
    library.close()


def test_a_group_that_waits_for_its_batch_says_so(tmp_path):
    folder = tmp_path / "run"
    store = RunFolder(folder)
    store.write_recipe(config())
    for member in (0, 1):
        store.add_trajectory(played(f"group-6-{member}", "pool-040", float(member)))
    episodes = [played(f"group-4-{member}", "pool-040", float(member)) for member in (0, 1)]
    add_group(store, 1, *episodes)
    store.close()
    library = opened(folder)
    groups = library.answer(["s", "run", "batches", "1"], {})["groups"]
    assert [(group["group"], group["dropped"]) for group in groups] == [("group-4", None)]
    assert library.answer(["s", "run", "groups", "group-6"], {})["dropped"] == "no batch has taken it yet"
    assert library.answer(["s", "run", "episodes"], {"phase": "group"})["total"] == 2
    library.close()


def test_the_rewards_of_a_plug_in_are_shown_and_it_is_not_called(tmp_path):
    folder = tmp_path / "run"
    store = RunFolder(folder)
    store.write_recipe(replace(config(), plugins=PluginsConfig(reward="os:system")))
    episodes = tuple(played(f"batch-1-0-{member}", "pool-040", 0.0) for member in (0, 1))
    for episode in episodes:
        store.add_trajectory(episode)
    store.log_group(1, 0, Group(index=0, task_id="pool-040", trajectories=episodes), [0.25, 4.0], [-2, 2])
    store.close()
    library = opened(folder)
    [group] = library.answer(["s", "run", "batches", "1"], {})["groups"]
    assert [(dot["reward"], dot["advantage"]) for dot in group["dots"]] == [(0.25, -2), (4.0, 2)]
    library.close()


def test_a_run_of_an_earlier_version_shows_the_played_episodes(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    for name in ("groups.jsonl", "format.json"):
        (folder / name).unlink()
    library = opened(folder)
    batch = library.answer(["s", "run", "batches", "2"], {})
    assert "earlier version" in batch["note"]
    first = batch["groups"][0]
    assert [dot["episode"] for dot in first["dots"]] == ["batch-2-0-0", "batch-2-0-1"]
    assert {(dot["kind"], dot["reward"], dot["advantage"]) for dot in first["dots"]} == {
        ("failed", None, None)
    }
    assert (first["signal"], first["sigma"], first["solved"]) == (None, None, 0)
    assert library.answer(["s", "run", "report"], {})["finished"]
    library.close()


def test_an_asynchronous_run_of_an_earlier_version_has_its_batches(tmp_path):
    folder = tmp_path / "run"
    store = RunFolder(folder)
    store.write_recipe(config())
    for group in (4, 5):
        store.add_trajectory(played(f"group-{group}-0", "pool-040", 1.0))
    store.close()
    (folder / "groups.jsonl").unlink()
    (folder / "batches.jsonl").write_text('{"step": 1, "groups": [4], "dropped": [5]}\n')
    library = opened(folder)
    found = library.answer(["s", "run", "batches", "1"], {})["groups"]
    assert [(group["group"], group["batch"]) for group in found] == [("group-4", 1), ("group-5", None)]
    assert "stale" in found[1]["dropped"]
    library.close()


def test_a_wrong_offset_makes_the_index_again(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    library = opened(folder)
    source = library.source("run")
    source.index.write(lambda connection: connection.execute("UPDATE episodes SET at = at + 7"))
    assert library.answer(["s", "run", "episodes", "batch-1-0-0"], {})["steps"] == 4
    assert source.index.generation == 1
    library.close()


def test_a_wrong_offset_of_a_screenshot_makes_the_index_again(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    library = opened(folder)
    source = library.source("run")
    source.index.write(lambda connection: connection.execute("UPDATE shots SET at = at + 7"))
    episode = library.answer(["s", "run", "episodes", "batch-1-0-0"], {})
    assert "made again" in episode["steps_list"][0]["shot"]["error"]
    assert "not indexed yet" in episode["final"]["error"]
    while not source.refresh(5.0):
        pass
    assert library.answer(["s", "run", "episodes", "batch-1-0-0"], {})["final"]["url"]
    library.close()


def hostile(record, **changes):
    return json.dumps({**record, **changes}) + "\n"


def test_hostile_lines_become_errors_and_the_others_are_shown(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    path = folder / "trajectories.jsonl"
    good = path.read_text().splitlines()[0]
    record = json.loads(good)
    turn = record["turns"][0]
    bomb = {**turn, "completion": {**turn["completion"], "token_ids": [[1, 1 << 40]]}}
    many = {**turn, "completion": {**turn["completion"], "token_ids": [[1, 1 << 20]] * 3}}
    versions = {**turn, "completion": {**turn["completion"], "versions": [[1, 1 << 23]]}}
    with path.open("a") as file:
        file.write("[" * 50_000 + "\n")
        file.write(hostile(record, episode_id="a", score=2))
        file.write(hostile(record, episode_id="b", turns=[bomb]))
        file.write(hostile(record, episode_id="c", turns=[many]))
        file.write(hostile(record, episode_id="d", turns=[versions]))
        file.write(hostile(record, episode_id="e", turns=[]))
        file.write(hostile(record, episode_id="f", final={"x": 1}))
        file.write(hostile(record, episode_id="g" * 10_000))
        file.write(hostile(record, episode_id=5))
        file.write(good + "\n")
        file.write(hostile(record, episode_id="last"))
    library = opened(folder)
    entry = library.answer(["sources"], {})["sources"][0]
    assert entry["episodes"] == 14
    assert len(entry["errors"]) == 10
    assert library.answer(["s", "run", "episodes", "last"], {})["steps"] == 4
    library.close()


def test_damaged_steps_are_shown_as_damaged(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    path = folder / "trajectories.jsonl"
    record = json.loads(path.read_text().splitlines()[0])
    first, *rest = record["turns"]
    wrong = [
        {**first, "actions": [{"do": "os.system", "command": "id"}]},
        {**first, "actions": [{"do": "Click", "point": {"x": "<script>", "y": float("nan")}}]},
        {**first, "screenshot": "../../../etc/passwd"},
        {**first, "screenshot": "0" * 64},
    ]
    with path.open("a") as file:
        file.write(hostile(record, episode_id="odd", turns=[first, *wrong, *rest]))
    library = opened(folder)
    steps = library.answer(["s", "run", "episodes", "odd"], {})["steps_list"]
    assert "damaged" in steps[1]["error"]
    assert steps[2]["actions"] == []
    assert [step["shot"] and step["shot"]["url"] for step in steps[3:5]] == [None, None]
    assert steps[5]["thought"] == "Drag the window"
    library.close()


def test_a_changed_recipe_is_read_again(tmp_path):
    folder = tmp_path / "run"
    make_run(folder)
    library = opened(folder)
    store = RunFolder(folder)
    store.write_recipe(config(replay=False))
    store.close()
    library.discover()
    library.refresh(5.0)
    assert "without replay" in library.answer(["sources"], {})["sources"][0]["subtitle"]
    library.close()


def test_a_link_in_place_of_the_episodes_is_an_error_entry_and_delays_no_other_run(tmp_path):
    make_run(tmp_path / "good")
    make_run(tmp_path / "bad")
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "bad" / "trajectories.jsonl").unlink()
    (tmp_path / "bad" / "trajectories.jsonl").symlink_to(tmp_path / "secret")
    library = opened(tmp_path)
    bad, good = library.answer(["sources"], {})["sources"]
    assert (bad["id"], bad["episodes"]) == ("bad", 0) and "symbolic link" in bad["errors"][0]
    assert (good["episodes"], good["errors"]) == (13, [])
    library.close()


def test_a_linked_file_of_times_or_tokens_hides_nothing_else(tmp_path):
    make_run(tmp_path / "desk")
    for name in ("calls.jsonl", "token_stats.jsonl"):
        (tmp_path / "desk" / name).rename(tmp_path / name)
        (tmp_path / "desk" / name).symlink_to(tmp_path / name)
    library = opened(tmp_path / "desk")
    (entry,) = library.answer(["sources"], {})["sources"]
    assert entry["episodes"] == 13
    assert [text.split(": ")[1] for text in entry["errors"]] == ["is a symbolic link"] * 2
    episode = library.answer(["s", "desk", "episodes", "batch-1-0-0"], {})
    assert episode["times"] is None and episode["steps_list"][0]["shot"]["width"] == 320
    library.close()


def test_a_report_is_made_again_only_after_a_change(tmp_path):
    make_run(tmp_path / "desk")
    library = opened(tmp_path / "desk")
    report = library.answer(["s", "desk", "report"], {})
    assert library.answer(["s", "desk", "report"], {}) is report
    assert report["batches"] == [1, 2]
    with closing(RunFolder(tmp_path / "desk")) as store:
        add_group(store, 3, played("batch-3-0-0", "pool-040", 1.0), played("batch-3-0-1", "pool-040", 0.0))
    while not library.refresh(5.0):
        pass
    assert library.answer(["s", "desk", "report"], {})["batches"] == [1, 3]
    library.close()


def test_an_episode_shows_the_newest_votes_of_each_judge(tmp_path):
    make_run(tmp_path / "desk")
    with closing(RunFolderReader(tmp_path / "desk")) as reader:
        final = reader.load_outline("batch-1-0-0").final.sha256
    vote = Vote(
        episode="batch-1-0-0", final=final, model="a", mark="1", planted=False, number=0, success=True,
        reason="old question",
    )  # fmt: skip
    with closing(VoteLog(tmp_path / "desk")) as log:
        for one in (
            vote,
            replace(vote, mark="2", number=1, success=False, reason="second"),
            replace(vote, mark="2", success=None, reason="no answer"),
            replace(vote, mark="2", success=False, reason="first"),
            replace(vote, mark="2", number=2, success=None, reason="no answer"),
            replace(vote, mark="2", planted=True, reason="planted"),
            replace(vote, mark="3", final="0" * 64, reason="of an episode before a resume"),
            replace(vote, model="b", reason="another judge"),
        ):
            log.add(one)
    with (tmp_path / "desk" / "judgements.jsonl").open("a") as file:
        file.write('{"episode": 3}\n')
    with closing(opened(tmp_path / "desk")) as library:
        judged = library.answer(["s", "desk", "episodes", "batch-1-0-0"], {})["judged"]
        assert judged == [
            {
                "model": "a",
                "success": False,
                "votes": [
                    {"success": False, "reason": "first"},
                    {"success": False, "reason": "second"},
                    {"success": None, "reason": "no answer"},
                ],
            },
            {"model": "b", "success": True, "votes": [{"success": True, "reason": "another judge"}]},
        ]
        assert library.answer(["s", "desk", "episodes", "batch-1-0-1"], {})["judged"] == []
        (entry,) = library.answer(["sources"], {})["sources"]
        assert "judgements.jsonl: byte" in entry["errors"][0]
