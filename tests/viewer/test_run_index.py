"""Places of failed episodes, compared episodes of a task, and the stamp of a run."""

import pytest

from arpo.storage.run_folder import RunFolder
from arpo.types import Group
from arpo.viewer.library import Library
from viewed_runs import add_group, config, failure, played


@pytest.fixture
def store(tmp_path):
    store = RunFolder(tmp_path / "run")
    store.write_recipe(config())
    yield store
    store.close()


def answer(tmp_path, *parts):
    library = Library([tmp_path / "run"])
    while not library.refresh(5.0):
        pass
    try:
        return library.answer(["s", "run", *parts], {})
    finally:
        library.close()


def test_failures_of_an_asynchronous_run_belong_to_the_batch_of_their_group(tmp_path, store):
    add_group(store, 1, played("group-4-0", "pool-040", 1.0))
    for group in (5, 12):
        store.add_trajectory(played(f"group-{group}-0", "pool-040", 1.0))
    for group in (4, 5, 12):
        store.add_failure(failure(f"group-{group}-1", "pool-040"))
    all_failed = failure("group-9-0", "pool-041")
    store.add_failure(all_failed)
    store.log_group(1, 0, Group(index=9, task_id="pool-041", trajectories=(), failures=(all_failed,)), [], [])
    assert [batch["failed"] for batch in answer(tmp_path, "batches")["batches"]] == [2]
    groups = [group["group"] for group in answer(tmp_path, "batches", "1")["groups"]]
    assert groups == ["group-4", "group-9"]
    found = answer(tmp_path, "failures")["newest"]
    assert {one["episode"]: one["batch"] for one in found} == {
        "group-4-1": 1, "group-5-1": None, "group-12-1": None, "group-9-0": 1
    }  # fmt: skip


def test_episodes_of_one_batch_are_not_before_and_after(tmp_path, store):
    store.add_trajectory(played("batch-1-0-0", "pool-040", 0.0))
    store.add_trajectory(played("batch-1-0-1", "pool-040", 1.0))
    store.add_trajectory(played("batch-1-1-0", "pool-041", 0.0))
    store.add_trajectory(played("batch-4-0-0", "pool-041", 1.0))
    same = answer(tmp_path, "tasks", "pool-040")
    assert (same["before_episode"], same["after_episode"]) == (None, None)
    other = answer(tmp_path, "tasks", "pool-041")
    assert other["before_episode"]["phase_title"] == "training batch 1"
    assert other["after_episode"]["phase_title"] == "training batch 4"


def test_ids_of_earlier_versions_count_batches_from_0(tmp_path, store):
    """A run that was begun by an earlier version and resumed by this one."""
    store.add_trajectory(played("batch0-0-0", "pool-040", 0.0))
    store.add_trajectory(played("batch-2-0-0", "pool-040", 0.0))
    assert [batch["batch"] for batch in answer(tmp_path, "batches")["batches"]] == [1, 2]
    assert [group["group"] for group in answer(tmp_path, "batches", "1")["groups"]] == ["batch0-0"]
    assert [group["group"] for group in answer(tmp_path, "batches", "2")["groups"]] == ["batch-2-0"]


def test_the_stamp_changes_when_new_episodes_are_indexed_not_before(tmp_path, store):
    store.add_trajectory(played("batch-1-0-0", "pool-040", 0.0))
    library = Library([tmp_path / "run"])
    while not library.refresh(5.0):
        pass

    def state():
        source = library.answer(["sources"], {})["sources"][0]
        return source["stamp"], source["episodes"]

    first, episodes = state()
    store.add_trajectory(played("batch-1-0-1", "pool-040", 1.0))
    assert (episodes, state()) == (1, (first, 1))
    while not library.refresh(5.0):
        pass
    second, episodes = state()
    assert (second != first, episodes) == (True, 2)
    library.close()


def test_replaced_metrics_have_another_generation(tmp_path, store):
    store.log_metrics(1, {"success": 0.5})
    library = Library([tmp_path / "run"])
    library.refresh(5.0)
    first = library.answer(["s", "run", "metrics"], {})
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "success": 0.25}\n' * 2)
    library.refresh(5.0)
    second = library.answer(["s", "run", "metrics"], {"from": "1"})
    assert (len(second["rows"]), second["next"]) == (1, 2)
    assert second["generation"] != first["generation"]
    library.close()
