from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForImageTextToText, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from arpo.checkpoint import CHECKPOINTS, LEARNER, save
from arpo.config import Config, ModelConfig
from arpo.errors import UserError
from arpo.learner.local import WEIGHTS
from arpo.models.export import export_model
from arpo.models.tiny import IMAGE_SETTINGS, new_tiny_model, save_model_folder, tiny_config
from arpo.models.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids
from arpo.store import Store

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
    store = Store(folder)
    store.write_recipe(replace(Config(), model=ModelConfig(path=str(base))))
    store.close()

    def write(path: Path) -> None:
        (path / LEARNER).mkdir()
        save_file(dict(new_model(1).named_parameters()), path / LEARNER / WEIGHTS)

    save(folder / CHECKPOINTS, 7, write, keep=1)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForImageTextToText.from_pretrained(folder).state_dict()


def test_a_runs_newest_weights_in_a_plain_folder(run, tmp_path):
    out = export_model(run, tmp_path / "out", "float32")
    exported, trained = weights(out), new_model(1).state_dict()
    assert exported.keys() == trained.keys()
    assert all(torch.equal(exported[name], trained[name]) for name in trained)
    ids = AutoTokenizer.from_pretrained(out)("Thought: Click Save")["input_ids"]
    assert ids == TOKENIZER.encode("Thought: Click Save").ids


def test_one_checkpoint_in_half_precision(run, tmp_path):
    exported = weights(export_model(run / CHECKPOINTS / "step-000007", tmp_path / "out", "bfloat16"))
    trained = new_model(1).state_dict()
    assert all(torch.equal(exported[name], trained[name].bfloat16()) for name in trained)


def test_a_model_folder(run, tmp_path):
    exported = weights(export_model(run / "base-model", tmp_path / "out", "float32"))
    began = new_model(0).half().float().state_dict()
    assert all(torch.equal(exported[name], began[name]) for name in began)


def test_refusals(run, tmp_path):
    with pytest.raises(UserError, match="use one of float32, bfloat16"):
        export_model(run, tmp_path / "out", "int8")
    with pytest.raises(UserError, match="not empty"):
        export_model(run, run, "float32")
    with pytest.raises(UserError, match="neither a run folder"):
        export_model(tmp_path, tmp_path / "out", "float32")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be made"):
        export_model(run, tmp_path / "file" / "below", "float32")
    store = Store(tmp_path / "young")
    store.write_recipe(Config())
    store.close()
    with pytest.raises(UserError, match="no whole checkpoint yet"):
        export_model(tmp_path / "young", tmp_path / "out", "float32")


def test_a_damaged_checkpoint_is_refused(run, tmp_path):
    def write(path: Path) -> None:
        (path / LEARNER).mkdir()
        (path / LEARNER / WEIGHTS).write_bytes(b"?")

    save(tmp_path / CHECKPOINTS, 3, write, keep=1)
    (tmp_path / "recipe.toml").write_text((run / "recipe.toml").read_text())
    with pytest.raises(UserError, match="cannot be read"):
        export_model(tmp_path, tmp_path / "out", "float32")
    (tmp_path / CHECKPOINTS / "step-000003" / LEARNER / WEIGHTS).write_bytes(b"!")
    with pytest.raises(UserError, match=r"damaged: learner/weights\.safetensors has other content"):
        export_model(tmp_path / CHECKPOINTS / "step-000003", tmp_path / "out2", "float32")
