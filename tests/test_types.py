"""The examples in the docstrings of `arpo.types` run, and follow from each other."""

import doctest
import inspect
from dataclasses import replace

from arpo import types
from arpo.actions import Wait
from arpo.config import LossConfig
from arpo.testing import screenshot
from trajectories import all_updates


def examples() -> dict[str, object]:
    """Run all examples in the order of the file. Returns their variables."""
    shot = screenshot(0, (1920, 1080))
    names = {**vars(types), "png": shot.png, "shot": shot, "Wait": Wait, "replace": replace}
    texts = [inspect.getdoc(kind) or "" for kind in vars(types).values() if inspect.isclass(kind)]
    test = doctest.DocTestParser().get_doctest("\n\n".join(texts), names, "arpo.types", None, 0)
    result = doctest.DocTestRunner().run(test, clear_globs=False)
    assert result.attempted > 10 and result.failed == 0
    return test.globs


def test_the_example_sample_is_made_from_the_example_group():
    found = examples()
    group, sample = found["group"], found["sample"]
    assert isinstance(group, types.Group)
    [update] = all_updates([group], LossConfig(), tasks_per_update=1, token_budget=64)
    assert update[0] == sample
    assert update[1].advantage == -1.0
