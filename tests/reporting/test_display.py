import io
from typing import Any

from rich.console import Console

from arpo.reporting.display import (
    LiveDisplay,
    Pace,
    PartProgress,
    PlainDisplay,
    format_duration,
    format_metrics,
    format_rate,
    heldout_rows,
    open_display,
    success_rows,
    total_rows,
)

METRICS = {
    "success": 0.4125,
    "reward": 0.25,
    "rescued": 3.0,
    "without_signal": 9.0,
    "loss": -0.0123,
    "clip_fraction": 0.015,
    "entropy": 0.5,
    "logprob_gap": 2e-6,
    "samples": 64.0,
}
SUMMARY = {
    "success": {"base": {"train": 0.25, "heldout": 0.2}, "final": {"train": 0.6, "heldout": 0.21}},
    "counts": {"base": {"train": [128, 512]}, "final": {"train": [307, 512]}},
    "intervals": {"train": [0.3, 0.4], "heldout": [-0.04, 0.06]},
    "groups": {"total": 960, "without_signal": 400, "rescued": 120},
    "episodes": 1920,
    "failures": 2,
    "seconds": 601.4,
}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_the_rate_ignores_episodes_before_a_resume():
    clock = Clock()
    pace = Pace(100, 40, clock)
    assert (pace.rate, pace.remaining) == (0.0, "?")
    clock.now, pace.done = 5.0, 50
    assert (pace.rate, pace.remaining) == (2.0, "0:25")


def test_numbers_as_text():
    assert format_duration(59.6) == "1:00"
    assert format_duration(3661) == "1:01:01"
    assert format_rate(12.5, 40) == "31.2% (12.5/40)"
    assert format_rate(0, 0) == "no episodes"
    assert dict(format_metrics(METRICS)) == {
        "success": "41.2%",
        "reward": "+0.250",
        "rescued": "3",
        "no signal": "9",
        "loss": "-0.0123",
        "clipped": "1.50%",
        "entropy": "0.500",
        "gap": "2.0e-06",
    }


def test_a_batch_shows_how_often_its_judge_calls_a_failure_a_success():
    assert dict(format_metrics({"success": 0.875, "judge_false_positives": 4 / 7})) == {
        "success": "87.5%",
        "judge's false successes": "57%",
    }


def test_a_batch_without_episodes_has_no_rates():
    assert dict(format_metrics({"success": float("nan"), "reward": float("nan"), "rescued": 0})) == {
        "success": "–",
        "reward": "–",
        "rescued": "0",
    }


def play(display, clock):
    display.begin("train", 20, done=10)
    for _ in range(10):
        clock.now += 0.5
        display.episode_done()
    display.batch(3, METRICS)
    display.evaluation("held-out", 32, 128)
    display.note("a [bold] note")
    display.summary(SUMMARY)
    display.close()


def test_plain_lines():
    clock, stream = Clock(), io.StringIO()
    play(PlainDisplay(stream, clock), clock)
    text = stream.getvalue()
    assert text.startswith("train: 20 episodes, 10 already done\ntrain: 12/20, 2.0 episodes/s, 0:04 left\n")
    assert "batch 3: success 41.2%, reward +0.250, rescued 3" in text
    assert "held-out: 25.0% (32/128)" in text
    assert "\x1b" not in text
    for words in (
        "training tasks │ 25.0% (128/512) │ 60.0% (307/512) │ +35.0 (+30.0 to +40.0)",
        "held-out tasks │           20.0% │           21.0% │    +1.0 (−4.0 to +6.0)",
        "groups rescued by replay  120",
        "time                      10:01",
    ):
        assert words in text


def test_a_small_phase_prints_no_progress():
    stream = io.StringIO()
    display = PlainDisplay(stream, Clock())
    display.begin("check", 3)
    display.episode_done()
    assert stream.getvalue() == "check: 3 episodes\n"


def test_the_live_display_shows_the_same():
    clock, stream = Clock(), io.StringIO()
    console = Console(file=stream, force_terminal=True, width=160, highlight=False, color_system=None)
    play(LiveDisplay(console, clock), clock)
    text = stream.getvalue()
    assert "a [bold] note" in text
    assert "held-out: 25.0% (32/128)" in text
    assert "training tasks │ 25.0% (128/512) │ 60.0% (307/512) │ +35.0 (+30.0 to +40.0)" in text


def test_the_live_frame():
    clock = Clock()
    console = Console(file=io.StringIO(), force_terminal=True, width=160, color_system=None)
    display = LiveDisplay(console, clock)
    display.begin("train", 20)
    clock.now = 2.0
    display.episode_done()
    display.batch(3, METRICS)
    with console.capture() as capture:
        console.print(display._render())
    display.close()
    frame = capture.get()
    assert "1/20" in frame and "0.5/s, 0:38 left" in frame
    assert "41.2%" in frame and "2.0e-06" in frame


def test_an_incomplete_summary_can_be_shown():
    stream = io.StringIO()
    PlainDisplay(stream).summary({})
    assert "training tasks" in stream.getvalue()


