"""Texts of tokens, from the tokenizer of the model of a run. No network, and no code of the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.viewer.files import SafeFolder

FILE = "tokenizer.json"
MAX_BYTES = 64 << 20
_BROKEN = "\ufffd"  # of a part of a character
_MAX_PARTS = 4  # tokens of one character


def load_tokenizer(folders: Sequence[Path]) -> Any | None:
    """The tokenizer of the first folder with one. None without a readable one."""
    import tokenizers

    for folder in folders:
        try:
            content = SafeFolder(folder).read(FILE, MAX_BYTES)
        except (OSError, RuntimeError, UserError):  # RuntimeError: a link to itself
            continue
        try:
            return tokenizers.Tokenizer.from_buffer(content)
        except BaseException as error:  # a panic of the library is a BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
    return None


def token_texts(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text of each token. If a character has several tokens, the last one has it, the others have "".

    >>> token_texts(tokenizer, [21, 22])  # doctest: +SKIP
    ['Thought', ':']
    """
    texts: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = _decode(tokenizer, pending)
        if _BROKEN in text and len(pending) < _MAX_PARTS:
            texts.append("")
            continue
        texts.append(text)
        pending = []
    if pending:
        texts[-1] = _decode(tokenizer, pending)
    return texts


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    try:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))
    except (OverflowError, TypeError, ValueError):
        return _BROKEN
