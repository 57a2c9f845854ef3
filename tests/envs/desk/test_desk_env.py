"""Desk through the environment protocol: screen sizes, arbitrary input, scores and rejected tasks."""

import asyncio
import io
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from arpo.actions import (
    Action,
    CallUser,
    Click,
    Direction,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    LongPress,
    OpenApp,
    Point,
    PressBack,
    PressHome,
    RightClick,
    Scroll,
    Type,
    Wait,
    scale,
)
from arpo.config import Config, EnvConfig
from arpo.envs.check import check_env
from arpo.envs.desk.canvas import PALETTE
from arpo.envs.desk.env import DeskEnv, perform, set_up, task_progress, task_score
from arpo.envs.desk.goals import FAMILIES, INFEASIBLE
from arpo.envs.desk.random_tasks import random_task, rng_for
from arpo.envs.factory import resolve_env
from arpo.errors import EnvError
from arpo.types import Screenshot, Task
from desks import WORLD, solution, task_of, titles


def sample_task(family: str, seed: int = 800_000) -> Task:
    return task_of(random_task(rng_for("pretrain", seed), [FAMILIES[family]], f"{family}-{seed}"))


def plain_task(*windows: str, **changed: Any) -> Task:
    """A task on the literal world with these windows open. Its target is `changed`."""
    opened = [{"type": "open", "parameters": {"app": app, "column": 4, "row": 1}} for app in windows]
    return Task(
        id="plain",
        instruction="",
        snapshot="",
        config=({"type": "world", "parameters": WORLD}, *opened),
        evaluator={"func": "desk_state", "expected": {"rules": changed}},
    )


async def play(env: DeskEnv, task: Task, answers: list[tuple[Action, ...]]) -> tuple[list[Screenshot], float]:
    shots = [(await env.start(task)).screenshot]
    for answer in answers:
        result = await env.step(answer)
        assert not result.terminated
        shots.append(result.observation.screenshot)
    verdict = await env.evaluate()
    await env.close()
    return shots, verdict


@pytest.mark.parametrize("size", [(224, 168), (448, 336), (1920, 1080)])
def test_solvers_solve_at_every_size(size: tuple[int, int]) -> None:
    for family in FAMILIES if size == (224, 168) else ("MoveFile", "SetVolume", "PlaceOrder", "PutValue"):
        task = sample_task(family)
        answers: list[tuple[Action, ...]] = [
            (scale(action, (224, 168), size),) for _, action in solution(task)
        ]
        shots, verdict = asyncio.run(play(DeskEnv(*size), task, answers))
        assert verdict == 1.0, family
        assert all(shot.size == size for shot in shots)


def test_the_same_task_gives_the_same_bytes() -> None:
    for family in ("RenameFile", "PlaceOrder", "SumColumn"):
        task = sample_task(family)
        answers: list[tuple[Action, ...]] = [(action,) for _, action in solution(task)]
        first, _ = asyncio.run(play(DeskEnv(), task, answers))
        second, _ = asyncio.run(play(DeskEnv(), sample_task(family), answers))
        assert [shot.png for shot in first] == [shot.png for shot in second]


def test_the_small_screen_doubles() -> None:
    """Positions scale with the size; only the font differs."""
    task = plain_task("File", "Conf")
    small = asyncio.run(play(DeskEnv(), task, []))[0][0]
    large = asyncio.run(play(DeskEnv(448, 336), task, []))[0][0]
    pixels = [np.asarray(Image.open(io.BytesIO(shot.png)).convert("RGB")) for shot in (small, large)]
    doubled = pixels[0].repeat(2, axis=0).repeat(2, axis=1)
    assert (doubled == pixels[1]).all(axis=-1).mean() > 0.9


def test_the_screenshot_shows_the_desktop() -> None:
    env = DeskEnv()
    shot = asyncio.run(play(env, plain_task("Mail"), []))[0][0]
    with Image.open(io.BytesIO(shot.png)) as image:
        shown = np.asarray(image.convert("RGB"))
    assert (shown == PALETTE[set_up(plain_task("Mail")).draw(224, 168).pixels]).all()
    assert shot.sha256 == Screenshot.of(shot.png).sha256


