"""Errors of a connection: a bad address, a silent one, a missing package, a missing token of Ray."""

from __future__ import annotations

import socket
import sys

import pytest

from arpo.cluster.nodes import connect
from arpo.errors import UserError


def test_a_missing_package_has_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"Ray is not installed: .*pip install 'arpo\[ray\]'"):
        connect("auto")


@pytest.mark.parametrize("address", ["here", "10.0.0.1:", "10.0.0.1:70000", "ray://10.0.0.1"])
def test_a_bad_address_is_refused(address, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", _NotConnected)
    with pytest.raises(UserError, match="is not an address: use HOST:PORT"):
        connect(address)


def test_a_silent_address_is_refused_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", _NotConnected)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(UserError, match=f"no Ray cluster answers at {address}: .*check the address"):
        connect(address)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"no Ray cluster answers at {address}"):
        connect("auto")


def test_a_cluster_with_another_token_is_refused(monkeypatch):
    """Ray has tokens of its own (RAY_AUTH_MODE)."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", _Refused)
    with pytest.raises(UserError, match=r"cluster.ray = 'auto': no authentication token was found"):
        connect("auto")


class _NotConnected:
    """Ray as a module that was never initialised."""

    @staticmethod
    def is_initialized() -> bool:
        return False


class _Refused(_NotConnected):
    """Ray of a cluster with tokens, without one."""

    class exceptions:
        class RayError(Exception):
            pass

    @staticmethod
    def init(**options: object) -> None:
        raise _Refused.exceptions.RayError("no authentication token was found")
