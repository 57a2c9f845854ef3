"""Two real vLLM servers as an engine: they agree with the learner, whatever happens to them."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText

from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.engines.base import Weights
from arpo.engines.http_exchange import HttpExchange
from arpo.engines.vllm import VllmEngine
from arpo.engines.vllm_client import VllmClient
from arpo.learner.base import Batch
from arpo.learner.local import LocalLearner
from arpo.learner.publish import Publisher
from arpo.models.loading import load_model, load_renderer, resolve_model
from arpo.models.trainable import set_trainable
from arpo.prompts.conversation import PromptTemplate
from arpo.prompts.rendering import Renderer
from arpo.rollout.agent import Agent, AgentProgram
from arpo.rollout.episode import run_episode
from arpo.storage.published_weights import publishing, read_published
from arpo.testing import FakeEnv, task
from arpo.types import Completion, Message, Prompt, Sample, Sampling, Screenshot
from real_vllm import PYTHON, RealServer, real_servers
from tiny_vlm import QWEN2_5, QWEN3_5, QWEN3_5_MOE, save_folder, screenshot, stock_inputs, tiny_qwen3_5

EXACT = 1e-3  # of a log-probability in float32
ALONE = 1e-4  # the same, for one request at a time
SETTINGS = ("--engine.name=vllm", f"--engine.python={PYTHON}", "--model.device=cpu", "--run.threads=1")
_SECONDS = 900.0  # a restart takes a minute or more
SHORT = Sampling(temperature=1.0, max_tokens=32, seed=5)
LONG = Sampling(temperature=2.0, max_tokens=800, seed=5)  # some seconds, if no token ends it


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A learner, which publishes its weights."""

    learner: LocalLearner
    renderer: Renderer
    publisher: Publisher

    async def step(self, prompt: Prompt, answer: Completion) -> Weights:
        """Train on an answer, and publish."""
        self.learner.train(Batch(updates=((_sample(prompt, answer),),)))
        return self.publisher.publish()

    def logprobs(self, prompt: Prompt, answer: Completion) -> Sequence[float]:
        """The learner's, for each token of the answer."""
        return self.learner.logprobs([_sample(prompt, answer)], base=False, temperature=1.0)[0]


def _sample(prompt: Prompt, answer: Completion) -> Sample:
    return Sample(
        token_ids=prompt.token_ids + answer.token_ids,
        mask=(*[False] * len(prompt.token_ids), *[True] * len(answer.token_ids)),
        images=prompt.images,
        behaviour_logprobs=answer.logprobs,
        advantage=-1.0,
        weight=1 / len(answer.token_ids),
        replayed=False,
    )


def config_of(*words: str) -> Config:
    return load_config("desk", [*SETTINGS, "--optim.lr=1e-3", "--loss.kl=0", *words])


def family_words(family: str, folder: Path) -> tuple[str, ...]:
    """Settings for the base model, or for a fresh model of another family."""
    if family == QWEN2_5:
        return ()
    experts = 4 if family == QWEN3_5_MOE else 0
    model = tiny_qwen3_5(head=32, experts=experts)  # vLLM on a CPU knows no narrower heads
    return (f"--model.path={save_folder(model, folder / 'model')}",)


def policy_of(config: Config, root: Path) -> Policy:
    torch.set_num_threads(1)
    renderer, model = load_renderer(config.model), load_model(config.model, 0)
    set_trainable(model, config.model, 0)
    learner = LocalLearner(model, renderer, config)
    return Policy(learner=learner, renderer=renderer, publisher=Publisher(learner, renderer, root))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealServer]]:
    with real_servers([config_of()] * 2, tmp_path_factory.mktemp("servers")) as servers:
        yield servers


def prompt_of(renderer: Renderer, episode: str, *seeds: int) -> Prompt:
    messages = (
        Message(role="user", text="Save the file"),
        *(Message(role="user", screenshot=screenshot(seed, 224, 168)) for seed in seeds),
    )
    rendered = renderer.render(messages)
    return Prompt(episode_id=episode, token_ids=rendered.token_ids, images=rendered.images, messages=messages)


