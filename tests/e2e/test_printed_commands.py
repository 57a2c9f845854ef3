"""Every command that a message, a help text, a recipe or a page names is run, with tiny settings on Desk."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest

import fake_vllm
from arpo.cli.commands import COMMANDS
from arpo.cli.entry_point import main, parse_command
from arpo.config.recipe import load_config
from arpo.envs.base import Env
from arpo.errors import UserError
from documentation import ROOT
from env_hosts import HostCommand
from fake_hub import TOKEN, hub_environment, serving_hub
from judges import judged_by
from openai_server import MODEL, tiny_model_server
from printed_commands import VALUE, commands_in, printed_commands, printed_texts
from tiny_runs import SETTINGS_OF_OSWORLD, tiny_settings
from verdicts import HELDOUT, Scripted, select, shipped_list

NAMES = [command.name for command in COMMANDS]
TASKS = ["pool-023", "pool-040"]
# Words of the commands, and what the tests put in their place.
PLACEHOLDERS = {
    VALUE: "runs/desk",
    "/models/UI-TARS-1.5-7B": "base",
    "0.0.0.0:8700": "127.0.0.1:0",
    "3": "1",  # seeds, epochs
    "32": "2",  # tasks
    "COMMAND": "train",
    "FOLDER": "runs/desk",
    "MODULE:CLASS": "doorbell:Doorbell",
    "NAME": MODEL,
    "ORG/NAME": "base",
    "RECIPE": "desk",
    "RUN": "runs/desk",
    "TASK": "random",
    "cuda": "cpu",
    "desk:pool": "train.json",
    "desk:quick": "heldout.json",
    "desk:test": "heldout.json",
    "failed:3,task:ID": "failed:3,task:pool-040",
    "runs/desk/checkpoints/step-000010": "runs/desk/checkpoints/step-000001",
    "osworld:published_128": "train.json",
    "osworld:train": "train.json",
}
HOSTS = ("http://desktops-1:8700,http://desktops-2:8700", "http://a:8700,http://b:8700", "http://a:8700")
SERVER = "http://127.0.0.1:8000/v1"
SECRET = "0123456789abcdef"
TRAINED = (
    "arpo compare paper --seeds 3 --out runs/paper --train.epochs 3"  # other commands add to this folder
)
# Commands for which PLACEHOLDERS have the wrong word, or which leave a word out.
INSTEAD = {
    "arpo VALUE --help": "arpo train --help",
    "arpo check-env MODULE:CLASS": "arpo check-env MODULE:CLASS --tasks doorbell_tasks.json",
    "arpo compare RECIPE … --seeds 3 --out FOLDER": TRAINED,
    "arpo compare RECIPE … --seeds 3 --out VALUE": TRAINED,
    "arpo eval osworld": f"arpo eval osworld --endpoint {SERVER} --model ui-tars",
    "arpo eval recipe.toml --model.path VALUE --out scores.json": (
        "arpo eval runs/desk/recipe.toml --model.path exported --out scores.json"
    ),
    "arpo judge RUN": f"arpo judge RUN --server.endpoints {SERVER} --server.model NAME",
    "arpo judge runs/desk --server.model NAME --episodes 64 --votes 5 --unanimous --inject": (
        "arpo judge runs/desk --server.model NAME --episodes 64 --votes 5 --unanimous --inject "
        f"--server.endpoints {SERVER}"
    ),
    "arpo play": "arpo play random",
    "arpo play --run runs/desk pool-": "arpo play --run runs/desk pool-023",
    "arpo play --watch": "arpo play random --watch",
    "arpo screen --tasks VALUE --out kept.json": "arpo screen --tasks train.json --out kept.json",
    "arpo train VALUE --run.dir VALUE": "arpo train runs/first/recipe.toml --run.dir runs/first",
    "arpo train osworld_local --model.path /models/UI-TARS-1.5-7B --model.device cuda --model.prompt …": (
        "arpo train osworld_local --model.path base --model.device cpu --model.prompt prompt.txt"
    ),
}
# Commands that run until Ctrl-C: a text of the last line before that, and their exit code.
UNTIL_CTRL_C = {
    r"env-host": (" slots at http://", 0),
    r"play .*--watch": ("Ctrl-C ends the viewer", 0),
    r"serve base(?!.*--gpus)": ("servers healthy", 0),
    r"view\b(?!.*--export)": ("Ctrl-C ends the server", 0),
    r"collect .*--engine.name person": ("http://127.0.0.1:", 130),
}


class Refused(NamedTuple):
    """A command that does not run here: what it needs, and the error with which it ends instead."""

    needs: str
    error: str


RAY = Refused("a Ray cluster: tests/ray_cluster", r"\bRay\b")
GPU = Refused("GPUs", r"engine\.gpus: is '.*', but this vLLM is a CPU build")
REFUSED = {
    "arpo cluster status": RAY,
    "arpo cluster status --ray 10.0.0.1:6379": RAY,
    "arpo train RECIPE --cluster.ray auto": RAY,
    "arpo train osworld_full --cluster.ray auto --cluster.hosts 16 --engine.name vllm --engine.replicas 32": (
        RAY
    ),
    "arpo train osworld_full --cluster.ray auto --cluster.hosts 4 --model.path /models/UI-TARS-1.5-7B": RAY,
    "arpo serve /models/UI-TARS-1.5-7B --recipe osworld_128 --gpus 0-7": GPU,
    "ARPO_ENGINE_KEY=SECRET arpo serve ORG/NAME --gpus 0-3 --host 0.0.0.0": GPU,
    "arpo train osworld_128 --engine.name vllm --engine.endpoints http://127.0.0.1:9000-9007": Refused(
        "vLLM: tests/vllm", "no vLLM server answers"
    ),
    "arpo osworld install": Refused("root and a network: make test-real", "--python /none: no such program"),
}
# The recipe is too large for one GPU: the command prints settings to reduce it.
FAILS = "arpo doctor --recipe osworld_subset32 --model.path /models/UI-TARS-1.5-7B --gpu 80"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files and runs that the commands assume."""
    folder = tmp_path_factory.mktemp("printed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files(folder)
        for words in (
            ["train", "desk", "--run.dir", "runs/desk", "--rollout.temperature", "3"],  # some do not parse
            ["collect", "paper", "--run.dir", "runs/collected", "--env.name", "verdicts:Scripted"],
        ):
            Scripted.play({task: [0, 1] for task in TASKS})
            assert main([*words, *tiny_settings(words)]) == 0
        assert main(["export", "runs/desk", "exported"]) == 0
        for name in ("plain-grpo", "first", "s0", "s1", "mine", "mine/first/seed-0"):
            shutil.copytree("runs/desk", f"runs/{name}")
        recipe = Path("runs/s1/recipe.toml")
        recipe.write_text(re.sub(r"(?m)^seed = 0$", "seed = 1", recipe.read_text()))
    return folder


def write_files(folder: Path) -> None:
    shutil.copytree(
        ROOT / "examples", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    for name in ("train", "kept", "evaluation_examples/32"):
        (folder / name).parent.mkdir(exist_ok=True)
        select(folder / f"{name}.json", "desk:pool", TASKS)
    select(folder / "heldout.json", "desk:heldout", [HELDOUT])
    (folder / "my-recipe.toml").write_text('extends = "desk"\n[run]\ndir = "runs/own"\n')
    (folder / "prompt.txt").write_text("{instruction}")
    code = inspect.getdoc(Env) or ""
    code = dedent(code[code.index("    class ") : code.index("`arpo ")])
    imports = "import io\nfrom PIL import Image\nfrom arpo.actions import *\nfrom arpo.types import *\n"
    (folder / "my_package").mkdir()
    (folder / "module.py").write_text(imports + code)
    (folder / "my_package/my_env.py").write_text(imports + code.replace("OneClick", "MyEnv"))
    for name in ("tasks", "my-tasks"):
        shutil.copy(folder / "doorbell_tasks.json", folder / f"{name}.json")
    domains = dict(zip(("gimp", "libreoffice_calc"), TASKS, strict=True))
    examples = folder / "evaluation_examples"
    (examples / "test_all.json").write_text(json.dumps({domain: [task] for domain, task in domains.items()}))
    for domain, task in domains.items():
        (examples / "examples" / domain).mkdir(parents=True)
        (examples / "examples" / domain / f"{task}.json").write_text(json.dumps(shipped_list("pool")[task]))


@pytest.fixture
def reader(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the commands, a copy of the prepared one."""
    folder = tmp_path / "reader"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("BROWSER", "true")  # the program that does nothing
    return folder


def words_of(printed: str) -> list[str]:
    """Words after `arpo`, with placeholders replaced."""
    words = shlex.split(INSTEAD.get(printed, printed).replace("…", ""))
    words = words[: words.index(">")] if ">" in words else words
    words = words[words.index("arpo") + 1 :]
    known = "/models/UI-TARS-1.5-7B" if words[0] == "doctor" else None  # it plans a model that is not there
    return [word if word == known else PLACEHOLDERS.get(word, word) for word in words]


def name_of(printed: str) -> str:
    """Name of the command; of `arpo --help`: --help."""
    words = words_of(printed)
    return " ".join(words[:2]) if " ".join(words[:2]) in NAMES else words[0]


def names_only(words: list[str]) -> bool:
    """Whether the words only name a command, or an option at their end: without arguments they do nothing."""
    try:
        parse_command(words)
    except UserError as error:
        short = " ".join(words) in NAMES or words[-1].startswith("--")
        missing = re.search("the following arguments are required|expected one argument", str(error))
        return short and missing is not None
    except SystemExit:  # --help
        pass
    return False


def settings_of(words: list[str], folder: Path) -> list[str]:
    """More words, with which the command is quick and uses nothing but this folder."""
    if words[:2] == ["osworld", "install"]:
        return ["--python", "/none"]
    if words[:2] == ["eval", "osworld"]:
        own = {key: value for key, value in SETTINGS_OF_OSWORLD.items() if not key.startswith("engine.")}
        return [f"--{key}={value}" for key, value in own.items()]
    if words[0] == "serve":
        return ["--engine.python", fake_vllm.install(folder), "--port", str(free_port())]
    if words[0] == "env-host":
        listen = [] if "--listen" in words else ["--listen", "127.0.0.1:0"]
        return [*listen, *([] if "--env" in words else ["--env.name", "desk"])]
    tiny = tiny_settings(words)
    if words[0] == "screen":  # two tasks that succeed in one of two episodes
        Scripted.play({task: [0, 1] for task in TASKS})
        tiny = [word for word in tiny if "--env.name" not in word]
        tiny += ["--env.name", "verdicts:Scripted", "--rollouts", "2"]
    if "--cluster.hosts" in words:  # each host has at least one environment
        tiny = [word for word in tiny if not word.startswith("--env.parallel")]
    return tiny


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def delete_output(words: list[str]) -> None:
    """Delete what an earlier command has written where this one writes."""
    written = [words[at + 1] for at, word in enumerate(words) if word in ("--out", "--save", "--export")]
    written += words[2:3] if words[0] == "export" else []
    if words[0] in ("train", "collect"):
        _, options, overrides = parse_command(words)
        folder = load_config(options.recipe, overrides).run.dir
        written += [] if options.recipe.startswith(folder) else [folder]
    for name in [] if words[0] == "compare" else written:  # a comparison skips finished runs
        shutil.rmtree(name, ignore_errors=True)
        for path in Path().glob(f"{name}*.json"):
            path.unlink()


def run(words: list[str]) -> tuple[int, str]:
    """Run in this process. Returns exit code and the error."""
    with redirect_stderr(StringIO()) as error:
        try:
            code = main(words)
        except SystemExit as ended:  # --help
            code = int(ended.code or 0)
    return code, error.getvalue()


def run_until(words: list[str], text: str) -> tuple[int, str]:
    """Run in a process, send Ctrl-C when it prints the text. Returns exit code and output."""
    command = [sys.executable, "-m", "arpo", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if text in line:
                process.send_signal(signal.SIGINT)
        return process.wait(), "".join(lines)


def push(words: list[str], folder: Path) -> tuple[int, str]:
    """Run in a process with a hub on this machine. Returns exit code and output."""
    with serving_hub() as hub:
        environment = hub_environment(hub, folder / "home", HF_TOKEN=TOKEN)
        done = subprocess.run(
            [sys.executable, "-m", "arpo", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


def with_servers(words: list[str], folder: Path, opened: ExitStack) -> list[str]:
    """The words with the addresses of servers and hosts that are started for them."""
    if words[0] == "judge":
        url = opened.enter_context(judged_by(lambda text, number: "SUCCESS")).url
        return [url if word == SERVER else word for word in words]
    if words[:2] == ["eval", "osworld"]:
        url = opened.enter_context(tiny_model_server("ui-tars")).url
        return [*words, f"--server.endpoints={url}"]
    if "--env.hosts" in words:
        host = HostCommand(folder, words[1], "--env.name", "desk", "--listen", "127.0.0.1:0")
        opened.callback(host.end)
        addresses = [host.address, host.address.replace("127.0.0.1", "localhost")]
        number = 1 + words[words.index("--env.hosts") + 1].count(",")
        words[words.index("--env.hosts") + 1] = ",".join(addresses[:number])
    return words


def failure(printed: str, folder: Path) -> str:
    """Why a command does not do what it should; "" if it does."""
    words = words_of(printed)
    if names_only(words):
        with redirect_stdout(StringIO()) as shown:
            code, said = run([*name_of(printed).split(), "--help"])
        return "" if code == 0 and words[-1] in shown.getvalue() else f"exit code {code} of --help: {said}"
    if any(word.startswith("--help") for word in words):
        code, said = run(words)
        return f"exit code {code}: {said}" if code else ""
    try:
        parse_command(words)
        delete_output(words)
        words += settings_of(words, folder)
    except UserError as error:
        return str(error)
    with ExitStack() as opened:
        words = with_servers(words, folder, opened)
        if refused := REFUSED.get(printed):
            code, said = run(words)
            expected = code == 2 and re.search(refused.error, said)
            return "" if expected else f"exit code {code}: {said}"
        line, wanted = " ".join(words), int(printed == FAILS)
        if until := next((end for pattern, end in UNTIL_CTRL_C.items() if re.match(pattern, line)), None):
            (code, said), wanted = run_until(words, until[0]), until[1]
        elif "--push" in words:
            code, said = push(words, folder)
        else:
            code, said = run(words)
    return "" if code == wanted else f"exit code {code}: {said}"


def test_all_commands_are_found() -> None:
    printed = printed_commands()
    assert {name_of(one) for one in printed} == {*NAMES, "--help"}
    assert {*INSTEAD, *REFUSED, FAILS} <= set(printed)
    assert len(printed) > 100


def test_a_wrong_command_fails(tmp_path: Path) -> None:
    assert "unknown option" in failure("arpo screen --taks VALUE --out kept.json", tmp_path)
    assert "optim.rank" in failure("arpo train --optim.rank 8", tmp_path)
    assert "unknown command" in failure("arpo trian desk", tmp_path)


def test_every_printed_make_target_and_extra_exists() -> None:
    text = "\n".join(printed_texts())
    targets = set(re.findall(r"`make ([a-z]+)`|\bmake ([a-z]+), in the project", text))
    extras = set(re.findall(r"\barpo\[([a-z]+)\]", text))
    assert ("", "vllm") in targets and "ray" in extras
    goals = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert {"".join(pair) for pair in targets} <= set(goals)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert extras <= project["optional-dependencies"].keys()


def test_a_command_ends_with_its_backticks_its_line_or_its_sentence() -> None:
    assert commands_in("Try `arpo check-env`, then `arpo eval --out\nscores.json`") == [
        *("arpo check-env", "arpo eval --out scores.json")
    ]
    assert commands_in("lists (see: arpo play --help); arpo of 2026") == ["arpo play --help"]
    assert commands_in("example:\n  A=B arpo serve base --gpus 0,1\n  arpo view runs/a") == [
        *("A=B arpo serve base --gpus 0,1", "arpo view runs/a")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "--help"])
def test_every_printed_command_runs(name: str, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("ARPO_HOST_TOKEN", "ARPO_ENGINE_KEY"):
        monkeypatch.setenv(variable, SECRET)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it was not installed
    printed = {tuple(words_of(one)): one for one in printed_commands() if name_of(one) == name}
    assert {one: why for one in printed.values() if (why := failure(one, reader))} == {}
