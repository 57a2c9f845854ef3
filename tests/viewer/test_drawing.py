"""Marks of actions on pictures."""

import numpy as np
import pytest
from PIL import Image

from arpo import actions as act
from arpo.viewer.drawing import draw_actions

RED = (240, 68, 46)


def marked(action, scale=1.0):
    """Where the red mark is: (left, top, right, bottom)."""
    drawn = np.asarray(draw_actions(Image.new("RGB", (600, 400), "black"), [action], scale))
    rows, columns = np.nonzero((np.abs(drawn.astype(int) - RED) < 60).all(axis=2))
    return [int(edge(part)) for edge in (np.min, np.max) for part in (columns, rows)] if len(rows) else None


def test_a_click_is_a_ring_around_its_position():
    assert marked(act.Click(point=act.Point(100, 200))) == pytest.approx(
        [85, 185, 115, 215], abs=2
    )  # 1.5 units of 600 / 60
    assert marked(act.Click(point=act.Point(50, 100)), scale=2) == pytest.approx([85, 185, 115, 215], abs=2)


def test_a_drag_goes_from_its_start_to_its_end():
    left, top, right, bottom = marked(act.Drag(start=act.Point(100, 200), end=act.Point(300, 200)))
    assert left < 100 and 295 < right <= 302 and top < 200 < bottom


def test_an_action_without_a_position_draws_nothing():
    assert marked(act.Wait()) is None