@torch.no_grad()
def logprobs(folder: Path, prompt: Prompt, answer: Completion, temperature: float) -> list[float]:
    """Those of transformers with published weights, for each token of the answer."""
    model = AutoModelForImageTextToText.from_pretrained(resolve_model("base"), dtype=torch.float32)
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tokens = prompt.token_ids + answer.token_ids
    inputs = stock_inputs(load_renderer(config_of().model), tokens, prompt.images)
    logits = model(**inputs).logits[0, len(prompt.token_ids) - 1 : -1] / temperature
    sampled = torch.tensor(answer.token_ids)[:, None]
    return logits.log_softmax(-1).gather(1, sampled)[:, 0].tolist()


def gap(some: Sequence[float], others: Sequence[float]) -> float:
    return float(np.abs(np.subtract(some, others)).max())


def agree(one: Completion, two: Completion) -> bool:
    """Answers to the same prompt. Rounding depends on the requests that are computed together."""
    return one.token_ids == two.token_ids and gap(one.logprobs, two.logprobs) < EXACT


def play(
    servers: Sequence[RealServer],
    test: Callable[[VllmEngine, list[str]], Awaitable[None]],
    *words: str,
    endless: bool = False,
) -> None:
    """Run a test with a started engine, and its notes for the user. `endless`: no token ends an answer."""

    async def run() -> None:
        urls = ",".join(server.url for server in servers)
        config = config_of(f"--engine.endpoints={urls}", *words)
        renderer = load_renderer(config.model)
        if endless:
            renderer.end_ids = frozenset()
        engine = VllmEngine(config, renderer, "", learning=True)
        notes: list[str] = []
        engine.report, engine.check_seconds = notes.append, 1.0
        await engine.start()
        try:
            async with asyncio.timeout(_SECONDS):
                await test(engine, notes)
        finally:
            await engine.close()

    asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  (the servers are other processes)
        await asyncio.sleep(0.05)


async def both(engine: VllmEngine, renderer: Renderer, sampling: Sampling) -> list[Completion]:
    """An answer of each replica, to the same prompt."""
    prompts = [prompt_of(renderer, name, 1, 2) for name in ("one", "two")]
    return await asyncio.gather(*(engine.generate(prompt, sampling) for prompt in prompts))


async def started(
    servers: Sequence[RealServer], engine: VllmEngine, renderer: Renderer
) -> list[asyncio.Task[Completion]]:
    """A long answer on each replica, of which some tokens are sampled."""
    before = [server.sampled() for server in servers]
    prompts = [prompt_of(renderer, name, 1, 2) for name in ("one", "two")]
    answers = [asyncio.create_task(engine.generate(prompt, LONG)) for prompt in prompts]
    await until(lambda: all(server.sampled() > count for server, count in zip(servers, before, strict=True)))
    return answers


def test_vllm_agrees_with_the_learner_over_ten_updates(pair: list[RealServer], tmp_path: Path) -> None:
    policy = policy_of(config_of(), tmp_path)
    prompt = prompt_of(policy.renderer, "one", 1, 2)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        weights = policy.publisher.publish()
        answers: list[Completion] = []
        for version in range(11):
            await engine.load(weights)
            one, two = await both(engine, policy.renderer, SHORT)
            assert agree(one, two) and set(one.versions) == {version}
            assert gap(one.logprobs, logprobs(weights.handle, prompt, one, 1.0)) < EXACT
            assert one.text == policy.renderer.decode(one.token_ids)
            answers.append(one)
            weights = await policy.step(prompt, one)
        assert gap(answers[0].logprobs, logprobs(weights.handle, prompt, answers[0], 1.0)) > 100 * EXACT
        assert notes == []

    play(pair, test)


def test_other_likely_tokens_have_the_probabilities_of_the_learner(
    pair: list[RealServer], tmp_path: Path
) -> None:
    policy = policy_of(config_of(), tmp_path)
    prompt = prompt_of(policy.renderer, "one", 1, 2)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        weights = policy.publisher.publish()
        await engine.load(weights)
        [one, plain] = await both(engine, policy.renderer, replace(SHORT, alternatives=2))
        assert agree(one, plain) and plain.token_ids
        for token, others in zip(one.token_ids, one.alternatives, strict=True):
            assert len({token, *dict(others)}) == 3
        for other, logprob in one.alternatives[0]:
            instead = replace(one, token_ids=(other,), logprobs=(logprob,), versions=(0,), alternatives=())
            assert gap((logprob,), logprobs(weights.handle, prompt, instead, 1.0)) < EXACT

    play(pair, test)


