"""The tiny model's tokenizer: one token for each fixed phrase, word and number; bytes for everything else.

A pattern splits the text. Each piece is either one token or spelled in bytes, so decoding returns any text
exactly. There are no merges. The file is a byte-level BPE tokenizer for any Hugging Face loader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from arpo.envs.desk.words import vocabulary

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>",
    "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>",
    "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

ACTION_PHRASES = (
    "system\n", "user\n", "assistant\n",
    "Thought: ",
    *(f"\nAction: {name}(start_box='(" for name in ("click", "left_double", "right_single", "hover")),
    *(f"\nAction: {name}(start_box='(" for name in ("drag", "scroll")),
    ")')", ")', end_box='(",
    *(f")', direction='{way}')" for way in ("up", "down", "left", "right")),
    "\nAction: type(content='", "')", "\\n')",
    "\nAction: hotkey(key='",
    "\nAction: wait()", "\nAction: finished()", "\nAction: error_env()", "\nAction: call_user()",
)  # fmt: skip

_COORDINATES = 256


def build_tokenizer(
    phrases: Sequence[str], words: Sequence[str], numbers: int, more_phrases: Sequence[str] = ()
) -> Tokenizer:
    """A tokenizer with one token per phrase, word, word after a space, and number below `numbers`.

    Words contain only letters (ValueError otherwise); list anything else as a phrase. The longest matching
    phrase wins over words. `more_phrases` have the last ids: those of all other tokens do not depend on them.
    """
    for word in words:
        if not re.fullmatch("[A-Za-z]+", word):
            raise ValueError(f"{word!r} is not a word: words contain only letters; add it to the phrases")
    listed = (*phrases, *words, *(f" {word}" for word in words), *map(str, range(numbers)), *more_phrases)
    tokens = [*SPECIAL_TOKENS, *_BYTES.values(), *(_byte_level(text) for text in listed)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_pattern((*phrases, *more_phrases))), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def desk_tokenizer(more_phrases: Iterable[str] = ()) -> Tokenizer:
    """The base model's tokenizer: Desk's words, and one token for each coordinate of a small screen."""
    return build_tokenizer(ACTION_PHRASES, vocabulary(), _COORDINATES, tuple(more_phrases))


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    vocabulary = tokenizer.get_vocab()
    return {token: vocabulary[token] for token in SPECIAL_TOKENS}


def _pattern(phrases: Iterable[str]) -> str:
    """A phrase that ends in a letter cuts no word, and ", " takes no space from a word after it."""
    fixed = sorted(phrases, key=lambda phrase: (-len(phrase), phrase))
    before_no_letter = re.compile(r".*[A-Za-z]|\W+ ", re.DOTALL)
    whole = [
        re.escape(phrase) + ("(?![A-Za-z])" if before_no_letter.fullmatch(phrase) else "") for phrase in fixed
    ]
    return "|".join([*whole, "[0-9]{1,3}", " ?[A-Za-z]+", r"(?m:.)"])


def _byte_alphabet() -> dict[int, str]:
    """Byte → character in byte-level BPE: printable Latin-1 as itself, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(0x100 + others.index(byte)) if byte in others else chr(byte) for byte in range(256)}


_BYTES = _byte_alphabet()


def _byte_level(text: str) -> str:
    return "".join(_BYTES[byte] for byte in text.encode())
