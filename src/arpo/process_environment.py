"""Environment variables for child processes with untrusted data: an allow list.

A desktop's worker or an environment host reads data from guests and networks. Neither needs the user's API
keys and cloud credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase

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
