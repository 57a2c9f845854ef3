"""Scripted solvers of MiniWoB++ tasks. They read the page to find places, and act with mouse and keyboard."""

import json
import re

from arpo.actions import Click, Hotkey, KeyDown, KeyUp, Point, Type

_PLACE = """(element => {
  if (!element) return null;
  element.scrollIntoView({block: 'nearest'});
  const box = element.getBoundingClientRect();
  return [box.x + box.width / 2, box.y + box.height / 2];
})"""
# The innermost visible elements with this text.
_WITH_TEXT = """((selector, text) => [...document.querySelectorAll(selector)].find(
  element => element.innerText.trim() === text && element.getClientRects().length))"""


class Hands:
    """`done` is true when the page has ended the episode."""

    def __init__(self, env, instruction):
        self.env, self.text, self.done = env, instruction, False

    async def act(self, *actions):
        if not self.done:
            self.done = (await self.env.step(actions)).terminated

    async def read(self, expression):
        return await self.env._window.tab.evaluate(expression)

    async def click(self, selector, text=None, number=0):
        """Click an element of the page: the one with this text, or the one with this number."""
        named = f"{_WITH_TEXT}({json.dumps(selector)}, {json.dumps(text)})"
        element = f"document.querySelectorAll({json.dumps(selector)})[{number}]" if text is None else named
        place = await self.read(f"{_PLACE}({element})")
        assert place, (self.text, selector, text)
        await self.act(Click(point=Point(*place)))

    async def type_into(self, selector, text):
        await self.click(selector)
        await self.act(Type(text=text))

    async def submit(self):
        await self.click("#subbtn, button.secondary-action")

    def quoted(self):
        return re.findall(r'"([^"]*)"', self.text)


def found(pattern, text):
    """The first group of the pattern in the text, or all that matches if it has none."""
    match = re.search(pattern, text)
    assert match is not None, (pattern, text)
    return match[match.re.groups]


async def one_button(hands):
    await hands.click("#area button")


async def named_button(hands):
    await hands.click("#area button", hands.quoted()[0])


async def buttons_one_and_two(hands):
    await hands.click("#subbtn")
    await hands.click("#subbtn2")


async def link(hands):
    await hands.click("span.alink", hands.quoted()[0])


async def tab(hands):
    await hands.click("a.ui-tabs-anchor", found(r"Tab #\d", hands.text))


async def link_in_a_tab(hands):
    for number in range(await hands.read("document.querySelectorAll('a.ui-tabs-anchor').length")):
        await hands.click("a.ui-tabs-anchor", number=number)
        target = json.dumps(hands.quoted()[0])
        if await hands.read(f"!!{_WITH_TEXT}('span.alink', {target})"):
            return await link(hands)


async def boxes(hands):
    listed = found(r"Select (.*) and click", hands.text)
    for name in [] if listed == "nothing" else listed.split(", "):
        await hands.click("label", name)
    await hands.submit()


async def entered_text(hands):
    await hands.type_into("#tt", hands.quoted()[0])
    await hands.submit()


async def text_in_another_case(hands):
    text = hands.quoted()[0]
    await hands.type_into("#tt", text.upper() if "upper" in hands.text else text.lower())
    await hands.submit()


async def password(hands):
    for field in ("#password", "#verify"):
        await hands.type_into(field, hands.quoted()[0])
    await hands.submit()


async def login(hands):
    for field, text in zip(("#username", "#password"), hands.quoted(), strict=True):
        await hands.type_into(field, text)
    await hands.submit()


async def first_field(hands):
    await hands.click("#tt")


async def field_with_a_number(hands):
    await hands.click(f"#tt{found(r'[0-9]', hands.text)}")


async def closed_dialog(hands):
    await hands.click("button.ui-dialog-titlebar-close")


async def button_of_a_dialog(hands):
    name = hands.quoted()[0]
    if name == "x":
        return await closed_dialog(hands)
    await hands.click(".ui-dialog-buttonset button", name)