def test_a_step_that_changes_nothing_shows_the_same_screenshot() -> None:
    wifi = Click(point=Point(84, 63))  # in Conf at (4, 1): row 2 of its content
    answers: list[tuple[Action, ...]] = [(Wait(),), (wifi,), (wifi,), ()]
    shots, _ = asyncio.run(play(DeskEnv(), plain_task("Conf"), answers))
    assert shots[0] == shots[1] == shots[3] == shots[4] != shots[2]
    assert shots[1] is shots[0]


def test_one_answer_may_hold_several_actions_and_ends_at_the_first_terminal_one() -> None:
    task = plain_task("Web", orders=[{"name": "Nora", "item": "", "city": "", "size": "", "gift": True}])
    fill = (
        Click(point=Point(80, 35)),
        Type(text="Nora"),
        Click(point=Point(35, 105)),
        Click(point=Point(49, 119)),
        Finished(),
        Click(point=Point(49, 119)),
        Click(point=Point(49, 119)),
    )
    assert asyncio.run(play(DeskEnv(), task, [fill]))[1] == 1.0
    assert asyncio.run(play(DeskEnv(), task, [(Fail(), *fill)]))[1] == 0.0


def test_fail_counts_only_as_the_last_action() -> None:
    feasible, infeasible = plain_task("Web"), sample_task(next(iter(INFEASIBLE)))
    assert asyncio.run(play(DeskEnv(), feasible, [(Finished(),)]))[1] == 1.0  # nothing is asked for
    assert asyncio.run(play(DeskEnv(), feasible, [(Fail(),)]))[1] == 0.0
    assert asyncio.run(play(DeskEnv(), infeasible, [(Fail(),)]))[1] == 1.0
    assert asyncio.run(play(DeskEnv(), infeasible, [(Wait(), Fail())]))[1] == 1.0
    assert asyncio.run(play(DeskEnv(), infeasible, []))[1] == 0.0
    assert asyncio.run(play(DeskEnv(), infeasible, [(CallUser(),)]))[1] == 0.0


def test_deleting_a_wrong_file_scores_0() -> None:
    left = {**WORLD["files"], "": {"budget": "bread"}}
    report, budget = Click(point=Point(80, 77)), Click(point=Point(80, 91))
    delete = (Hotkey(keys=("delete",)), Hotkey(keys=("enter",)))
    task = plain_task("File", files=left)
    assert asyncio.run(play(DeskEnv(), task, [(report, *delete)]))[1] == 1.0
    assert asyncio.run(play(DeskEnv(), task, [(budget, *delete)]))[1] == 0.0
    assert asyncio.run(play(DeskEnv(), task, [(report, *delete), (report, *delete)]))[1] == 0.0


def test_partial_credit_for_an_unfinished_goal_is_optional() -> None:
    # Two leaves are to change: a file goes, and the volume is another.
    files, conf = {**WORLD["files"], "": {"budget": "bread"}}, {**WORLD["conf"], "Volume": 50}
    task = plain_task("File", files=files, conf=conf)
    report, budget = Click(point=Point(80, 77)), Click(point=Point(80, 91))
    delete = (Hotkey(keys=("delete",)), Hotkey(keys=("enter",)))

    def verdict(*actions: Action, partial: float = 0.4) -> float:
        env = resolve_env(Config(env=EnvConfig(partial=partial)))()
        assert isinstance(env, DeskEnv)
        return asyncio.run(play(env, task, [actions]))[1]

    assert verdict(report, *delete) == 0.4 * 0.5
    assert verdict(report, *delete, partial=0.0) == 0.0
    assert verdict(report, *delete, Fail()) == 0.0
    assert verdict(Wait()) == 0.0  # nothing done
    assert verdict(budget, *delete) == 0.0  # three leaves away, and two at first
    solved = {**WORLD, "files": files, "conf": conf}
    assert task_score(task, solved, None) == task_progress(task, solved, None) == 1.0
    changed_too = {**solved, "calc": {**WORLD["calc"], "D4": 1}}
    assert (task_score(task, changed_too, None), task_progress(task, changed_too, None)) == (0.0, 0.5)


