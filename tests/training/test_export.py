import asyncio
import json
import os
import re
import shutil
import subprocess
import venv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    AutoTokenizer,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen3VLProcessor,
)
from transformers.utils import is_torchvision_available

from arpo.config import Config, ModelConfig
from arpo.envs.desk.env import DeskEnv
from arpo.errors import UserError
from arpo.learner.local import LocalLearner
from arpo.learner.saved_state import WEIGHTS_FILE
from arpo.models.loading import resolve_model
from arpo.models.trainable import set_trainable
from arpo.prompts.conversation import Conversation
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import PromptTemplate
from arpo.prompts.vision import ImageSettings
from arpo.rollout.player import open_player
from arpo.storage.checkpoint import CHECKPOINTS, LEARNER, save
from arpo.storage.run_folder import RunFolder
from arpo.tasks.lists import load_tasks
from arpo.training.export import export_model
from arpo.types import Prompt, Sampling, Screenshot
from tiny_vlm import QWEN2, QWEN3, QWEN3_5, first_prompt, save_folder, screenshot, stock_inputs, tiny_of
from tools.pretrain.tiny import (
    CHAT_TEMPLATE,
    IMAGE_SETTINGS,
    new_tiny_model,
    save_model_folder,
    tiny_config,
)
from tools.pretrain.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids

PARTS = ["image_processor", "tokenizer"]  # of a processor without video
TOKENIZER = build_tokenizer(ACTION_PHRASES, ["Click", "Save"], 225)


def new_model(seed: int) -> Qwen2_5_VLForConditionalGeneration:
    ids, size = special_ids(TOKENIZER), TOKENIZER.get_vocab_size()
    return new_tiny_model(
        tiny_config(size, ids, hidden=64, layers=1, vision_hidden=64, vision_layers=1), seed
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began with seed 0's weights and has a checkpoint with seed 1's."""
    folder = tmp_path_factory.mktemp("run")
    base = folder / "base-model"
    save_model_folder(new_model(0), TOKENIZER, base, dtype=torch.float16, settings=IMAGE_SETTINGS)
    store = RunFolder(folder)
    store.write_recipe(replace(Config(), model=ModelConfig(path=str(base))))
    store.close()

    def write(path: Path) -> None:
        (path / LEARNER).mkdir()
        save_file(dict(new_model(1).named_parameters()), path / LEARNER / WEIGHTS_FILE)

    save(folder / CHECKPOINTS, 7, write, keep=1)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForImageTextToText.from_pretrained(folder).state_dict()


def test_a_runs_newest_weights_in_a_plain_folder(run, tmp_path):
    out = export_model(run, tmp_path / "out", "float32", merged=True)
    exported, trained = weights(out), new_model(1).state_dict()
    assert exported.keys() == trained.keys()
    assert all(torch.equal(exported[name], trained[name]) for name in trained)
    ids = AutoTokenizer.from_pretrained(out)("Thought: Click Save")["input_ids"]
    assert ids == TOKENIZER.encode("Thought: Click Save").ids


def test_one_checkpoint_in_half_precision(run, tmp_path):
    exported = weights(
        export_model(run / CHECKPOINTS / "step-000007", tmp_path / "out", "bfloat16", merged=True)
    )
    trained = new_model(1).state_dict()
    assert all(torch.equal(exported[name], trained[name].bfloat16()) for name in trained)


def test_a_model_folder(run, tmp_path):
    for name in ("pytorch_model.bin", "modeling_other.py"):
        (run / "base-model" / name).write_bytes(b"old weights, foreign code")
    exported = weights(export_model(run / "base-model", tmp_path / "out", "float32", merged=True))
    assert {path.suffix for path in (tmp_path / "out").iterdir()}.isdisjoint({".bin", ".py"})
    began = new_model(0).half().float().state_dict()
    assert all(torch.equal(exported[name], began[name]) for name in began)


def test_refusals(run, tmp_path):
    with pytest.raises(UserError, match="use one of float32, bfloat16"):
        export_model(run, tmp_path / "out", "int8", merged=True)
    with pytest.raises(UserError, match="not empty"):
        export_model(run, run, "float32", merged=True)
    with pytest.raises(UserError, match="is not a run folder"):
        export_model(tmp_path, tmp_path / "out", "float32", merged=True)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="below"):
        export_model(run, tmp_path / "file" / "below", "float32", merged=True)
    store = RunFolder(tmp_path / "young")
    store.write_recipe(Config())
    store.close()
    with pytest.raises(UserError, match="no intact checkpoint: train it first"):
        export_model(tmp_path / "young", tmp_path / "out", "float32", merged=True)


def test_a_damaged_checkpoint_is_refused(run, tmp_path):
    def write(path: Path) -> None:
        (path / LEARNER).mkdir()
        (path / LEARNER / WEIGHTS_FILE).write_bytes(b"?")

    save(tmp_path / CHECKPOINTS, 3, write, keep=1)
    (tmp_path / "recipe.toml").write_text((run / "recipe.toml").read_text())
    with pytest.raises(UserError, match=r"learner: damaged, .*: restore it, or export another"):
        export_model(tmp_path, tmp_path / "out", "float32", merged=True)
    (tmp_path / CHECKPOINTS / "step-000003" / LEARNER / WEIGHTS_FILE).write_bytes(b"!")
    with pytest.raises(UserError, match=r"damaged: learner/weights\.safetensors does not match its sha256"):
        export_model(tmp_path / CHECKPOINTS / "step-000003", tmp_path / "out2", "float32", merged=True)


LORA = ModelConfig(train="lora", lora_rank=4)
RENDERER = Renderer(TOKENIZER, IMAGE_SETTINGS)
LOOK = first_prompt(RENDERER, "e", screenshot(1), "Click Save")


def adapted_model(seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """Seed 0's weights with adapters that have moved."""
    model = new_model(0)
    set_trainable(model, LORA, 0)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weight.half())  # as the folder has it
            if ".lora." in name:
                weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began with seed 0's weights and trained adapters beside them, as the learner saves it."""
    folder = tmp_path_factory.mktemp("lora")
    base = folder / "base-model"
    save_model_folder(new_model(0), TOKENIZER, base, dtype=torch.float16, settings=IMAGE_SETTINGS)
    store = RunFolder(folder)
    config = replace(Config(), model=replace(LORA, path=str(base)))
    store.write_recipe(config)
    store.close()
    learner = LocalLearner(adapted_model(5), RENDERER, config)
    save(folder / CHECKPOINTS, 3, lambda path: learner.save(path / LEARNER), keep=1)
    return folder


