"""Messages to tokens: equal to transformers' own, extended rather than made again, closed to injection."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen2_5_VLProcessor, Qwen3VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from arpo.errors import UserError
from arpo.models.families import VisionLanguageModel
from arpo.prompts import vision
from arpo.prompts.rendering import MARKS, Renderer
from arpo.types import Message, Screenshot
from tiny_vlm import FAMILIES, QWEN2_5, QWEN3, QWEN3_5, save_folder, tiny_qwen3, tiny_qwen3_5
from tools.pretrain.tiny import IMAGE_SETTINGS, new_tiny_model, tiny_config
from tools.pretrain.tokenizer import ACTION_PHRASES, SPECIAL_TOKENS, build_tokenizer, special_ids

Made = tuple[VisionLanguageModel, Tokenizer]


def screen(width: int, height: int, seed: int = 0) -> Screenshot:
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return Screenshot.of(file.getvalue())


WIDE, SMALL, TALL = screen(224, 168), screen(60, 50), screen(90, 200)
OPENING = (
    Message(role="system", text="You use a computer."),
    Message(role="user", text="Click Save.\n\n Then stop"),
    Message(role="user", screenshot=WIDE),
)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest) -> Made:
    tokenizer = build_tokenizer(ACTION_PHRASES, ["Click", "Save", "You", "computer"], 225)
    if request.param in (QWEN3, QWEN3_5):
        tiny = tiny_qwen3 if request.param == QWEN3 else tiny_qwen3_5
        return tiny(stock=True, tokenizer=tokenizer), tokenizer
    config = tiny_config(
        tokenizer.get_vocab_size(),
        special_ids(tokenizer),
        hidden=32,
        layers=1,
        vision_hidden=32,
        vision_layers=1,
    )
    return new_tiny_model(config, 0), tokenizer


@pytest.fixture(scope="module")
def folder(model: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(model[0], tmp_path_factory.mktemp("model"), model[1])


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer.from_folder(folder)


def sampled(renderer: Renderer, text: str) -> tuple[int, ...]:
    return (*renderer.encode(text), renderer.end_of_turn_id)


def stock_processor(model_type: str, folder: Path) -> Any:
    """The library's own processor, but for video, which alone needs torchvision."""
    stock: Any = {QWEN2_5: Qwen2_5_VLProcessor}.get(model_type, Qwen3VLProcessor)

    class WithoutVideo(stock):
        def check_argument_for_proper_class(self, argument_name: str, argument: object) -> Any:
            if argument_name != "video_processor":
                return super().check_argument_for_proper_class(argument_name, argument)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    images = Qwen2VLImageProcessorPil.from_pretrained(folder)
    return WithoutVideo(images, tokenizer, chat_template=tokenizer.chat_template)


def _image(screenshot: Screenshot) -> dict[str, Any]:
    return {"type": "image", "image": Image.open(io.BytesIO(screenshot.png))}


def test_prompt_is_that_of_transformers(renderer: Renderer, folder: Path, model: Made) -> None:
    messages = [
        *OPENING,
        Message(role="assistant", text="Click\nAction: click(start_box='<|box_start|>(9,63)<|box_end|>')"),
        Message(role="user", screenshot=SMALL),
        Message(role="assistant", text="Action: wait()"),
        Message(role="user", text="Click", screenshot=TALL),
        Message(role="user", text="Click", screenshot=SMALL, image_first=True),
        Message(role="user", text="Click", more=(" the", TALL, "or", " this", SMALL, "now")),
    ]  # fmt: skip
    chat = []
    for message in messages:
        content: list[dict[str, Any]] = [{"type": "text", "text": message.text}] if message.text else []
        if message.screenshot is not None:
            content.insert(0 if message.image_first else len(content), _image(message.screenshot))
        content += [
            {"type": "text", "text": part} if isinstance(part, str) else _image(part) for part in message.more
        ]
        chat.append({"role": message.role, "content": content})
    theirs = stock_processor(model[0].config.model_type, folder).apply_chat_template(
        chat, tokenize=True, add_generation_prompt=True, return_dict=True, return_tensors="pt"
    )
    rendered = renderer.render(messages)
    assert list(rendered.token_ids) == theirs["input_ids"][0].tolist()
    assert rendered.images == (WIDE, SMALL, TALL, SMALL, TALL, SMALL)
    grids = [renderer.grid(shot) for shot in rendered.images]
    assert grids == [tuple(row) for row in theirs["image_grid_thw"].tolist()]
    patches = np.concatenate([vision.patchify(shot, renderer.settings) for shot in rendered.images])
    np.testing.assert_allclose(patches, theirs["pixel_values"], atol=1e-6, rtol=0)
    positions, _ = model[0].model.get_rope_index(
        theirs["input_ids"], theirs["mm_token_type_ids"], image_grid_thw=theirs["image_grid_thw"]
    )
    assert np.array_equal(renderer.positions(rendered.token_ids, grids), positions[:, 0].numpy())


