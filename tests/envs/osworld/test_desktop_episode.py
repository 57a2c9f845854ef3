"""Episodes with a fake desktop-env: calls, scores and failures. tests/real uses the real one."""

import ast
import re
import sys
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import pytest

from arpo.actions import CallUser, Click, Fail, Finished, Hotkey, OpenApp, Point, Type, Wait
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.limits import Limits
from arpo.envs.osworld.sandbox import SandboxSettings
from arpo.envs.pyautogui_program import program
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.types import Task

FAKES = Path(__file__).parents[2] / "support" / "fakes"
OURS = ("arpo.envs.osworld.desktop_episode", "arpo.envs.osworld.machine")
CLICK = Click(point=Point(3, 4))


@pytest.fixture(scope="module", autouse=True)
def _fake_desktop_env():
    sys.path.insert(0, str(FAKES))
    yield
    sys.path.remove(str(FAKES))
    for name in [name for name in sys.modules if name.split(".")[0] == "desktop_env" or name in OURS]:
        del sys.modules[name]


@pytest.fixture
def machine():
    from desktop_env.guests import reset_machine

    return reset_machine()


@pytest.fixture
def make(tmp_path, machine, monkeypatch):
    """Factory of episodes. All are closed after the test. An episode changes the current folder."""
    monkeypatch.chdir(tmp_path)
    from arpo.envs.osworld.desktop_episode import DesktopEpisode

    episodes: list[DesktopEpisode] = []

    def desktop(provider="docker", start_seconds=60.0):
        folder = tmp_path / f"episode-{len(episodes)}"
        folder.mkdir()
        config = OSWorldConfig(provider=provider, cache=str(tmp_path / "shared"), pause=0, machine="a.vm")
        env = EnvConfig(name="osworld", start_seconds=start_seconds)
        episodes.append(DesktopEpisode(config=config, env=env, network=False, folder=folder, home=tmp_path))
        return episodes[-1]

    yield desktop
    for each in episodes:
        each.close()


def a_task(*config, func="given", value=0.25, **evaluator):
    result = {"result": {"type": "value", "value": value}} if func != "infeasible" else {}
    return Task(
        id="t",
        instruction="",
        snapshot="",
        config=tuple({"type": kind, "parameters": parameters} for kind, parameters in config),
        evaluator={"func": func, **result, **evaluator},
    )


def error_of(call, *arguments, kind=EnvError):
    with pytest.raises(kind) as caught:
        call(*arguments)
    return caught.value.where, caught.value.message


def test_an_episode_boots_acts_evaluates_and_stops(make, machine):
    desktop = make()
    assert desktop.start(a_task(("launch", {"command": "gimp"}))) == machine.screenshot
    assert desktop.step((CLICK,)) == machine.screenshot
    assert desktop.evaluate() == 0.25
    desktop.close()
    assert machine.programs == ["import time\nimport pyautogui\npyautogui.click(3, 4)"]
    assert machine.events == [
        "boot", "launch gimp", "pause", "unpause", "pause", "unpause", "evaluated", "pause", "unpause", "stop"
    ]  # fmt: skip
    desktop.close()
    assert machine.events.count("stop") == 1


def test_each_episode_gets_copies_of_the_cached_files(make, machine, tmp_path):
    name = f"{uuid5(NAMESPACE_URL, 'https://a.example/1')}_a.xlsx"
    downloaded = tmp_path / "shared" / "t" / name
    downloaded.parent.mkdir(parents=True)
    downloaded.write_bytes(b"as downloaded")
    task = a_task(("download", {"files": [{"url": "https://a.example/1", "path": "/a.xlsx"}]}))
    for folder in ("episode-0", "episode-1"):
        make().start(task)
        assert machine.files == {"/a.xlsx": b"as downloaded"}
        assert (tmp_path / folder / "cache" / "t" / name).read_bytes() == b"overwritten"
    assert downloaded.read_bytes() == b"as downloaded"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (
            ("launch", {"command": "missing"}),
            "(launch): Failed to launch application. Status code: no such program",
        ),
        (("execute", {"command": "x", "failures": 1}), "(execute): Failed to launch application"),
        (("execute", {"command": "x", "until": {"returncode": 0}, "failures": 5}), "(execute): Failed to"),
        (
            ("download", {"files": [{"url": "https://a.example", "path": "/a"}]}),
            "(download): no retries left for https://a.example",
        ),
        (("launch", {"comand": "gimp"}), "unexpected keyword argument 'comand'"),
    ],
)
def test_a_failed_setup_step_is_named(make, step, problem):
    where, message = error_of(make().start, a_task(("sleep", {"seconds": 0}), step))
    assert where == "start" and message.startswith("config step 2 of 2 ") and problem in message


