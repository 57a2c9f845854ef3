"""Where an environment host listens, and how many connections it may have."""

from __future__ import annotations

import re
import resource
from dataclasses import dataclass

from arpo.envs import wire
from arpo.errors import UserError
from arpo.http_server import STRANGERS, connection_limit, is_below
from arpo.processes.environment import MIN_SECRET_LENGTH, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """An address to listen on: --listen of `arpo env-host`."""

    host: str
    port: int  # 0: any free port

    @classmethod
    def read(cls, text: str) -> Listen:
        """Parse "127.0.0.1:8700" or "[::1]:0"."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (host and re.fullmatch(r"[0-9]{1,5}", port) and int(port) < 65536):
            raise UserError(f"--listen {text!r}: not HOST:PORT: use for example 127.0.0.1:8700")
        return cls(host=host, port=int(port))

    def checked(self, token: str | None) -> Listen:
        """Return self. Raises UserError for an address beyond loopback without a token."""
        if token is None and not is_loopback(self.host):
            raise UserError(
                f"--listen: {self.host} is reachable from other machines, but there is no token: set "
                f"{wire.TOKEN_VARIABLE} on the host and on its callers to the same secret of at least "
                f"{MIN_SECRET_LENGTH} characters, or listen on 127.0.0.1"
            )
        return self

    def url(self, port: int) -> str:
        return f"http://[{self.host}]:{port}" if ":" in self.host else f"http://{self.host}:{port}"


def host_connections(slots: int) -> int:
    """Maximum number of connections. Several runs may share a host, each with a connection per lease."""
    return connection_limit(STRANGERS + 4 * slots)


def raise_descriptor_limit(slots: int) -> None:
    """Raise the limit of open files, if necessary, as far as this process may.

    Raises UserError if the limit does not allow a connection for each slot.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (STRANGERS + 4 * slots)
    if is_below(soft, wanted):
        soft = hard if is_below(hard, wanted) else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if (most := host_connections(slots)) < slots:
        raise UserError(
            f"env.parallel = {slots}: the limit of {soft} open files is too low: raise it with "
            f"`ulimit -n {wanted}`, or use at most {most} slots"
        )
