"""The services of a run, as seen by the driver: vLLM servers and environment hosts on the cluster.

    services = Services(role, orders, token, "run-1", wait_seconds=60, notes=Notes())
    services.wait(120)  # until all have an address
    [service.address() for service in services]

A thread asks every service for its state, about once a second. If a service is lost with its node, Ray starts
it elsewhere; its address then changes, and `address` returns the new one. All end with `close`, with garbage
collection, or with the driver.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from arpo.cluster.connection import NAMESPACE
from arpo.cluster.placement import Role, free, options_in, reserve
from arpo.cluster.service import Order, Report, Service
from arpo.errors import UserError, printable

_POLL_SECONDS = 1.0
_FAILED_STARTS_SHOWN = 300  # characters of a fault
# At the end of an actor, Ray kills its child processes, but not theirs. Guards and hosts end all of them
# (processes/guard.py), unless Ray kills them first.
_LEAVE_PROGRAMS = {"RAY_kill_child_processes_on_worker_exit": "false"}


class Notes:
    """The receiver of messages for the user. It may change during the run."""

    report: Callable[[str], None] = staticmethod(lambda text: None)


class Lost(Exception):
    """The service has no address at the moment."""


class PlacedService:
    """One service. `restarts` counts those of its program and of its actor."""

    def __init__(self, name: str, actor: Any, notes: Notes) -> None:
        self.name, self.actor, self._notes = name, actor, notes
        self.fault = ""  # why its last start failed, or why it does not answer
        self.is_dead = False  # Ray does not start it again
        self._worked = False  # it had an address since the last report of a fault
        self._earlier = 0  # restarts of lost incarnations, themselves included
        self._report: Report | None = None

    @property
    def restarts(self) -> int:
        return self._earlier + (self._report.restarts if self._report is not None else 0)

    @property
    def earlier(self) -> int:
        return self._earlier

    @property
    def has_failed(self) -> bool:
        return self.is_dead or (self._report is not None and bool(self._report.fault))

    def address(self) -> str:
        """Raises `Lost` while the service is starting."""
        if self._report is None or not self._report.url:
            raise Lost(f"{self.name} is starting{f': {self.fault}' if self.fault else ''}")
        return self._report.url

    def update(self, report: Report) -> None:
        """A new state. Tells the user if Ray has started the service again, or if it no longer starts."""
        before = self._report
        if before is not None and before.incarnation != report.incarnation:
            self._earlier += before.restarts + 1
            self._notes.report(f"{self.name} was lost on {before.node} and starts again on {report.node}")
        self._report, self.fault = report, report.fault
        if self._worked and report.fault:
            self._notes.report(f"{self.name} does not start again on {report.node}: {report.fault}")
        self._worked = bool(report.url) or (self._worked and not report.fault)

    def lost(self, fault: str, *, is_dead: bool) -> None:
        """No answer. The last address stays: its callers find out themselves whether it works."""
        self.fault, self.is_dead = fault, is_dead


class Services:
    """All services of one role. `orders`: one per process of the role.

    Raises UserError if the cluster has no place for them within `wait_seconds`.
    """

    def __init__(
        self,
        role: Role,
        orders: Sequence[Order],
        token: str,
        run: str,
        wait_seconds: float,
        notes: Notes,
    ) -> None:
        group = reserve(role, wait_seconds)
        self._placed = [
            PlacedService(order.name, _start(role, order, group, index, f"{run}/{order.name}"), notes)
            for index, order in enumerate(orders)
        ]
        ended = threading.Event()
        poll = threading.Thread(target=_poll, args=(self._placed, token, ended), daemon=True)
        self.close = weakref.finalize(self, _close, group, self._placed, ended, poll)
        poll.start()

    def __iter__(self) -> Iterator[PlacedService]:
        return iter(self._placed)

    def wait(self, seconds: float) -> None:
        """Wait until all services have an address. Raises UserError if one fails, or after `seconds`."""
        end = time.monotonic() + seconds
        for placed in self._placed:
            while True:
                with suppress(Lost):
                    placed.address()
                    break
                if placed.has_failed or time.monotonic() > end:
                    self.close()
                    reason = placed.fault or f"no answer within {seconds:g} s"
                    raise UserError(f"{placed.name} did not start on the Ray cluster: {reason}")
                time.sleep(_POLL_SECONDS / 10)


def _start(role: Role, order: Order, group: Any, index: int, name: str) -> Any:
    import ray

    options = {
        **options_in(role, group, index),
        "name": name,
        "namespace": NAMESPACE,
        "max_restarts": -1,
        "max_concurrency": 16,
        "runtime_env": {"env_vars": _LEAVE_PROGRAMS},
    }
    return ray.remote(Service).options(**options).remote(asdict(order))


def _poll(placed: Sequence[PlacedService], token: str, ended: threading.Event) -> None:
    """Ask all services for their state until `ended`, or until this process leaves the cluster.

    A service has at most one open question.
    """
    import ray
    from ray.exceptions import ActorDiedError, RayError

    asked: dict[Any, PlacedService] = {}
    while not ended.is_set() and ray.is_initialized():
        busy = set(map(id, asked.values()))
        for one in placed:
            if id(one) not in busy and not one.is_dead:
                asked[one.actor.check.remote(token, one.earlier)] = one
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_POLL_SECONDS)
        for answer in answered:
            one = asked.pop(answer)
            try:
                one.update(Report(**ray.get(answer)))
            except RayError as error:
                one.lost(_reason(error), is_dead=isinstance(error, ActorDiedError))
        ended.wait(_POLL_SECONDS)


def _reason(error: Exception) -> str:
    """The last line of the error: that of the cause, on the other node."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1] if lines else type(error).__name__)[:_FAILED_STARTS_SHOWN]


def _close(
    group: Any, placed: Sequence[PlacedService], ended: threading.Event, poll: threading.Thread
) -> None:
    """End all services. Their programs end with the processes of the actors."""
    import ray

    ended.set()
    if not ray.is_initialized():
        return
    if poll is not threading.current_thread():
        poll.join()
    for one in placed:
        with suppress(Exception):  # the cluster may be gone
            ray.kill(one.actor)
    free(group)
