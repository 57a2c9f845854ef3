"""Lessons about the pages of `web_pages`, and batches of them.

Half of the lessons are the demonstrations of the pages; the others are questions about their names and words.
Most lessons move their page by a few pixels, so that it is rarely seen twice in the same place.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arpo.actions import Click, Point, render
from arpo.envs.browser.miniwob import HEIGHT, WIDTH
from arpo.envs.desk.words import vocabulary
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.prompts.templates import load_template
from arpo.types import Message, Screenshot
from tools.pretrain.tiny import IMAGE_SETTINGS
from tools.pretrain.tokenizer import desk_tokenizer

MODEL_WIDTH, MODEL_HEIGHT = vision.target_size(WIDTH, HEIGHT, IMAGE_SETTINGS)
GRID = vision.grid(WIDTH, HEIGHT, IMAGE_SETTINGS)
ACROSS, DOWN = MODEL_WIDTH // IMAGE_SETTINGS.side, MODEL_HEIGHT // IMAGE_SETTINGS.side  # image tokens
TOKENS = ACROSS * DOWN
CHARACTERS = [chr(code) for code in range(33, 127)]
CHARACTER_CELLS, TARGET_CELLS = (4, 8), (2, 4)  # rows and columns of an image token
_LESSONS = {"demonstration": 6, "point": 2, "find": 2, "at": 1, "read": 1}
_UNNAMED = ("field", "widget", "colour")  # kinds of pages whose elements show no names
_MOVE = 8  # pixels at most
_MOVED = 0.7  # share of the lessons
_HEADER = 50  # pixels
_MAX_READ = 12  # words
_LABELLED_SCREENS = 256  # of a batch at most
_BATCHES = 4  # made together: lessons of similar length
_LESSON_TOKENS = 100  # about
_NARROW, _WIDE = "ijltfrI.,:;'|!-\"()", "mwMW@%"

Page = Mapping[str, Any]  # as `web_pages.write` records it
Box = Sequence[int]  # left, top, width, height
Move = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    token_ids: list[int]
    answers: list[int]  # places of the learned tokens
    starts: tuple[int, ...]  # places of the images
    screens: list[int]
    words: list[Sequence[Any]]  # of each screen
    targets: list[list[Box]]  # of each screen
    move: Move


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Lessons padded to one width. Places are numbers in the flat arrays, as in `batches.LessonBatch`."""

    tokens_BT: NDArray[np.int16]
    positions_3BT: NDArray[np.int16]
    slots_I: NDArray[np.int64]
    answers_A: NDArray[np.int64]
    screens_N: NDArray[np.int64]
    moves_N2: NDArray[np.int64]
    characters_C3: NDArray[np.int64]  # (image token, cell, character)
    shown_S2: NDArray[np.int64]  # (image token, token of a character or word that it shows)
    targets_IC: NDArray[np.uint8]  # cells of the elements to click


def palette() -> NDArray[np.uint8]:
    """Greys, a cube of colours, and the named colours between them: [256, 3]."""
    greys = [(level, level, level) for level in np.linspace(0, 255, 32).round().astype(int)]
    cube = [(r, g, b) for r in range(0, 256, 51) for g in range(0, 256, 51) for b in range(0, 256, 51)]
    named = (
        (128, 128, 0), (255, 192, 203), (128, 0, 128), (255, 165, 0), (0, 0, 128), (0, 128, 128),
        (165, 42, 42), (255, 215, 0),
    )  # fmt: skip
    return np.array([*greys, *cube, *named], dtype=np.uint8)


