"""Web pages of our own making, to pretrain the tiny model for a browser.

    python -m tools.pretrain.web_pages --out pages.zip

A page has 160x210 pixels, as those of MiniWoB++; none of its pages, texts or instructions is used. Each has
random buttons, links, tabs, fields, boxes or a dialog, an instruction in its header, and a demonstration: one
screen for each click. Chromium draws many pages in one screenshot. The file has the pixels (as indices of
`palette`), and the words and elements of all pages with their places.
"""

from __future__ import annotations

import argparse
import asyncio
import html
import io
import json
import random
import string
import time
import zipfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from arpo.envs.browser.chromium import SharedBrowser
from arpo.envs.browser.miniwob import HEIGHT, WIDTH
from arpo.envs.browser.proxy import Access
from arpo.envs.browser.window import Window
from arpo.envs.desk.words import vocabulary
from tools.pretrain.web_lessons import palette

COLUMNS, ROWS = 16, 10  # pages of one screenshot
COLOURS = (
    "red", "green", "blue", "yellow", "orange", "purple", "black", "white", "gray", "pink", "brown", "cyan",
    "magenta", "lime", "olive", "navy", "teal", "gold",
)  # fmt: skip
_COMMON = (
    "OK", "Yes", "No", "Cancel", "Submit", "Send", "Next", "Back", "Go", "Login", "Search", "Okay", "Save",
    "Apply", "Start", "Stop", "Help", "Done", "Accept", "ok", "submit", "cancel", "next", "yes", "no", "back",
)  # fmt: skip
_NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_SYLLABLES = (
    "ba", "co", "di", "fe", "gu", "la", "me", "ni", "or", "pa", "qui", "ra", "sen", "ti", "ul", "ve", "xa",
    "lor", "tem", "nus", "que", "sit", "am", "et", "ris", "dol", "pri",
)  # fmt: skip
_ORDINALS = (("first", "1st"), ("second", "2nd"), ("third", "3rd"))
# Instructions by kind of page. {n}: what to click; {b}: the button to press at the end.
_WORDINGS = {
    "button": 'Press "{n}"|Push the button {n}.|Click {n}|Please press the {n} button|Use the "{n}" button.|'
    'Click "{n}".|Find the button "{n}" and press it.|Hit "{n}" on this page.|The {n} button, please.',
    "only": 'Press the only button|Push this button.|Click it: there is one button.|Press "{n}".',
    "link": 'Follow "{n}".|Open the link {n}|Click "{n}" in the text|Go to the page "{n}".|'
    'Visit the "{n}" link.|Click the underlined {n}|Use the link "{n}".',
    "close": "Close the window.|Dismiss the dialog with its cross|Shut this box: press the x|"
    "Close the dialog|"
    'Use the "x" to close the box.|Press the "x" of the window|Answer the dialog with "x".',
    "dialog": 'Answer the dialog with "{n}"|Press "{n}" in the window.|In the dialog, choose {n}.|'
    'Click "{n}" in the box|Use the button named "{n}" of the dialog.',
    "tab": 'Open tab {n}|Go to {n}.|Switch to the tab "{n}".|Show {n}|Click {n}|Turn to {n}.|'
    "Press the tab {n}.",
    "field": "Put the cursor into the{n} field|Click the{n} text field.|Click into the{n} text box|"
    "Go to the{n} input.|Activate the{n} input field|Get the{n} box ready for typing.|"
    "Set the focus to the{n} text box",
    "radio": "Choose {n}, then press {b}.|Mark {n} and press {b}|Pick {n} and then {b}.|"
    "Turn on {n}, and send it with {b}|Take {n} and push {b}.|Select {n}. Then press {b}.",
    "checkbox": "Tick {n}, then press {b}.|Check {n} and push {b}|Mark {n} and press {b}.|"
    "Turn on {n}, then {b}|Choose {n}; then use {b}.|Select {n}. Then press {b}.|Select {n}, push {b}",
    "widget": 'Click a {n}|Touch any {n} of this page|Pick one "{n}" here.|Use a {n} element.|'
    'Where is a "{n}"? Click it.',
    "colour": "Pick the {n} square|Choose the box in {n}.|Touch the {n} area|Click the {n} tile.|"
    "Press on {n}|"
    "Where is the {n} one?",
}  # fmt: skip
_SENDERS = ("Submit", "Send", "Save", "Done", "OK", "Submit", "Go")
_WIDGETS = {
    "button": ("button",),
    "checkbox": ("check box", "checkbox"),
    "radio": ("radio button", "radio"),
    "text": ("text field", "text input", "text line"),
    "textarea": ("text area", "textarea", "large text"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`names` are those of the elements, `clicks` numbers of elements. `body` draws the page
    with these elements on.
    """

    kind: str
    instruction: str
    names: Sequence[str]
    clicks: Sequence[int]
    body: Callable[[Sequence[int]], str]


def _element(number: int, tag: str, text: str = "", style: str = "", attributes: str = "") -> str:
    """HTML of an element whose place is recorded under this number."""
    start = f'<{tag} data-e={number} style="{style}" {attributes}>'
    return start if tag == "input" else f"{start}{html.escape(text)}</{tag}>"


def _box(style: str, *content: str) -> str:
    return f'<div style="{style}">{" ".join(content)}</div>'


def _ask(rng: random.Random, kind: str, name: str, button: str = "") -> str:
    return rng.choice(_WORDINGS[kind].split("|")).format(n=name, b=button)


def _pseudo(rng: random.Random) -> str:
    word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(1, 4)))
    return word.capitalize() if rng.random() < 0.2 else word


def _text(rng: random.Random, words: int) -> list[str]:
    return [_pseudo(rng) + rng.choice(("", "", "", "", ".", ",")) for _ in range(words)]


def _code(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(1, 8)))


def _label(rng: random.Random) -> str:
    sources: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(_COMMON),
        lambda: rng.choice(_NUMBERS),
        lambda: rng.choice(vocabulary()),
        lambda: _code(rng),
        lambda: _pseudo(rng),
    )
    word = rng.choices(sources, (30, 10, 25, 15, 20))[0]()
    return word.upper() if rng.random() < 0.25 else word


def _names(rng: random.Random, count: int, make: Callable[[random.Random], str] = _label) -> list[str]:
    """Names that differ in more than case and punctuation."""
    found: dict[str, str] = {}
    while len(found) < count:
        name = make(rng)
        found.setdefault(name.lower().strip(".,"), name)
    return list(found.values())


def buttons(rng: random.Random) -> Page:
    """Buttons, at free places or between texts and fields."""
    names = _names(rng, rng.choice((1, 2, 2, 3, 3, 4)))
    if rng.random() < 0.5:
        random_size = f"width:{rng.randint(36, 80)}px;height:{rng.randint(20, 80)}px"
        size = rng.choice(("", "", "width:40px;height:40px", random_size))
        places = [f"left:{rng.randint(0, 100)}px;top:{rng.randint(46, 165)}px" for _ in names]
        styles = [f"position:absolute;{place};{size}" for place in places]
        parts = [_element(i, "button", name, styles[i]) for i, name in enumerate(names)]
    else:
        parts = [_element(i, "button", name) for i, name in enumerate(names)]
        for _ in range(rng.randint(0, 5)):
            words = " ".join(_text(rng, rng.randint(2, 7)))
            filler = rng.choice((words, f"<input style='width:{rng.randint(30, 140)}px'>"))
            parts.insert(rng.randint(0, len(parts)), f"<span>{filler}</span>{rng.choice(('', '<br>'))}")
    chosen = rng.randrange(len(names))
    asked = _ask(rng, "button" if len(names) > 1 else "only", names[chosen])
    return Page(
        kind="button", instruction=asked, names=names, clicks=[chosen], body=lambda on: " ".join(parts)
    )


def links(rng: random.Random) -> Page:
    """Links in a text."""

    def name(rng: random.Random) -> str:
        return _label(rng) if rng.random() < 0.2 else _pseudo(rng) + rng.choice(("", "", "", "."))

    words = [f"<span>{word}</span>" for word in _text(rng, rng.randint(8, 26))]
    names = _names(rng, rng.randint(2, 6), name)
    for number, place in enumerate(sorted(rng.sample(range(len(words)), len(names)))):
        words[place] = _element(number, "a", names[number], attributes='href="#"')
    chosen = rng.randrange(len(names))
    text = _box(f"margin:{rng.randint(0, 25)}px {rng.choice((0, 0, rng.randint(0, 20)))}px", *words)
    asked = _ask(rng, "link", names[chosen])
    return Page(kind="link", instruction=asked, names=names, clicks=[chosen], body=lambda on: text)


def dialog(rng: random.Random) -> Page:
    """A box with a title bar, a cross in its corner and sometimes buttons."""
    names = ["x", *_names(rng, rng.choice((0, 0, 1, 2, 2)), lambda rng: rng.choice(_COMMON[:18]))]
    chosen = rng.randrange(len(names))
    width, height, side, pad = (
        rng.randint(90, 145),
        rng.randint(60, 110),
        rng.randint(13, 20),
        rng.randint(1, 4),
    )
    bar = rng.choice(("#ddd", "#e9e9e9", "#36c", "#ccc", "#def"))
    drawn = "<svg width=9 height=9><path d='M1 1L8 8M8 1L1 8' stroke='#444' stroke-width=2.5 /></svg>"
    close = _element(
        0, "button", "CROSS", f"position:absolute;right:{pad}px;top:{pad}px;width:{side}px;height:{side}px;"
        f"padding:0;line-height:9px;font-size:{rng.randint(9, 14)}px",
    ).replace("CROSS", rng.choice(("x", "X", "\u00d7", "\u2716", "\u2715", drawn)))  # fmt: skip
    style = f"font-size:{rng.choice((10, 10, 11, 13))}px;padding:{rng.randint(1, 4)}px {rng.randint(4, 12)}px"
    foot = [_element(i, "button", name, style) for i, name in enumerate(names) if i]
    title = _box(
        f"background:{bar};margin:{rng.randint(0, 3)}px;height:{side + 2 * pad - 2}px;padding:2px;"
        f"color:{'white' if bar == '#36c' else 'black'}",
        rng.choice(("", "", _label(rng), " ".join(_text(rng, 2)))),
    )
    text = _box(
        f"position:absolute;left:{rng.randint(2, 155 - width)}px;top:{rng.randint(52, 205 - height)}px;"
        f"width:{width}px;height:{height}px;background:{rng.choice(('#eee', '#ddd', '#fff', '#ccd'))};"
        f"border:1px solid #aaa;border-radius:{rng.randint(0, 4)}px",
        title,
        close,
        _box(f"margin:{rng.randint(2, 9)}px", *_text(rng, rng.randint(2, 9))),
        _box(f"position:absolute;bottom:5px;right:{rng.randint(4, 30)}px", *foot),
    )
    asked = _ask(rng, "dialog" if chosen else "close", names[chosen])
    return Page(kind="dialog", instruction=asked, names=names, clicks=[chosen], body=lambda on: text)


def tabs(rng: random.Random) -> Page:
    """A row of tabs above a text; one is open."""
    count = rng.choice((2, 3, 3, 4))
    word = rng.choice(("Tab", "Page", "Part", "Step", "View", "Sheet", "Item", "Section"))
    sign = rng.choice(("", "-", "No.", *["#"] * (word != "Tab")))  # "Tab #1" is MiniWoB++'s
    numbered = [f"{word} {sign}{number + 1}" for number in range(count)]
    names = rng.choices((numbered, _names(rng, count, lambda rng: rng.choice(vocabulary()))), (7, 3))[0]
    chosen = rng.randrange(count)
    opened = rng.choice([i for i in range(count) if i != chosen])
    front, back = rng.choice((("white", "#07f"), ("#333", "#fff"), ("white", "#37a"), ("#333", "#fc6")))
    shape = f"display:inline-block;margin:2px 1px 0;padding:{rng.randint(2, 6)}px;border:1px solid #bbb;"
    states = [
        f"background:{back};color:{front}" if i == opened else "background:#f4f4f4" for i in range(count)
    ]
    row = [_element(i, "a", name, shape + states[i]) for i, name in enumerate(names)]
    top = _box(f"background:#e8e8e8;white-space:nowrap;margin-top:{rng.randint(0, 15)}px", *row)
    text = top + _box(f"margin:{rng.randint(4, 18)}px", *_text(rng, rng.randint(5, 20)))
    asked = _ask(rng, "tab", names[chosen])
    return Page(kind="tab", instruction=asked, names=names, clicks=[chosen], body=lambda on: text)


def fields(rng: random.Random) -> Page:
    """One to three text fields."""
    count = rng.choice((1, 1, 2, 3))
    chosen, height = rng.randrange(count), 150 // count
    rows = []
    for i in range(count):
        margins = f"margin-left:{rng.randint(0, 22)}px;margin-top:{rng.randint(0, height - 22)}px"
        field = _element(i, "input", style=f"width:{rng.randint(60, 125)}px;{margins}")
        rows.append(_box(f"height:{height}px", field))
    names = [f"{_ORDINALS[i][0]} field" if count > 1 else "field" for i in range(count)]
    asked = _ask(rng, "field", "" if count == 1 else f" {rng.choice(_ORDINALS[chosen])}")
    return Page(kind="field", instruction=asked, names=names, clicks=[chosen], body=lambda on: "".join(rows))


def boxes(rng: random.Random) -> Page:
    """Check boxes or radio buttons, and a button to send them."""
    kind = rng.choices(("radio", "checkbox"), (4, 6))[0]
    names = _names(rng, rng.randint(2, 6), _code if rng.random() < 0.6 else _label)
    count = rng.choice((0, 1, 1, 2, 2, 3)) if kind == "checkbox" and len(names) > 3 else 1
    wanted = sorted(rng.sample(range(len(names)), count))
    button = rng.choice([each for each in _SENDERS if each not in names])
    gap, space, pad = rng.randint(0, 3), rng.randint(0, 12), rng.randint(2, 6)

    def body(on: Sequence[int]) -> str:
        rows = []
        for i, name in enumerate(names):
            box = _element(i, "input", attributes=f"type={kind}{' checked' * (i in on)}")
            rows.append(f"<label style='display:block;margin:{gap}px 0'>{box}{name}</label>")
        last = _element(len(names), "button", button, f"padding:{pad}px {4 * pad}px")
        return "".join((*rows, _box(f"height:{space}px"), last))

    listed = rng.choice((", ", ", ", " and ")).join(names[i] for i in wanted)
    asked = _ask(rng, kind, listed or rng.choice(("no box", "none")), button)
    clicks = [*wanted, len(names)]
    return Page(kind=kind, instruction=asked, names=[*names, button], clicks=clicks, body=body)


def widgets(rng: random.Random) -> Page:
    """Elements of several kinds; the instruction asks for a kind, and the first of this kind is clicked."""
    drawn = [rng.choice(list(_WIDGETS)) for _ in range(rng.randint(3, 6))]
    rows = []
    for i, kind in enumerate(drawn):
        if kind == "button":
            part = _element(i, "button", _label(rng))
        elif kind == "textarea":
            part = _element(i, "textarea", _code(rng), "width:120px;height:25px")
        elif kind == "text":
            part = _element(i, "input", style="width:120px", attributes=f"value={_code(rng)}")
        else:
            part = f"<label>{_element(i, 'input', attributes=f'type={kind}')}{_code(rng)}</label>"
        rows.append(_box(f"margin:{rng.randint(1, 4)}px 0", part))
    kind = rng.choice(drawn)
    asked = _ask(rng, "widget", rng.choice(_WIDGETS[kind]))
    clicks = [drawn.index(kind)]
    return Page(kind="widget", instruction=asked, names=drawn, clicks=clicks, body=lambda on: "".join(rows))


def colours(rng: random.Random) -> Page:
    """Boxes of different colours."""
    names = rng.sample(COLOURS, rng.randint(2, 6))
    side = rng.randint(24, 52)
    shape = f"display:inline-block;width:{side}px;height:{side}px;border:1px solid black;"
    styles = [f"{shape}margin:{rng.randint(2, 6)}px;background:{name}" for name in names]
    shown = [_element(i, "div", style=style) for i, style in enumerate(styles)]
    chosen = rng.randrange(len(names))
    align = rng.choice(("center", "left", "right"))
    body = _box(f"text-align:{align};margin:{rng.randint(0, 22)}px 0", *shown)
    asked = _ask(rng, "colour", names[chosen])
    return Page(kind="colour", instruction=asked, names=names, clicks=[chosen], body=lambda on: body)


KINDS = {buttons: 5, links: 3, dialog: 3, tabs: 2, fields: 2, boxes: 3, widgets: 2, colours: 2}


def random_page(rng: random.Random) -> Page:
    [make] = rng.choices(list(KINDS), list(KINDS.values()))
    return make(rng)


def drawn_page(rng: random.Random, page: Page) -> list[str]:
    """HTML of the page before each click."""
    header = rng.choice(("#ff0", "#ff6", "#def", "#dfd", "#eee", "#fdb", "#ccf", "#fff"))
    shown = html.escape(page.instruction) if rng.random() < 0.9 else ""
    height = rng.choice((44, 44, 44, rng.randint(24, 48)))
    top = _box(f"background:{header};height:{height}px;padding:3px", shown)
    start = f"<form class=page style='font-size:{rng.choice((10, 10, 10, 10, 11, 12))}px'>{top}"
    bodies = [page.body(page.clicks[:i]) for i in range(len(page.clicks))]
    return [f"{start}{_box('padding:2px', body)}</form>" for body in bodies]


_STYLE = f"""body {{ margin: 0; font-family: Arial }}
.page {{ position: relative; float: left; width: {WIDTH}px; height: {HEIGHT}px; overflow: hidden;
  background: white; margin: 0; contain: strict }}"""
_SHOW = "(content => { document.open(); document.write(content); document.close() })"
# For each page: its words, and its elements with their labels, with their places: left, top, width, height.
_PLACES = f"""[...document.querySelectorAll('.page')].map(page => {{
  const from = page.getBoundingClientRect(), words = [];
  const box = at => [at.x - from.x, at.y - from.y, at.width, at.height].map(Math.round);
  const walker = document.createTreeWalker(page, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (walker.nextNode()) for (const match of walker.currentNode.data.matchAll(/\\S+/g)) {{
    range.setStart(walker.currentNode, match.index);
    range.setEnd(walker.currentNode, match.index + match[0].length);
    const at = range.getClientRects()[0];
    if (at) words.push([match[0], ...box(at)]);
  }}
  const elements = [...page.querySelectorAll('[data-e]')].sort((a, b) => a.dataset.e - b.dataset.e);
  const whole = each => each.closest('label') || each;
  return [
    words.filter(([, x, y, width, height]) => x + width <= {WIDTH} && y + height <= {HEIGHT}),
    elements.map(each => [each, whole(each)].flatMap(one => box(one.getClientRects()[0]))),
  ];
}})"""


def _nearest() -> NDArray[np.uint8]:
    """Index of the nearest colour of the palette, by the five highest bits of red, green and blue."""
    level = np.round(np.arange(32) * 255 / 31)
    cube = np.stack(np.meshgrid(level, level, level, indexing="ij"), axis=-1).reshape(32, -1, 1, 3)
    known = palette().astype(np.float32)
    return np.concatenate([((part - known) ** 2).sum(-1).argmin(1) for part in cube]).astype(np.uint8)


@asynccontextmanager
async def opened_window() -> AsyncIterator[Window]:
    """A window of Chromium for the pages of one screenshot."""
    browser = SharedBrowser("")
    try:
        context = await (await browser.get()).open(Access(allowed=()))
        window = Window(context, COLUMNS * WIDTH, ROWS * HEIGHT, 1)
        await window.open("about:blank")
        yield window
    finally:
        browser.close()


async def draw(window: Window, content: Sequence[str]) -> tuple[NDArray[np.uint8], list[Any]]:
    """[pages, height, width, 3] of one screenshot, and the words and elements of each page."""
    document = f"<!DOCTYPE html><style>{_STYLE}</style>{''.join(content)}"
    await window.tab.evaluate(f"{_SHOW}({json.dumps(document)})")
    places = await window.tab.evaluate(_PLACES)
    image = np.asarray(Image.open(io.BytesIO(await window.tab.screenshot())).convert("RGB"))
    tiles = image.reshape(ROWS, HEIGHT, COLUMNS, WIDTH, 3).transpose(0, 2, 1, 3, 4)
    return tiles.reshape(-1, HEIGHT, WIDTH, 3)[: len(content)], places


async def write(archive: zipfile.ZipFile, count: int, seed: int) -> None:
    """Draw at least `count` screens."""
    async with opened_window() as window:
        await _write(window, archive, count, seed)


async def _write(window: Window, archive: zipfile.ZipFile, count: int, seed: int) -> None:
    rng, nearest = random.Random(f"web-{seed}"), _nearest()
    done, part, start = 0, 0, time.monotonic()
    while done < count:
        pages: list[tuple[Page, int]] = []
        content: list[str] = []
        while len(content) < COLUMNS * ROWS - 4:  # a page has at most four screens
            page = random_page(rng)
            pages.append((page, len(content)))
            content += drawn_page(rng, page)
        pixels, places = await draw(window, content)
        red, green, blue = (pixels.astype(np.uint16) >> 3).transpose(3, 0, 1, 2)
        archive.writestr(f"{part}.pixels", nearest[(red << 10) | (green << 5) | blue].tobytes())
        records = [
            {
                "kind": page.kind,
                "instruction": page.instruction,
                "names": page.names,
                "clicks": page.clicks,
                "screens": [first + i for i in range(len(page.clicks))],  # of this part
                "words": [words for words, _ in places[first : first + len(page.clicks)]],
                "elements": places[first][1],
            }
            for page, first in pages
        ]
        archive.writestr(f"{part}.json", json.dumps(records, separators=(",", ":")))
        done, part = done + len(content), part + 1
        print(f"{done} screens, {done / (time.monotonic() - start):.0f} per second", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="output file (ZIP)")
    parser.add_argument("--count", type=int, default=40_000, help="screens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    options = parser.parse_args()
    with zipfile.ZipFile(options.out, "w", zipfile.ZIP_LZMA) as archive:
        asyncio.run(write(archive, options.count, options.seed))


if __name__ == "__main__":
    main()
