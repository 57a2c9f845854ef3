"""The report's section about where time goes."""

from arpo.viewer.timeline import timeline_html

SHARES = {
    "env_start": 0.1,
    "env_step": 0.2,
    "env_evaluate": 0.0,
    "env_engine": 0.3,
    "env_idle": 0.4,
    "engine_busy": 0.9,
}


def test_shares_of_environments_and_loop() -> None:
    page = timeline_html([{"step": 1, "wait": 1.0, "learn": 3.0, **SHARES}])
    assert "step 1, waiting for an answer: 30%" in page
    assert "step 1, learning: 75%" in page
    assert "step 1, rollouts" not in page and "saving" not in page  # no such stage in this run
    assert "engine, step 1: 90%" in page and "learner, step 1: 75%" in page


def test_a_run_without_rollouts_has_no_timeline() -> None:
    assert timeline_html([{"step": 1, "learn": 3.0}]) == timeline_html([]) == ""
