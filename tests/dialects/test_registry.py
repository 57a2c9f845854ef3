"""Choice of a dialect by name and type of the model."""

import pytest

from arpo.dialects.registry import DIALECTS, choose_dialect
from arpo.errors import UserError


@pytest.mark.parametrize(
    ("model", "model_type", "name"),
    [
        ("base", None, "ui_tars_1_5"),
        ("ui-tars", None, "ui_tars_1_5"),
        ("ByteDance-Seed/UI-TARS-1.5-7B", "qwen2_5_vl", "ui_tars_1_5"),
        ("ByteDance-Seed/UI-TARS-7B-DPO", "qwen2_vl", "ui_tars"),
        ("bytedance-research/UI-TARS-72B-SFT", None, "ui_tars"),
        ("/models/ui-tars-mine", "qwen2_vl", "ui_tars"),
        ("/models/policy", "qwen2_5_vl", "ui_tars_1_5"),
        ("/models/policy", "qwen2_vl", "ui_tars"),
        ("/models/policy", "qwen3_vl", "qwen3_vl"),
        ("Qwen/Qwen3-VL-4B-Instruct@main", "qwen3_vl", "qwen3_vl"),
        ("runs/qwen2.5-vl-7b/model", "qwen2_5_vl", "qwen2_5_vl"),
        ("mPLUG/GUI-Owl-7B", "qwen2_5_vl", "gui_owl"),
        ("mPLUG/GUI-Owl-1.5-8B-Instruct", "qwen3_vl", "gui_owl_1_5"),
        ("Tongyi-MAI/MAI-UI-8B", "qwen3_vl", "mai_ui"),
        ("meituan/EvoCUA-8B", "qwen3_vl", "evocua"),
        ("xlangai/OpenCUA-7B", None, "opencua"),
        ("moonshotai/Kimi-VL-A3B-Thinking", None, "kimi"),
        ("Qwen/Qwen3.5-4B", None, "qwen3_5"),
        ("zai-org/GLM-4.5V", None, "glm_4_5v"),
    ],
)
def test_auto_chooses_by_name_and_type(model, model_type, name):
    assert choose_dialect("auto", model, model_type).name == name


def test_a_named_dialect_wins_over_the_model():
    assert choose_dialect("ui_tars", "UI-TARS-1.5-7B", "qwen2_5_vl").name == "ui_tars"


def test_an_unknown_model_or_dialect_lists_the_dialects():
    names = ", ".join(dialect.name for dialect in DIALECTS)
    with pytest.raises(UserError, match=f"no dialect is known for the model 'gpt': .*: {names}"):
        choose_dialect("auto", "gpt", None)
    with pytest.raises(UserError, match=f"'uitars', must be auto, module:NAME or one of {names}"):
        choose_dialect("uitars", "base", None)


def test_names_are_unique():
    assert len({dialect.name for dialect in DIALECTS}) == len(DIALECTS)