def test_many_prompts_at_once(pair: list[RealServer], tmp_path: Path) -> None:
    """More tokens than vLLM computes in one step: with parts of seeded prompts, a CPU server would end."""
    policy = policy_of(config_of(), tmp_path)
    prompts = [prompt_of(policy.renderer, str(number), *range(4)) for number in range(100)]

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        await engine.load(policy.publisher.publish())
        answers = await asyncio.gather(*(engine.generate(prompt, SHORT) for prompt in prompts))
        assert len(answers) == 100 and notes == []

    play(pair, test)


def test_the_agent_program_of_the_docs_with_the_openai_client(pair: list[RealServer], tmp_path: Path) -> None:
    """Its second call continues the first. vLLM's environment has the package `openai`."""
    page = (Path(__file__).parents[2] / "docs" / "agent.md").read_text("utf-8")
    policy = policy_of(config_of(), tmp_path)
    (file := tmp_path / "my_agent.py").write_text(
        page.partition("```python\n")[2].partition("```")[0], "utf-8"
    )

    async def run(engine: VllmEngine, notes: list[str]) -> None:
        config = config_of("--rollout.max_steps=2")
        weights = policy.publisher.publish()
        await engine.load(weights)
        program = AgentProgram(
            command=(str(PYTHON), str(file)), logs=tmp_path / "logs", start_seconds=300, call_seconds=300
        )
        agent = Agent(
            engine=engine,
            renderer=policy.renderer,
            template=PromptTemplate(system="", user="{instruction}"),
            dialect=UI_TARS_1_5,
            program=program,
        )
        env = FakeEnv(size=(224, 168))
        episode = await run_episode(task("t"), env, agent, episode_id="e", settings=config.rollout, seed=0)
        tokens: tuple[int, ...] = ()
        images: tuple[Screenshot, ...] = ()
        for number, turn in enumerate(episode.turns):
            assert turn.restart == (not number) and len(turn.images) == 1 and turn.completion.token_ids
            tokens, images = tokens + turn.context, images + turn.images
            prompt = Prompt(episode_id="e", token_ids=tokens, images=images, messages=())
            expected = logprobs(weights.handle, prompt, turn.completion, config.rollout.temperature)
            assert gap(turn.completion.logprobs, expected) < EXACT
            tokens += turn.completion.token_ids

    play(pair, run)


def test_an_update_under_running_answers(pair: list[RealServer], tmp_path: Path) -> None:
    """Each token has the log-probability of the version that sampled it: all keys are computed again."""
    policy = policy_of(config_of(), tmp_path)
    prompt = prompt_of(policy.renderer, "one", 1, 2)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        old = policy.publisher.publish()
        await engine.load(old)
        [short, _] = await both(engine, policy.renderer, SHORT)
        new = await policy.step(prompt, short)
        answers = await started(pair, engine, policy.renderer)
        await engine.load(new)
        for answer in await asyncio.gather(*answers):
            assert set(answer.versions) == {0, 1} and list(answer.versions) == sorted(answer.versions)
            by_version = [
                logprobs(weights.handle, prompt, answer, LONG.temperature) for weights in (old, new)
            ]
            expected = [by_version[version][place] for place, version in enumerate(answer.versions)]
            assert gap(answer.logprobs, expected) < EXACT
        assert notes == []

    play(pair, test, endless=True)


def test_a_replica_that_is_killed_in_mid_answer(pair: list[RealServer], tmp_path: Path) -> None:
    policy = policy_of(config_of(), tmp_path)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        await engine.load(policy.publisher.publish())
        [short, _] = await both(engine, policy.renderer, SHORT)
        answers = await started(pair, engine, policy.renderer)
        pair[0].kill()
        one, two = await asyncio.gather(*answers)
        assert agree(one, two) and set(one.versions) == set(two.versions) == {0}
        assert notes and notes[0].startswith(pair[0].url) and "1 of 2 vLLM servers work" in notes[0]
        await engine.load(await policy.step(prompt_of(policy.renderer, "one", 1, 2), short))
        pair[0].start()
        await asyncio.to_thread(pair[0].wait)
        await until(lambda: notes[-1] == f"{pair[0].url} works again")
        await engine.release("one")
        one, two = await both(engine, policy.renderer, SHORT)
        assert agree(one, two) and set(one.versions) == {1}

    play(pair, test, endless=True)


