from arpo.envs.quarantine import Quarantine, QuarantineState


def fail(quarantine, task):
    """One failed episode, alone."""
    quarantine.failed(task, quarantine.failures(task))


def batches_aside(quarantine, task, batches):
    """For each of the next batches, whether the task is set aside; a trial fails."""
    aside = []
    for _ in range(batches):
        quarantine.begin_batch()
        aside.append(task in quarantine)
        if task not in quarantine:
            fail(quarantine, task)
    return "".join("x" if one else "." for one in aside)


def test_a_task_is_set_aside_after_failures_in_a_row():
    quarantine = Quarantine(after=2, batches=4)
    fail(quarantine, "t")
    assert "t" not in quarantine
    quarantine.succeeded("t")
    fail(quarantine, "t")
    assert "t" not in quarantine
    fail(quarantine, "t")
    assert quarantine.tasks == {"t"}


def test_concurrent_failures_count_once():
    quarantine = Quarantine(after=2, batches=4)
    begun = [quarantine.failures("t") for _ in range(8)]
    for seen in begun:
        quarantine.failed("t", seen)
    assert quarantine.failures("t") == 1 and "t" not in quarantine
    fail(quarantine, "t")
    assert "t" in quarantine


def test_a_failure_that_began_before_a_success_counts_little():
    quarantine = Quarantine(after=3, batches=4)
    fail(quarantine, "t")
    fail(quarantine, "t")
    seen = quarantine.failures("t")
    quarantine.succeeded("t")
    quarantine.failed("t", seen)
    assert quarantine.failures("t") == 0


def test_a_task_set_aside_is_tried_again_and_the_interval_doubles():
    quarantine = Quarantine(after=1, batches=2)
    assert batches_aside(quarantine, "t", 16) == ".x.xxx.xxxxxxx.x"


def test_a_trial_that_succeeds_ends_the_quarantine_and_its_history():
    quarantine = Quarantine(after=2, batches=1)
    for _ in range(3):
        fail(quarantine, "t")
        fail(quarantine, "t")
        for _ in range(4):
            quarantine.begin_batch()
    quarantine.succeeded("t")
    assert quarantine.state() == QuarantineState(batch=12, failures={}, aside={})
    fail(quarantine, "t")
    fail(quarantine, "t")
    assert quarantine.state().aside == {"t": (1, 13)}


def test_an_evaluation_tries_every_task_once():
    quarantine = Quarantine(after=3, batches=100)
    for _ in range(3):
        fail(quarantine, "t")
    assert "t" in quarantine
    quarantine.begin_evaluation()
    assert "t" not in quarantine
    fail(quarantine, "t")
    assert "t" in quarantine


def test_a_restored_quarantine_decides_the_same():
    straight = Quarantine(after=1, batches=2)
    batches_aside(straight, "t", 5)
    resumed = Quarantine(after=1, batches=2)
    resumed.restore(straight.state())
    assert batches_aside(resumed, "t", 30) == batches_aside(straight, "t", 30)