def load(files: Sequence[Path]) -> tuple[NDArray[np.uint8], list[dict[str, Any]]]:
    """Palette indices [screens, height, width], and all pages whose clicks are inside the screen."""

    def read(part: tuple[Path, str]) -> tuple[NDArray[np.uint8], list[dict[str, Any]]]:
        with zipfile.ZipFile(part[0]) as archive:
            pixels = np.frombuffer(archive.read(part[1].replace(".json", ".pixels")), np.uint8)
            return pixels.reshape(-1, HEIGHT, WIDTH), json.loads(archive.read(part[1]))

    parts = [(path, name) for path in files for name in zipfile.ZipFile(path).namelist() if ".json" in name]
    pages: list[dict[str, Any]] = []
    pixels: list[NDArray[np.uint8]] = []
    first = 0
    with ThreadPoolExecutor() as pool:
        for shown, records in pool.map(read, parts):
            origin = records[0]["screens"][0]
            pages += [
                page | {"screens": [number - origin + first for number in page["screens"]]}
                for page in records
                if _shows_clicks(page, (0, 0))
            ]
            pixels.append(shown)
            first += len(shown)
    return np.concatenate(pixels), pages


def _shows_clicks(page: Page, move: Move) -> bool:
    return all(_is_inside(page["elements"][number], move) for number in page["clicks"])


def _is_inside(box: Box, move: Move) -> bool:
    x, y = _centre(box, move)
    return 2 <= x < WIDTH - 2 and 2 <= y < HEIGHT - 2


def _centre(box: Box, move: Move) -> tuple[float, float]:
    return box[0] + box[2] / 2 + move[0], box[1] + box[3] / 2 + move[1]


def to_model(box: Box, move: Move) -> tuple[int, int]:
    """The centre of a box in the resized screen."""
    x, y = _centre(box, move)
    x, y = x * MODEL_WIDTH / WIDTH, y * MODEL_HEIGHT / HEIGHT
    return round(min(max(x, 0), MODEL_WIDTH - 1)), round(min(max(y, 0), MODEL_HEIGHT - 1))


def _entries(words: Sequence[Any], move: Move) -> str:
    """Words with their places: "milk(28,70)OK(98,91)"."""
    return "".join("{}({},{})".format(word[0], *to_model(word[1:], move)) for word in words)


def _click(name: str, box: Box, move: Move) -> str:
    return render([Click(point=Point(*to_model(box, move)))], f"Click {name}")