def test_the_whole_is_its_parts(renderer: Renderer) -> None:
    answers = [
        sampled(renderer, text) for text in ("Thought: Click Save\nAction: wait()", "Action: finished()")
    ]
    turns = [Message(role="assistant", token_ids=ids) for ids in answers]
    looks = [Message(role="user", screenshot=SMALL), Message(role="user", screenshot=TALL)]
    opening = renderer.render(OPENING)
    steps = [renderer.continuation(look) for look in looks]
    whole = renderer.render([*OPENING, turns[0], looks[0], turns[1], looks[1]])
    assert whole.token_ids == (
        *opening.token_ids, *answers[0], *steps[0].token_ids, *answers[1], *steps[1].token_ids
    )  # fmt: skip
    assert whole.images == (*opening.images, *steps[0].images, *steps[1].images)


def test_an_answer_is_placed_as_it_was_sampled(renderer: Renderer) -> None:
    spelled = tuple(renderer.encode(letter)[0] for letter in "Save")
    assert len(renderer.encode("Save")) == 1
    message = Message(role="assistant", text="Save", token_ids=(*spelled, renderer.end_of_turn_id))
    ids = renderer.render([message]).token_ids
    start = ids.index(spelled[0])
    assert ids[start : start + 5] == (*spelled, renderer.end_of_turn_id)
    assert ids.count(renderer.end_of_turn_id) == 1


def test_a_cut_answer_is_closed(renderer: Renderer) -> None:
    cut, ended = renderer.encode("Save"), sampled(renderer, "Save")
    rendered = [renderer.render([Message(role="assistant", token_ids=ids)]) for ids in (cut, ended)]
    assert rendered[0] == rendered[1]


@pytest.mark.parametrize("token", [token for token in SPECIAL_TOKENS if not MARKS.fullmatch(token)])
def test_text_cannot_become_structure(renderer: Renderer, model: Made, token: str) -> None:
    plain, hostile = (renderer.render([Message(role="user", text=text)]) for text in ("x", f"x{token}x"))
    index = special_ids(model[1])[token]
    assert hostile.token_ids.count(index) == plain.token_ids.count(index)
    assert renderer.decode(renderer.encode(token)) == token


def test_marks_in_a_prompt_are_single_tokens(renderer: Renderer, model: Made) -> None:
    ids = special_ids(model[1])
    assert renderer.encode("<|box_start|>(7,8)<|box_end|>") == (
        ids["<|box_start|>"], *renderer.encode("(7,8)"), ids["<|box_end|>"]
    )  # fmt: skip


def test_decoded_answers_show_special_tokens_but_not_their_end(renderer: Renderer) -> None:
    ids = (*renderer.encode("Click"), renderer.image_token_id, renderer.end_of_turn_id)
    assert renderer.decode(ids) == "Click<|image_pad|>"
    assert renderer.decode(ids[:-1]) == "Click<|image_pad|>"
    assert renderer.decode(()) == ""


def test_positions_are_those_of_transformers(renderer: Renderer, model: Made) -> None:
    rendered = renderer.render(
        [*OPENING, *(Message(role="user", screenshot=shot) for shot in (SMALL, TALL, SMALL))]
    )
    grids = [renderer.grid(shot) for shot in rendered.images]
    ids = torch.tensor([rendered.token_ids])
    theirs, _ = model[0].model.get_rope_index(
        ids, (ids == renderer.image_token_id).int(), image_grid_thw=torch.tensor(grids)
    )
    ours = renderer.positions(rendered.token_ids, grids)
    assert ours.dtype == np.int64
    assert np.array_equal(ours, theirs[:, 0].numpy())


def test_positions_by_hand(renderer: Renderer) -> None:
    image = renderer.image_token_id
    positions = renderer.positions([1, image, image, image, image, image, image, 1, 1], [(1, 4, 6)], start=10)
    assert positions.tolist() == [
        [10, 11, 11, 11, 11, 11, 11, 14, 15],
        [10, 11, 11, 11, 12, 12, 12, 14, 15],
        [10, 11, 12, 13, 11, 12, 13, 14, 15],
    ]


def test_positions_go_on_where_the_prefix_ended(renderer: Renderer) -> None:
    opening = renderer.render(OPENING)
    step = renderer.continuation(Message(role="user", screenshot=TALL))
    whole = renderer.positions(
        (*opening.token_ids, *step.token_ids), [renderer.grid(WIDE), renderer.grid(TALL)]
    )
    head = renderer.positions(opening.token_ids, [renderer.grid(WIDE)])
    tail = renderer.positions(step.token_ids, [renderer.grid(TALL)], start=int(head.max()) + 1)
    assert np.array_equal(np.concatenate([head, tail], axis=1), whole)


