"""Models of the hub, with the real huggingface_hub in its own process and a hub on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from arpo.config import Config, ModelConfig
from arpo.models.hub import HubModel, parse_hub_model, with_recorded_model
from arpo.models.loading import resolve_model
from fake_hub import TOKEN, Hub, Repository, hub_environment, serving_hub

BASE = resolve_model("base")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PROGRAM = """
import json, sys
from arpo.errors import UserError
from arpo.models.hub import DESCRIPTION, WEIGHTS, download, parse_hub_model
for name in sys.argv[1:]:
    try:
        print(download(parse_hub_model(name), (*DESCRIPTION, *WEIGHTS)))
    except UserError as error:
        print(error)
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving_hub() as hub:
        yield hub


def fetch(environment: Mapping[str, str], *names: str, program: str = PROGRAM) -> list[str]:
    """Download the models in a new process. Returns the folder or the error of each."""
    command = [sys.executable, "-c", program, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def test_a_hub_model_is_org_and_name_with_an_optional_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_hub_model("org/name") == HubModel(repo="org/name")
    assert parse_hub_model("ByteDance-Seed/UI-TARS-1.5-7B@v1.0") == HubModel(
        repo="ByteDance-Seed/UI-TARS-1.5-7B", revision="v1.0"
    )
    assert parse_hub_model("org/name@refs/pr/1") == HubModel(repo="org/name", revision="refs/pr/1")
    others = ("base", "./org/name", "../name", "~/name", "/org/name", "a/b/c", "org/name@", "org/", "a b/c")
    assert [path for path in others if parse_hub_model(path)] == []
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_hub_model("org/name") is None  # a local folder wins
    assert parse_hub_model("org/name@main") == HubModel(repo="org/name", revision="main")


def of(path: str) -> Config:
    return Config(model=ModelConfig(path=path))


def test_a_path_without_revision_means_the_recorded_commit() -> None:
    recorded = of(f"org/name@{COMMIT}")
    assert with_recorded_model(of("org/name"), recorded) == recorded
    for path in ("org/name@main", "org/other", "base"):
        assert with_recorded_model(of(path), recorded) == of(path)
    assert with_recorded_model(of("org/name"), of("base")) == of("org/name")


@pytest.mark.slow
def test_files_are_downloaded_once_without_pickles_and_code(hub: Hub, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in BASE.iterdir()}
    files |= {"pytorch_model.bin": b"?", "modeling.py": b"?", "onnx/config.json": b"{}", "LICENSE": b"MIT"}
    hub.repositories["acme/desk"] = Repository()
    commit = hub.repositories["acme/desk"].commit(files)
    environment = hub_environment(hub, tmp_path)
    first, again = fetch(environment, "acme/desk", "acme/desk@main")
    assert first == again == str(tmp_path / "hub" / "models--acme--desk" / "snapshots" / commit)
    wanted = {path.name for path in BASE.iterdir()} - {"README.md"} | {"LICENSE"}
    assert {path.name for path in Path(first).iterdir()} == wanted
    for name in wanted:
        assert (Path(first) / name).read_bytes() == files[name]
    sent = [line for line in hub.requests if line.startswith("GET /acme/desk/resolve/")]
    assert len(sent) == len(wanted)
    (Path(first) / "config.json").unlink()
    assert fetch(environment, f"acme/desk@{commit}") == [first]  # a missing file is downloaded again
    assert (Path(first) / "config.json").is_file()
    hub.requests.clear()
    assert fetch(environment, f"acme/desk@{commit}") == [first]
    assert [line for line in hub.requests if "acme" in line] == []  # a commit in the cache needs no network


@pytest.mark.slow
def test_a_revision_chooses_a_branch_or_a_commit(hub: Hub, tmp_path: Path) -> None:
    old, new = hub.add("acme/desk", BASE), hub.add("acme/desk", BASE)
    other = hub.add("acme/desk", BASE, "trial")
    folders = fetch(
        hub_environment(hub, tmp_path), "acme/desk", "acme/desk@trial", f"acme/desk@{old}", "acme/desk@none"
    )
    assert [Path(folder).name for folder in folders[:3]] == [new, other, old]
    assert "no branch, tag or commit 'none'" in folders[3]
    assert f"has no branch, tag or commit '{COMMIT}'" in fetch(
        hub_environment(hub, tmp_path), f"acme/desk@{COMMIT}"
    )[0]  # fmt: skip


@pytest.mark.slow
def test_unknown_private_and_gated_repositories(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/secret", BASE)
    hub.repositories["acme/secret"].private = True
    hub.add("acme/gated", BASE)
    hub.repositories["acme/gated"].gated = True
    names = ("acme/unknown", "acme/secret", "acme/gated")
    refused = fetch(hub_environment(hub, tmp_path), *names)
    assert all("HF_TOKEN" in line for line in refused)
    for name, line in zip(names, refused[:2], strict=False):
        assert line.startswith(f"{name}: neither a folder here nor a repository")
    assert f"accept its conditions on {hub.url}/acme/gated" in refused[2]
    allowed = fetch(hub_environment(hub, tmp_path, HF_TOKEN=TOKEN), *names)
    assert allowed[0] == refused[0]
    assert [(Path(folder) / "model.safetensors").is_file() for folder in allowed[1:]] == [True, True]


@pytest.mark.slow
def test_without_a_network_the_cache_is_enough(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add("acme/desk", BASE)
    folder = fetch(hub_environment(hub, tmp_path), "acme/desk")[0]
    for environment in (
        hub_environment(None, tmp_path),
        hub_environment(hub, tmp_path, HF_HUB_OFFLINE="1"),
    ):
        assert fetch(environment, "acme/desk", f"acme/desk@{commit}") == [folder, folder]
    shutil.rmtree(tmp_path / "hub" / "models--acme--desk" / "trees")  # as an older library left it
    assert fetch(hub_environment(None, tmp_path), f"acme/desk@{commit}") == [folder]


@pytest.mark.slow
def test_without_a_network_and_without_the_cache(hub: Hub, tmp_path: Path) -> None:
    unreachable = fetch(hub_environment(None, tmp_path), "acme/desk", f"acme/desk@{COMMIT}")
    for name, line in zip(("acme/desk", f"acme/desk@{COMMIT}"), unreachable, strict=True):
        assert line.startswith(f"{name}: ")
        for words in (f"{tmp_path}/hub", "http://127.0.0.1:9 cannot be reached", "Connection refused"):
            assert words in line
    (offline,) = fetch(hub_environment(hub, tmp_path, HF_HUB_OFFLINE="1"), "acme/desk")
    assert "HF_HUB_OFFLINE forbids downloads" in offline
    hub.failing = 503
    (failing,) = fetch(hub_environment(hub, tmp_path), "acme/desk")
    assert "503 Service Unavailable" in failing


@pytest.mark.slow
def test_a_full_disk(hub: Hub, tmp_path: Path) -> None:
    hub.add("acme/desk", BASE)
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n" + PROGRAM
    (refused,) = fetch(hub_environment(hub, tmp_path), "acme/desk", program=limited)
    assert f"{tmp_path}/hub: File too large" in refused and "HF_HOME" in refused
    (folder,) = fetch(hub_environment(hub, tmp_path), "acme/desk")  # the next attempt completes it
    assert (Path(folder) / "model.safetensors").read_bytes() == (BASE / "model.safetensors").read_bytes()
    assert json.loads((Path(folder) / "config.json").read_text())["model_type"] == "qwen2_5_vl"


@pytest.mark.slow
def test_an_upload_without_a_network(hub: Hub, tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from arpo.errors import UserError
from arpo.models.hub import create_repository, upload
calls = [lambda: create_repository("acme/x", private=True), lambda: upload(Path(sys.argv[1]), "acme/x", "m")]
for call in calls:
    try:
        print(call())
    except UserError as error:
        print(error)
"""
    unreachable = fetch(hub_environment(None, tmp_path, HF_TOKEN=TOKEN), str(BASE), program=program)
    assert len(unreachable) == 2
    for line in unreachable:
        assert line.startswith("--push acme/x: http://127.0.0.1:9 cannot be reached (")
    offline = hub_environment(hub, tmp_path, HF_TOKEN=TOKEN, HF_HUB_OFFLINE="1")
    assert all("HF_HUB_OFFLINE" in line for line in fetch(offline, str(BASE), program=program))
    foreign = fetch(hub_environment(hub, tmp_path, HF_TOKEN="hf_wrong"), str(BASE), program=program)
    assert [line.startswith("--push acme/x: the hub ") for line in foreign] == [True, True]
    assert all("log in with `hf auth login`" in line for line in foreign)


PIN = """
from arpo.config.recipe import load_config
from arpo.models.hub import pin_model
config = load_config("desk", ["--engine.name=openai", "--model.path=acme/desk"])
print(pin_model(config).model.path)
print(pin_model(config, teaching=True).model.path)
"""


@pytest.mark.slow
def test_a_student_of_a_chat_server_is_pinned_without_its_weights(hub: Hub, tmp_path: Path) -> None:
    commit = hub.add("acme/desk", BASE)
    found = fetch(hub_environment(hub, tmp_path / "home", HF_TOKEN=TOKEN), program=PIN)
    assert found == ["acme/desk", f"acme/desk@{commit}"]
    assert not [line for line in hub.requests if "safetensors" in line]
