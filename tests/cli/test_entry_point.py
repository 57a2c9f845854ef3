"""`arpo`: parsing of the command line, help, error messages and exit codes."""

import ast
import errno
import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import arpo
from arpo.cli import doctor
from arpo.cli.commands import COMMANDS
from arpo.cli.entry_point import main, parse_command, split_overrides
from arpo.config import Config, EnvConfig
from arpo.envs.factory import resolve_env
from arpo.errors import UserError
from arpo.models.loading import resolve_model
from arpo.storage.run_folder import RunFolder

MY_ENV = """
from arpo.testing import FakeEnv
class Mine(FakeEnv): ...
class NoEnv: ...
class NeedsAddress(FakeEnv):
    def __init__(self, address, timeout=3): ...
"""


def refusal(capsys, *argv):
    assert main(argv) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("arpo: error: ")
    return lines[0].removeprefix("arpo: error: ")


def test_config_keys_are_separated_from_other_words():
    words = ["train", "--loss.kl", "-1", "desk", "--run.dir=a b", "--help-keys", "--run.seed"]
    assert split_overrides(words) == (
        ["train", "desk", "--help-keys"],
        ["--loss.kl", "-1", "--run.dir=a b", "--run.seed"],
    )
    assert split_overrides(["report", "runs/v1.2", "--out", "a.json"])[1] == []
    assert split_overrides(["train", "--agent", "python -x"])[1] == ["--rollout.agent", "python -x"]
    assert split_overrides(["train", "--agent=a b", "--agents"]) == (
        ["train", "--agents"],
        ["--rollout.agent=a b"],
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_every_command_has_an_example(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([command.name, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "example:" in text and f"  arpo {command.name}" in text


def test_help_imports_no_heavy_library():
    code = (
        "import sys; from arpo.cli.entry_point import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'PIL', 'rich', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'help loads {heavy}' if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "check-env" in result.stdout


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "arpo", "train", "--loss.cliplow", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    expected = "arpo: error: command line: loss.cliplow: unknown key (did you mean loss.clip_low?)\n"
    assert result.stderr == expected


@pytest.mark.parametrize(
    ("words", "buffered"),
    [("train --help-keys", True), ("train --help-keys", False), ("doctr", True)],
)
def test_closed_output_ends_the_command_quietly(words, buffered):
    """As in `arpo train --help-keys | head -3`, with the reader gone before the first line."""
    command = [sys.executable, *([] if buffered else ["-u"]), "-m", "arpo", *words.split()]
    both = words == "doctr"  # an error message on a closed stderr
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT if both else subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    error = b"" if process.stderr is None else process.stderr.read()
    assert error == b""
    assert process.wait() in (141, 0)  # argparse ignores errors when it prints help: 0


def test_a_broken_pipe_elsewhere_is_not_hidden(monkeypatch):
    def broken(config):
        raise BrokenPipeError("a rank is gone")

    monkeypatch.setattr("arpo.config.recipe.find_recipe", broken)
    with pytest.raises(BrokenPipeError, match="a rank is gone"):
        main(["train"])


def test_user_errors_print_one_line_and_exit_with_2(capsys, tmp_path):
    assert "(did you mean desk?)" in refusal(capsys, "train", "dsek")
    assert "rollout.group_size: is 1, must be >= 2" in refusal(capsys, "train", "--rollout.group_size", "1")
    assert "COMMAND" in refusal(capsys)
    assert "--out" in refusal(capsys, "screen")
    assert (
        refusal(capsys, "report", ".", "--run.seed", "1") == "--run.seed: arpo report accepts no config keys"
    )
    assert "not a run folder" in refusal(capsys, "report", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("trian", "'trian': unknown command (did you mean train?)"),
        ("evaluate", "'evaluate': unknown command (did you mean eval?)"),
        ("train paper extra", "'extra': unexpected argument (see: arpo train --help)"),
        ("train --lr 3", "--lr: unknown option (did you mean --optim.lr?)"),
        ("train --sedes 3", "--sedes: unknown option (did you mean --replay.seeds?)"),
        ("compare paper --sedes 3 --out o", "--sedes: unknown option (did you mean --seeds?)"),
        ("compare paper --sedes=3 --out o", "--sedes=3: unknown option (did you mean --seeds?)"),
        ("report . --out o", "--out: unknown option (valid: --episodes, --help-metrics, --help)"),
    ],
)
def test_an_unknown_word_suggests_the_nearest_one(capsys, words, reason):
    assert refusal(capsys, *words.split()) == reason


def test_help_keys(capsys):
    assert main(["train", "--help-keys"]) == 0
    assert "--replay.enabled true  (bool)" in capsys.readouterr().out
    assert main(["train", "--help-keys", "engine"]) == 0
    listed = capsys.readouterr().out
    assert "\n[engine]" in listed and "--engine.name" in listed and "--replay.enabled" not in listed
    assert "--help-keys 'engin': unknown section (did you mean engine?)" in refusal(
        capsys, "train", "--help-keys", "engin"
    )


def test_report(capsys, tmp_path):
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    store.close()
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"


def test_ctrl_c_explains_how_to_resume(capsys, monkeypatch):
    def interrupted(config):
        raise KeyboardInterrupt

    monkeypatch.setattr("arpo.config.recipe.find_recipe", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err == "arpo: interrupted; to resume, run the same command again\n"
    for words in (["eval"], ["play", "pool-001"]):  # without --out, nothing is stored
        assert main(words) == 130
        assert capsys.readouterr().err == "arpo: interrupted\n"


def test_the_doctor_never_crashes(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = main(["doctor"])
    text = capsys.readouterr().out
    assert code == (1 if "MISSING" in text else 0)
    assert "ok  torch" in text and "Python" in text


def test_an_exception_in_a_check_is_its_result():
    def broken():
        raise RuntimeError("no such library")

    finding = doctor._try("thing", broken, "install the thing")
    assert str(finding).split() == [
        *("MISSING", "thing", "RuntimeError:", "no", "such", "library", "->", "install", "the", "thing")
    ]


def test_custom_environments(tmp_path, monkeypatch):
    (tmp_path / "mine_for_cli.py").write_text(MY_ENV)
    (tmp_path / "broken_for_cli.py").write_text("\n1 / 0")
    (tmp_path / "typo_for_cli.py").write_text("def one():\n    return (")
    (tmp_path / "imports_for_cli.py").write_text("import not_there_for_cli")
    (tmp_path / "exits_for_cli.py").write_text("import sys; sys.exit(3)")
    monkeypatch.chdir(tmp_path)
    assert type(resolve_env(Config(env=EnvConfig(name="mine_for_cli:Mine")))).__name__ == "type"
    for name, reason in {
        "mine_for_cli": "module:Class",
        "mine_for_cli:Theirs": "has no class Theirs",
        "mine_for_cli:NoEnv": r"add the methods start, step, evaluate, close \(mine_for_cli.py:\d+\)",
        "mine_for_cli:NeedsAddress": r"without arguments, but it needs address: give them default values "
        r"\(mine_for_cli.py:\d+\)",
        "broken_for_cli:Env": r"ZeroDivisionError.* \(broken_for_cli.py:2\)",
        "typo_for_cli:Env": r"SyntaxError.* \(typo_for_cli.py:2\)",
        "imports_for_cli:Env": r"No module named 'not_there_for_cli'.* \(imports_for_cli.py:1\)",
        "exits_for_cli:Env": r"SystemExit: 3",
        "not_there_for_cli:Env": "no module not_there_for_cli: run the command in the folder of "
        "not_there_for_cli.py, or install it",
    }.items():
        with pytest.raises(UserError, match=reason):
            resolve_env(Config(env=EnvConfig(name=name)))


def test_a_command_works_without_stdout():
    code = "import sys; from arpo.cli import main; sys.exit(main(['train', '--help-keys']))"
    command = f'{sys.executable} -c "{code}" >&-'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_below_stdout_is_one_line(unbuffered):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "arpo", "train", "--help-keys"]
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    expected = "arpo: error: output: No space left on device: free some space, then run the same command"
    assert (done.returncode, done.stderr) == (2, f"{expected} again\n")


def test_a_full_disk_is_one_line_with_the_free_space_and_the_place_to_resume(capsys, monkeypatch, tmp_path):
    def full(recipe):
        error = OSError(
            errno.ENOSPC, "No space left on device", str(tmp_path / "checkpoints" / "step-000004")
        )
        error.add_note("it resumes after batch 3")
        raise error

    monkeypatch.setattr("arpo.config.recipe.find_recipe", full)
    expected = (
        r"/checkpoints/step-000004: No space left on device \(\d+\.\d MiB free\): "
        "free some space, then run the same command again; it resumes after batch 3"
    )
    assert re.search(expected, refusal(capsys, "train"))


def test_a_full_gpu_is_one_line_with_what_to_do(capsys, monkeypatch):
    def full(recipe):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 624.00 MiB. GPU 0 has a total …")

    monkeypatch.setattr("arpo.config.recipe.find_recipe", full)
    assert main(["train"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("arpo: error: CUDA out of memory: `nvidia-smi` shows")
    assert "optim.tokens_per_microbatch" in error and error.count("\n") == 1


def test_an_unexpected_error_is_not_hidden(monkeypatch):
    for error in (
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        OSError("without a number"),
        FileNotFoundError(errno.ENOENT, "No such file or directory"),  # without a name
        RuntimeError("a bug"),
    ):

        def broken(recipe, error=error):
            raise error

        monkeypatch.setattr("arpo.config.recipe.find_recipe", broken)
        with pytest.raises(type(error)):
            main(["train"])


def test_episodes_are_collected_for_the_training_of_the_same_recipe():
    recipes = [parse_command([name])[1].recipe for name in ("train", "collect")]
    assert recipes == ["desk_fresh", "desk_fresh"]


@pytest.mark.parametrize(
    "words",
    [
        "train --run.dir {}",
        "collect --run.dir {}",
        "eval --out {}",
        "screen --out {}",
        "compare desk --seeds 1 --out {}",
        "export {model} {}",
        "eval osworld --tasks desk:32 --env.name desk --result_dir {}",
        "env-host --env desk --listen 127.0.0.1:0 --ready-file {}",
    ],
)
@pytest.mark.parametrize("folder", ["/proc/self/fdinfo", "{file}"])
def test_storage_that_cannot_be_written_is_one_line(capsys, tmp_path, monkeypatch, words, folder):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    place = folder.format(file=tmp_path / "file")
    argv = [word.format(f"{place}/run", model=resolve_model("base")) for word in words.split()]
    assert place in refusal(capsys, *argv)


def test_words_that_no_file_name_may_have(capsys):
    assert "'a\\x00b': has a control character" in refusal(capsys, "report", "a\0b")
    assert "'\\udcff': has a control character, or is not UTF-8" in refusal(capsys, "report", "\udcff")
    assert "'a\\x1b[2J': has a control character" in refusal(capsys, "train", "--run.dir", "a\x1b[2J")


def printed_commands():
    """Every command in the messages and help texts of the package, as words after `arpo`.

    A value that a message inserts is "1". A command without arguments only names itself.
    """
    texts = [path.read_text("utf-8") for path in Path(arpo.__file__).parent.rglob("*.py")]
    for text in texts:
        for node in ast.walk(ast.parse(text)) if "`arpo " in text else ():
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "1" for part in node.values]
                yield from COMMAND.findall("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from COMMAND.findall(node.value)


COMMAND = re.compile(r"`arpo ([a-z][^`]* [^`]+)`")
NEEDS_A_VALUE = ("report --episodes", "view --export")  # options that a sentence names


def test_every_command_in_a_message_can_be_parsed(capsys):
    commands = {" ".join(command.split()) for command in printed_commands()} - {*NEEDS_A_VALUE}
    assert len(commands) > 10
    for command in sorted(commands):
        with suppress(SystemExit):  # --help
            parse_command(shlex.split(command.replace("…", "")))
