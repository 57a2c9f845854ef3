"""Forbidden system calls of a guest: a filter for bubblewrap, made by libseccomp.

It is a deny list, like the one of Flatpak: desktop applications use hundreds of system calls. A refused call
fails with an error; the process continues. System calls of another architecture kill the process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import socket

from arpo.errors import EnvError, UserError

LIBRARY = "libseccomp.so.2"

# A program without these system calls falls back to older ones, which the filter can inspect.
_MISSING = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
_FORBIDDEN = (
    # namespaces and mounts
    "unshare", "setns", "mount", "umount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount",
    "fspick", "move_mount", "open_tree", "mount_setattr", "open_by_handle_at", "name_to_handle_at",
    # other processes' memory and descriptors
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd",
    # kernel: modules, tracing, keys, power, clock
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "bpf", "perf_event_open",
    "userfaultfd", "add_key", "request_key", "keyctl", "syslog", "reboot", "acct", "quotactl", "quotactl_fd",
    "swapon", "swapoff", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "personality",
    "uselib", "lookup_dcookie", "vhangup", "fanotify_init", "iopl", "ioperm", "modify_ldt", "vm86", "vm86old",
    # memory of other nodes
    "move_pages", "mbind", "get_mempolicy", "set_mempolicy", "migrate_pages",
)  # fmt: skip
# flags of clone: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEW_NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
_TERMINAL_INPUT = (0x5412, 0x541C)  # ioctl: TIOCSTI and TIOCLINUX type into a terminal
_SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_LAST_FAMILY = 45

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EQUAL, _GREATER, _MASKED_EQUAL = 4, 6, 7
_INT = 0xFFFFFFFF  # the kernel ignores the upper half of an int argument


class _Argument(ctypes.Structure):
    """Condition on one argument of a system call, libseccomp's struct scmp_arg_cmp."""

    _fields_ = (
        ("index", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _Filter:
    """Allows every system call without a rule."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY, use_errno=True)
        except OSError as error:
            raise UserError(
                f"{LIBRARY} is not installed; run `arpo osworld install` (Debian package libseccomp2)"
            ) from error
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._library.seccomp_init.argtypes = [ctypes.c_uint32]
        self._library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
        self._library.seccomp_rule_add_array.argtypes = [
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Argument)
        ]  # fmt: skip
        self._context = self._library.seccomp_init(_ALLOW)

    def refuse(self, name: str, error: int, *conditions: _Argument) -> None:
        """Ignores a system call unknown to this architecture or this version of libseccomp."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return
        array = (_Argument * len(conditions))(*conditions)
        _check(
            self._library.seccomp_rule_add_array(
                self._context, _ERRNO | error, number, len(conditions), array
            )
        )

    def program(self) -> bytes:
        """The filter as a program of the kernel's packet filter machine."""
        with open(os.memfd_create("seccomp"), "r+b") as file:
            _check(self._library.seccomp_export_bpf(self._context, file.fileno()))
            file.seek(0)
            return file.read()


@functools.cache
def filter_program() -> bytes:
    """The filter for `bwrap --seccomp`. Raises UserError if libseccomp is not installed."""
    rules = _Filter()
    for name in _MISSING:
        rules.refuse(name, errno.ENOSYS)
    for name in _FORBIDDEN:
        rules.refuse(name, errno.EPERM)
    for flag in _NEW_NAMESPACES:
        rules.refuse("clone", errno.EPERM, _Argument(0, _MASKED_EQUAL, flag, flag))
    for request in _TERMINAL_INPUT:
        rules.refuse("ioctl", errno.EPERM, _Argument(1, _MASKED_EQUAL, _INT, request))
    for family in range(_LAST_FAMILY + 1):
        if family not in _SOCKET_FAMILIES:
            rules.refuse("socket", errno.EAFNOSUPPORT, _Argument(0, _EQUAL, family, 0))
    rules.refuse("socket", errno.EAFNOSUPPORT, _Argument(0, _GREATER, _LAST_FAMILY, 0))
    return rules.program()


def _check(result: int) -> None:
    if result < 0:
        raise EnvError("start", f"libseccomp: {os.strerror(-result)}")
