"""Mapping files: where an OpenEnv environment has its screenshot and its goal, and how it writes actions.

    screenshot = "screen.png"  # path in the observation: a base64 PNG, or an array of pixels
    shape = "screen.shape"     # path of the shape [height, width, channels], if the array is flat
    goal = "goal"              # path of the goal; without it, the model reads the instruction of the task
    score = "sum"              # of all rewards; without it: the last reward

    [actions]
    Click = { action = "click", x = "{x}", y = "{y}" }
    Type = { action = "code", code = "keyboard.type({text!r})" }  # !r: quoted as in Python
    "Hotkey enter" = { action = "submit" }                        # this key only
    DoubleClick = [{ action = "click", x = "{x}", y = "{y}" }, { action = "click", x = "{x}", y = "{y}" }]

The names of actions are the classes of `arpo.actions`. A value that is only "{x}" keeps its type.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import arpo.actions as act
from arpo.actions import TERMINAL, Action
from arpo.config.recipe import nearest
from arpo.envs.openenv.schema import fault_in, field_types
from arpo.errors import UserError
from arpo.keyboard import canonical_keys

Json = dict[str, Any]
Fields = Mapping[str, Any]

_NOTCHES = 5  # of a scroll without an amount
_WAIT_SECONDS = 1.0
_POINT = {"x": 1, "y": 1}
# The fields of each action, with example values: templates are checked with them.
FIELDS: Mapping[str, Fields] = {
    **dict.fromkeys(
        (
            "Click", "DoubleClick", "RightClick", "MiddleClick", "TripleClick", "Hover", "LongPress",
            "MouseDown", "MouseUp",
        ),
        _POINT,
    ),
    "Drag": {**_POINT, "end_x": 1, "end_y": 1},
    "Scroll": {**_POINT, "direction": "down", "amount": _NOTCHES},
    "Hotkey": {"key": "a", "keys": ["a"]},
    "KeyDown": {"key": "a"},
    "KeyUp": {"key": "a"},
    "Type": {"text": "a", "submit": False},
    "OpenApp": {"name": "a"},
    "PressHome": {},
    "PressBack": {},
    "Wait": {"seconds": _WAIT_SECONDS},
    "GiveAnswer": {"text": "a"},
    "Finished": {"content": "a"},
    "Fail": {},
    "CallUser": {},
}  # fmt: skip
_SELECTING = {"Scroll": "direction", "Hotkey": "key", "KeyDown": "key", "KeyUp": "key", "OpenApp": "name"}
_SCORES = ("last", "sum")
_FIELD = re.compile(r"\{(\w+)(!r)?\}")
_EXAMPLE = 'Click = { action = "click", x = "{x}", y = "{y}" }'


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenMapping:
    """A mapping file, read and checked. `templates`: the steps of an action, by its name."""

    file: str
    screenshot: str
    shape: str
    goal: str
    sums_rewards: bool
    templates: Mapping[str, Sequence[Json]]

    def steps(self, action: Action, size: tuple[int, int]) -> list[Json] | None:
        """The action as steps of the environment; None if the file has no template for it.

        `size` is that of the screen: a scroll without a position is in its centre.
        """
        fields = _fields_of(action, size)
        template = self.templates.get(self.entry(action))
        if template is None:
            return None
        if fields.get("submit") and "submit" not in {name for step in template for name in _used(step)}:
            fields = {**fields, "text": f"{fields['text']}\n"}
        return [_filled(step, fields) for step in template]

    def entry(self, action: Action) -> str:
        """The name of its template: "Hotkey enter" or "Hotkey". The first one if the file has none."""
        kind = type(action).__name__
        if kind not in _SELECTING:
            return kind
        special = f"{kind} {_fields_of(action, (1, 1))[_SELECTING[kind]]}"
        return kind if kind in self.templates and special not in self.templates else special

    def without_template(self) -> list[str]:
        """The kinds of actions that the file does not have, except those that need none."""
        mapped = {name.partition(" ")[0] for name in self.templates}
        optional = {kind.__name__ for kind in (act.Wait, *TERMINAL)}
        return [kind for kind in FIELDS if kind not in mapped | optional]

    def selected_actions(self) -> list[Action]:
        """An action for each entry of one key, direction or name, such as "Hotkey enter"."""
        return [
            _selected_action(kind, selected)
            for kind, _, selected in (name.partition(" ") for name in self.templates)
            if selected
        ]


def read_mapping(file: str, schema: Json) -> ScreenMapping:
    """Read a mapping file and compare it with the server's /schema. Raises UserError with the entry."""
    try:
        content = tomllib.loads(Path(file).read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}: write a mapping file") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise UserError(f"{file}: {error}") from error
    known = ("screenshot", "shape", "goal", "score", "actions")
    for key in content:
        if key not in known:
            raise UserError(f"{file}: {key}: unknown key{nearest(key, known)}")
    if content.get("score", "last") not in _SCORES:
        raise UserError(f"{file}: score = {content['score']!r}: must be one of: {', '.join(_SCORES)}")
    mapping = ScreenMapping(
        file=file,
        sums_rewards=content.get("score") == "sum",
        templates=dict(_read_templates(file, content.get("actions"))),
        **{key: _read_path(file, key, content.get(key, "")) for key in ("screenshot", "shape", "goal")},
    )
    _check_observation(mapping, schema["observation"])
    for name, steps in mapping.templates.items():
        for step in steps:
            if fault := fault_in(_filled(step, _example(name)), schema["action"], "action"):
                raise UserError(f"{file}: actions: {name}: the server's /schema refuses it: {fault}")
    return mapping


