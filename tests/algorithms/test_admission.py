"""Admission of groups in asynchronous training: batches of 2 groups, unless a test says otherwise."""

from arpo.algorithms.admission import Admission


def playing(*numbers: int, max_staleness: int = 1, version: int = 0) -> Admission:
    admission = Admission(batch_size=2, max_staleness=max_staleness, version=version)
    for number in numbers:
        admission.start(number)
    return admission


def finish(admission: Admission, *numbers: int, version: int) -> None:
    """Finish groups whose tokens are all of one version."""
    for number in numbers:
        admission.sampled(number, version)
        admission.finish(number, version)


def test_playing_finished_and_training_groups_count() -> None:
    admission = playing(0, 1, 2)
    assert admission.may_start  # 3 of (1 + 1) * 2
    admission.start(3)
    assert not admission.may_start
    finish(admission, 1, 2, version=0)
    assert not admission.may_start  # 2 play, 2 wait
    assert admission.take(2) == [1, 2]
    assert not admission.may_start  # 2 play, 2 in training
    admission.trained()
    assert admission.may_start


def test_a_batch_takes_groups_in_the_order_of_completion() -> None:
    admission = playing(0, 1, 2, 3)
    finish(admission, 3, 0, 2, version=0)
    assert admission.finished == 3
    assert admission.take(2) == [3, 0]
    assert (admission.version, admission.finished) == (1, 1)


def test_a_group_is_stale_when_its_oldest_token_is_more_than_the_limit_behind() -> None:
    admission = playing(0, 1, 2, version=5)
    admission.sampled(0, 5)
    admission.sampled(1, 4)
    admission.sampled(1, 5)  # the oldest counts
    admission.sampled(2, 3)
    assert admission.stale() == [2]  # 5 − 3 = 2 > 1
    admission.forget(2)
    assert admission.stale() == []


def test_a_group_can_become_stale_only_by_an_older_token() -> None:
    admission = playing(0, version=5)
    assert [admission.sampled(0, version) for version in (5, 6, 5, 4, 5)] == [True, False, False, True, False]


def test_a_group_without_tokens_is_never_stale() -> None:
    admission = playing(0, version=9)
    assert admission.stale() == []
    admission.finish(0, None)  # all of its episodes failed
    assert admission.stale() == []


def test_the_batch_in_training_makes_the_next_one_a_version_newer() -> None:
    admission = playing(0, 1, 2)
    admission.sampled(2, 0)
    finish(admission, 0, 1, version=0)
    assert admission.stale() == []  # trained with version 1 at the earliest: staleness 1
    admission.take(2)
    assert admission.stale() == []
    for number in (3, 4):
        admission.start(number)
    finish(admission, 3, 4, version=1)
    # The next batch, of version 1, is full. Group 2 could enter that of version 2 at the earliest: 2 − 0 > 1.
    assert admission.stale() == [2]


def test_a_stale_finished_group_gives_its_position_to_the_next() -> None:
    admission = playing(0, 1, 2, version=3)
    finish(admission, 0, version=1)  # 3 − 1 > 1
    finish(admission, 1, version=2)
    finish(admission, 2, version=2)  # second valid one: in the batch of version 3
    assert admission.stale() == [0]
    admission.start(3)
    admission.sampled(3, 2)  # third: 4 − 2 > 1
    assert admission.stale() == [0, 3]
    admission.forget(0)
    admission.forget(3)
    assert admission.take(2) == [1, 2]


def test_no_group_is_stale_if_none_overtakes_another() -> None:
    """Rollouts and learner take turns in every possible order; groups finish in the order of their start."""
    for max_staleness in (1, 2, 3):
        for learner_is_slow in (True, False):
            admission = Admission(batch_size=2, max_staleness=max_staleness, version=0)
            versions: list[int] = []  # by group
            finished = 0
            for engine in range(50):
                while admission.may_start:
                    admission.start(len(versions))
                    admission.sampled(len(versions), engine)
                    versions.append(engine)
                assert admission.stale() == []
                while finished < len(versions) and (learner_is_slow or admission.finished < 2):
                    admission.finish(finished, versions[finished])
                    finished += 1
                    assert admission.stale() == []
                assert len(admission.take(2)) == 2
                assert admission.stale() == []
                admission.trained()


def test_tokens_of_an_episode_that_was_retried_do_not_count() -> None:
    admission = playing(0, version=4)
    admission.sampled(0, 3)  # of an episode whose environment failed later
    admission.finish(0, 4)
    admission.take(1)
    admission.start(1)
    assert admission.stale() == []