class Lessons:
    """Lessons about these pages, in the prompt and tokens of the policy."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages
        self.renderer = Renderer(desk_tokenizer(), IMAGE_SETTINGS)
        template = load_template("desk")
        self._system, self._user = Message(role="system", text=template.system), template.user
        file = io.BytesIO()
        Image.new("RGB", (WIDTH, HEIGHT)).save(file, "PNG")
        self._screen = Message(role="user", screenshot=Screenshot.of(file.getvalue()))
        self._next = self.renderer.continuation(self._screen).token_ids
        self._character_ids = np.array([self.renderer.encode(text)[0] for text in CHARACTERS])
        self._word_ids = {
            word: [self.renderer.encode(f"{space}{word}")[0] for space in ("", " ")] for word in vocabulary()
        }
        self._labels: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    def lesson(self, rng: random.Random) -> Lesson:
        page = self._pages[rng.randrange(len(self._pages))]
        move = (rng.randint(-_MOVE, _MOVE), rng.randint(-_MOVE, _MOVE)) if rng.random() < _MOVED else (0, 0)
        if not _shows_clicks(page, move):
            move = 0, 0
        [kind] = rng.choices(list(_LESSONS), list(_LESSONS.values()))
        question = None if kind == "demonstration" else self._question(rng, page, kind, move)
        return question or self.demonstration(page, move)

    def demonstration(self, page: Page, move: Move = (0, 0)) -> Lesson:
        names, elements, clicks = page["names"], page["elements"], page["clicks"]
        answers = [_click(names[number], elements[number], move) for number in clicks]
        targets = [[elements[number][4:] for number in clicks[i:]] for i in range(len(clicks))]
        return self._sequence(page, page["instruction"], answers, targets, move)

    def _question(self, rng: random.Random, page: Page, kind: str, move: Move) -> Lesson | None:
        """A question about the first screen; None if it has no answer."""
        words = [word for word in page["words"][0] if _is_inside(word[1:], move)]
        body = [word for word in words if word[2] > _HEADER]
        match kind:
            case "point":
                number = rng.randrange(len(page["names"]))
                name, box = page["names"][number], page["elements"][number]
                if page["kind"] in _UNNAMED or not _is_inside(box, move):
                    return None
                text = rng.choice(("Click {}", "Press {}", 'Click "{}"')).format(name)
                return self._sequence(page, text, [_click(name, box, move)], [[box[4:]]], move)
            case "read":
                text = _entries(body[:_MAX_READ], move) or "no"
                return self._sequence(page, "Read the text", [text], [[]], move)
            case "at" if body:
                word = rng.choice(body)
                text = "Read {},{}".format(*to_model(word[1:], move))
                return self._sequence(page, text, [word[0]], [[word[1:]]], move)
            case "find":
                counts = Counter(word[0] for word in words)
                unique = [word for word in body if counts[word[0]] == 1]
                asked = rng.sample(unique, min(len(unique), rng.choice((1, 1, 2, 3))))
                text = f"Find {' '.join(word[0] for word in asked)}"
                targets = [[word[1:] for word in asked]]
                return self._sequence(page, text, [_entries(asked, move)], targets, move) if asked else None
        return None

    def _sequence(
        self, page: Page, instruction: str, answers: Sequence[str], targets: list[list[Box]], move: Move
    ) -> Lesson:
        user = Message(role="user", text=self._user.format(instruction=instruction))
        token_ids = list(self.renderer.render((self._system, user, self._screen)).token_ids)
        image = self.renderer.image_token_id
        starts = [token_ids.index(image)]
        learned: list[int] = []
        for number, text in enumerate(answers):
            if number:
                starts.append(len(token_ids) + self._next.index(image))
                token_ids += self._next
            answer = (*self.renderer.encode(text), self.renderer.end_of_turn_id)
            learned += range(len(token_ids), len(token_ids) + len(answer))
            token_ids += answer
        return Lesson(
            token_ids=token_ids,
            answers=learned,
            starts=tuple(starts),
            screens=page["screens"][: len(answers)],
            words=page["words"][: len(answers)],
            targets=targets,
            move=move,
        )

    def batches(self, rng: random.Random, tokens: int) -> list[Batch]:
        """A few batches of at most this many tokens each, padding included."""
        lessons = [self.lesson(rng) for _ in range(_BATCHES * tokens // _LESSON_TOKENS)]
        packed: list[list[Lesson]] = [[]]
        for lesson in sorted(lessons, key=lambda lesson: len(lesson.token_ids)):
            if packed[-1] and (len(packed[-1]) + 1) * len(lesson.token_ids) > tokens:
                packed.append([])
            packed[-1].append(lesson)
        rng.shuffle(packed)
        return [self.collate(some) for some in packed]

    def collate(self, lessons: Sequence[Lesson]) -> Batch:
        width = max(len(lesson.token_ids) for lesson in lessons)
        tokens = np.full((len(lessons), width), self.renderer.pad_id, dtype=np.int16)
        positions = np.zeros((3, len(lessons), width), dtype=np.int16)
        slots, answers, targets, moves = [], [], [], []
        for row, lesson in enumerate(lessons):
            length = len(lesson.token_ids)
            tokens[row, :length] = lesson.token_ids
            positions[:, row, :length] = self._positions(length, lesson.starts)
            answers.append(np.array(lesson.answers) + row * width)
            slots += [np.arange(start, start + TOKENS) + row * width for start in lesson.starts]
            targets += [_marked(boxes, lesson.move) for boxes in lesson.targets]
            moves += [lesson.move] * len(lesson.screens)
        screens = [screen for lesson in lessons for screen in lesson.screens]
        words = [words for lesson in lessons for words in lesson.words]
        characters, shown = [], []
        for number in range(0, len(screens), -(-len(screens) // _LABELLED_SCREENS)):
            of_characters, of_words = self._labels_of(screens[number], words[number])
            found = _cells(of_characters, moves[number], number * TOKENS)
            characters.append(found)
            shown.append(np.stack((found[:, 0], self._character_ids[found[:, 2]]), axis=-1))
            shown.append(_cells(of_words, moves[number], number * TOKENS)[:, ::2])
        return Batch(
            tokens_BT=tokens,
            positions_3BT=positions,
            slots_I=np.concatenate(slots),
            answers_A=np.concatenate(answers),
            screens_N=np.array(screens),
            moves_N2=np.array(moves),
            characters_C3=np.concatenate(characters),
            shown_S2=np.concatenate(shown),
            targets_IC=np.concatenate(targets),
        )

    def _labels_of(
        self, screen: int, words: Sequence[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(x, y, character) of a screen; (x, y, token) of its words that are one token."""
        if screen in self._labels:
            return self._labels[screen]
        characters, tokens = [], []
        for text, x, y, width, height in words:
            widths = [0.5 if one in _NARROW else 1.45 if one in _WIDE else 1.0 for one in text]
            middles = (np.cumsum(widths) - np.array(widths) / 2) / sum(widths)
            for one, middle in zip(text, middles, strict=True):
                if one in CHARACTERS:
                    characters.append((x + middle * width, y + height / 2, CHARACTERS.index(one)))
            for token in self._word_ids.get(text.strip('".,:;'), ()):
                tokens.append((x + width / 2, y + height / 2, token))
        found = np.array(characters).reshape(-1, 3), np.array(tokens).reshape(-1, 3)
        self._labels[screen] = found
        return found

    @lru_cache(maxsize=20_000)  # noqa: B019  one object for each process
    def _positions(self, length: int, starts: tuple[int, ...]) -> NDArray[np.int64]:
        slots = np.zeros(length, dtype=bool)
        for start in starts:
            slots[start : start + TOKENS] = True
        return self.renderer.positions([0] * length, [GRID] * len(starts), slots_T=slots)


