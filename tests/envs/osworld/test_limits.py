"""Limits of a desktop: values for the kernel, and the search for a parent control group."""

import os
import subprocess
from pathlib import Path

import pytest

from arpo.config import OSWorldConfig
from arpo.config.recipe import load_config
from arpo.envs.osworld.limits import ControlGroups, Limits, parent_candidates, remove_group
from arpo.errors import UserError

LIMITS = Limits(memory_megabytes=64, processes=100, cpus=1.5, file_megabytes=16)
MOUNTS = """\
proc /proc proc rw 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""


def test_limits_of_a_control_group_and_of_processes():
    assert LIMITS.of_group() == {
        "memory.max": "67108864",
        "memory.swap.max": "0",
        "pids.max": "100",
        "cpu.max": "150000 100000",
    }
    worker = {"RLIMIT_DATA": 67_108_864, "RLIMIT_FSIZE": 16_777_216, "RLIMIT_CORE": 0}
    assert LIMITS.of_worker() == worker
    assert LIMITS.of_guest() == worker | {"RLIMIT_NPROC": 100, "RLIMIT_CPU": 3600}
    config = OSWorldConfig(memory_megabytes=1024, cpus=2.0)
    assert Limits.of(config) == Limits(memory_megabytes=1024, processes=2048, cpus=2.0, file_megabytes=512)


def test_a_group_is_added_next_to_this_process_or_above_it():
    membership = "4:memory:/jobs\n0::/user.slice/app.slice/run.scope\n"
    assert [str(path) for path in parent_candidates(MOUNTS, membership)] == [
        "/sys/fs/cgroup/unified/user.slice/app.slice/run.scope",
        "/sys/fs/cgroup/unified/user.slice/app.slice",
        "/sys/fs/cgroup/unified/user.slice",
        "/sys/fs/cgroup/unified",
    ]
    assert parent_candidates(MOUNTS, "0::/\n") == [Path("/sys/fs/cgroup/unified")]


def test_without_cgroup_v2_there_is_no_parent():
    assert parent_candidates("proc /proc proc rw 0 0\n", "0::/\n") == []
    assert parent_candidates(MOUNTS, "4:memory:/jobs\n") == []


def test_a_process_in_a_control_group_is_limited_and_killed_with_it():
    groups = ControlGroups.create(f"arpo-test-{os.getpid()}")
    if groups is None:
        pytest.skip("this machine has no cgroup v2 in which this user may limit memory")
    sleeper = subprocess.Popen(["sleep", "600"])
    group = groups.add("episode-0", sleeper.pid, LIMITS)
    assert (group / "memory.max").read_text() == "67108864\n"
    assert (group / "pids.max").read_text() == "100\n"
    assert str(sleeper.pid) in (group / "cgroup.procs").read_text().split()
    remove_group(group)
    assert sleeper.wait(60) < 0
    assert not group.exists()
    groups.folder.rmdir()


def test_a_search_without_success_leaves_no_group():
    if (groups := ControlGroups.create(f"arpo-test-{os.getpid()}")) is not None:
        groups.folder.rmdir()
    mounts, membership = (Path("/proc/self", name).read_text() for name in ("mounts", "cgroup"))
    for parent in parent_candidates(mounts, membership):
        assert not (parent / f"arpo-test-{os.getpid()}").exists()


def test_a_group_that_is_gone_can_be_removed_again(tmp_path):
    remove_group(tmp_path / "gone")


@pytest.mark.parametrize("key", ["memory_megabytes", "processes", "cpus"])
def test_a_recipe_cannot_switch_a_limit_off(key):
    with pytest.raises(UserError, match=f"osworld.{key}"):
        load_config("osworld_local", [f"--osworld.{key}", "0"])
