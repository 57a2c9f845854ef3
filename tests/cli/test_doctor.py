"""`arpo doctor`: bfloat16 warning, GPU memory plans of recipes, damaged model folders, virtual machines."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from arpo.cli import doctor
from arpo.cli.doctor import machine_findings
from arpo.cli.entry_point import main
from arpo.config.recipe import shipped_recipes
from arpo.config.settings import ModelConfig, OSWorldConfig
from arpo.errors import UserError
from arpo.models import memory_plan
from arpo.models.known_models import known_model
from arpo.models.loading import resolve_model
from tiny_vlm import QWEN3_5_MOE, save_folder, tiny_of


@pytest.mark.parametrize(
    ("features", "sign"),
    [
        ({"asimd": True, "bf16": False}, "warning"),
        ({"asimd": True, "bf16": True}, "ok"),
        ({"avx2": True, "amx_bf16": True}, "ok"),
        ({"avx2": True}, "warning"),
    ],
)
def test_emulated_bfloat16_is_a_warning_and_no_failure(
    features: dict[str, bool],
    sign: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    monkeypatch.setattr(doctor, "findings", lambda: [doctor._bfloat16()])
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert shown.split()[:2] == [sign, "bfloat16"]
    assert ("float32" in shown) == (sign == "warning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(resolve_model("base"), tmp_path / "model")
    return tmp_path / "model"


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def without_a_shard(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "model-00001-of-00002.safetensors")
    shards = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(weights)}
    index = {"metadata": {}, "weight_map": shards}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def of_another_kind(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))


def without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def cut_short(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1000])


DAMAGES = [
    (pickled, ": only pickled weights (pytorch_model.bin), which ARPO never opens; a model needs"),
    (without_a_shard, "1 of 2 listed files are missing, first model-00002-of-00002.safetensors"),
    (of_another_kind, "model_type is 'llava', another kind of model; supported are qwen2_vl, qwen2_5_vl,"),
    (without_a_tokenizer, "tokenizer.json: not found. A model folder needs its tokenizer"),
    (cut_short, "model.safetensors: incomplete or damaged safetensors file"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_model_folder_that_cannot_be_loaded_is_one_error_line(
    damage: Callable[[Path], None],
    reason: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(folder)
    assert main(["train", "desk", "--model.path", str(folder), "--run.dir", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert line.startswith(f"arpo: error: {folder}") and reason in line
    assert printed.out == ""


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_doctor_plans_with_the_configuration_alone_and_lists_what_is_missing(
    damage: Callable[[Path], None], reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(folder)
    code = main(["doctor", "--recipe", "desk", "--model.path", str(folder)])
    printed = capsys.readouterr()
    if damage is of_another_kind:
        assert code == 2 and reason in printed.err
    else:
        assert code == 1 and "total" in printed.out
        [line] = [line for line in printed.out.splitlines() if reason in line]
        assert line.split()[0] == "MISSING"


def test_a_plan_needs_no_weights_if_they_are_random(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").unlink()
    words = ["doctor", "--recipe", "desk", "--model.path", str(folder)]
    assert main(words) == 1
    assert "no weights; a model needs" in capsys.readouterr().out
    assert main([*words, "--model.weights", "random"]) == 0
    assert "MISSING" not in capsys.readouterr().out


def test_everything_missing_is_listed_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "tokenizer.json").unlink()
    assert main(["doctor", "--recipe", "desk", "--model.path", str(folder)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if "MISSING" in line] == ["tokenizer", "weights"]


def advised_settings(output: str) -> list[str] | None:
    """The settings of a plan that does not fit; None if it fits."""
    lines = output.splitlines()
    where = [number for number, line in enumerate(lines) if line.startswith("does not fit")]
    return shlex.split(lines[where[0] + 1]) if where else None


MACHINES = ["--gpu 24", "--gpus 1 --gpu 80", "--gpus 2 --gpu 141", "--gpus 8 --gpu 48", "--gpus 64 --gpu 80"]
LARGE = [name for name in shipped_recipes() if name.startswith("osworld")]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LARGE)
def test_the_settings_that_doctor_advises_are_accepted_and_fit(
    recipe: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: dict[object, memory_plan.ModelInfo] = {}
    model_info = memory_plan.model_info

    def measured_once(config: object, model: ModelConfig) -> memory_plan.ModelInfo:
        key = str(config), model
        if key not in measured:
            measured[key] = model_info(config, model)
        return measured[key]

    monkeypatch.setattr(memory_plan, "model_info", measured_once)
    for machine in MACHINES:
        check_advice(["doctor", "--recipe", recipe, *machine.split()], capsys)


def test_advice_for_servers_and_learner_on_few_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_advice(["doctor", "--recipe", "osworld_node", "--gpus", "8", "--gpu", "80"], capsys)


def check_advice(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run doctor, then again with the settings that it advises. Returns them."""
    code = main(words)
    printed = capsys.readouterr()
    assert not printed.err, printed.err
    settings = advised_settings(printed.out)
    assert (settings is None) == (code == 0), printed.out
    if settings is None or settings[0] == "the":  # the current settings
        return []
    needs_larger = "a larger GPU is needed" in printed.out
    assert main([*words, *settings]) == int(needs_larger), (words, settings, capsys.readouterr())
    capsys.readouterr()
    return settings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("UI-TARS-1.5-7B", 8_292_166_656),
        ("/models/UI-TARS-72B-DPO", 73_405_560_320),
        ("Qwen/Qwen2-VL-2B-Instruct", 2_208_985_600),
        ("Qwen/Qwen2-VL-7B-Instruct", 8_291_375_616),
        ("Qwen/Qwen2.5-VL-3B-Instruct@main", 3_754_622_976),
        ("Qwen/Qwen2.5-VL-32B-Instruct", 33_452_718_336),
        ("Qwen/Qwen2.5-VL-72B-Instruct", 73_410_777_344),
        ("Qwen/Qwen3-VL-2B-Instruct", 2_127_532_032),
        ("Qwen/Qwen3-VL-4B-Thinking", 4_437_815_808),
        ("qwen3-vl-8b-instruct", 8_767_123_696),
        ("Qwen/Qwen3.5-9B", 9_409_813_744),  # without mtp.*
        ("Qwen/Qwen3.5-35B-A3B", 35_107_181_936),  # the same
    ],
)
def test_published_models_have_the_published_number_of_parameters(path: str, parameters: int) -> None:
    known = known_model(path)
    assert known is not None
    dims = memory_plan.model_info(known.config, ModelConfig()).dims
    assert dims.vision_parameters + dims.language_parameters == parameters


