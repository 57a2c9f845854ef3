"""Web pages for pretraining: their instructions, and lessons about them."""

import io
import json
import random
import re
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from arpo.prompts.vision import pixels
from arpo.types import Screenshot
from tools.pretrain.tiny import IMAGE_SETTINGS
from tools.pretrain.web import WebTraining
from tools.pretrain.web_lessons import ACROSS, CHARACTERS, TOKENS, Lessons, load, palette
from tools.pretrain.web_pages import drawn_page, random_page

# A page with two check boxes and a button, as `web_pages` records it. A box is left, top, width, height.
PAGE = {
    "kind": "checkbox",
    "instruction": "Tick Kx, then press OK.",
    "names": ["Ab", "Kx", "OK"],
    "clicks": [1, 2],
    "screens": [0, 1],
    "words": [[["Ab", 20, 60, 16, 12], ["Kx", 20, 90, 16, 12], ["OK", 8, 120, 16, 12]]] * 2,
    "elements": [
        [4, 60, 12, 12, 4, 60, 40, 12], [4, 90, 12, 12, 4, 90, 40, 12], [0, 105, 40, 42, 0, 105, 40, 42],
    ],
}  # fmt: skip
# The instructions of MiniWoB++ for the same kinds of pages.
MINIWOB = re.compile(
    r'Click on the "[^"]*" button\.|Click button \w+\.|Click the button\.|Click on the link "[^"]*"\.|'
    r'Close the dialog box by clicking the "x"\.|Click the button in the dialog box labeled "[^"]*"\.|'
    r'Click on Tab #\d\.|Focus into the .*|Select .* and click Submit\.|Click on a "[^"]*" widget\.|'
    r"Click on the \w+ colored box\."
)


def test_pages_have_an_instruction_and_a_screen_for_each_click():
    rng = random.Random(1)
    for _ in range(300):
        page = random_page(rng)
        content = drawn_page(rng, page)
        assert len(content) == len(page.clicks) >= 1
        assert all(0 <= number < len(page.names) for number in page.clicks)
        for number in range(len(page.names)):
            assert all(f"data-e={number} " in one for one in content)
        assert not MINIWOB.fullmatch(page.instruction)
        assert "Tab #" not in page.instruction


def test_clicked_boxes_are_on_in_the_next_screen():
    rng = random.Random(1)
    page = next(page for page in iter(lambda: random_page(rng), None) if page.kind == "radio")
    first, second = drawn_page(rng, page)
    assert (first.count(" checked"), second.count(" checked")) == (0, 1)


def test_a_demonstration_clicks_in_pixels_of_the_resized_screen():
    # 160x210 becomes 168x224. Box 1 has its centre at (10, 96), moved by (4, -6): (14, 90).
    lessons = Lessons([PAGE])
    lesson = lessons.demonstration(PAGE, (4, -6))
    text = lessons.renderer.decode([lesson.token_ids[i] for i in lesson.answers])
    assert text == (
        "Thought: Click Kx\nAction: click(start_box='(15,96)')<|im_end|>"
        "Thought: Click OK\nAction: click(start_box='(25,128)')"
    )


def test_a_batch_tells_where_characters_and_targets_are():
    lessons = Lessons([PAGE])
    batch = lessons.collate([lessons.demonstration(PAGE)])
    # "A" is at (24, 66), for the model at (25.2, 70.4): token 0 of row 2, in its cell of column 7, row 2.
    token, cell, character = batch.characters_C3[0]
    assert (token, cell, CHARACTERS[character]) == (2 * ACROSS, 2 * 8 + 7, "A")
    targets = batch.targets_IC.reshape(2, TOKENS, 8).sum(axis=(1, 2))
    assert targets[0] > targets[1] > 0  # the second screen shows what is left to click
    assert len(batch.slots_I) == 2 * TOKENS
    assert (batch.tokens_BT.flatten()[batch.slots_I] == lessons.renderer.image_token_id).all()


def test_a_page_whose_click_is_outside_the_screen_is_left_out(tmp_path):
    outside = PAGE | {"clicks": [0], "elements": [[4, 205, 12, 12, 4, 205, 40, 12]], "screens": [2]}
    _write(tmp_path / "pages.zip", [PAGE, outside], 3)
    screens, pages = load([tmp_path / "pages.zip"] * 2)
    assert screens.shape == (6, 210, 160)
    assert [page["screens"] for page in pages] == [[0, 1], [3, 4]]


@pytest.mark.slow
def test_an_update_lowers_every_loss_of_its_batch():
    lessons = Lessons([PAGE])
    batch = lessons.collate([lessons.demonstration(PAGE)] * 2)
    training = WebTraining(np.zeros((2, 210, 160), np.uint8), "base", "cpu")
    before, _ = training.losses(batch)
    training.update(batch, 1e-4)
    after, _ = training.losses(batch)
    assert (after < before).all()


def test_screens_are_moved_and_resized_as_for_the_policy():
    screen = np.random.default_rng(0).integers(0, 256, (1, 210, 160), dtype=np.uint8)
    training = WebTraining(screen, "base", "cpu")
    image = Image.fromarray(palette()[np.pad(screen[0], ((0, 0), (5, 0)), mode="edge")[:, :160]])
    file = io.BytesIO()
    image.save(file, "PNG")
    seen = pixels(Screenshot.of(file.getvalue()), IMAGE_SETTINGS)
    shown = training.pixels(torch.tensor([0]), torch.tensor([[5, 0]]))[0].numpy()
    assert shown.shape == (224, 168, 3)
    assert np.abs(shown - seen).mean() < 1  # Pillow rounds between the two directions


def _write(path, pages, screens):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("0.pixels", np.zeros((screens, 210, 160), np.uint8).tobytes())
        archive.writestr("0.json", json.dumps(pages))