def test_a_replica_that_hangs_and_then_all_of_them(
    pair: list[RealServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arpo.engines.vllm_client._STATE_SECONDS", 3.0)
    policy = policy_of(config_of(), tmp_path)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        await engine.load(policy.publisher.publish())
        answers = await started(pair, engine, policy.renderer)
        pair[0].signal(signal.SIGSTOP)
        one, two = await asyncio.gather(*answers)
        assert agree(one, two)
        assert any("no answer within 3 s" in note for note in notes)
        pair[1].signal(signal.SIGSTOP)
        waiting = asyncio.create_task(both(engine, policy.renderer, SHORT))
        await until(lambda: any("no vLLM server works" in note for note in notes))
        for server in pair:
            server.signal(signal.SIGCONT)
        one, two = await waiting
        assert agree(one, two) and set(one.versions) == {0}
        assert any("the run continues" in note for note in notes)

    try:
        play(pair, test, endless=True)
    finally:
        for server in pair:
            server.signal(signal.SIGCONT)


def test_a_replica_that_answers_with_stale_weights(pair: list[RealServer], tmp_path: Path) -> None:
    policy = policy_of(config_of(), tmp_path)
    prompt = prompt_of(policy.renderer, "one", 1, 2)

    async def load_elsewhere(url: str, weights: Weights, label: str) -> None:
        http = HttpExchange("", 1 << 20, "engine.endpoints")
        http.open()
        client = VllmClient(url, http, policy.renderer, lora=False, trains_vision=True)
        published = read_published(weights.handle)
        assert published is not None
        await client.load(published, label)
        await http.close()

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        engine.check_seconds = 1000.0  # its answer shows it, not a check
        old = policy.publisher.publish()
        (old.handle / "other.safetensors").write_bytes(b"COMPLETE does not list it")
        await engine.load(old)
        [short, _] = await both(engine, policy.renderer, SHORT)
        await engine.load(await policy.step(prompt, short))
        await load_elsewhere(pair[0].url, old, "another-0")
        one, two = await both(engine, policy.renderer, SHORT)
        assert agree(one, two) and set(one.versions) == {1}
        assert "answered with the weights ['another-0'] instead of" in notes[0]
        await until(lambda: notes[-1] == f"{pair[0].url} works again")

    play(pair, test)


def test_an_update_that_fails_half_way(pair: list[RealServer], tmp_path: Path) -> None:
    """The second file of version 1 has a tensor of another shape. Version 2 is good."""
    policy = policy_of(config_of(), tmp_path)
    prompt = prompt_of(policy.renderer, "one", 1, 2)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        await engine.load(policy.publisher.publish())
        [short, _] = await both(engine, policy.renderer, SHORT)
        good = await policy.step(prompt, short)
        published = read_published(good.handle)
        assert published is not None
        tensors = load_file(good.handle / "model.safetensors")
        names = sorted(tensors)
        tensors[names[-1]] = torch.zeros(3)
        with publishing(tmp_path / "bad", 1) as bad:
            half = len(names) // 2
            save_file({name: tensors[name] for name in names[:half]}, bad / "a.safetensors")
            save_file({name: tensors[name] for name in names[half:]}, bad / "b.safetensors")
            for other in published.folder.glob("*.json"):
                shutil.copy(other, bad)
        await engine.load(Weights(version=1, handle=bad))
        assert "collective_rpc: status 500" in notes[0] and "0 of 2 vLLM servers work" in notes[1]
        waiting = asyncio.create_task(both(engine, policy.renderer, SHORT))
        await engine.load(await policy.step(prompt, short))
        one, two = await waiting
        assert set(one.versions) == {2} and set(two.versions) == {2}

    (tmp_path / "bad").mkdir()
    play(pair, test)


def published_again(good: Weights, folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Weights:
    """The same version and checksums, with other tensors."""
    published = read_published(good.handle)
    assert published is not None
    [file] = published.folder.glob("*.safetensors")
    tensors = load_file(file)
    change(tensors)
    folder.mkdir()
    with publishing(folder, good.version) as bad:
        save_file(tensors, bad / file.name)
        for other in published.folder.glob("*.json"):
            shutil.copy(other, bad)
    return Weights(version=good.version, handle=bad)


async def refuse_and_load(
    engine: VllmEngine, notes: list[str], good: Weights, bad: Sequence[tuple[Weights, str]]
) -> None:
    """Every bad version is refused, with the name of a tensor. Then the good one is loaded."""
    for weights, name in bad:
        for _ in range(3):  # on a busy machine, another try with the version before may be reported first
            notes.clear()
            engine._replicas[0].reported = False
            await engine.load(weights)
            if name in notes[0]:
                break
        assert "differ from the learner's" in notes[0] and name in notes[0]
    await engine.load(good)
    assert engine._replicas[0].target is not None


def faults(old: Weights, new: Weights, folder: Path) -> list[tuple[Weights, str]]:
    """Versions whose loading succeeds for vLLM, and the name of a tensor that is wrong then."""
    before = load_file(next(old.handle.glob("*.safetensors")))
    one = max(name for name in before if "q_proj" in name or "conv1d" in name)
    layer = one.partition(".lora_")[0]  # vLLM takes both matrices of an adapter or none

    def lose(tensors: dict[str, Tensor], *, all_but: str = "", beginning: str = "") -> None:
        for name in list(tensors):
            if name.startswith(beginning) and not (all_but and name.startswith(all_but)):
                del tensors[name]

    changes: list[tuple[Callable[[dict[str, Tensor]], None], str]] = [
        (partial(lose, all_but=layer if layer != one else ""), ""),
        (lambda tensors: tensors.update(before), ""),
        (partial(lose, beginning=layer), layer),
        (lambda tensors: tensors.update({one: before[one]}), one),
    ]
    return [
        (published_again(new, folder / str(number), change), name)
        for number, (change, name) in enumerate(changes)
    ]


@pytest.mark.parametrize(
    ("family", "train", "parts"),
    [(QWEN2_5, "all", 1), (QWEN2_5, "all", 2), (QWEN2_5, "lora", 2), (QWEN3_5, "all", 2)],
)
def test_weights_other_than_the_learners_are_not_served(
    tmp_path: Path, family: str, train: str, parts: int
) -> None:
    """Every call succeeds, and the versions are too similar for the probe: only checksums show it."""
    small_step = ("--optim.lr=1e-6", "--optim.warmup_updates=0")
    words = (f"--model.train={train}", "--model.lora_rank=4", *small_step, *family_words(family, tmp_path))
    policy = policy_of(config_of(*words), tmp_path)
    prompt = prompt_of(policy.renderer, "one", 1, 2)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        old = policy.publisher.publish()
        await engine.load(old)
        answer = await engine.generate(prompt, SHORT)
        assert gap(answer.logprobs, policy.logprobs(prompt, answer)) < ALONE
        new = await policy.step(prompt, answer)
        await refuse_and_load(engine, notes, new, faults(old, new, tmp_path))

    with real_servers([config_of(*words, f"--engine.gpus_per_server={parts}")], tmp_path) as servers:
        play(servers, test, *words)


@pytest.mark.parametrize("family", [QWEN2_5, QWEN3_5_MOE])
def test_adapters(tmp_path: Path, family: str) -> None:
    words = ("--model.train=lora", "--model.lora_rank=4", *family_words(family, tmp_path))
    policy = policy_of(config_of(*words), tmp_path)
    prompt = prompt_of(policy.renderer, "one", 1, 2)

    async def test(engine: VllmEngine, notes: list[str]) -> None:
        weights = policy.publisher.publish()
        answers: list[Completion] = []
        for version in range(4):
            await engine.load(weights)
            answer = await engine.generate(prompt, SHORT)
            assert set(answer.versions) == {version}
            assert gap(answer.logprobs, policy.logprobs(prompt, answer)) < ALONE
            answers.append(answer)
            weights = await policy.step(prompt, answer)
        assert gap(answers[0].logprobs, policy.logprobs(prompt, answers[0])) > 100 * EXACT
        assert notes == []

    with real_servers([config_of(*words)], tmp_path) as servers:
        play(servers, test, *words)
