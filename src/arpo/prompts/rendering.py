"""Renders messages as token ids and image slots. The only module with a chat template (Qwen's ChatML):

    <|im_start|>role\\n text <|vision_start|><|image_pad|>…<|vision_end|><|im_end|>\\n

A sampled answer is rendered with its own sampled tokens. Text can never become structure: `<|im_end|>` in a
task is ten characters of text, not the end of a turn.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from arpo.errors import UserError
from arpo.prompts import vision
from arpo.prompts.vision import Grid, ImageSettings
from arpo.types import Message, Screenshot

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
VISION_START, VISION_END, IMAGE = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"
CHAT_TEMPLATE = "chat_template.jinja"
STRUCTURE = (START, END, PAD, VISION_START, VISION_END, IMAGE)
# Special tokens that prompts of grounding models use inside text. They are not structure.
MARKS = re.compile(r"(<\|(?:object_ref|box|quad)_(?:start|end)\|>)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """A rendered prompt, or the part of a prompt that follows an answer."""

    token_ids: tuple[int, ...]
    images: tuple[Screenshot, ...]  # one for each image slot, in order


class PromptRenderer(Protocol):
    """Renders the prompts of an episode, and tells the image size that the model sees."""

    def render(self, messages: Sequence[Message]) -> Rendered: ...

    def continuation(self, message: Message, answer: Sequence[int] | None = None) -> Rendered: ...

    def model_size(self, screenshot: Screenshot) -> tuple[int, int]: ...


class Renderer:
    """The tokenizer, chat template and image settings of a model.

    An answer ends with <|im_end|> or with one of `end_ids`: the model may have learned several.
    """

    def __init__(self, tokenizer: Tokenizer, settings: ImageSettings, end_ids: Collection[int] = ()) -> None:
        vocabulary = tokenizer.get_vocab()
        if missing := [token for token in STRUCTURE if token not in vocabulary]:
            raise UserError(
                f"the tokenizer has no {', '.join(missing)}. Use the tokenizer of a Qwen-VL model"
            )
        self._ids = {token: vocabulary[token] for token in STRUCTURE}
        # Despite its name, this option makes the tokenizer treat special tokens in text as plain text.
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        if leaks := [token for token in STRUCTURE if self._ids[token] in self.encode(token)]:
            raise UserError(f"the tokenizer does not mark these tokens as special: {leaks}")
        self.settings = settings
        self.end_of_turn_id = self._ids[END]
        self.end_ids = frozenset((self.end_of_turn_id, *end_ids))
        self.pad_id = self._ids[PAD]
        self.image_token_id = self._ids[IMAGE]
        self._newline = self.encode("\n")
        self.answer_header = (self._ids[START], *self.encode("assistant\n"))

    @classmethod
    def from_folder(
        cls, folder: Path | str, min_pixels: int | None = None, max_pixels: int | None = None
    ) -> Renderer:
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"{path}: not found. A model folder needs its tokenizer")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise UserError(f"{path}: is not a tokenizer: {error}") from error
        settings = ImageSettings.from_folder(folder, min_pixels, max_pixels)
        return cls(tokenizer, settings, read_end_ids(Path(folder), tokenizer.get_vocab_size()))

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of plain text. <|box_start|> and the like stay special tokens, structure becomes text."""
        pieces = MARKS.split(text)
        ids: list[int] = []
        for index, piece in enumerate(pieces):
            mark = self._tokenizer.token_to_id(piece) if index % 2 else None
            ids += [mark] if mark is not None else self._tokenizer.encode(piece, add_special_tokens=False).ids
        return tuple(ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of an answer, without its end token, with other special tokens."""
        ids = list(token_ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def render(self, messages: Sequence[Message]) -> Rendered:
        """The whole prompt, up to the start of the next answer."""
        parts = [token for message in messages for token in (*self._message(message), *self._newline)]
        return _rendered((*parts, *self.answer_header), messages)

    def continuation(self, message: Message, answer: Sequence[int] | None = None) -> Rendered:
        """The part after an answer: the next message, up to the start of the next answer.

        The template ends every turn with <|im_end|>. If the tokens of `answer` end otherwise, for example
        with <|endoftext|>, the part begins with it. Without `answer`, the answer ended with <|im_end|>.
        """
        end = () if answer is None else self._missing_end(answer)
        parts = (*end, *self._newline, *self._message(message), *self._newline, *self.answer_header)
        return _rendered(parts, [message])

    def _missing_end(self, answer: Sequence[int]) -> tuple[int, ...]:
        return () if answer and answer[-1] == self.end_of_turn_id else (self.end_of_turn_id,)

    def _message(self, message: Message) -> tuple[int, ...]:
        ids = self._ids
        if message.token_ids is not None:
            answer = (*message.token_ids, *self._missing_end(message.token_ids))
            return (ids[START], *self.encode(f"{message.role}\n"), *answer)
        tokens, text = [ids[START]], f"{message.role}\n"
        for part in message.parts:
            if isinstance(part, str):
                text += part
                continue
            count = vision.image_tokens(self.grid(part), self.settings)
            tokens += (*self.encode(text), ids[VISION_START], *[self.image_token_id] * count, ids[VISION_END])
            text = ""
        return (*tokens, *self.encode(text), ids[END])

    def model_size(self, screenshot: Screenshot) -> tuple[int, int]:
        """(width, height) of the screenshot after resizing for the model."""
        return vision.target_size(*screenshot.size, self.settings)

    def grid(self, screenshot: Screenshot) -> Grid:
        return vision.grid(*screenshot.size, self.settings)

    def image_slots(
        self, token_ids: Sequence[int] | NDArray[np.int64], grids: Sequence[Grid]
    ) -> NDArray[np.bool_]:
        """True at the image tokens of `grids`. The template writes the tokens of an image as one run.

        Runs of other lengths were sampled: they are text.
        """
        candidates = np.asarray(token_ids) == self.image_token_id
        bounded = np.zeros(len(candidates) + 2, dtype=np.bool_)
        bounded[1:-1] = candidates
        edges = np.flatnonzero(bounded[1:] != bounded[:-1]).tolist()
        runs = zip(edges[::2], edges[1::2], strict=True)
        slots = np.zeros_like(candidates)
        for grid in grids:
            count = vision.image_tokens(grid, self.settings)
            first = next((first for first, end in runs if end - first == count), None)
            assert first is not None, f"{candidates.sum()} image tokens, but no run of {count} for an image"
            slots[first : first + count] = True
        return slots

    def positions(
        self,
        token_ids: Sequence[int],
        grids: Sequence[Grid],
        start: int = 0,
        slots_T: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.int64]:
        """Rotary positions (time, height, width), [3, T]. The first token is at position `start`.

        `slots_T` are their `image_slots`, if the caller has them.

        Each text token advances all three by one. An image has one time position; its rows and columns count
        up from there. The text after it continues after the longer side of the image.
        """
        counts = [vision.image_tokens(grid, self.settings) for grid in grids]
        indices = np.flatnonzero(self.image_slots(token_ids, grids) if slots_T is None else slots_T)
        firsts = indices[np.cumsum([0, *counts[:-1]])] if counts else indices
        steps = np.ones(len(token_ids) + 1, dtype=np.int64)
        steps[0] = start
        for grid, first, count in zip(grids, firsts, counts, strict=True):
            steps[first + count] += max(grid[1:]) // self.settings.merge_size - count
        line = np.cumsum(steps)[:-1]
        positions = np.tile(line, (3, 1))
        for grid, first, count in zip(grids, firsts, counts, strict=True):
            positions[:, first : first + count] = line[first] + _spread(grid, self.settings.merge_size)
        return positions


class ChatRenderer:
    """For chat servers, which take messages and tokenise them: images without tokens."""

    def __init__(self, min_pixels: int, max_pixels: int) -> None:
        self._settings = ImageSettings(  # of Qwen2.5-VL; only the size limits are used
            patch_size=14,
            merge_size=2,
            temporal_patch_size=2,
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
        )

    def render(self, messages: Sequence[Message]) -> Rendered:
        return _rendered((), messages)

    def continuation(self, message: Message, answer: Sequence[int] | None = None) -> Rendered:
        return _rendered((), [message])

    def model_size(self, screenshot: Screenshot) -> tuple[int, int]:
        return vision.target_size(*screenshot.size, self._settings)


def read_end_ids(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """The end-of-sequence tokens of generation_config.json. A folder without the file has none."""
    path = folder / "generation_config.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: is not a JSON object ({error}). Download it again") from error
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if bad := [one for one in ids if type(one) is not int or not 0 <= one < vocab_size]:
        raise UserError(
            f"{path}: eos_token_id = {found!r}: {bad[0]!r} is not one of the {vocab_size} tokens of the "
            "tokenizer. Use the files of one model folder"
        )
    return tuple(ids)


def read_chat_template(folder: Path) -> str | None:
    """The chat template of a model folder, for programs that render prompts with it. None if it has none.

    transformers 5 reads chat_template.jinja. Older models have the template in one of two JSON files.
    """
    if (path := folder / CHAT_TEMPLATE).is_file():
        return path.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            template = json.loads((folder / name).read_text(encoding="utf-8"))["chat_template"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            continue
        if isinstance(template, str):
            return template
    return None


def _rendered(token_ids: tuple[int, ...], messages: Sequence[Message]) -> Rendered:
    images = tuple(image for message in messages for image in message.images)
    return Rendered(token_ids=token_ids, images=images)


@lru_cache(maxsize=64)
def _spread(grid: Grid, merge_size: int) -> NDArray[np.int64]:
    """Positions within one image, relative to its first token: [3, tokens]."""
    time, rows, columns = grid[0], grid[1] // merge_size, grid[2] // merge_size
    return np.indices((time, rows, columns), dtype=np.int64).reshape(3, math.prod((time, rows, columns)))
