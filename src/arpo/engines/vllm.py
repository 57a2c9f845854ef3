"""The engine of vLLM servers, the replicas of one model: tokens in, tokens out, new weights in between.

The requests of an episode stay on one replica. If it fails, hangs or has wrong weights, they continue on
another one, and the answer is sampled again as a whole. A task per replica checks it regularly and brings it
back. A replica works if the checksums of its weights are those of the newest version, and if it agrees with
the learner about the log-probabilities of a probe. The probe shows that the weights are in use, not that they
are the newest ones. A replica that restarts or comes late loads the weights in the same way.

An update is rolling: while requests run, one quarter of the replicas after the other loads the new weights.
So its duration does not grow with their number. The version of each token must lie between that of the
replica at the start of the request and the newest one that passed the probe. Otherwise the answer is
discarded.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

from arpo.config import Config
from arpo.engines.base import Weights
from arpo.engines.http_exchange import HttpExchange, TransientError, endpoints
from arpo.engines.routing import Router
from arpo.engines.vllm_access import served_name
from arpo.engines.vllm_client import UNCHANGED, Answer, VllmClient
from arpo.errors import ContextTooLong, EngineError, Outage, UserError
from arpo.processes.backoff import pause_after
from arpo.prompts.rendering import Renderer
from arpo.storage.published_weights import PublishedWeights, read_published
from arpo.types import Completion, Prompt, Sampling

_ATTEMPTS = 5  # per answer
WAVES = 4  # of a rolling update: a quarter of the replicas is updated at a time
_MAX_BYTES = 32 << 20  # of a response; 64,000 tokens of a prompt with log-probabilities fit
_CHECK_SECONDS = 10.0  # between two checks of a replica
_FOREIGN = "has the weights of a training run, or is paused. Start this server again"
# Mean difference of the log-probabilities of server and learner after loading weights. In bfloat16, rounding
# alone gives some hundredths.
MAX_PROBE_GAP = 0.2
_REPORT_SECONDS = 10.0  # without any replica before the user is told


Address = Callable[[], str]  # the URL of a server; raises TransientError while it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The current weights of all replicas. `published` is None for those that the servers started with."""

    version: int
    label: str
    published: PublishedWeights | None


class _RequestEnded(TransientError):
    """The replica has failed, and its requests were ended."""


@dataclass(slots=True, eq=False)
class _Replica:
    """A server. It works if `target` is not None: these weights passed the probe."""

    address: Address  # the current one: a server may return at another address
    client: VllmClient
    target: _Target | None = None
    newest: int = -1  # version of the last weights with a passed probe
    fault: str = ""
    known: bool = False  # its model is the right one
    reported: bool = False  # the user knows that it does not work
    requests: set[asyncio.Task[Answer]] = field(default_factory=set)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # of checks and updates
    failed: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, fault: str) -> None:
        """Stop using the replica. Its requests end; the callers repeat them elsewhere."""
        self.target, self.fault = None, fault
        self.failed.set()
        for request in self.requests:
            request.cancel()

    async def ask(self, prompt: Prompt, sampling: Sampling, label: str) -> Answer:
        request = asyncio.create_task(self.client.generate(prompt, sampling, label))
        self.requests.add(request)
        try:
            return await request
        except asyncio.CancelledError:
            if (caller := asyncio.current_task()) is not None and caller.cancelling():
                raise
            raise _RequestEnded(self.fault) from None
        finally:
            self.requests.discard(request)