def test_a_sampled_placeholder_is_text(renderer: Renderer) -> None:
    image = renderer.image_token_id
    ids = [1, image, 1, image, image]
    assert renderer.image_slots(ids, [(1, 2, 2)]).tolist() == [False, True, False, False, False]
    assert renderer.positions(ids, [(1, 2, 2)]).tolist() == [[0, 1, 2, 3, 4]] * 3


def test_a_sampled_placeholder_before_an_image_is_text(renderer: Renderer) -> None:
    """An image of 1 token, an answer with 3 placeholders, an image of 4 tokens."""
    image = renderer.image_token_id
    ids = [1, image, 1, *[image] * 3, 1, *[image] * 4, 1]
    slots = renderer.image_slots(ids, [(1, 2, 2), (1, 4, 4)])
    assert np.flatnonzero(slots).tolist() == [1, 7, 8, 9, 10]
    assert renderer.positions(ids, [(1, 2, 2), (1, 4, 4)])[1].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 8, 9]


def test_text_alone_counts_on(renderer: Renderer) -> None:
    assert renderer.positions([5, 6, 7], []).tolist() == [[0, 1, 2]] * 3
    assert renderer.positions([], []).shape == (3, 0)


def test_size_the_answers_are_written_in(renderer: Renderer, folder: Path) -> None:
    side = renderer.settings.side
    expected = {28: ((224, 168), (112, 84)), 32: ((224, 160), (128, 96))}[side]
    assert renderer.model_size(screen(230, 160)) == expected[0]
    assert Renderer.from_folder(folder, max_pixels=side * side * 12).model_size(WIDE) == expected[1]


def test_a_folder_without_a_tokenizer_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: not found"):
        Renderer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json: is not a tokenizer"):
        Renderer.from_folder(tmp_path)


def test_another_familys_tokenizer_is_refused(model: Made) -> None:
    content = json.loads(model[1].to_str())
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] != "<|im_start|>"
    ]
    del content["model"]["vocab"]["<|im_start|>"]
    with pytest.raises(UserError, match="im_start"):
        Renderer(Tokenizer.from_str(json.dumps(content)), IMAGE_SETTINGS)


def test_a_tokenizer_through_which_text_could_become_structure_is_refused(model: Made) -> None:
    content = json.loads(model[1].to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] != "<|image_pad|>"
    with pytest.raises(UserError, match="image_pad"):
        Renderer(Tokenizer.from_str(json.dumps(content)), IMAGE_SETTINGS)


def with_ends(folder: Path, copy: Path, eos: object) -> Path:
    shutil.copytree(folder, copy)
    (copy / "generation_config.json").write_text(json.dumps({"eos_token_id": eos, "pad_token_id": 0}))
    return copy


def test_the_generation_config_names_the_tokens_that_end_an_answer(
    renderer: Renderer, folder: Path, tmp_path: Path
) -> None:
    turn, text = renderer.end_of_turn_id, renderer.pad_id
    for number, (eos, ends) in enumerate(
        [([turn, text], {turn, text}), (text, {turn, text}), (None, {turn})]
    ):
        assert Renderer.from_folder(with_ends(folder, tmp_path / str(number), eos)).end_ids == ends
    (tmp_path / "0" / "generation_config.json").unlink()
    assert Renderer.from_folder(tmp_path / "0").end_ids == {turn}


@pytest.mark.parametrize("eos", [999_999, -1, "2", True, [1, None]])
def test_an_end_token_outside_the_vocabulary_is_the_users_error(
    folder: Path, tmp_path: Path, eos: object
) -> None:
    with pytest.raises(UserError, match=r"generation_config\.json: eos_token_id = .* is not one of the \d+"):
        Renderer.from_folder(with_ends(folder, tmp_path / "model", eos))
    (tmp_path / "model" / "generation_config.json").write_text("[]")
    with pytest.raises(UserError, match=r"generation_config\.json: is not a JSON object"):
        Renderer.from_folder(tmp_path / "model")


def test_an_answer_with_another_end_keeps_it_and_the_template_closes_the_turn(
    renderer: Renderer, folder: Path, tmp_path: Path
) -> None:
    """Sampled: Save <|endoftext|>. Next: <|im_end|> and a new line, as after every turn."""
    ends = Renderer.from_folder(with_ends(folder, tmp_path / "model", [renderer.pad_id]))
    answer = (*ends.encode("Save"), ends.pad_id)
    assert (ends.decode(answer), renderer.decode(answer)) == ("Save", "Save<|endoftext|>")
    look = Message(role="user", screenshot=SMALL)
    usual, rest = ends.continuation(look), ends.continuation(look, answer)
    assert rest.token_ids == (ends.end_of_turn_id, *usual.token_ids)
    assert ends.continuation(look, (*answer, ends.end_of_turn_id)) == usual
    whole = ends.render([*OPENING, Message(role="assistant", token_ids=answer), look])
    assert whole.token_ids == (*ends.render(OPENING).token_ids, *answer, *rest.token_ids)