def test_a_setup_step_may_succeed_on_a_retry(make):
    desktop = make()
    desktop.start(a_task(("execute", {"command": "x", "until": {"returncode": 0}, "failures": 4})))


def test_a_failed_postconfig_step_is_ignored(make):
    desktop = make()
    desktop.start(a_task(postconfig=[{"type": "launch", "parameters": {"command": "missing"}}]))
    assert desktop.evaluate() == 0.25


def test_a_misspelt_name_fails_before_booting(make, machine):
    where, message = error_of(make().start, a_task(func="exact_mach"))
    assert where == "start"
    assert message == (
        "task t: evaluator.func = 'exact_mach': desktop-env has no metric exact_mach "
        "(did you mean 'exact_match'?)"
    )
    assert machine.events == []


@pytest.mark.parametrize(
    ("func", "why"),
    [
        ("compare_image_text", "pip install easyocr"),
        ("check_python_file_by_test_suite", "files of the model"),
    ],
)
def test_unusable_metrics_are_rejected(make, func, why):
    assert why in error_of(make().start, a_task(func=func))[1]


def test_output_of_the_guest_is_not_run_as_code(make):
    from desktop_env.evaluators.metrics.basic_os import check_gnome_favorite_apps

    assert check_gnome_favorite_apps("['a', 'b']") == ["a", "b"]
    with pytest.raises(ValueError, match="malformed"):
        check_gnome_favorite_apps("__import__('os').getpid()")


def test_terminal_actions_are_recorded_and_run_nothing(make, machine):
    for action, word in ((Finished(), "DONE"), (Fail(), "FAIL"), (CallUser(), "FAIL")):
        desktop = make()
        desktop.start(a_task())
        assert desktop.step((action,)) == machine.screenshot
        assert desktop._machine.action_history == [word]
    assert machine.programs == []


def test_actions_after_a_terminal_one_are_ignored(make, machine):
    desktop = make()
    desktop.start(a_task())
    desktop.step((Hotkey(keys=("ctrl", "s")), Finished(), CLICK))
    assert [text.splitlines()[-1] for text in machine.programs] == ["pyautogui.hotkey('ctrl', 's')"]
    assert desktop._machine.action_history[-1] == "DONE"


def test_a_wait_pauses_once(make, machine):
    desktop = make()
    desktop.start(a_task())
    desktop.step((Wait(),))
    assert machine.sleeps == [0.5, 0.5]  # desktop-env pauses twice
    assert desktop._machine.action_history == ["WAIT"]


def test_mobile_actions_do_nothing(make, machine):
    desktop = make()
    desktop.start(a_task())
    desktop.step((OpenApp(name="Notes"),))
    assert machine.programs == ["import time\nimport pyautogui"]


def test_a_rejected_program_is_not_sent_again(make, machine):
    desktop = make()
    desktop.start(a_task())
    machine.answer = None
    where, message = error_of(desktop.step, (Type(text="rm"),))
    assert where == "step" and "did not run the program" in message and "Status code: 500" in message
    assert len(machine.programs) == 1


def test_a_program_that_fails_in_the_guest_is_an_error(make, machine):
    desktop = make()
    desktop.start(a_task())
    machine.answer = {"returncode": 1, "error": "Traceback\nXlib.error.DisplayConnectionError: :0\n"}
    where, message = error_of(desktop.step, (CLICK,))
    assert (where, message) == ("step", "the guest's program failed: Xlib.error.DisplayConnectionError: :0")


@pytest.mark.parametrize(
    ("png", "problem"),
    [
        (None, "no screenshot"),
        (b"\xff\xd8\xff jpeg", "not a complete PNG"),
        (b"\x89PNG\r\n\x1a\n torn", "not a complete"),
    ],
)
def test_an_incomplete_screenshot_is_an_error(make, machine, png, problem):
    desktop = make()
    desktop.start(a_task())
    machine.screenshot = png
    where, message = error_of(desktop.step, (CLICK,))
    assert where == "step" and problem in message


@pytest.mark.parametrize(("value", "score"), [(0, 0.0), (1, 1.0), (0.5, 0.5), (True, 1.0)])
def test_a_number_in_range_is_the_score(make, value, score):
    desktop = make()
    desktop.start(a_task(value=value))
    assert desktop.evaluate() == score


@pytest.mark.parametrize("value", [None, "nan", "1", 1.5, -0.1, [1]])
def test_any_other_value_is_an_error(make, value):
    desktop = make()
    desktop.start(a_task(value=value))
    where, message = error_of(desktop.evaluate)
    assert where == "evaluate" and message.startswith("given: returned ")


def test_a_metric_that_raises_is_named(make):
    desktop = make()
    desktop.start(a_task(func="raises"))
    assert error_of(desktop.evaluate) == (
        "evaluate",
        "raises: TypeError: 'NoneType' object is not iterable",
    )


