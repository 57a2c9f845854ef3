"""Labels of stages."""

import re
from importlib.resources import files
from pathlib import Path

from arpo.viewer.pages.timeline import STAGES


def test_every_stage_of_training_has_a_label():
    """Also "judge" of offline methods: a stage without a label has the colour of another one."""
    training = Path(str(files("arpo"))) / "training"
    sources = [path.read_text("utf-8") for path in training.glob("*.py")]
    named = {name for source in sources for name in re.findall(r'timing\.stage\("(\w+)"\):', source)}
    assert named == STAGES.keys()
