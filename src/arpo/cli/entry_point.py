"""Entry point of `arpo`: parses the command line and runs a command of `commands.py`.

A UserError prints one line to stderr; the exit code is 2. So does an OSError of the user's files, for example
of a full disk or a read-only folder. Ctrl-C: 130. Closed output (`arpo … | head`): 141. Any other exception
is a bug or a fault, and prints its traceback.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import select
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from arpo import __version__
from arpo.cli.command import Command
from arpo.cli.commands import COMMANDS
from arpo.config.recipe import keys, nearest
from arpo.errors import Outage, UserError, printable
from arpo.interrupts import INTERRUPTED, exit_at_once

_DOTTED = re.compile(r"--\w+\.[\w.-]+(=.*)?", re.DOTALL)
_AGENT = re.compile(r"^--agent(?==|$)")  # short for the setting
_CLOSED_OUTPUT = 141  # 128 + SIGPIPE, as a shell reports it
_MAX_MESSAGE = 4_000  # characters
_OUT_OF_GPU_MEMORY = (
    "{}: `nvidia-smi` shows whether another program uses this GPU. If none does, choose a smaller "
    "optim.tokens_per_microbatch. Then run the same command again; a run resumes from its last checkpoint"
)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# What the user can do about an OSError of a file.
_REMEDIES = {
    _FULL: "free some space, then run the same command again",
    (errno.EFBIG,): "raise the limit of file sizes (`ulimit -f`), then run the same command again",
    (errno.EROFS, errno.EACCES, errno.EPERM): "choose another folder, or change its permissions",
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG): "check the path",
    (errno.EEXIST, errno.ENOTEMPTY): "move it to another folder, then run the same command again",
    (errno.EIO, errno.ESTALE): "check the disk, then run the same command again",
    (errno.EMFILE, errno.ENFILE): "raise the limit of open files (`ulimit -n`), or lower env.parallel",
}


def main(argv: Sequence[str] | None = None) -> int:
    # Set before torch is imported: on shared cores, spinning OpenMP threads slow torch down.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if "_ARGCOMPLETE" in os.environ:
        from arpo.cli.completion import complete

        complete(*_parsers())
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        if argv is None and code == INTERRUPTED:  # this process ends: one more Ctrl-C ends it at once
            signal.signal(signal.SIGINT, lambda *_: exit_at_once())
        return code
    except BrokenPipeError:
        if not _discard_closed_output():
            raise
        return _CLOSED_OUTPUT


@contextmanager
def _flushed_output() -> Iterator[None]:
    """Flush stdout at the end: a closed pipe or a full disk raises here, not at interpreter shutdown."""
    try:
        yield
    except SystemExit:  # of --help and --version
        _flush()
        raise
    _flush()


def _flush() -> None:
    if sys.stdout is None:  # the process was started without stdout (`arpo … >&-`)
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _discard(sys.stdout.fileno())
        raise


def _discard_closed_output() -> bool:
    """Redirect stdout and stderr to /dev/null if their reader is gone. Returns whether one was."""
    closed = []
    for stream in filter(None, (sys.stdout, sys.stderr)):
        poll = select.poll()
        poll.register(stream.fileno(), 0)  # POLLERR and POLLHUP are always reported
        if poll.poll(0):
            closed.append(stream.fileno())
    for number in closed:
        _discard(number)
    return bool(closed)


def _discard(number: int) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _run(argv: Sequence[str]) -> int:
    """Run a command. Reports errors of the user in one line."""
    resume = ""
    try:
        with _flushed_output():
            command, options, overrides = parse_command(argv)
            if command.resumable and getattr(options, "out", argv) is not None:
                resume = "; to resume, run the same command again"
            return command.run(options, overrides)
    except UserError as error:
        return _report(str(error))
    except Outage as error:
        return _report(str(error), code=1)
    except RuntimeError as error:
        if not _is_out_of_gpu_memory(error):
            raise
        return _report(_OUT_OF_GPU_MEMORY.format(str(error).partition(". ")[0]), code=1)
    except OSError as error:
        if (message := _describe_storage(error)) is None:
            raise
        return _report(message)
    except KeyboardInterrupt:
        print(f"arpo: interrupted{resume}", file=sys.stderr)
        return INTERRUPTED


def _is_out_of_gpu_memory(error: RuntimeError) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def _report(message: str, code: int = 2) -> int:
    print(f"arpo: error: {printable(message[:_MAX_MESSAGE])}", file=sys.stderr)
    return code


def _describe_storage(error: OSError) -> str | None:
    """Path, reason and remedy of an OSError of a file. None for any other, for example of a network.

    Notes of the error are appended: "…: free some space, then run the same command again; it resumes after
    batch 3".
    """
    named = isinstance(error.filename, str | bytes | os.PathLike)
    remedy = next((text for numbers, text in _REMEDIES.items() if error.errno in numbers), None)
    if remedy is None or not (named or error.errno in (*_FULL, errno.EFBIG)):
        return None
    path = Path(os.fsdecode(error.filename)) if named else Path()
    free = f" ({_free_megabytes(path):.1f} MiB free)" if error.errno in _FULL and named else ""
    name = str(path) if named else "output"
    return "; ".join([f"{name}: {error.strerror}{free}: {remedy}", *getattr(error, "__notes__", [])])


def _free_megabytes(path: Path) -> float:
    folder = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.is_dir())
    return shutil.disk_usage(folder).free / 2**20


def parse_command(argv: Sequence[str]) -> tuple[Command, argparse.Namespace, list[str]]:
    """The command of a command line, its options, and its config keys. The keys are not checked yet."""
    for word in argv:
        if word != printable(word):
            raise UserError(f"{word!r}: has a control character, or is not UTF-8: change the name")
    words, overrides = split_overrides(argv)
    if words[:2] == ["eval", "osworld"]:
        words[:2] = ["eval osworld"]
    names = [command.name for command in COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in names:
        raise UserError(f"{words[0]!r}: unknown command{nearest(words[0], names)}")
    options, unknown = _parsers()[0].parse_known_args(words)
    command: Command = options.command
    if unknown:
        raise UserError(_unexpected(unknown[0], command))
    if overrides and not command.settings:
        raise UserError(f"{overrides[0]}: arpo {command.name} accepts no config keys")
    return command, options, overrides


def _unexpected(word: str, command: Command) -> str:
    if not word.startswith("-"):
        return f"{word!r}: unexpected argument (see: arpo {command.name} --help)"
    flags = [name for names, _ in command.arguments for name in names.split() if name.startswith("-")]
    settings = [f"--{key.name}" for key in keys()] if command.settings else []
    return f"{word}: unknown option{nearest(word.partition('=')[0], [*flags, '--help', *settings])}"


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate config keys from other words.

    >>> split_overrides(["train", "--loss.kl", "0.1", "desk"])
    (['train', 'desk'], ['--loss.kl', '0.1'])
    """
    plain: list[str] = []
    overrides: list[str] = []
    words = iter(argv)
    for given in words:
        word = _AGENT.sub("--rollout.agent", given)
        if not _DOTTED.fullmatch(word):
            plain.append(word)
        elif "=" in word:
            overrides.append(word)
        else:
            overrides += [word, *([value] if (value := next(words, None)) is not None else [])]
    return plain, overrides


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see: {self.prog} --help)")


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser, and those of the commands."""
    parser = _Parser(
        prog="arpo",
        description="Train agents that use a computer through screenshots, mouse and keyboard.",
        epilog="First steps: `arpo doctor` checks this machine; `arpo train` trains a tiny model on it. "
        "`arpo COMMAND --help` explains a command.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"arpo {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        example = "\n".join(f"  {line}" for line in command.example.splitlines())
        listing = "\n\nall config keys: arpo train --help-keys" if command.settings else ""
        own = commands.add_parser(
            command.name,
            help=command.purpose,
            description=f"{command.purpose[0].upper()}{command.purpose[1:]}.\n\n{command.lesson}",
            epilog=f"example:\n{example}{listing}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for names, details in command.arguments:
            own.add_argument(*names.split(), **details)
        own.set_defaults(command=command)
    return parser, commands.choices
