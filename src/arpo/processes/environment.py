"""Environment variables for child processes with untrusted data: an allow list. Secrets from variables.

A desktop's worker or an environment host reads data from guests and networks. Neither needs the user's API
keys and cloud credentials.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from fnmatch import fnmatchcase

from arpo.errors import UserError

MIN_SECRET_LENGTH = 16  # characters

ALLOWED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "TZ", "LANG", "LANGUAGE", "LC_*",
    "PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "*_NUM_THREADS", "CUDA_*", "NVIDIA_*",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "ARPO_GUEST_PACKAGES",
)  # fmt: skip


def clean_environment(*more: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The allowed variables of this process. `more` adds names or patterns.

    >>> clean_environment("AWS_*", environment={"PATH": "/bin", "AWS_REGION": "a", "HF_TOKEN": "b"})
    {'PATH': '/bin', 'AWS_REGION': 'a'}
    """
    patterns = (*ALLOWED, *more)
    return {
        name: value
        for name, value in environment.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def without_secrets(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """All variables of this process except ARPO's own, such as its tokens: for programs of the user.

    >>> without_secrets({"PATH": "/bin", "HF_TOKEN": "b", "ARPO_HOST_TOKEN": "c"})
    {'PATH': '/bin', 'HF_TOKEN': 'b'}
    """
    return {name: value for name, value in environment.items() if not name.startswith("ARPO_")}


def read_secret(variable: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The secret shared by a server and its callers; None if the variable is not set."""
    secret = environ.get(variable)
    if secret is None:
        return None
    if len(secret) < MIN_SECRET_LENGTH or not (secret.isascii() and secret.isprintable()) or " " in secret:
        raise UserError(f"{variable}: must be at least {MIN_SECRET_LENGTH} ASCII characters without spaces")
    return secret


def is_loopback(name: str) -> bool:
    """Whether a host name or address reaches only this machine."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
