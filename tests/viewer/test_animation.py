"""Episodes as animated GIFs."""

import io

import numpy as np
import pytest
from PIL import Image, ImageSequence

from arpo import actions as act
from arpo.viewer.animation import END_MS, MAX_WIDTH, STEP_MS, Frame, animate, animate_episode, step_frame
from arpo.viewer.export import index_all
from arpo.viewer.library import Library
from viewed_runs import make_run

RED = (240, 68, 46)


def opened(content):
    with Image.open(io.BytesIO(content)) as animation:
        assert animation.format == "GIF"
        return [frame.convert("RGB") for frame in ImageSequence.Iterator(animation)], animation.info["loop"]


def has_mark(image):
    return bool((np.abs(np.asarray(image).astype(int) - RED) < 16).all(axis=2).any())


def test_each_step_is_a_frame_with_its_mark_and_the_last_one_stays_longer():
    grey = Image.new("RGB", (320, 240), "grey")
    click = act.Click(point=act.Point(50, 60))
    frames = [
        step_frame(1, grey, [click], "Open it", "click(start_box='(50,60)')\nwait()"),
        step_frame(2, grey, [], "x" * 500, "not an action: " + "y" * 500),
        Frame(screen=Image.new("RGB", (320, 240), "black"), lines=("score 1: solved",)),
    ]
    content = animate("Set the theme to dark", frames)
    images, loop = opened(content)
    assert ([has_mark(image) for image in images], loop) == ([True, False, False], 0)
    assert len({image.size for image in images}) == 1 and images[0].width == 640
    with Image.open(io.BytesIO(content)) as animation:
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(animation)]
    assert durations == [STEP_MS, STEP_MS, END_MS]


def test_a_large_screen_is_scaled_down_with_its_marks():
    screen = Image.new("RGB", (1920, 1080), "white")
    frame = step_frame(1, screen, [act.Click(point=act.Point(1800, 1000))], "", "")
    ((image,), _) = opened(animate("", [frame]))
    rows, columns = np.nonzero((np.abs(np.asarray(image).astype(int) - RED) < 16).all(axis=2))
    assert image.width == MAX_WIDTH
    assert (columns.mean(), rows.mean()) == pytest.approx((900, 500), abs=4)


@pytest.mark.slow
def test_a_stored_episode_and_its_end(tmp_path):
    make_run(tmp_path)
    library = Library([tmp_path])
    try:
        index_all(library)
        (source,) = library.sources.values()
        images, _ = opened(animate_episode(source, "batch-1-0-0", "score 1: solved"))
    finally:
        library.close()
    assert [has_mark(image) for image in images] == [True, True, False, False, False]  # click, drag