async def expanded_section(hands):
    await hands.click("#area h3")
    await hands.click("#subbtn")


async def items_of_a_list(hands):
    names = found(r"Select (.*) from", hands.text).split(", ")
    await hands.act(KeyDown(key="ctrl"))
    for name in names:
        await hands.click("#options option", name)
    await hands.act(KeyUp(key="ctrl"))
    await hands.submit()


async def item_of_a_list(hands):
    await hands.click("#options")
    await hands.click("#options option", found(r"Select (.*) from", hands.text))
    await hands.submit()


async def colour(hands):
    await hands.click(f"[data-color={found(r'the (.*) colored', hands.text)}]")


async def kind_of_shape(hands):
    shape = "document.querySelector('#area_svg').firstElementChild"
    tag, text = await hands.read(f"[{shape}.tagName, {shape}.textContent]")
    kinds = {"rect": "rectangle", "circle": "circle", "polygon": "triangle"}
    kind = kinds.get(tag) or ("digit" if text.isdigit() else "letter")
    await hands.click(f"[data-type={kind}]")


async def sum_of_numbers(hands):
    first, sign, second = re.findall(
        r"\d+|[-+x×*]", await hands.read("document.querySelector('#math-problem').innerText")
    )
    numbers = int(first), int(second)
    result = {"+": sum(numbers), "-": numbers[0] - numbers[1]}.get(sign, numbers[0] * numbers[1])
    await hands.type_into("#math-answer", str(result))
    await hands.submit()


async def unknown_number(hands):
    left, sign, right, result = re.findall(
        r"\d+|x|[-+](?= )|(?<== )-?\d+", await hands.read("document.querySelector('#math-problem').innerText")
    )
    known, total = int(right if left == "x" else left), int(result)
    if sign == "+":
        value = total - known
    else:
        value = total + known if left == "x" else known - total
    await hands.type_into("#math-answer", str(value))
    await hands.submit()


async def value_of_a_table(hands):
    name = found(r"value of (.*) into", hands.text)
    rows = await hands.read(
        "[...document.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    await hands.type_into("#tt", dict(rows)[name])
    await hands.submit()


async def copied_text(hands):
    await hands.click("#to-copy")
    await hands.act(Hotkey(keys=("ctrl", "a")), Hotkey(keys=("ctrl", "c")))
    await hands.click("#answer-input")
    await hands.act(Hotkey(keys=("ctrl", "v")))
    await hands.submit()


async def found_word(hands):
    words = re.findall(r"\w+", await hands.read("document.querySelector('#area p').innerText"))
    await hands.type_into("#answer-input", words[int(found(r"the (\d+)", hands.text)) - 1])
    await hands.submit()


SOLVERS = {
    "click-test": one_button,
    "click-test-2": buttons_one_and_two,
    "click-test-transfer": one_button,
    "click-button": named_button,
    "click-button-sequence": buttons_one_and_two,
    "unicode-test": named_button,
    "click-link": link,
    "click-tab": tab,
    "click-tab-2": link_in_a_tab,
    "click-tab-2-easy": link_in_a_tab,
    "click-tab-2-medium": link_in_a_tab,
    "click-checkboxes": boxes,
    "click-checkboxes-large": boxes,
    "click-checkboxes-transfer": boxes,
    "click-option": boxes,
    "enter-text": entered_text,
    "enter-text-2": text_in_another_case,
    "enter-text-dynamic": entered_text,
    "enter-password": password,
    "login-user": login,
    "focus-text": first_field,
    "focus-text-2": field_with_a_number,
    "click-dialog": closed_dialog,
    "click-dialog-2": button_of_a_dialog,
    "click-collapsible": expanded_section,
    "click-scroll-list": items_of_a_list,
    "choose-list": item_of_a_list,
    "click-color": colour,
    "identify-shape": kind_of_shape,
    "simple-arithmetic": sum_of_numbers,
    "simple-algebra": unknown_number,
    "read-table": value_of_a_table,
    "copy-paste": copied_text,
    "find-word": found_word,
}
