import threading

import pytest

from arpo.storage.in_order import InOrder

DEADLINE = 20.0  # seconds, against a hang


def test_calls_run_in_order_while_the_caller_goes_on():
    calls, done, may_go_on = InOrder(limit=100), [], threading.Event()
    calls.put(lambda: done.append(str(may_go_on.wait(DEADLINE))), 1)
    calls.put(lambda: done.append("second"), 1)
    assert not calls.idle and done == []
    may_go_on.set()
    calls.wait()
    assert calls.idle and done == ["True", "second"]
    calls.put(lambda: done.append("third"), 1)
    calls.close()
    assert done == ["True", "second", "third"]


def test_wait_for_one_call_does_not_wait_for_later_ones():
    calls, done, may_go_on = InOrder(limit=100), [], threading.Event()
    first = calls.put(lambda: done.append("first"), 1)
    calls.put(lambda: may_go_on.wait(DEADLINE), 1)
    calls.wait(first)
    assert done == ["first"] and not calls.idle
    may_go_on.set()
    calls.wait()
    assert calls.idle


def test_a_thread_that_cannot_start_is_one_error(monkeypatch):
    calls, done = InOrder(limit=100), []

    def fail(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            calls.put(lambda: done.append("lost"), 1)
    calls.put(lambda: done.append("later"), 100)
    calls.close()
    assert done == ["later"]


def test_put_waits_at_the_limit():
    calls, may_go_on = InOrder(limit=10), threading.Event()
    calls.put(lambda: may_go_on.wait(DEADLINE), 6)
    calls.put(lambda: None, 4)
    waiting = threading.Thread(target=calls.put, args=(lambda: None, 1), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    may_go_on.set()
    waiting.join(DEADLINE)
    assert not waiting.is_alive()
    calls.wait()


def test_a_call_beyond_the_limit_runs_alone():
    calls = InOrder(limit=10)
    calls.put(lambda: None, 1000)
    calls.put(lambda: None, 1000)
    calls.close()


def test_after_an_error_no_call_runs_and_every_caller_gets_it():
    calls, done, fail_now = InOrder(limit=100), [], threading.Event()

    def fail():
        assert fail_now.wait(DEADLINE)
        raise OSError("full")

    calls.put(fail, 1)
    calls.put(lambda: done.append("later"), 1)
    fail_now.set()
    for use in (calls.wait, lambda: calls.put(lambda: None, 1), calls.wait):
        with pytest.raises(OSError, match="full"):
            use()
    calls.close()  # the caller knows the error
    assert done == [] and not calls.idle


def test_close_raises_an_error_that_nobody_has_seen():
    calls = InOrder(limit=100)
    calls.put(lambda: int("x"), 1)
    with pytest.raises(ValueError, match="invalid literal"):
        calls.close()
    calls.close()
