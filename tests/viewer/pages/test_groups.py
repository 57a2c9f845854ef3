"""Notes on the advantages of groups that depend on the recipe."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from arpo.config import ReplayConfig, TrainConfig
from arpo.storage.run_folder import RunFolder
from arpo.viewer.library import Library
from viewed_runs import add_group, config, played


def equal_group(folder: Path) -> Any:
    """A group of two successes, in a run with dynamic sampling."""
    train, replay = TrainConfig(dynamic_sampling=True), ReplayConfig(enabled=False)
    store = RunFolder(folder)
    store.write_recipe(replace(config(), train=train, replay=replay))
    add_group(store, 1, *[played(f"batch-1-0-{member}", "pool-040", 1.0) for member in (0, 1)])
    store.close()
    library = Library((folder,))
    while not library.refresh(5.0):
        pass
    found = library.answer(["s", folder.name, "groups", "batch-1-0"], {})
    library.close()
    return found


def test_dynamic_sampling_drops_groups_with_equal_rewards(tmp_path: Path) -> None:
    group = equal_group(tmp_path / "run")
    assert group["note"] == ""
    assert group["dropped"] == "no signal: dynamic sampling played another group instead"
