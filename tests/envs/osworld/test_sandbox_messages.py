"""Messages of the sandbox. tests/real boots it."""

import pytest

from arpo.envs.osworld.sandbox import namespace_remedy


@pytest.mark.parametrize(
    "output",
    [
        "bwrap: No permissions to create a new namespace, likely because the kernel does not allow it.",
        "bwrap: setting up uid map: Permission denied",
        "bwrap: Creating new namespace failed: Operation not permitted",
    ],
)
def test_a_kernel_without_user_namespaces_is_named_with_the_remedy(output):
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in namespace_remedy(output)


def test_other_output_has_no_remedy():
    assert namespace_remedy("bwrap: execvp /usr/bin/python3: No such file or directory") == ""
    assert namespace_remedy("Xvfb: fatal error") == ""
