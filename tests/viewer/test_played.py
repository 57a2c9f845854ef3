"""The stored episodes of a run: phases."""

from arpo.viewer.pages.episodes import phase_title
from played_episodes import played


def test_phases_have_titles():
    titles = {"eval0": "evaluation before training", "eval1200": "evaluation after batch 1,200"}
    titles |= {"batch1": "training batch 1", "batch1536": "training batch 1,536", "collect": "collected"}
    assert {phase: phase_title(phase) for phase in titles} == titles


def test_a_group_in_no_batch_has_a_phase_of_its_own() -> None:
    assert phase_title(played("group-3-0").phase) == "training, in no batch"
