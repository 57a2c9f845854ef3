"""`open_player` opens the parts of the recipe, and refuses wrong settings before any episode."""

from __future__ import annotations

import asyncio
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fake_vllm
from arpo.dialects.tool_calls import QWEN3_VL
from arpo.engines.http_exchange import TransientError
from arpo.engines.vllm import VllmEngine
from arpo.engines.vllm_client import VllmClient
from arpo.errors import Outage, UserError
from arpo.learner.local import LocalLearner
from arpo.prompts.templates import load_template
from arpo.reporting.display import Display
from arpo.rollout.player import open_player, prompt_of
from arpo.serving.servers import OwnServers, Server
from arpo.tasks.lists import load_tasks
from arpo.types import Trajectory
from processes import descendants, wait_until
from scripted_vllm import answering, scripted_vllm
from tiny_vlm import QWEN3_5, QWEN3_5_MOE, save_folder, tiny_of
from verdicts import A, Scripted, small_config


def test_the_parts_are_those_of_the_recipe(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--run.seed=7", "--rollout.temperature=0.5", "--env.parallel=3")
    player = open_player(config)
    assert torch.get_num_threads() == 1
    assert not player.model.training
    assert {parameter.dtype for parameter in player.model.parameters()} == {torch.float32}
    assert player.scheduler.settings is config.rollout
    assert player.scheduler.seed == 7
    assert player.scheduler.agent.renderer is player.renderer
    assert player.scheduler.agent.template == load_template("desk")


def test_answers_are_read_in_the_recipes_dialect(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--model.dialect=ui_tars")
    assert open_player(config).scheduler.agent.dialect.name == "ui_tars"


def test_the_player_plays_with_the_model_that_a_learner_fills(tmp_path: Path) -> None:
    Scripted.play({})
    config = small_config(tmp_path, [A], "--rollout.max_steps=2", env="Scripted")
    player = open_player(config)
    learner = LocalLearner(player.model, player.token_renderer, config)
    [task] = load_tasks(config.tasks.train)

    async def play(name: str) -> Trajectory:
        await player.scheduler.agent.engine.load(learner.weights())
        [group] = await player.scheduler.run(name, [(0, task)], lambda *_: None)
        assert not group.failures and len(group.trajectories) == 2
        return group.trajectories[0]

    first, again = asyncio.run(play("same")), asyncio.run(play("same"))
    assert first == again
    with torch.no_grad():
        player.model.lm_head.weight.mul_(0.5)
    changed = asyncio.run(play("same"))
    assert changed.turns[0].completion.logprobs != first.turns[0].completion.logprobs


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("--env.name=nowhere:Env", "env.name = 'nowhere:Env'"),
        ("--model.path=/nowhere", "model.path needs 'base', a Hugging Face model folder"),
        ("--model.prompt=/nowhere.txt", "nowhere.txt"),
        ("--rollout.agent=no-such-program x.py", "rollout.agent: is .*no such program"),
        ("--rollout.agent=python 'x.py", "rollout.agent: is .*not a command: No closing quotation"),
    ],
)
def test_a_part_that_is_not_there_is_named(tmp_path: Path, setting: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        open_player(small_config(tmp_path, [A], setting))


def test_the_experts_of_a_mixture_are_not_trained(tmp_path: Path) -> None:
    folder = save_folder(tiny_of(QWEN3_5_MOE), tmp_path / "model")
    config = small_config(tmp_path, [A], f"--model.path={folder}", "--model.train=all")
    with pytest.raises(UserError, match=r"model\.train: is 'all', and .* mixture of experts: .*use 'lora'"):
        open_player(config, learning=True)


@pytest.mark.parametrize("engine", ["openai", "person"])
def test_a_family_with_a_state_has_teachers(tmp_path: Path, engine: str) -> None:
    folder = save_folder(tiny_of(QWEN3_5), tmp_path / "model")
    settings = (f"--model.path={folder}", f"--engine.name={engine}", "--model.prompt=desk")
    with closing(open_player(small_config(tmp_path, [A], *settings), teaching=True)) as player:
        assert player.scheduler.agent.dialect.name == "qwen3_5"
        assert player.scheduler.agent.student is player.renderer


def test_a_player_starts_its_own_servers_and_ends_them(tmp_path: Path) -> None:
    python = fake_vllm.install(tmp_path, "child")
    engine = ["--engine.name=vllm", "--engine.replicas=2", f"--engine.python={python}", "--model.path=base"]
    player = open_player(small_config(tmp_path, [A], *engine))
    assert player.model is None
    before = descendants(os.getpid())  # of other tests

    async def scenario() -> None:
        async with player.started(Display()):
            assert len(descendants(os.getpid()) - before) == 6  # guard, server and its child, twice

    asyncio.run(scenario())
    assert wait_until(lambda: not descendants(os.getpid()) - before)


@pytest.mark.parametrize(("shared", "calls"), [(True, ["sleep", "learn", "wake"]), (False, ["learn"])])
def test_servers_sleep_while_a_learner_uses_their_gpu(tmp_path: Path, shared: bool, calls: list[str]) -> None:
    found: list[str] = []

    class Recorded(VllmEngine):
        async def sleep(self) -> list[int]:
            found.append("sleep")
            return []

        async def wake(self) -> list[int]:
            found.append("wake")
            return []

    python = fake_vllm.install(tmp_path)
    config = small_config(
        tmp_path, [A], "--engine.name=vllm", "--engine.replicas=1", f"--engine.python={python}"
    )
    player = open_player(config)
    assert isinstance(player.servers, OwnServers)
    engine = Recorded(config, player.token_renderer, "", learning=True)
    player = replace(player, served=engine, servers=replace(player.servers, share_gpu=shared))

    async def scenario() -> None:
        async with player.free_gpu():
            found.append("learn")

    asyncio.run(scenario())
    assert found == calls


@pytest.mark.parametrize("broken", ["/sleep?level=2", "/wake_up"])
def test_a_server_that_cannot_hand_over_the_gpu_restarts(
    tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would hold memory that it cannot use, and the run would wait for it for ever."""

    async def fail(client: VllmClient, path: str, body: object = None) -> object:
        if path == broken:
            raise TransientError(f"{path}: CUDA out of memory")
        return None

    monkeypatch.setattr(VllmClient, "_change", fail)
    python = fake_vllm.install(tmp_path)
    words = ("--engine.name=vllm", "--engine.replicas=2", f"--engine.python={python}", "--model.path=base")
    player = open_player(small_config(tmp_path, [A], *words))
    assert isinstance(player.servers, OwnServers)
    player = replace(player, servers=replace(player.servers, share_gpu=True))
    restarted: list[str] = []
    monkeypatch.setattr(Server, "restart", lambda server: restarted.append(server.name))

    async def scenario() -> None:
        async with player.started(Display()), player.free_gpu():
            pass

    asyncio.run(scenario())
    assert len(set(restarted)) == len(restarted) == 2


def test_a_stop_ends_an_outage_of_all_servers(tmp_path: Path) -> None:
    """An episode that waits for a server ends with Outage, as with environments: it is no failed episode."""
    notes: list[str] = []

    class Noted(Display):
        def note(self, text: str) -> None:
            notes.append(text)

    with scripted_vllm() as server:
        down = answering(500, "down")
        words = ("--engine.name=vllm", f"--engine.endpoints={server.url}", "--model.path=base")
        player = open_player(small_config(tmp_path, [A], *words, env="Scripted"))
        [task] = load_tasks(small_config(tmp_path, [A]).tasks.train)

        async def play() -> None:
            async with player.started(Noted()) as scheduler:
                server.faults = {"/inference/v1/generate": down, "/weight_info": down}
                asyncio.get_running_loop().call_later(0.5, player.stop_waiting)
                await scheduler.run("batch-1", [(0, task)], lambda *_: None)

        Scripted.play({})
        with pytest.raises(Outage, match="no vLLM server has worked"):
            asyncio.run(play())
    assert any("0 of 1 vLLM servers work" in note for note in notes)


def test_the_prompt_follows_the_dialect(tmp_path: Path) -> None:
    assert prompt_of(small_config(tmp_path, [A])) == "desk"
    assert prompt_of(small_config(tmp_path, [A], "--model.dialect=qwen3_vl")) == QWEN3_VL.prompt
    assert prompt_of(small_config(tmp_path, [A], "--model.dialect=qwen3_vl", "--model.prompt=desk")) == "desk"
    with pytest.raises(UserError, match=r"no package is known with the prompt of the dialect mai_ui"):
        prompt_of(small_config(tmp_path, [A], "--model.dialect=mai_ui"))
