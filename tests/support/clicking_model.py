"""A model for Desk that is much smaller than the shipped one: it clicks somewhere, whatever it sees."""

from __future__ import annotations

import atexit
import functools
import itertools
import shutil
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer

from arpo.models.loading import resolve_model
from tiny_vlm import QWEN2_5, QWEN3_5, save_folder, tiny_qwen3_5
from tools.pretrain.tiny import new_tiny_model, tiny_config
from tools.pretrain.tokenizer import special_ids

X, Y = range(90, 122, 4), range(60, 76, 4)
CERTAINTY = 20.0  # the logit of a token that may follow


@functools.cache
def clicking_model(family: str = QWEN2_5) -> str:
    """A model folder, with the tokenizer of the shipped model. All tests of a process share it.

    Each token of "Thought: click\\nAction: click(start_box='(90,60)')" follows the one before it. The
    coordinates are drawn from X and Y. Above temperature 2, any token may follow.
    """
    folder = Path(tempfile.mkdtemp(prefix="arpo-clicking-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer = Tokenizer.from_file(str(resolve_model("base") / "tokenizer.json"))
    ids = special_ids(tokenizer)
    config = tiny_config(
        tokenizer.get_vocab_size(), ids, hidden=64, layers=1, heads=2, vision_hidden=32, vision_layers=1
    )
    config.tie_word_embeddings = False
    model = tiny_qwen3_5(tokenizer=tokenizer) if family == QWEN3_5 else new_tiny_model(config, 0)
    phrase = ("assistant\n", "Thought: ", "click", "\nAction: click(start_box='(")
    chain = [{_id(tokenizer, text)} for text in phrase]
    chain += [{_id(tokenizer, str(x)) for x in X}, {_id(tokenizer, ",")}]
    chain += [{_id(tokenizer, str(y)) for y in Y}, {_id(tokenizer, ")')")}, {ids["<|im_end|>"]}]
    with torch.no_grad():
        layers, embeddings = model.model.language_model.layers, model.model.language_model.embed_tokens
        for name, weight in layers.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                weight.mul_(0.1)
        embeddings.weight.normal_(generator=torch.Generator().manual_seed(0))
        model.lm_head.weight.zero_()
        for before, after in itertools.pairwise(chain):
            for token in before:
                known = embeddings.weight[token]
                model.lm_head.weight[[*after]] += CERTAINTY * known / known.square().sum()
    return str(save_folder(model, folder, tokenizer))


def _id(tokenizer: Tokenizer, text: str) -> int:
    [token] = tokenizer.encode(text, add_special_tokens=False).ids
    return int(token)