def test_progress_counts_leaves() -> None:
    old, moved = {"poem": "tea"}, {"Work": {}, "Old": {"poem": "tea"}, "": WORLD["files"][""]}
    task = plain_task(files=moved)  # Work/poem goes, Work is empty; Old is not, Old/poem comes: four leaves
    copied = {**WORLD, "files": {**WORLD["files"], "Old": old}}
    assert task_progress(task, copied, None) == 0.5
    assert task_progress(plain_task(), copied, None) == 0.0  # nothing was asked for
    infeasible = replace(task, evaluator={"func": "infeasible"})
    assert task_progress(infeasible, copied, None) == 0.0


def test_progress_goes_from_0_to_the_goal_for_every_family() -> None:
    for family in (name for name in FAMILIES if name not in INFEASIBLE):
        task = sample_task(family)
        desktop, ways = set_up(task), []
        for _, action in solution(task):
            ways.append(task_progress(task, desktop.world, None))
            assert 0 <= ways[-1] < 1 or task_score(task, desktop.world, None) == 1
            perform(desktop, action)
        assert ways[0] == 0, family
        assert task_progress(task, desktop.world, None) == task_score(task, desktop.world, None) == 1, family


def test_the_other_actions() -> None:
    env = DeskEnv()
    answers: list[tuple[Action, ...]] = [
        (OpenApp(name="Note"),),
        (Type(text="tea"), KeyDown(key="ctrl"), Hotkey(keys=("a",)), KeyUp(key="ctrl"), Type(text="rice")),
        (OpenApp(name="Solitaire"), PressHome(), Hover(point=Point(5, 5)), Wait()),
        (LongPress(point=Point(126, 161)),),
    ]
    asyncio.run(play(env, plain_task(), answers))
    assert titles(env.desktop) == ["Note", "Calc"]
    assert env.desktop.windows[0].focus is not None and env.desktop.windows[0].focus.text == "rice"
    for gone in (Hotkey(keys=("alt", "f4")), Click(point=Point(70, 161)), PressBack()):
        asyncio.run(env.step((gone,)))
    assert titles(env.desktop) == ["Note", "Mail"]


def test_a_scroll_without_a_point_is_in_the_middle() -> None:
    world = json.loads(json.dumps(WORLD))
    world["files"][""] |= {f"f{i}": "" for i in range(9)}
    task = plain_task("File")
    task = replace(task, config=({"type": "world", "parameters": world}, *task.config[1:]))
    env = DeskEnv()
    answers: list[tuple[Action, ...]] = [(Scroll(point=None, direction=Direction.DOWN),)]
    shots, _ = asyncio.run(play(env, task, answers))
    assert shots[0] != shots[1]
    sideways = asyncio.run(env.step((Scroll(point=None, direction=Direction.LEFT),)))
    back = asyncio.run(env.step((Scroll(point=Point(112, 70), direction=Direction.UP),)))
    assert sideways.observation.screenshot == shots[1] and back.observation.screenshot == shots[0]


KEYS = (
    "ctrl", "alt", "shift", "win", "enter", "tab", "esc", "space", "backspace", "delete", "home", "end",
    "left", "right", "up", "down", "f2", "f4", "a", "c", "v", "x", "s", "n", "1", "é", "+", "nonsense",
)  # fmt: skip
TEXTS = (
    "report", "Work", "Old", "", "milk\nbread", "\x00\x07\x1b\x7f", "🙂é漢\ud800", "A" * 5000, "12", "٣²",
    " ", "\n\n", "\r\n\t", "-5", "9" * 6000, "'; import os", "\u202e\ufeff",
)  # fmt: skip