def test_a_model_is_planned_before_it_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    words = ["doctor", "--recipe", "osworld_128", "--gpu", "2000", "--model.path"]
    for path in ("UI-TARS-1.5-7B", "ByteDance-Seed/UI-TARS-1.5-7B"):
        assert main([*words, path]) == 0
        output = capsys.readouterr().out
        assert "fits into a GPU of 2000 GiB" in output and "not downloaded" in output
    assert main([*words, "somebody/unknown"]) == 2
    assert main([*words, "unknown"]) == 2


def test_the_plan_distinguishes_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--recipe", "desk", "--optim.ranks", "2", "--model.device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("these are for rank 0 of 2, which also samples; each other") for line in lines)


def test_a_plan_for_another_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--recipe", "desk", "--gpu", "16", "--optim.ranks", "8"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "fits into a GPU of 16 GiB"
    assert main(["doctor", "--recipe", "desk", "--gpu", "1"]) == 1
    assert "a larger GPU is needed" in capsys.readouterr().out


def test_gpu_needs_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--gpu", "80"]) == 2
    assert capsys.readouterr().err == "arpo: error: --gpu: needs a recipe to plan for; add --recipe RECIPE\n"
    assert main(["doctor", "--recipe", "desk", "--gpu", "much"]) == 2
    assert "is 'much', must be an integer >= 1" in capsys.readouterr().err


