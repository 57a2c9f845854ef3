"""Jobs of a comparison: folders, commands and errors. test_compared_runs.py runs them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from arpo.comparison.jobs import is_finished, make_jobs, planned_episodes
from arpo.comparison.methods import find_methods
from arpo.config import Config
from arpo.config.recipe import changed, load_config, to_toml
from arpo.errors import UserError
from arpo.storage.run_folder import lock_folder

PAPER = ["paper", "paper/grpo", "paper/rft", "paper/dpo"]


def jobs_for(out: Path, *settings: str, seeds: int = 1, threads: int = 0, recipes: list[str] = PAPER):
    return make_jobs(find_methods(recipes), seeds, out, settings, threads)


def test_folder_and_seed_of_a_run_are_no_settings(tmp_path: Path) -> None:
    for setting in (["--run.dir", "x"], ["--run.seed=3"]):
        with pytest.raises(UserError, match="a comparison sets it for each run"):
            jobs_for(tmp_path, *setting, recipes=["desk"])


def test_jobs_are_ordered_by_seed_and_offline_runs_wait_for_their_collection(tmp_path: Path) -> None:
    jobs = jobs_for(tmp_path, "--train.epochs", "2", seeds=2)
    titles = ["collected", "paper", "paper-grpo", "paper-rft", "paper-dpo"]
    assert [job.title for job in jobs] == [f"{title}, seed {seed}" for seed in (0, 1) for title in titles]
    assert [job.waits_for for job in jobs[5:]] == ["", "", "", "collected, seed 1", "collected, seed 1"]
    collect, online, offline = jobs[5], jobs[6], jobs[8]
    assert collect.command_line[3:] == [
        *("arpo", "collect", "paper/rft", "--train.epochs", "2"),
        *("--run.dir", str(tmp_path / "collected" / "seed-1"), "--run.seed", "1"),
    ]
    assert online.command_line[4:6] == ["train", "paper"]
    assert online.log_path == tmp_path / "paper" / "seed-1.log"
    assert (online.config.run.seed, online.config.train.epochs) == (1, 2)
    assert offline.config.offline.source == str(tmp_path / "collected" / "seed-1")
    assert [job.plays_training_episodes for job in (collect, online, offline)] == [True, True, False]


def test_a_method_with_an_offline_source_waits_for_no_collection(tmp_path: Path) -> None:
    jobs = jobs_for(tmp_path, "--offline.source", "stored", recipes=["paper/rft"])
    assert [(job.title, job.waits_for) for job in jobs] == [("paper-rft, seed 0", "")]


def test_threads_are_divided_among_jobs_unless_set(tmp_path: Path) -> None:
    assert jobs_for(tmp_path, recipes=["desk"], threads=3)[0].config.run.threads == 3
    assert jobs_for(tmp_path, "--run.threads", "5", recipes=["desk"], threads=3)[0].config.run.threads == 5
    assert jobs_for(tmp_path, recipes=["desk"])[0].config.run.threads == 0


def test_offline_methods_must_agree_on_settings_of_their_episodes(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(
        'extends = "paper/dpo"\n[rollout]\ngroup_size = 4\n[train]\nepochs = 3\n[optim]\nlr = 1e-3\n'
    )
    with pytest.raises(UserError, match=r"rollout.group_size, train.epochs differs from paper/rft, but both"):
        jobs_for(tmp_path, recipes=["paper/rft", str(tmp_path / "other.toml")])


def test_out_must_not_be_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "o").write_text("mine")
    words = ["compare", "desk", "--seeds", "1", "--out", str(tmp_path / "o")]
    assert main(words) == 2
    assert "o: the folder of the comparison cannot be written: File exists: choose another --out" in (
        capsys.readouterr().err
    )
    assert main([*words, "--report"]) == 2
    assert f"{tmp_path / 'o'}: no such folder" in capsys.readouterr().err


def test_two_processes_do_not_share_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = lock_folder(tmp_path / "o", "comparison", "--out")
    assert main(["compare", "desk", "--seeds", "1", "--out", str(tmp_path / "o")]) == 2
    assert "o: another process is writing this comparison: choose another --out" in capsys.readouterr().err
    os.close(held)
    assert [path.name for path in (tmp_path / "o").iterdir()] == [".lock"]


def test_a_finished_run_with_other_settings_is_an_error(tmp_path: Path) -> None:
    job = jobs_for(tmp_path, recipes=["desk"])[0]
    assert not is_finished(job)
    job.folder.mkdir(parents=True)
    (job.folder / "summary.json").write_text("{}")
    (job.folder / "recipe.toml").write_text(
        to_toml(replace(job.config, run=replace(job.config.run, threads=7)))
    )
    assert is_finished(job)
    assert is_finished(jobs_for(tmp_path, "--env.attempts", "9", recipes=["desk"])[0])  # a remedy for others
    other = jobs_for(tmp_path, "--optim.lr", "0.5", recipes=["desk"])[0]
    with pytest.raises(
        UserError, match=r"seed-0: this finished run has another optim.lr: choose another --out"
    ):
        is_finished(other)


def test_a_collection_is_finished_if_its_result_file_says_so(tmp_path: Path) -> None:
    job = jobs_for(tmp_path)[0]
    job.folder.mkdir(parents=True)
    (job.folder / "recipe.toml").write_text(to_toml(job.config))
    for ended in (False, True):
        job.result_path.write_text(f'{{"ended": {str(ended).lower()}}}')
        assert is_finished(job) == ended
    for_dpo = jobs_for(tmp_path, recipes=["paper/dpo", "paper/rft"])[0]
    assert for_dpo.recipe != job.recipe and is_finished(for_dpo)  # collected for another method
    with pytest.raises(UserError, match=r"seed-0: this finished run has another rollout.group_size"):
        is_finished(jobs_for(tmp_path, "--rollout.group_size", "4")[0])


def test_changed_settings_and_planned_episodes() -> None:
    one = load_config("paper")
    assert changed(one, load_config("paper/ds_grpo")) == ["train.dynamic_sampling", "replay.enabled"]
    assert changed(Config(), Config()) == []
    assert planned_episodes(one) == 4 * 128 * 8


MISTAKES = {
    "compare desk --out o": "compare needs --seeds N to train desk",
    "compare --seeds 2 --out o": "compare needs recipes and --seeds N",
    "compare desk --seeds 0 --out o": "is '0', must be an integer >= 1",
    "compare desk --seeds 1000000000 --out o": "is '1000000000', must be an integer >= 1, <= 9999",
    "compare desk --seeds 1": "--out",
    "compare dsek --seeds 1 --out o": "(did you mean desk?)",
    "compare desk desk --seeds 1 --out o": "has the name 'desk' too",
    "compare desk --seeds 1 --out o --run.seed 3": "a comparison sets it for each run",
    "compare desk --seeds 1 --out o --tasks.train desk:none": "desk:none: no such shipped task list",
    "compare --report --out o --train.epochs 2": "--train.epochs: not possible with --report",
    "compare --report --out o": "o: no such folder",
    "compare desk --seeds 1 --jobs 0 --out o": "is '0', must be an integer >= 1",
    "compare desk --seeds 1 --out o --against dsek": "dsek: not part of this comparison (did you mean desk?)",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_started(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and MISTAKES[words] in error
    assert list(tmp_path.iterdir()) == []
