"""Episodes at the wall to desktop-env, over a small fake of it: what it is asked, what its surprises become.

The fake is put on the path here; the real one is tried in tests/real.
"""

import ast
import re
import sys
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import pytest

from arpo.actions import CallUser, Click, Fail, Finished, Hotkey, OpenApp, Point, Type, Wait
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.sandbox import SandboxSettings
from arpo.envs.pyautogui_program import program
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.types import Task

FAKES = Path(__file__).parents[2] / "support" / "fakes"
OURS = ("arpo.envs.osworld.desktop_episode", "arpo.envs.osworld.machine", "arpo.envs.osworld.local_provider")
CLICK = Click(point=Point(3, 4))


@pytest.fixture(scope="module", autouse=True)
def _fake_desktop_env():
    sys.path.insert(0, str(FAKES))
    yield
    sys.path.remove(str(FAKES))
    for name in [name for name in sys.modules if name.split(".")[0] == "desktop_env" or name in OURS]:
        del sys.modules[name]


@pytest.fixture
def world():
    from desktop_env.guests import fresh

    return fresh()


@pytest.fixture
def make(tmp_path, world):
    """Desktops of a provider; each is closed at the end."""
    from arpo.envs.osworld.desktop_episode import Desktop

    made: list[Desktop] = []

    def desktop(provider="docker", start_seconds=60.0):
        folder = tmp_path / f"episode-{len(made)}"
        folder.mkdir()
        config = OSWorldConfig(provider=provider, cache=str(tmp_path / "shared"), pause=0, machine="a.vm")
        env = EnvConfig(name="osworld", start_seconds=start_seconds)
        made.append(Desktop(config=config, env=env, network=False, folder=folder, home=tmp_path))
        return made[-1]

    yield desktop
    for each in made:
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


def raised(call, *arguments, kind=EnvError):
    with pytest.raises(kind) as caught:
        call(*arguments)
    return caught.value.where, caught.value.message


def test_an_episode_boots_acts_judges_and_stops(make, world):
    desktop = make()
    assert desktop.start(a_task(("launch", {"command": "gimp"}))) == world.picture
    assert desktop.step((CLICK,)) == world.picture
    assert desktop.evaluate() == 0.25
    desktop.close()
    assert world.programs == ["import time\nimport pyautogui\npyautogui.click(3, 4)"]
    assert world.events == [
        "boot", "launch gimp", "pause", "unpause", "pause", "unpause", "judged", "pause", "unpause", "stop"
    ]  # fmt: skip
    desktop.close()
    assert world.events.count("stop") == 1


def test_each_desktop_has_copies_of_the_downloaded_files(make, world, tmp_path):
    name = f"{uuid5(NAMESPACE_URL, 'https://a.example/1')}_a.xlsx"
    downloaded = tmp_path / "shared" / "t" / name
    downloaded.parent.mkdir(parents=True)
    downloaded.write_bytes(b"as downloaded")
    task = a_task(("download", {"files": [{"url": "https://a.example/1", "path": "/a.xlsx"}]}))
    for folder in ("episode-0", "episode-1"):
        make().start(task)
        assert world.files == {"/a.xlsx": b"as downloaded"}
        assert (tmp_path / folder / "cache" / "t" / name).read_bytes() == b"overwritten"
    assert downloaded.read_bytes() == b"as downloaded"