def random_point(rng: random.Random, env: DeskEnv) -> Point:
    if rng.random() < 0.7:
        x, y = rng.choice(env.desktop.visible_elements()).centre
        return Point(x * env.width / 224, y * env.height / 168)
    edges = (-1e308, -5, 0, 0.5, 223.5, 1e6, 1e308, rng.uniform(-50, 2000))
    return Point(rng.choice(edges), rng.choice(edges))


def random_action(rng: random.Random, env: DeskEnv) -> Action:
    target, other = random_point(rng, env), random_point(rng, env)
    keys = tuple(rng.choices(KEYS, k=rng.choice((0, 1, 1, 1, 2, 2, 3))))
    actions: list[Action] = [
        *[Click(point=target)] * 6,
        *[DoubleClick(point=target)] * 2,
        *[RightClick(point=target)] * 2,
        *[Drag(start=target, end=other)] * 2,
        Scroll(point=rng.choice((None, target)), direction=rng.choice(list(Direction))),
        *[Hotkey(keys=keys)] * 3,
        *[Type(text=rng.choice(TEXTS), submit=rng.random() < 0.5)] * 3,
        KeyDown(key=rng.choice(KEYS)),
        *[KeyUp(key=key) for key in ("ctrl", "alt", "shift", "win")],
        OpenApp(name=rng.choice(("File", "Note", "Calc", "", "Zed"))),
        PressBack(),
        PressHome(),
        LongPress(point=target),
        Hover(point=target),
    ]
    return rng.choice(actions)


@pytest.mark.parametrize(("size", "episodes"), [((224, 168), 2), ((301, 203), 1), ((1920, 1080), 1)])
def test_random_actions_never_raise(size: tuple[int, int], episodes: int) -> None:
    for seed in range(episodes):
        rng = random.Random(seed)
        task = sample_task(rng.choice(list(FAMILIES)), 810_000 + seed)
        env = DeskEnv(*size)

        async def episode(env: DeskEnv, task: Task, rng: random.Random) -> None:
            await env.start(task)
            for _ in range(80 if size < (1000, 1000) else 10):
                result = await env.step((random_action(rng, env),))
                assert result.observation.screenshot.size == size
                assert await env.evaluate() in (0.0, 1.0)
                json.dumps(env.desktop.world)

        asyncio.run(episode(env, task, rng))


@pytest.mark.parametrize(
    "config",
    [
        (),
        ({"type": "open", "parameters": {"app": "File", "column": 0, "row": 0}},),
        ({"type": "world", "parameters": WORLD}, {"type": "launch", "parameters": {"command": ["ls"]}}),
        (
            {"type": "world", "parameters": WORLD},
            {"type": "open", "parameters": {"app": "Zed", "column": 0, "row": 0}},
        ),
        (
            {"type": "world", "parameters": WORLD},
            {"type": "open", "parameters": {"app": "File", "column": "left", "row": 0}},
        ),
        ({},),
    ],
)
def test_a_task_with_an_unknown_setup_is_rejected(config: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(EnvError, match="task plain"):
        asyncio.run(DeskEnv().start(replace(plain_task(), config=config)))


def test_a_task_with_an_unknown_evaluator_is_rejected() -> None:
    task = replace(plain_task(), evaluator={"func": "compare_table"})
    with pytest.raises(EnvError, match="compare_table"):
        asyncio.run(play(DeskEnv(), task, []))


def test_an_episode_leaves_the_task_as_it_was() -> None:
    task = sample_task("DeleteFile")
    before = json.dumps([task.config, task.evaluator])
    answers: list[tuple[Action, ...]] = [(action,) for _, action in solution(task)]
    asyncio.run(play(DeskEnv(), task, answers))
    assert json.dumps([task.config, task.evaluator]) == before


def test_it_passes_the_conformance_suite() -> None:
    tasks = [sample_task(family) for family in ("MoveFile", "PlaceOrder", "DeleteMissingMail")]
    checks = asyncio.run(check_env(DeskEnv, tasks, EnvConfig()))
    assert [str(check) for check in checks if not check.ok] == []
