"""A very small Qwen2.5-VL with fresh weights, pictures for it, and plain transformers to compare with."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo import vision
from arpo.models.loading import prepare
from arpo.models.tiny import IMAGE_SETTINGS, new_tiny_model, tiny_config
from arpo.models.tokenizer import ACTION_PHRASES, build_tokenizer, special_ids
from arpo.rendering import Renderer
from arpo.types import Completion, Message, Prompt, Sampling, Screenshot

TOKENIZER = build_tokenizer(ACTION_PHRASES, ["open", "save", "file", "the"], 20)


def tiny_renderer() -> Renderer:
    return Renderer(TOKENIZER, IMAGE_SETTINGS)


def tiny_model(seed: int = 0, *, stock: bool = False) -> Qwen2_5_VLForConditionalGeneration:
    """Two query heads share each key head. `stock` leaves transformers' own attention in place."""
    config = tiny_config(
        TOKENIZER.get_vocab_size(),
        special_ids(TOKENIZER),
        hidden=64,
        layers=2,
        vision_hidden=32,
        vision_layers=2,
    )
    config.text_config.num_key_value_heads = 2
    model = new_tiny_model(config, seed)
    return model.eval() if stock else prepare(model)


def screenshot(seed: int, width: int = 112, height: int = 84) -> Screenshot:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return Screenshot.of(png.getvalue())


def first_prompt(
    renderer: Renderer, episode_id: str, shot: Screenshot, text: str = "open the file"
) -> Prompt:
    messages = (Message(role="user", text=text), Message(role="user", screenshot=shot))
    rendered = renderer.render(messages)
    return Prompt(
        episode_id=episode_id, token_ids=rendered.token_ids, images=rendered.images, messages=messages
    )


def next_prompt(renderer: Renderer, prompt: Prompt, answer: Completion, shot: Screenshot) -> Prompt:
    end = () if answer.finish == "stop" else (renderer.end_of_turn_id,)
    rest = renderer.continuation(Message(role="user", screenshot=shot))
    return Prompt(
        episode_id=prompt.episode_id,
        token_ids=(*prompt.token_ids, *answer.token_ids, *end, *rest.token_ids),
        images=(*prompt.images, *rest.images),
        messages=prompt.messages,
    )


def sampling(seed: int, max_tokens: int = 8, temperature: float = 1.0) -> Sampling:
    return Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)


def stock_inputs(
    renderer: Renderer, token_ids: Sequence[int], images: Sequence[Screenshot]
) -> dict[str, torch.Tensor]:
    """One sequence as plain transformers takes it; it then makes positions and masks by itself."""
    tokens = torch.tensor([token_ids])
    patches = np.concatenate([vision.patchify(image, renderer.settings) for image in images])
    return {
        "input_ids": tokens,
        "mm_token_type_ids": (tokens == renderer.image_token_id).int(),
        "pixel_values": torch.from_numpy(patches),
        "image_grid_thw": torch.tensor([renderer.grid(image) for image in images]),
    }
