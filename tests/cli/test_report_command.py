"""`arpo report`: choice of episodes, and the list of metrics."""

import pytest

from arpo.cli.entry_point import main
from arpo.config import Config
from arpo.storage.run_folder import RunFolder
from markup import report_of
from stored_episodes import episode, small


def make_run(folder):
    store = RunFolder(folder)
    store.write_recipe(Config())
    store.add_trajectory(episode("batch-1-0-0", [small(1), small(2)]))
    store.add_trajectory(episode("batch-1-0-1", [small(1), small(2)]))
    store.close()


def test_episodes_are_chosen(capsys, tmp_path):
    make_run(tmp_path)
    assert main(["report", str(tmp_path), "--episodes", "batch-1-0-1"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert report_of(tmp_path / "report.html")["episodes"]["shown"] == [["batch-1-0-1"]]


def test_a_choice_without_episodes_exits_with_2_and_writes_nothing(capsys, tmp_path):
    make_run(tmp_path)
    assert main(["report", str(tmp_path), "--episodes", "failed"]) == 2
    message = capsys.readouterr().err
    assert message.startswith(
        "arpo: error: --episodes failed: no episode matches. The run has episodes of 1 task"
    )
    assert message.count("\n") == 1 and not (tmp_path / "report.html").exists()


def test_metrics_are_listed_without_a_run(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["report", "--help-metrics"])
    assert ended.value.code in (0, None)
    assert "\nwithout_signal  (Groups without signal)\n" in capsys.readouterr().out