def test_no_terminal_means_plain_lines():
    assert isinstance(open_display(io.StringIO()), PlainDisplay)


def test_without_held_out_tasks_no_change_is_shown() -> None:
    rates = {"train": 0.5, "heldout": float("nan")}
    counts = {"train": [1, 2], "heldout": [0, 0]}
    summary = {
        "success": {"base": rates, "final": rates},
        "counts": {"base": counts, "final": counts},
        "intervals": {"train": [-0.25, 0.25]},
    }
    assert success_rows(summary) == [
        ("training tasks", "50.0% (1/2)", "50.0% (1/2)", "0.0 (−25.0 to +25.0)"),
        ("held-out tasks", "no episodes", "no episodes", ""),
    ]


def test_a_third_task_set_has_a_row() -> None:
    rates = {"train": 0.5, "heldout": 0.25}
    summary: dict[str, Any] = {
        "success": {"base": rates | {"overall": 0.2}, "final": rates | {"overall": 0.3}}
    }
    assert success_rows(summary)[2] == ("all tasks", "20.0%", "30.0%", "")  # no interval, no change
    summary["intervals"] = {"overall": [0.01, 0.19]}
    assert success_rows(summary)[2] == ("all tasks", "20.0%", "30.0%", "+10.0 (+1.0 to +19.0)")
    assert len(success_rows({"success": {"base": rates, "final": rates}})) == 2


def test_every_held_out_set_has_a_row_and_overall_tasks_are_last() -> None:
    rates = {"overall": 0.5, "train": 0.5, "families_test": 0.25, "mine": 0.0}
    labels = [row[0] for row in success_rows({"success": {"base": rates, "final": rates}})]
    assert labels == ["training tasks", "new goal families (test)", "held-out tasks, mine", "all tasks"]


def test_training_episodes_of_several_batches_are_one_row() -> None:
    counted = {"batches": 3, "first": [6, 24], "last": [12, 24]}
    assert success_rows({"training_episodes": counted}) == [
        ("training, first and last 3 batches", "25.0% (6/24)", "50.0% (12/24)", "different tasks")
    ]


def test_the_summary_says_what_each_held_out_set_is() -> None:
    rates = {"long_validation": 0.5, "mine": 0.5}
    summary = {
        "success": {"base": rates, "final": rates},
        "recipe": {"tasks": {"heldout": "desk:long/quick, lists/mine.json"}},
    }
    assert heldout_rows(summary) == [
        ("longer tasks (validation)", "desk:long/quick: two or three goals in at least two applications"),
        ("held-out tasks, mine", "lists/mine.json"),
    ]
    stream = io.StringIO()
    PlainDisplay(stream).summary(summary)
    assert "desk:long/quick: two or three goals in at least two applications" in stream.getvalue()


def test_a_number_that_is_rounded_to_zero_has_no_sign() -> None:
    found = dict(format_metrics({"loss": -0.00001, "reward": -0.0004}))
    assert found == {"loss": "0.0000", "reward": "0.000"}


def part(name, ended, successes, played=None):
    return PartProgress(
        name=name, total=4, ended=ended, played=ended if played is None else played, successes=successes
    )


def test_parts_of_an_evaluation_in_the_live_display():
    stream = io.StringIO()
    display = LiveDisplay(Console(file=stream, force_terminal=True, width=100, color_system=None))
    display.begin("playing", 8)
    display.part_progress([part("chrome", 0, 0), part("os", 3, 1, played=2)])
    display.close()
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert ["chrome", "0/4"] in rows
    assert ["os", "3/4", "50.0%", "(1/2)"] in rows


def test_a_completed_part_prints_one_line():
    stream = io.StringIO()
    display = PlainDisplay(stream, Clock())
    for ended in (3, 4, 4):
        display.part_progress([part("chrome", 1, 1), part("os", ended, 2, played=3)])
    assert stream.getvalue() == "os: 66.7% (2/3)\n"


def test_the_summary_names_what_was_learned_most_and_least() -> None:
    rates = {"A": (0, 8), "B": (4, 4), "C": (6, 7), "D": (8, 6), "E": (2, 8), "F": (1, 2), "G": (5, 5)}
    kinds = {
        when: {kind: (pair[place], 8) for kind, pair in rates.items()}
        for place, when in enumerate(("base", "final"))
    }
    kinds["final"]["few"] = kinds["base"]["few"] = (1, 7)
    rows = dict(total_rows({"kinds": kinds}))
    assert (
        rows["learned most"]
        == "A 0% → 100% (+54 to +100), E 25% → 100% (+28 to +93), C 75% → 88% (−26 to +48)"
    )
    assert (
        rows["learned least"]
        == "D 100% → 75% (−59 to +12), G 62% → 62% (−40 to +40), B 50% → 50% (−40 to +40)"
    )
    del kinds["final"]["A"], kinds["final"]["B"]
    assert "learned most" not in dict(total_rows({"kinds": kinds}))  # too few kinds