def _read_path(file: str, key: str, value: Any) -> str:
    if not isinstance(value, str) or (key == "screenshot" and not value):
        raise UserError(f'{file}: {key}: must be a path in the observation, such as {key} = "screen.png"')
    return value


def _read_templates(file: str, actions: Any) -> Iterator[tuple[str, list[Json]]]:
    if not isinstance(actions, dict) or not actions:
        raise UserError(f"{file}: [actions]: add at least one action, such as {_EXAMPLE}")
    for name, value in actions.items():
        kind, _, selected = name.partition(" ")
        if kind not in FIELDS or (selected and kind not in _SELECTING):
            raise UserError(f"{file}: actions: {name}: no such action{nearest(kind, list(FIELDS))}")
        if selected:
            _check_selected(file, kind, selected)
        steps = value if isinstance(value, list) else [value]
        for step in steps:
            if not isinstance(step, dict):
                raise UserError(f"{file}: actions: {name}: must be a table, such as {_EXAMPLE}")
            if unknown := _used(step) - FIELDS[kind].keys():
                fields = ", ".join(FIELDS[kind]) or "none"
                raise UserError(
                    f"{file}: actions: {name}: no field {{{min(unknown)}}}; its fields are: {fields}"
                )
        yield name, steps


def _check_selected(file: str, kind: str, selected: str) -> None:
    """Raise UserError if no action of a model has this key or direction."""
    written = selected
    try:
        if kind == "Scroll":
            act.Direction(selected)
        elif kind != "OpenApp":
            written = "+".join(canonical_keys(selected))
    except ValueError as error:
        raise UserError(f"{file}: actions: {kind} {selected}: {error}") from None
    if written != selected:
        raise UserError(f'{file}: actions: {kind} {selected}: write "{kind} {written}"')


def _selected_action(kind: str, selected: str) -> Action:
    match kind:
        case "Scroll":
            return act.Scroll(point=None, direction=act.Direction(selected))
        case "OpenApp":
            return act.OpenApp(name=selected)
        case "KeyDown":
            return act.KeyDown(key=selected)
        case "KeyUp":
            return act.KeyUp(key=selected)
        case _:
            return act.Hotkey(keys=canonical_keys(selected))


def _check_observation(mapping: ScreenMapping, schema: Json) -> None:
    kinds = {"screenshot": ("string", "array"), "shape": ("array",), "goal": ("string",)}
    for key, allowed in kinds.items():
        path = getattr(mapping, key)
        if not path:
            continue
        try:
            types = field_types(schema, path)
        except LookupError as error:
            raise UserError(f"{mapping.file}: {key} = {path!r}: {error.args[0]}") from None
        if types and not types & set(allowed):
            raise UserError(
                f"{mapping.file}: {key} = {path!r}: is of type {', '.join(sorted(types))} in the server's "
                f"/schema, must be {' or '.join(allowed)}"
            )


def _example(name: str) -> Fields:
    kind, _, selected = name.partition(" ")
    return {**FIELDS[kind], **({_SELECTING[kind]: selected} if selected else {})}


def _fields_of(action: Action, size: tuple[int, int]) -> Json:
    match action:
        case act.Drag(start=start, end=end):
            return {**_pixel(start), **{f"end_{axis}": value for axis, value in _pixel(end).items()}}
        case act.Scroll(point=point, direction=direction, amount=amount):
            centre = {"x": size[0] // 2, "y": size[1] // 2}
            notches = _NOTCHES if amount is None else amount
            return {**(_pixel(point) if point else centre), "direction": str(direction), "amount": notches}
        case act.Hotkey(keys=keys):
            return {"key": "+".join(keys), "keys": list(keys)}
        case act.KeyDown(key=key) | act.KeyUp(key=key):
            return {"key": key}
        case act.Type(text=text, submit=submit):
            return {"text": text, "submit": submit}
        case act.OpenApp(name=name):
            return {"name": name}
        case act.Wait(seconds=seconds):
            return {"seconds": _WAIT_SECONDS if seconds is None else seconds}
        case act.GiveAnswer(text=text):
            return {"text": text}
        case act.Finished(content=content):
            return {"content": content}
        case _:
            return _pixel(action.point) if "x" in FIELDS[type(action).__name__] else {}  # type: ignore[union-attr]


def _pixel(point: Any) -> dict[str, int]:
    return {"x": round(point.x), "y": round(point.y)}


def _filled(template: Any, fields: Fields) -> Any:
    """The template with the values of the fields."""

    def fill(text: str) -> Any:
        if (whole := _FIELD.fullmatch(text)) and not whole[2]:
            return fields[whole[1]]
        return _FIELD.sub(lambda found: (repr if found[2] else str)(fields[found[1]]), text)

    return _mapped(template, fill)


def _used(template: Any) -> set[str]:
    """The names of the fields in a template."""
    names: set[str] = set()
    _mapped(template, lambda text: names.update(found[1] for found in _FIELD.finditer(text)))
    return names


def _mapped(value: Any, convert: Callable[[str], Any]) -> Any:
    match value:
        case str():
            return convert(value)
        case dict():
            return {key: _mapped(inner, convert) for key, inner in value.items()}
        case list():
            return [_mapped(inner, convert) for inner in value]
        case _:
            return value