class VllmEngine:
    """Use between `start()` and `close()`. `learning`: `load` comes before the first request.

    `report` is called with messages for the user. `key` is the servers' key, "" for none.
    """

    def __init__(self, config: Config, renderer: Renderer, key: str, *, learning: bool) -> None:
        self.report: Callable[[str], None] = lambda text: None
        self.check_seconds = _CHECK_SECONDS
        self.max_probe_gap = MAX_PROBE_GAP
        self._config, self._settings, self._renderer = config, config.engine, renderer
        self._addresses: Sequence[Address] = ()
        self.use_servers((), key)
        self._learning = learning
        self._run = uuid.uuid4().hex[:12]  # two runs must not take each other's weights for their own
        self._target = None if learning else _Target(version=0, label=UNCHANGED, published=None)
        self._replicas: list[_Replica] = []
        self._router: Router[_Replica] = Router()
        self._max_tokens = 0
        self._watchers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()  # a replica works again, or the engine stops
        self._outage_began: float | None = None  # when the user was told
        self._stopping = self._asleep = False

    def use_servers(self, addresses: Sequence[Address], key: str) -> None:
        """Use these servers from the next `start` on; none means those of engine.endpoints."""
        self._addresses = addresses
        self._http = HttpExchange(key, _MAX_BYTES, "engine.endpoints")

    async def start(self) -> Sequence[str]:
        """Connect. Returns notes for the user. A silent server of this run restarts; requests wait for it.

        Raises UserError if a server has another model or weights, or if none of engine.endpoints answers.
        """
        self._http.open()
        nowhere = self._client("")
        self._replicas = [_Replica(address=address, client=nowhere) for address in self._known_addresses()]
        answers = await asyncio.gather(*map(self._connect, self._replicas), return_exceptions=True)
        for replica, answer in zip(self._replicas, answers, strict=True):
            replica.failed.set()  # until its watcher has checked it
            if isinstance(answer, BaseException) and not isinstance(answer, TransientError):
                raise answer
            replica.fault = str(answer or "")
            replica.reported = answer is not None
        silent = [replica.fault for replica in self._replicas if replica.reported]
        total, left = len(self._replicas), len(self._replicas) - len(silent)
        if not left and not self._addresses:
            raise UserError(
                f"no vLLM server answers: {silent[0]}. Start one with `arpo serve`, let this command start "
                "some with engine.replicas, or name others in engine.endpoints"
            )
        self._watchers = [asyncio.create_task(self._watch(replica)) for replica in self._replicas]
        if not silent:
            return []
        rest = f"Using the other {left}" if left else "Waiting for them"
        return [f"{len(silent)} of {total} servers do not answer: {silent[0]}. {rest}"]

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        self._watchers = []
        await self._http.close()

    def stop(self) -> None:
        """End the wait for a working replica with `Outage`, now and later. Call it in the loop."""
        self._stopping = True
        self._changed.set()

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample an answer, again on another replica after a fault. Raises Outage after a long one of all."""
        fault = ""
        for _ in range(_ATTEMPTS):
            replica, target = await self._working_replica(prompt.episode_id)
            self._check_length(prompt, sampling)
            try:
                answer = await replica.ask(prompt, sampling, target.label)
                return self._completion(answer, await self._versions(answer, replica, target))
            except _RequestEnded as ended:
                fault = str(ended)
            except TransientError as error:
                fault = str(error)
                self._fail(replica, fault)
        raise EngineError("generate", f"{fault} (tried {_ATTEMPTS} times)", host=replica.client.url)

    async def release(self, episode_id: str) -> None:
        self._router.release(episode_id)

    async def load(self, weights: Weights) -> None:
        """Load published weights into all replicas: at the same time, or in waves while requests run.

        After a failure, a replica loads them later. Until then, it gets no requests.
        """
        published = read_published(weights.handle) if isinstance(weights.handle, Path) else None
        if published is None:
            raise EngineError("load", f"{weights.handle!r} is not a complete folder of published weights")
        label = f"{self._run}-{weights.version}"
        self._target = _Target(version=weights.version, label=label, published=published)
        if not any(replica.requests for replica in self._replicas):
            await asyncio.gather(*map(self._update, self._replicas))
            return
        for wave in range(WAVES):
            await asyncio.gather(*map(self._update, self._replicas[wave::WAVES]))
        self._router.forget_all()  # the replica that was updated last has lost its episodes to the others

    async def sleep(self) -> list[int]:
        """Release the memory of the GPUs, for a learner. No requests until `wake`.

        Replicas that drop their weights get no requests until they have loaded weights again.
        """
        self._asleep = True
        failed = await self._change_all(lambda client: client.sleep())
        if self._config.model.train != "lora":
            for replica in self._replicas:
                replica.target = None
        return failed

    async def wake(self) -> list[int]:
        failed = await self._change_all(lambda client: client.wake())
        self._asleep = False
        return failed

    async def _change_all(self, change: Callable[[VllmClient], Awaitable[None]]) -> list[int]:
        """Change all replicas. Returns the indices of those that failed."""

        async def succeeds(replica: _Replica) -> bool:
            async with replica.lock:
                try:
                    await change(replica.client)
                except TransientError as error:
                    self._fail(replica, str(error))
                    return False
                return True

        done = await asyncio.gather(*map(succeeds, self._replicas))
        return [index for index, succeeded in enumerate(done) if not succeeded]

    def _known_addresses(self) -> Sequence[Address]:
        urls = endpoints(self._settings.endpoints, "engine.endpoints", "")
        return self._addresses or [partial(str, url) for url in urls]

    def _client(self, url: str) -> VllmClient:
        train = self._config.model.train
        return VllmClient(
            url,
            self._http,
            self._renderer,
            lora=train == "lora",
            trains_vision=train != "language",
        )

    async def _connect(self, replica: _Replica) -> None:
        """Find the server at its current address. Raises TransientError if there is none, or no answer."""
        if (url := replica.address()) != replica.client.url:
            replica.client = self._client(url)
            replica.known = False
        if not replica.known:
            await self._meet(replica)

    async def _meet(self, replica: _Replica) -> None:
        """Check the model of a server. Raises UserError if it is another one."""
        model = await replica.client.model()
        if model.name != (name := served_name(self._config.model.path)):
            raise UserError(
                f"{replica.client.url}: serves the model {model.name!r}, not {name!r}. Start `arpo serve` "
                "with the same model.path"
            )
        target = self._target
        if (
            self._learning
            and self._config.model.train == "lora"
            and not await replica.client.accepts_adapters()
        ):
            raise UserError(
                f"{replica.client.url}: was started without LoRA. Start `arpo serve` with --model.train lora"
            )
        if target and target.published is None and not await replica.client.has_weights(target.label):
            raise UserError(f"{replica.client.url}: {_FOREIGN}")
        self._max_tokens = min(self._max_tokens or model.max_tokens, model.max_tokens)
        replica.known = True

    def _check_length(self, prompt: Prompt, sampling: Sampling) -> None:
        if (need := len(prompt.token_ids) + sampling.max_tokens) > self._max_tokens:
            raise ContextTooLong(
                "generate",
                f"prompt and answer need {need} tokens, the vLLM server has a context of {self._max_tokens}: "
                "start it with a larger rollout.max_context_tokens",
            )

    async def _working_replica(self, episode_id: str) -> tuple[_Replica, _Target]:
        """Waits until a replica works: its watcher or `load` ends the wait, or the timeout of an outage."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not (working := [replica for replica in self._replicas if replica.target is not None]):
            waited = loop.time() - began
            # Not only an update, or a start that nobody has checked yet.
            is_outage = all(replica.failed.is_set() and replica.fault for replica in self._replicas)
            if (self._stopping and is_outage) or waited > self._config.env.outage_seconds:
                raise Outage(
                    f"no vLLM server has worked for {waited:.0f} s (env.outage_seconds): "
                    f"{self._replicas[0].fault}. Start the servers, then run the same command again to resume"
                )
            if waited >= _REPORT_SECONDS and self._outage_began is None and is_outage:
                self._outage_began = began
                self.report(f"no vLLM server works ({self._replicas[0].fault}). The run pauses")
            self._changed.clear()
            left = max(0.0, self._config.env.outage_seconds - waited)
            try:
                async with asyncio.timeout(min(_REPORT_SECONDS, left + 0.01)):
                    await self._changed.wait()
            except TimeoutError:
                continue
        replica = self._router.choose(episode_id, working)
        assert replica.target is not None
        return replica, replica.target

    async def _versions(self, answer: Answer, replica: _Replica, target: _Target) -> tuple[int, ...]:
        """The version of each token. Raises TransientError if one is wrong, or was not checked."""
        version_of = {label: self._version(label) for label in set(answer.labels)}
        if max(version_of.values()) > replica.newest:
            async with replica.lock:  # the replica has loaded new weights, and their probe is running
                pass
        if not all(target.version <= version <= replica.newest for version in version_of.values()):
            raise TransientError(
                f"{replica.client.url}: answered with the weights {sorted(version_of)} instead of "
                f"{target.label}"
            )
        return tuple(version_of[label] for label in answer.labels)

    def _version(self, label: str) -> int:
        """The version of a label of this run; -1 for another label."""
        if label == UNCHANGED and self._target is not None and self._target.published is None:
            return 0
        run, _, version = label.rpartition("-")
        return int(version) if run == self._run and version.isdecimal() else -1

    def _completion(self, answer: Answer, versions: tuple[int, ...]) -> Completion:
        return Completion(
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            text=self._renderer.decode(answer.token_ids),
            finish=answer.finish,
            versions=versions,
            alternatives=answer.alternatives,
        )

    async def _watch(self, replica: _Replica) -> None:
        """Check the replica from time to time, or bring it back. Ends with the engine."""
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self.check_seconds):
                    await replica.failed.wait()
            except TimeoutError:
                pass
            if self._asleep or self._target is None:
                await asyncio.sleep(pause_after(1))
                continue
            async with replica.lock:
                if replica.target is not None:
                    await self._check(replica)
                    failures = 0
                    continue
                await self._bring_back(replica)
            if replica.target is None:
                failures += 1
                await asyncio.sleep(pause_after(failures))

    async def _check(self, replica: _Replica) -> None:
        assert replica.target is not None
        try:
            if not await replica.client.has_weights(replica.target.label):
                self._fail(replica, f"{replica.client.url}: has restarted, or has the weights of another run")
        except TransientError as error:
            self._fail(replica, str(error))

    async def _update(self, replica: _Replica) -> None:
        """Load the newest weights. New requests go elsewhere, running ones go on after the update."""
        replica.target = None
        async with replica.lock:
            if replica.target is not self._target:
                await self._bring_back(replica)

    async def _bring_back(self, replica: _Replica) -> None:
        """Load the newest weights if necessary, and check them. The caller holds the lock."""
        target = self._target
        assert target is not None
        replica.target = None
        try:
            await self._connect(replica)
            client = replica.client
            if not await client.has_weights(target.label):
                if target.published is None:
                    raise UserError(f"{client.url}: {_FOREIGN}")
                await client.load(target.published, target.label)
            if target.published is not None:
                await self._probe(client, target.published, target.label)
        except (TransientError, EngineError, UserError) as error:
            self._fail(replica, str(error))
            return
        replica.target, replica.newest, replica.fault = target, target.version, ""
        replica.failed.clear()
        self._changed.set()
        self._report_return(replica)

    async def _probe(self, client: VllmClient, published: PublishedWeights, label: str) -> None:
        """Raises TransientError if server and learner disagree about the probe."""
        probe = published.probe()
        found = await client.score((*probe.token_ids, *probe.answer), probe.images, label)
        pairs = zip(found[-len(probe.answer) :], probe.logprobs, strict=True)
        gap = fmean(abs(one - other) for one, other in pairs)
        if not gap <= self.max_probe_gap:
            raise TransientError(
                f"{client.url}: after loading version {published.version}, its log-probabilities differ by "
                f"{gap:.3g} from the learner's, more than {self.max_probe_gap:g}"
            )

    def _fail(self, replica: _Replica, fault: str) -> None:
        replica.fail(fault)
        if not replica.reported:
            replica.reported = True
            working = sum(other.target is not None for other in self._replicas)
            self.report(f"{fault}. {working} of {len(self._replicas)} vLLM servers work")

    def _report_return(self, replica: _Replica) -> None:
        if self._outage_began is not None:
            seconds = asyncio.get_running_loop().time() - self._outage_began
            self._outage_began = None
            self.report(f"{replica.client.url} works again after {seconds:.0f} s: the run continues")
        elif replica.reported:
            self.report(f"{replica.client.url} works again")
        replica.reported = False
