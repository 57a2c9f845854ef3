"""Ctrl-C during the work of an event loop: stop, cancel, exit. Each test sends real signals to a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, os, signal, sys
from arpo.interrupts import run_interruptibly

def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)

async def episode(name):
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)  # closing takes time
        print("closed", name, flush=True)

async def failing():
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        raise RuntimeError("connection lost")

async def hanging():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("still closing", flush=True)

async def busy(*presses, work=(), seconds=0.2):
    loop = asyncio.get_running_loop()
    for index, number in enumerate(presses):
        loop.call_later(seconds * (index + 1), press, number)
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)

try:
    {call}
    print("done")
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""
INT, TERM = "signal.SIGINT", "signal.SIGTERM"


def run(call):
    script = SCRIPT.replace("{call}", call)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout.split("\n")[:-1], done.stderr


@pytest.mark.parametrize("number", [INT, TERM])
def test_the_first_one_closes_everything_and_interrupts(number):
    call = f"run_interruptibly(busy({number}, work=[episode('a'), episode('b')]))"
    code, printed, error = run(call)
    assert (code, error) == (130, "")
    assert sorted(printed[:-1]) == ["closed a", "closed b"] and printed[-1] == "interrupted"


def test_the_traceback_of_a_script_is_only_that_of_ctrl_c():
    script = SCRIPT.partition("\ntry:")[0] + "\nrun_interruptibly(busy(signal.SIGINT, work=[episode('a')]))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr.count("Traceback") == 1 and done.stderr.endswith("\nKeyboardInterrupt\n")


def test_with_a_stop_function_the_first_one_calls_it_and_the_second_interrupts():
    call = f"run_interruptibly(busy({INT}, {INT}, work=[episode('a')]), stop=lambda: print('stopping'))"
    assert run(call) == (130, ["stopping", "closed a", "interrupted"], "")
    call = f"run_interruptibly(busy({INT}, work=[asyncio.sleep(1)]), stop=lambda: print('stopping'))"
    assert run(call) == (0, ["stopping", "done"], "")


def test_one_more_exits_at_once_even_if_the_work_does_not_end():
    call = f"run_interruptibly(busy({INT}, {INT}, work=[hanging()]))"
    code, printed, error = run(call)
    assert (code, printed) == (130, ["still closing"])
    assert error == "arpo: stopped at once; run the same command again\n"


def test_errors_of_cancelled_work_print_nothing():
    call = f"run_interruptibly(busy({INT}, work=[failing(), failing(), episode('a')]))"
    assert run(call) == (130, ["closed a", "interrupted"], "")


def test_blocking_work_is_interrupted_when_it_yields():
    call = "\n".join(
        [
            "async def computing():",
            "        press(); print('computed'); await asyncio.sleep(60)",
            "    run_interruptibly(computing())",
        ]
    )
    assert run(call) == (130, ["computed", "interrupted"], "")


def test_an_exit_of_a_background_task_reaches_its_awaiter_and_not_the_loop():
    call = "\n".join(
        [
            "async def leaves(): sys.exit('no display')",
            "    async def main():",
            "        asyncio.get_running_loop().call_soon(sys.exit)",
            "        try: await asyncio.create_task(leaves())",
            "        except SystemExit as error: print('caught', error)",
            "        await asyncio.sleep(0.01)",
            "    run_interruptibly(main())",
        ]
    )
    assert run(call) == (0, ["caught no display", "done"], "")


def test_an_exit_of_the_main_task_ends_it():
    call = "\n".join(["async def main(): sys.exit(7)", "    run_interruptibly(main())"])
    assert run(call) == (7, [], "")


def in_a_running_loop(call):
    """The call as a cell of Jupyter makes it: an event loop is running in this thread."""
    return "\n".join(["async def cell():", f"        {call}", "    asyncio.run(cell())"])


def test_in_a_running_loop_the_work_gets_a_thread_and_ctrl_c_works_as_well():
    works = "print(run_interruptibly(asyncio.sleep(0, 'worked')), asyncio.get_event_loop().is_running())"
    assert run(in_a_running_loop(works)) == (0, ["worked True", "done"], "")
    cancels = f"run_interruptibly(busy({INT}, work=[episode('a'), failing()]))"
    assert run(in_a_running_loop(cancels)) == (130, ["closed a", "interrupted"], "")
    stops = f"run_interruptibly(busy({INT}, work=[asyncio.sleep(1)]), stop=lambda: print('stopping'))"
    assert run(in_a_running_loop(stops)) == (0, ["stopping", "done"], "")
    fails = "run_interruptibly(asyncio.wait_for(asyncio.sleep(9), 0))"
    assert "TimeoutError" in run(in_a_running_loop(fails))[2]