@pytest.mark.parametrize(
    ("step", "message"),
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
def test_a_setup_step_that_fails_is_an_error_that_names_it(make, step, message):
    where, said = raised(make().start, a_task(("sleep", {"seconds": 0}), step))
    assert where == "start" and said.startswith("config step 2 of 2 ") and message in said


def test_a_setup_step_that_succeeds_at_another_try_is_none(make):
    desktop = make()
    desktop.start(a_task(("execute", {"command": "x", "until": {"returncode": 0}, "failures": 4})))


def test_after_the_episode_a_step_may_find_what_the_model_left(make):
    desktop = make()
    desktop.start(a_task(postconfig=[{"type": "launch", "parameters": {"command": "missing"}}]))
    assert desktop.evaluate() == 0.25


def test_a_misspelt_name_is_told_before_anything_boots(make, world):
    where, said = raised(make().start, a_task(func="exact_mach"))
    assert where == "start"
    assert said == (
        "task t: evaluator.func = 'exact_mach': desktop-env has no metric exact_mach "
        "(did you mean 'exact_match'?)"
    )
    assert world.events == []


@pytest.mark.parametrize(
    ("func", "why"),
    [("compare_image_text", "pip install easyocr"), ("check_python_file_by_test_suite", "the model wrote")],
)
def test_metrics_that_cannot_be_used_here_are_refused(make, func, why):
    assert why in raised(make().start, a_task(func=func))[1]


def test_what_a_guest_says_is_not_run_as_code(make):
    from desktop_env.evaluators.metrics.basic_os import check_gnome_favorite_apps

    assert check_gnome_favorite_apps("['a', 'b']") == ["a", "b"]
    with pytest.raises(ValueError, match="malformed"):
        check_gnome_favorite_apps("__import__('os').getpid()")


def test_terminal_actions_are_noted_and_nothing_is_executed(make, world):
    for action, word in ((Finished(), "DONE"), (Fail(), "FAIL"), (CallUser(), "FAIL")):
        desktop = make()
        desktop.start(a_task())
        assert desktop.step((action,)) == world.picture
        assert desktop._machine.action_history == [word]
    assert world.programs == []


def test_calls_before_a_terminal_one_are_executed_those_after_are_not(make, world):
    desktop = make()
    desktop.start(a_task())
    desktop.step((Hotkey(keys=("ctrl", "s")), Finished(), CLICK))
    assert [text.splitlines()[-1] for text in world.programs] == ["pyautogui.hotkey('ctrl', 's')"]
    assert desktop._machine.action_history[-1] == "DONE"


def test_a_wait_pauses_once(make, world):
    desktop = make()
    desktop.start(a_task())
    desktop.step((Wait(),))
    assert world.naps == [0.5, 0.5]  # upstream takes the pause twice
    assert desktop._machine.action_history == ["WAIT"]


def test_actions_of_a_telephone_do_nothing(make, world):
    desktop = make()
    desktop.start(a_task())
    desktop.step((OpenApp(name="Notes"),))
    assert world.programs == ["import time\nimport pyautogui"]


def test_a_program_that_is_refused_is_not_sent_again(make, world):
    desktop = make()
    desktop.start(a_task())
    world.answer = None
    where, said = raised(desktop.step, (Type(text="rm"),))
    assert where == "step" and "did not carry out" in said and "Status code: 500" in said
    assert len(world.programs) == 1


def test_a_program_that_fails_in_the_guest_is_an_error(make, world):
    desktop = make()
    desktop.start(a_task())
    world.answer = {"returncode": 1, "error": "Traceback\nXlib.error.DisplayConnectionError: :0\n"}
    where, said = raised(desktop.step, (CLICK,))
    assert (where, said) == ("step", "the guest could not act: Xlib.error.DisplayConnectionError: :0")


@pytest.mark.parametrize(
    ("picture", "said"),
    [
        (None, "no screenshot"),
        (b"\xff\xd8\xff jpeg", "no whole PNG"),
        (b"\x89PNG\r\n\x1a\n torn", "no whole"),
    ],
)
def test_a_screenshot_that_is_no_png_is_an_error(make, world, picture, said):
    desktop = make()
    desktop.start(a_task())
    world.picture = picture
    where, message = raised(desktop.step, (CLICK,))
    assert where == "step" and said in message


@pytest.mark.parametrize(("value", "score"), [(0, 0.0), (1, 1.0), (0.5, 0.5), (True, 1.0)])
def test_a_number_is_a_verdict(make, value, score):
    desktop = make()
    desktop.start(a_task(value=value))
    assert desktop.evaluate() == score


@pytest.mark.parametrize("value", [None, "nan", "1", 1.5, -0.1, [1]])
def test_anything_else_is_none(make, value):
    desktop = make()
    desktop.start(a_task(value=value))
    where, said = raised(desktop.evaluate)
    assert where == "evaluate" and said.startswith("given: gave ")


def test_a_metric_that_raises_is_an_error_that_names_it(make):
    desktop = make()
    desktop.start(a_task(func="raises"))
    assert raised(desktop.evaluate) == (
        "evaluate",
        "raises: TypeError: 'NoneType' object is not iterable",
    )


def test_a_file_that_the_model_did_not_make_scores_as_upstream_scores_it(make):
    desktop = make()
    rule = {"type": "rule", "rules": {"expected": "x"}}
    task = a_task(func="exact_match", result={"type": "vm_file", "path": "/no"}, expected=rule)
    desktop.start(task)
    assert desktop.evaluate() == 0.0


@pytest.mark.parametrize("getter", ["fatal", "answer"])
def test_a_guest_that_dies_while_it_is_judged_is_never_a_zero(make, world, getter):
    desktop = make()
    rule = {"type": "rule", "rules": {"expected": "x"}}
    desktop.start(a_task(func="exact_match", result={"type": getter, "path": "/no"}, expected=rule))
    world.alive = getter == "fatal"
    where, said = raised(desktop.evaluate)
    assert where == "evaluate" and said.startswith("the desktop has died")


def test_a_verdict_stands_until_something_is_done(make, world):
    desktop = make()
    desktop.start(a_task())
    assert [desktop.evaluate(), desktop.evaluate()] == [0.25, 0.25]
    desktop.step((Wait(),))
    desktop.evaluate()
    assert world.events.count("judged") == 1
    desktop.step((CLICK,))
    desktop.evaluate()
    assert world.events.count("judged") == 2


def test_an_infeasible_task_wants_a_fail_as_the_last_word(make):
    desktop = make()
    desktop.start(a_task(func="infeasible"))
    assert desktop.evaluate() == 0.0
    desktop.step((Fail(),))
    assert desktop.evaluate() == 1.0
    desktop.step((CLICK,))
    assert desktop.evaluate() == 0.0


def test_giving_up_a_feasible_task_scores_nothing(make):
    desktop = make()
    desktop.start(a_task(value=1))
    desktop.step((Fail(),))
    assert desktop.evaluate() == 0.0


def test_a_machine_that_was_started_is_stopped_when_the_rest_fails(make, world):
    world.boot_error = TimeoutError("VM failed to become ready within timeout period")
    desktop = make()
    where, said = raised(desktop.start, a_task())
    assert where == "start" and "failed to become ready" in said
    desktop.close()
    assert world.events == ["boot", "stop"]


def test_a_guest_that_never_shows_its_screen_is_late(make, world):
    world.alive = False
    where, said = raised(make(start_seconds=0.01).start, a_task(), kind=EnvTimeout)
    assert where == "start" and said.startswith("the guest shows no screen")


def test_a_used_virtual_machine_goes_back_to_its_snapshot_before_the_task(make, world):
    make("vmware").start(a_task(("launch", {"command": "gimp"})))
    assert world.events == ["boot", "revert init_state", "boot", "launch gimp"]


def test_a_machine_that_cannot_be_paused_runs_on(make, world):
    world.pause_error = "cgroup freezer is not there"
    desktop = make()
    desktop.start(a_task())
    desktop.step((CLICK,))
    assert desktop.evaluate() == 0.25
    assert world.events == ["boot", "judged"]


def test_when_it_fails_later_it_says_that_it_could_not_be_paused(make, world):
    world.pause_error = "cgroup freezer is not there"
    desktop = make()
    desktop.start(a_task())
    world.alive = False
    where, said = raised(desktop.evaluate)
    assert where == "evaluate" and said.startswith("the desktop has died")
    assert said.endswith("; earlier it could not be paused: RuntimeError: cgroup freezer is not there")


def test_a_light_desktop_refuses_to_save_its_state(tmp_path):
    from arpo.envs.osworld.local_provider import LocalProvider

    settings = SandboxSettings(width=64, height=64, home_megabytes=1, network=False)
    provider = LocalProvider(settings, 1.0, tmp_path / "netrc")
    with pytest.raises(UserError, match="has no snapshots: it always starts anew"):
        provider.save_state("a.vm", "init_state")


def test_a_missing_package_is_named_as_pip_names_it(make):
    where, said = raised(make("aws").start, a_task())
    assert (where, said) == ("start", "provider 'aws': No module named 'boto3': pip install boto3")


@pytest.mark.parametrize(
    "text",
    [
        "pyautogui.press('<')",
        'pyautogui.press("<")',
        "pyautogui.typewrite('a<b')",
        "say \"pyautogui.typewrite('<')\"",
    ],
)
def test_text_that_looks_like_a_program_is_typed_as_it_is(text):
    from arpo.envs.osworld.desktop_episode import unmistakable

    spelled = unmistakable(program((Type(text=text),)))
    assert not re.search(r"pyautogui\.press\([\"'](?:<|\\u003c)[\"']\)", spelled)
    assert not re.search(r"pyautogui\.typewrite\(([\"'])(.*?)\1\)", spelled)
    typed = [node.value for node in ast.walk(ast.parse(spelled)) if isinstance(node, ast.Constant)]
    assert text in typed
