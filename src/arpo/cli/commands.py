"""All commands of `arpo`, in the order of `arpo --help`. `entry_point.py` parses the command line.

Each command imports its modules when it runs: `arpo --help` is fast and imports no torch.
"""

from __future__ import annotations

from arpo.cli import (
    check_env_command,
    cluster_command,
    collect_command,
    compare_command,
    doctor_command,
    env_host_command,
    eval_command,
    eval_osworld_command,
    export_command,
    judge_command,
    osworld_command,
    play_command,
    recipes_command,
    report_command,
    screen_command,
    serve_command,
    train_command,
    view_command,
)

COMMANDS = (
    train_command.COMMAND,
    recipes_command.COMMAND,
    collect_command.COMMAND,
    eval_command.COMMAND,
    eval_osworld_command.COMMAND,
    play_command.COMMAND,
    screen_command.COMMAND,
    judge_command.COMMAND,
    export_command.COMMAND,
    compare_command.COMMAND,
    report_command.COMMAND,
    view_command.COMMAND,
    env_host_command.COMMAND,
    serve_command.COMMAND,
    cluster_command.COMMAND,
    doctor_command.COMMAND,
    osworld_command.COMMAND,
    check_env_command.COMMAND,
)
