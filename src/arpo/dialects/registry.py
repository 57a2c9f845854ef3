"""All dialects, and the choice of one: `model.dialect`."""

from __future__ import annotations

import re
from functools import cache

from arpo.dialects.base import Dialect
from arpo.dialects.check import check_dialect
from arpo.dialects.glm import GLM_4_5V
from arpo.dialects.pyautogui_code import KIMI, OPENCUA
from arpo.dialects.qwen3_5 import QWEN3_5
from arpo.dialects.tool_calls import EVOCUA, GUI_OWL, GUI_OWL_1_5, MAI_UI, QWEN2_5_VL, QWEN3_VL
from arpo.dialects.ui_tars import UI_TARS, UI_TARS_1_5
from arpo.errors import BadSetting
from arpo.plugins import import_attribute

# The first one that fits is chosen.
DIALECTS = (
    UI_TARS_1_5, UI_TARS, QWEN3_VL, QWEN2_5_VL, OPENCUA, EVOCUA, GUI_OWL, GUI_OWL_1_5, MAI_UI, QWEN3_5, KIMI,
    GLM_4_5V,
)  # fmt: skip
AUTO = "auto"
BASE = "base"


def choose_dialect(setting: str, model: str, model_type: str | None) -> Dialect:
    """The dialect of model.dialect. "auto" chooses by the model's name, then by `model_type` (None: unknown).

    `model` is a path, a name on the hub, or a name on a server.

    >>> choose_dialect("auto", "ByteDance-Seed/UI-TARS-7B-DPO", "qwen2_vl").name
    'ui_tars'
    """
    if ":" in setting:
        return _open_own(setting)
    if setting != AUTO:
        by_name = {dialect.name: dialect for dialect in DIALECTS}
        if setting not in by_name:
            raise BadSetting(
                "model.dialect", f"is {setting!r}, must be auto, module:NAME or one of {', '.join(by_name)}"
            )
        return by_name[setting]
    if model == BASE:
        return UI_TARS_1_5
    # The last two parts: a run has its model in RUN/model. "@" begins a revision.
    name = "/".join(model.partition("@")[0].lower().rstrip("/").split("/")[-2:])
    named = [dialect for dialect in DIALECTS if re.search(dialect.names, name)]
    typed = [dialect for dialect in DIALECTS if model_type in dialect.types]
    for found in ([dialect for dialect in named if dialect in typed], named, typed):
        if found:
            return found[0]
    kind = f" of type {model_type}" if model_type else ""
    raise BadSetting(
        "model.dialect",
        f"is auto, but no dialect is known for the model {model!r}{kind}: set it to the one that the model "
        f"speaks: {', '.join(dialect.name for dialect in DIALECTS)}",
    )


@cache
def _open_own(name: str) -> Dialect:
    """A dialect of the user: module:NAME. It is checked once."""
    dialect = import_attribute("model.dialect", name, "dialect")
    if faults := check_dialect(dialect):
        raise BadSetting("model.dialect", f"is {name!r}, which {faults[0]}")
    assert isinstance(dialect, Dialect)
    return dialect
