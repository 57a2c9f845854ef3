"""Addresses of environment hosts, and their number of connections."""

import resource
import subprocess
import sys

import pytest

from arpo.envs.listen import Listen, host_connections, raise_descriptor_limit
from arpo.errors import UserError
from env_hosts import FAKE

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize("text", ["", "8700", ":8700", "127.0.0.1", "127.0.0.1:", "a:b", "a:99999", "a:-1"])
def test_listen_must_be_host_and_port(text):
    with pytest.raises(UserError, match="not HOST:PORT"):
        Listen.read(text)


def test_listening_beyond_loopback_needs_a_token():
    for text in ("127.0.0.1:8700", "127.9.9.9:0", "[::1]:0", "localhost:1"):
        Listen.read(text).checked(None)
    for text in ("0.0.0.0:8700", "[::]:8700", "192.168.1.4:8700", "desktops-1:8700"):
        with pytest.raises(UserError, match="no token: set ARPO_HOST_TOKEN"):
            Listen.read(text).checked(None)
        assert Listen.read(text).checked(TOKEN) == Listen.read(text)


@pytest.mark.parametrize(
    ("slots", "soft", "hard", "raised", "connections"),
    [
        (32, 1024, 4096, 1024, 192),  # enough
        (100, 256, 4096, 928, 464),  # raised
        (100, 256, 300, 300, 150),  # raised as far as possible
    ],
)
def test_the_limit_of_connections_follows_slots_and_open_files(
    slots, soft, hard, raised, connections, monkeypatch
):
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    raise_descriptor_limit(slots)
    assert limits[-1] == (raised, hard)
    assert host_connections(slots) == connections


def test_too_few_open_files_for_the_slots_are_a_user_error():
    command = [sys.executable, "-m", "arpo", "env-host", "--env", FAKE, "--slots", "100"]
    limited = ["sh", "-c", 'ulimit -n 120 && exec "$@"', "sh", *command, "--listen", "127.0.0.1:0"]
    ended = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "env.parallel = 100" in ended.stderr and "`ulimit -n 928`" in ended.stderr