@torch.no_grad()
def logits(model: torch.nn.Module) -> torch.Tensor:
    """As plain transformers computes them, for a text with a picture."""
    found: torch.Tensor = model(**stock_inputs(RENDERER, LOOK.token_ids, LOOK.images)).logits
    return found


def test_adapters_are_merged_and_plain_transformers_answers_the_same(lora_run: Path, tmp_path: Path) -> None:
    out = export_model(lora_run, tmp_path / "out", "float32", merged=True)
    plain = AutoModelForImageTextToText.from_pretrained(out)
    assert plain.state_dict().keys() == new_model(0).state_dict().keys()
    expected = logits(adapted_model(5))
    torch.testing.assert_close(logits(plain), expected, atol=1e-4, rtol=0)
    assert (logits(new_model(0)) - expected).abs().max() > 0.1
    half = AutoModelForImageTextToText.from_pretrained(
        export_model(lora_run, tmp_path / "half", "bfloat16", merged=True)
    )
    assert half.dtype == torch.bfloat16
    exact, rounded = plain.state_dict(), half.state_dict()
    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact)


def test_a_config_may_name_the_dtype_for_its_parts_alone(tmp_path: Path) -> None:
    """As published Qwen3.5 models do."""
    folder = save_folder(tiny_of(QWEN3_5), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    del config["dtype"]
    config["text_config"]["dtype"] = "bfloat16"
    (folder / "config.json").write_text(json.dumps(config))
    exported = export_model(folder, tmp_path / "exported", merged=True)
    assert {one.dtype for one in load_file(exported / "model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.slow
def test_export_keeps_the_dtype_of_the_source(lora_run: Path, tmp_path: Path) -> None:
    """Weights of a bfloat16 run need no 32 bits, and half of the memory is half of 30 GiB for a 7B model."""
    half = export_model(lora_run, tmp_path / "half", "bfloat16", merged=True)
    again = export_model(half, tmp_path / "again", merged=True)
    assert load_file(again / "model.safetensors").keys() == load_file(half / "model.safetensors").keys()
    assert {one.dtype for one in load_file(again / "model.safetensors").values()} == {torch.bfloat16}
    single = export_model(lora_run, tmp_path / "single", merged=True)  # the run has float32
    assert {one.dtype for one in load_file(single / "model.safetensors").values()} == {torch.float32}
    wider = export_model(half, tmp_path / "wider", "float32", merged=True)
    assert {one.dtype for one in load_file(wider / "model.safetensors").values()} == {torch.float32}


def test_adapters_alone_are_what_has_to_be_added_to_the_base(lora_run: Path, tmp_path: Path) -> None:
    out = export_model(lora_run, tmp_path / "out", "float32", merged=False)
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == (
        "LORA",
        4,
        64.0,
        "none",
    )
    stored = load_file(out / "adapter_model.safetensors")
    base = AutoModelForImageTextToText.from_pretrained(lora_run / "base-model").float()
    with torch.no_grad():
        for layer in config["target_modules"]:
            a, b = (stored.pop(f"base_model.model.{layer}.lora_{which}.weight") for which in "AB")
            base.get_submodule(layer).weight.add_(64.0 / 4 * b @ a)
    assert not stored
    torch.testing.assert_close(logits(base), logits(adapted_model(5)), atol=1e-4, rtol=0)


def test_adapters_of_another_base_and_adapters_that_are_not_there_are_refused(
    run: Path, lora_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="no adapters to write separately"):
        export_model(run, tmp_path / "out", "float32", merged=False)
    with pytest.raises(UserError, match="no adapters to write separately"):
        export_model(lora_run / "base-model", tmp_path / "out", "float32", merged=False)
    other = tmp_path / "run"
    shutil.copytree(lora_run, other)
    save_model_folder(new_model(1), TOKENIZER, other / "base", dtype=torch.float32, settings=IMAGE_SETTINGS)
    recipe = (other / "recipe.toml").read_text()
    (other / "recipe.toml").write_text(recipe.replace(str(lora_run / "base-model"), str(other / "base")))
    with pytest.raises(UserError, match="with other frozen weights"):
        export_model(other, tmp_path / "out", "float32", merged=True)
    (other / CHECKPOINTS / "step-000003" / LEARNER / "learner.json").write_text("{}")
    with pytest.raises(UserError, match="damaged"):
        export_model(other / CHECKPOINTS / "step-000003", tmp_path / "out", "float32", merged=True)


@pytest.fixture
def without_video(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers loads a video processor with every Qwen-VL processor, and that needs torchvision."""
    if not is_torchvision_available():
        for processor in (Qwen2_5_VLProcessor, Qwen3VLProcessor):
            monkeypatch.setattr(processor, "get_attributes", classmethod(lambda _: PARTS))


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the packages that a model card names, and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    export_model(resolve_model("base"), folder / "model", "float32", merged=True)
    named = re.findall("^# pip install (.*)$", (folder / "model" / "README.md").read_text(), re.MULTILINE)
    packages = named[0].split()
    assert [package.partition("==")[0] for package in packages] == ["transformers", "torch", "pillow"]
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    tested = (
        f"torch=={torch.__version__.partition('+')[0]}"  # also for CPUs, with the package index in use here
    )
    for install in ([tested], packages):
        subprocess.run([python, "-m", "pip", "install", "--quiet", *install], check=True)
    return python


def run_card(python: Path, model: Path, instruction: str, shot: Screenshot, folder: Path) -> str:
    """What the code on the card of an exported model prints for a screenshot."""
    (code,) = re.findall(
        "^```python\n(.*?)^```$", (model / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    example = '"Open the file menu"'
    assert code.count(example) == 1
    (folder / "screenshot.png").write_bytes(shot.png)
    (folder / "use.py").write_text(code.replace(example, repr(instruction)))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-P", "use.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_card_of_an_export_works_in_a_fresh_environment(fresh_python: Path, tmp_path: Path) -> None:
    folder = export_model(
        resolve_model("base"), tmp_path / "out", "float32", merged=True, title=str(tmp_path / "out")
    )
    player = open_player(Config(model=ModelConfig(path=str(folder), device="cpu")))
    task = load_tasks("desk:32")[0]
    observation = asyncio.run(DeskEnv().start(task))
    plain = PromptTemplate(system="You are a helpful assistant.", user="{instruction}")
    conversation = Conversation(template=plain, instruction=task.instruction, max_images=1).look(
        observation.screenshot
    )
    messages = conversation.messages()
    rendered = player.token_renderer.render(messages)
    prompt = Prompt(
        episode_id="e", token_ids=rendered.token_ids, images=rendered.images, messages=tuple(messages)
    )
    greedy = Sampling(temperature=0, max_tokens=512, seed=0)
    completion = asyncio.run(player.scheduler.agent.engine.generate(prompt, greedy))
    assert "Action: " in completion.text
    said = run_card(fresh_python, folder, task.instruction, observation.screenshot, tmp_path)
    assert said == completion.text + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("family", [QWEN2, QWEN3])
def test_the_card_of_every_family_works(family: str, fresh_python: Path, tmp_path: Path) -> None:
    save_folder(tiny_of(family), tmp_path / "model")
    folder = export_model(
        tmp_path / "model", tmp_path / "out", "float32", merged=True, title=str(tmp_path / "out")
    )
    assert run_card(fresh_python, folder, "save the file", screenshot(0), tmp_path).strip()


def test_the_processor_of_an_export_has_the_template_and_the_image_size_of_the_run(
    run: Path, without_video: None, tmp_path: Path
) -> None:
    other = tmp_path / "run"
    shutil.copytree(run, other)
    store = RunFolder(other)
    small = ModelConfig(path=str(run / "base-model"), min_pixels=6272, max_pixels=100352)
    store.write_recipe(Config(model=small))
    store.close()
    out = export_model(other, tmp_path / "out", "float32", merged=True)
    processor = AutoProcessor.from_pretrained(out)
    assert (out / "chat_template.jinja").read_text() == processor.chat_template == CHAT_TEMPLATE
    size = processor.image_processor.size
    assert (size["shortest_edge"], size["longest_edge"]) == (6272, 100352)
    assert ImageSettings.from_folder(out).max_pixels == 100352
    kept = export_model(run / "base-model", tmp_path / "kept", "float32", merged=True)
    assert ImageSettings.from_folder(kept) == ImageSettings.from_folder(run / "base-model")
