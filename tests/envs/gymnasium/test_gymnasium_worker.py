"""Parts of the worker program that need no environment."""

import numpy as np
import pytest

from arpo.envs.gymnasium.worker import Unusable, goal_text, instruction_in, png_of
from arpo.png import decode


def test_a_goal_with_a_picture_keeps_its_texts():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert goal_text(
        [{"type": "text", "text": "Find this:"}, picture, {"type": "text", "text": "Buy it"}]
    ) == ("Find this:\nBuy it")
    assert goal_text([]) == ""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"mission": "go to the door", "image": 3}, "go to the door"),
        ({"goal": 3, "instruction": "", "mission": "m"}, "m"),
        ({}, ""),
        (3, ""),
    ],
)
def test_an_instruction_is_a_text_under_a_usual_key(values, text):
    assert instruction_in(values) == text


def test_a_picture_becomes_a_png_without_its_alpha():
    picture = np.zeros((9, 12, 4), np.uint8)
    picture[2, 5] = (1, 2, 3, 0)
    image = decode(png_of(picture))
    assert image.size == (12, 9)
    assert image.getpixel((5, 2)) == (1, 2, 3)
    assert image.getpixel((2, 5)) == (0, 0, 0)


@pytest.mark.parametrize("shape", [(9, 12), (9, 12, 1), (2, 9, 12, 3)])
def test_a_picture_of_another_shape_is_an_error(shape):
    with pytest.raises(Unusable, match=r"gave an array uint8\[.*must give uint8\[height, width, 3\]"):
        png_of(np.zeros(shape, np.uint8))