def test_a_missing_file_scores_as_in_desktop_env(make):
    desktop = make()
    rule = {"type": "rule", "rules": {"expected": "x"}}
    task = a_task(func="exact_match", result={"type": "vm_file", "path": "/no"}, expected=rule)
    desktop.start(task)
    assert desktop.evaluate() == 0.0


@pytest.mark.parametrize("getter", ["fatal", "answer"])
def test_a_guest_that_dies_during_evaluation_is_an_error(make, machine, getter):
    desktop = make()
    rule = {"type": "rule", "rules": {"expected": "x"}}
    desktop.start(a_task(func="exact_match", result={"type": getter, "path": "/no"}, expected=rule))
    machine.alive = getter == "fatal"
    where, message = error_of(desktop.evaluate)
    assert where == "evaluate" and message.startswith("the desktop has died")


def test_the_score_is_kept_until_the_next_action(make, machine):
    desktop = make()
    desktop.start(a_task())
    assert [desktop.evaluate(), desktop.evaluate()] == [0.25, 0.25]
    desktop.step((Wait(),))
    desktop.evaluate()
    assert machine.events.count("evaluated") == 1
    desktop.step((CLICK,))
    desktop.evaluate()
    assert machine.events.count("evaluated") == 2


def test_an_infeasible_task_is_solved_by_a_final_fail(make):
    desktop = make()
    desktop.start(a_task(func="infeasible"))
    assert desktop.evaluate() == 0.0
    desktop.step((Fail(),))
    assert desktop.evaluate() == 1.0
    desktop.step((CLICK,))
    assert desktop.evaluate() == 0.0


def test_fail_on_a_feasible_task_scores_zero(make):
    desktop = make()
    desktop.start(a_task(value=1))
    desktop.step((Fail(),))
    assert desktop.evaluate() == 0.0


def test_a_machine_is_stopped_after_a_failed_boot(make, machine):
    machine.boot_error = TimeoutError("VM failed to become ready within timeout period")
    desktop = make()
    where, message = error_of(desktop.start, a_task())
    assert where == "start" and "failed to become ready" in message
    desktop.close()
    assert machine.events == ["boot", "stop"]


def test_a_guest_without_a_screenshot_times_out(make, machine):
    machine.alive = False
    where, message = error_of(make(start_seconds=0.01).start, a_task(), kind=EnvTimeout)
    assert where == "start" and message.startswith("the guest sends no screenshot")


def test_a_used_virtual_machine_is_reverted_to_its_snapshot(make, machine):
    make("vmware").start(a_task(("launch", {"command": "gimp"})))
    assert machine.events == ["boot", "revert init_state", "boot", "launch gimp"]


def test_a_failed_pause_is_ignored(make, machine):
    machine.pause_error = "cgroup freezer is not there"
    desktop = make()
    desktop.start(a_task())
    desktop.step((CLICK,))
    assert desktop.evaluate() == 0.25
    assert machine.events == ["boot", "evaluated"]


def test_later_errors_report_a_failed_pause(make, machine):
    machine.pause_error = "cgroup freezer is not there"
    desktop = make()
    desktop.start(a_task())
    machine.alive = False
    where, message = error_of(desktop.evaluate)
    assert where == "evaluate" and message.startswith("the desktop has died")
    assert message.endswith("; an earlier pause failed: RuntimeError: cgroup freezer is not there")


def test_a_light_desktop_has_no_snapshots(tmp_path):
    from arpo.envs.osworld.machine import LocalProvider

    settings = SandboxSettings(
        width=64, height=64, home_megabytes=1, network=False, limits=Limits.of(OSWorldConfig())
    )
    provider = LocalProvider(settings, 1.0, tmp_path / "netrc")
    with pytest.raises(UserError, match="has no snapshots: every start is fresh"):
        provider.save_state("a.vm", "init_state")


def test_a_missing_package_is_reported(make):
    where, message = error_of(make("aws").start, a_task())
    assert where == "start" and message.startswith("provider 'aws': No module named 'boto3'; install it")


@pytest.mark.parametrize(
    "text",
    [
        "pyautogui.press('<')",
        'pyautogui.press("<")',
        "pyautogui.typewrite('a<b')",
        "say \"pyautogui.typewrite('<')\"",
    ],
)
def test_text_that_looks_like_a_program_is_typed_unchanged(text):
    from arpo.envs.osworld.desktop_episode import prevent_rewriting

    escaped = prevent_rewriting(program((Type(text=text),)))
    assert not re.search(r"pyautogui\.press\([\"'](?:<|\\u003c)[\"']\)", escaped)
    assert not re.search(r"pyautogui\.typewrite\(([\"'])(.*?)\1\)", escaped)
    typed = [node.value for node in ast.walk(ast.parse(escaped)) if isinstance(node, ast.Constant)]
    assert text in typed