def _cells(places: NDArray[np.float64], move: Move, first: int) -> NDArray[np.int64]:
    """(image token, cell, label) of (x, y, label), without those outside the screen."""
    rows, columns = CHARACTER_CELLS
    x, y = (places[:, 0] + move[0]) * ACROSS / WIDTH, (places[:, 1] + move[1]) * DOWN / HEIGHT
    seen = (x >= 0) & (x < ACROSS) & (y >= 0) & (y < DOWN)
    x, y = x[seen], y[seen]
    token = first + y.astype(int) * ACROSS + x.astype(int)
    cell = (y % 1 * rows).astype(int) * columns + (x % 1 * columns).astype(int)
    return np.stack((token, cell, places[seen, 2].astype(int)), axis=-1)


def _marked(boxes: Sequence[Box], move: Move) -> NDArray[np.uint8]:
    """[image tokens, cells]: 1 if the cell belongs to a box."""
    rows, columns = DOWN * TARGET_CELLS[0], ACROSS * TARGET_CELLS[1]
    cells = np.zeros((rows, columns), dtype=np.uint8)
    for left, top, width, height in boxes:
        x, y = max(0, left + move[0]) / WIDTH * columns, max(0, top + move[1]) / HEIGHT * rows
        end_x, end_y = x + width / WIDTH * columns, y + height / HEIGHT * rows
        cells[round(y) : max(round(y) + 1, round(end_y)), round(x) : max(round(x) + 1, round(end_x))] = 1
    by_token = cells.reshape(DOWN, TARGET_CELLS[0], ACROSS, TARGET_CELLS[1]).transpose(0, 2, 1, 3)
    return by_token.reshape(TOKENS, -1)
