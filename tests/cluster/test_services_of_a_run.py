"""Services without Ray: orders, reports, and the program of an environment host."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from arpo.cluster.service import Order, Report, Service
from arpo.cluster.services import Notes, PlacedService
from arpo.config.recipe import load_config
from arpo.errors import UserError
from processes import descendants, parents

TOKEN = "0123456789abcdef"
REPORT = Report(incarnation="a", node="10.0.0.1", url="http://10.0.0.1:5000", restarts=0, fault="")


async def until(service: Service, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not condition(found := await service.check(TOKEN, 5)):  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.05)
    return found


def order(*words: str) -> Order:
    config = load_config("desk", ["--env.parallel=2", *words])
    return Order.of(config, "host", "environment host 0", Path("logs"))


def test_an_order_has_the_whole_recipe_in_plain_values():
    config = load_config("desk", ["--env.parallel=2", "--loss.kl=0.5"])
    made = asdict(Order.of(config, "server", "vLLM server 3", Path("logs")))
    assert load_config(None, json.loads(json.dumps(made))["settings"]) == config
    assert made["logs"] == str(Path.cwd() / "logs") and made["folder"] == str(Path.cwd())


def test_a_node_with_another_version_is_refused():
    other = asdict(replace(order(), version="0.0.1"))
    with pytest.raises(UserError, match=r"10.0.0.9: has arpo .*, the driver has 0.0.1: install the same"):
        Service(other, "10.0.0.9")


def test_a_service_without_an_answer_has_no_address():
    placed = PlacedService("environment host 0", None, Notes(), LookupError)
    with pytest.raises(LookupError, match="environment host 0 is starting"):
        placed.address()
    placed.update(replace(REPORT, url="", fault="no space left"))
    assert placed.has_failed
    with pytest.raises(LookupError, match="environment host 0 is starting: no space left"):
        placed.address()


def test_restarts_of_programs_and_actors_are_added_up():
    """Two restarts of the first program, the loss of its actor, one restart of the second program."""
    notes, told = Notes(), list[str]()
    notes.report = told.append
    placed = PlacedService("environment host 0", None, notes, LookupError)
    placed.update(REPORT)
    placed.update(replace(REPORT, restarts=2))
    assert placed.restarts == 2 and placed.earlier == 0 and not told
    moved = replace(REPORT, incarnation="b", node="10.0.0.2", url="http://10.0.0.2:6000")
    placed.update(replace(moved, url=""))
    assert told == ["environment host 0 was lost on 10.0.0.1 and starts again on 10.0.0.2"]
    placed.update(replace(moved, restarts=1))
    assert placed.restarts == 4 and placed.earlier == 3 and placed.address() == "http://10.0.0.2:6000"


def test_no_answer_keeps_the_last_address():
    """Its callers find out themselves whether it still works."""
    placed = PlacedService("environment host 0", None, Notes(), LookupError)
    placed.update(REPORT)
    placed.lost("the actor is unavailable", is_dead=False)
    assert placed.address() == REPORT.url and not placed.has_failed
    placed.lost("the actor died", is_dead=True)
    assert placed.has_failed


@pytest.mark.slow
def test_a_host_starts_at_the_first_check_and_again_after_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 0.1)

    async def scenario() -> None:
        service = Service(asdict(order()), "127.0.0.1")
        assert (await service.status())["state"] == "starting"
        first = await until(service, lambda found: bool(found["url"]))
        shown = await service.status()
        assert (shown["load"], shown["state"], shown["restarts"]) == ("0 of 2 slots in use", "running", 5)
        [host] = hosts()
        os.kill(host, signal.SIGKILL)
        again = await until(service, lambda found: found["restarts"] == 1 and bool(found["url"]))
        assert again["url"] != first["url"] and again["incarnation"] == first["incarnation"]
        assert (await service.status())["restarts"] == 6
        service.close()

    asyncio.run(scenario())
    assert not hosts()


@pytest.mark.slow
def test_a_host_that_hangs_is_restarted_and_has_no_address_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.envs.child_host.CHECK_SECONDS", 0.2)

    async def scenario() -> None:
        service = Service(asdict(order("--env.step_seconds=0.5")), "127.0.0.1")
        await until(service, lambda found: bool(found["url"]))
        [host] = hosts()
        os.kill(host, signal.SIGSTOP)
        await until(service, lambda found: not found["url"])
        assert (await service.status())["state"] == "starting"
        await until(service, lambda found: found["restarts"] == 1 and bool(found["url"]))
        service.close()

    asyncio.run(scenario())
    assert not hosts()


def test_a_host_that_does_not_start_is_reported_with_its_reason() -> None:
    async def scenario() -> None:
        service = Service(asdict(order("--env.name=no_such_module:Env")), "127.0.0.1")
        found = await until(service, lambda found: bool(found["fault"]))
        assert "no_such_module" in found["fault"] and found["url"] == ""
        assert (await service.status())["state"] == "failing"
        service.close()

    asyncio.run(scenario())


def test_a_service_that_no_longer_starts_is_reported_once() -> None:
    notes, told = Notes(), list[str]()
    notes.report = told.append
    placed = PlacedService("environment host 0", None, notes, LookupError)
    for report in (REPORT, *[replace(REPORT, url="", fault="No space left on device")] * 2):
        placed.update(report)
    assert told == ["environment host 0 does not start again on 10.0.0.1: No space left on device"]


def hosts() -> list[int]:
    """Processes of `arpo env-host` that this process started."""
    own = descendants(os.getpid()) & parents().keys()
    return [one for one in own if b"\0env-host\0" in Path(f"/proc/{one}/cmdline").read_bytes()]