def test_vllm_servers_on_gpus_of_their_own_or_shared(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--recipe", "desk", "--gpu", "8", "--engine.name", "vllm", "--engine.replicas", "1"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("each vLLM server, on its own GPU:")
    assert [line.split()[:-2] for line in lines[start + 1 : start + 5]] == [
        ["weights"], ["longest", "episode"], ["passes"], ["libraries"],
    ]  # fmt: skip
    assert lines[-2].startswith("its cache holds about ") and lines[-1].startswith("fits into a GPU of 8 GiB")
    assert main([*words, "--engine.gpus", "0"]) == 0
    shared = "each vLLM server, on the GPU of the learner; it sleeps while the learner learns:"
    assert shared in capsys.readouterr().out
    assert main([*words[:4], "2", *words[5:], "--engine.gpus", "0"]) == 1
    assert "does not fit into a GPU of 2 GiB" in capsys.readouterr().out


def test_vllm_servers_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--recipe", "desk", "--gpu", "8", "--engine.name", "vllm"]) == 0
    expected = "the vLLM servers run elsewhere: http://127.0.0.1:9000 (engine.endpoints)"
    assert expected in capsys.readouterr().out.splitlines()


def test_a_gpu_for_servers_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--recipe", "desk", "--engine.name", "vllm", "--engine.replicas", "2"]
    assert main([*words, "--engine.gpus", "0"]) == 2
    assert "engine.replicas: is 2, must be at most 1: each server needs a GPU" in capsys.readouterr().err


def test_docker_needs_client_and_engine() -> None:
    assert doctor.docker(["echo", "27.1.0 27.0.3"]) == "client 27.1.0, engine 27.0.3"
    with pytest.raises(UserError, match="the client `docker` is not installed"):
        doctor.docker(["/none/docker", "version"])
    silent = "echo 27.1.0; echo note >&2; echo 'Cannot connect to the Docker daemon' >&2; exit 1"
    with pytest.raises(UserError) as refused:
        doctor.docker(["sh", "-c", silent])
    assert str(refused.value) == (
        "the engine does not answer the client: Cannot connect to the Docker daemon"
    )


def test_kvm_needs_a_device_that_this_user_may_use(tmp_path: Path) -> None:
    device = tmp_path / "kvm"
    with pytest.raises(UserError, match="kvm does not exist"):
        doctor.kvm(device)
    device.touch()
    assert doctor.kvm(device) == f"{device} is accessible"


def test_the_image_is_an_unpacked_disk(tmp_path: Path) -> None:
    path = tmp_path / "Ubuntu.qcow2"
    config = OSWorldConfig(machine=str(path))
    with pytest.raises(UserError, match=f"no disk image at {path}"):
        doctor.image(config)
    path.write_bytes(b"PK\x03\x04 a zip archive")
    with pytest.raises(UserError, match="is not a qcow2 disk image; a"):
        doctor.image(config)
    with path.open("wb") as file:
        file.write(b"QFI\xfb")
        file.truncate(3 * 2**29)  # sparse
    assert doctor.image(config) == f"{path}, 1.5 GiB"


def test_limits_are_those_of_control_groups_or_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = "arpo.envs.osworld.fork_server.control_groups"
    monkeypatch.setattr(groups, lambda: None)
    with pytest.raises(UserError, match="no control groups: 4096 MiB, 2048 processes per desktop, but"):
        doctor.limits(OSWorldConfig())
    monkeypatch.setattr(groups, object)
    assert doctor.limits(OSWorldConfig(cpus=1.5)) == (
        "control groups: 4096 MiB, 2048 processes, 1.5 CPU cores per desktop"
    )


def test_each_missing_part_has_one_line_and_one_remedy(tmp_path: Path) -> None:
    config = OSWorldConfig(machine=str(tmp_path / "none.qcow2"))
    optional, wanted = (machine_findings(config, warning=warning)[2] for warning in (False, True))
    assert not optional.needed and not wanted.needed
    first, remedy = str(optional).splitlines()
    assert first == f"{'-':>8}  OSWorld image  no disk image at {tmp_path / 'none.qcow2'}"
    assert remedy.strip().startswith('-> only for osworld.provider = "docker": unpack https://')
    assert str(wanted).split()[0] == "warning"


def test_a_recipe_with_virtual_machines_is_checked_for_them(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--recipe", "osworld_local", "--model.device", "cpu"]
    main(words)
    assert "OSWorld image" not in capsys.readouterr().out
    main([*words, "--osworld.provider", "docker"])
    assert "OSWorld image" in capsys.readouterr().out
    main([*words, "--osworld.provider", "docker", "--gpu", "80"])  # plans for another machine
    assert "OSWorld image" not in capsys.readouterr().out


def test_training_that_is_refused_has_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_folder(tiny_of(QWEN3_5_MOE), tmp_path / "model")
    words = ["doctor", "--recipe", "desk", "--model.path", str(folder), "--model.train"]
    assert main([*words, "all"]) == 2
    printed = capsys.readouterr()
    assert "use 'lora'" in printed.err and not printed.out.count("total")
    main([*words, "lora"])
    assert "total" in capsys.readouterr().out
