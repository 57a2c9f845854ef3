"""Recipes: TOML and dotted overrides in, a `Config` out, and back.

A recipe may stand on another one: `extends = "paper"`, before its first section, takes that one's settings
and changes those that follow. What the tree does not know is refused with the place, the reason and the
nearest right name. Nothing is guessed: a text is not a number, and 1 is not true.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from arpo.config import BadSetting, Config
from arpo.errors import UserError

_SHIPPED = Path(str(files("arpo"))) / "recipes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting of the tree: Key(name="loss.kl", type=float, default=0.0, help="weight of …")."""

    name: str
    type: Any  # bool, int, float, str or a Literal of texts
    default: Any
    help: str

    @property
    def type_name(self) -> str:
        return " | ".join(get_args(self.type)) if get_origin(self.type) is Literal else self.type.__name__


def keys() -> Iterator[Key]:
    """Every setting there is, in the order of the tree."""
    for section, section_type in get_type_hints(Config).items():
        hints = get_type_hints(section_type)
        for entry in fields(section_type):
            assert entry.default is not MISSING
            yield Key(
                name=f"{section}.{entry.name}",
                type=hints[entry.name],
                default=entry.default,
                help=entry.metadata["help"],
            )


def changed(one: Config, other: Config) -> list[str]:
    """The settings in which two recipes differ."""
    return [key.name for key in keys() if value(one, key.name) != value(other, key.name)]


def value(config: Config, name: str) -> str | float:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def load_config(recipe: Path | str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Read a recipe (a path, or the name of a shipped one; None: all defaults), then apply the overrides.

    >>> load_config("desk", ["--loss.clip_low", "0.1", "--replay.enabled=false"])
    """
    settings: dict[str, tuple[Any, str]] = {}  # dotted key -> value, where it was said
    place = "command line"
    if recipe is not None:
        path = find_recipe(recipe)
        place = str(path)
        settings.update(_read_recipe(path, ()))
    settings.update((name, (value, "command line")) for name, value in _read_overrides(overrides))
    try:
        return _build({name: value for name, (value, _) in settings.items()})
    except BadSetting as error:
        raise UserError(f"{settings.get(error.key, (None, place))[1]}: {error}") from None


def find_recipe(recipe: Path | str) -> Path:
    if Path(recipe).is_file():
        return Path(recipe)
    names = shipped_recipes()
    if str(recipe) in names:
        return _SHIPPED / f"{recipe}.toml"
    raise UserError(
        f"{recipe}: no such recipe file, and no shipped recipe of that name{nearest(str(recipe), names)}"
    )


def shipped_recipes() -> list[str]:
    """Their names, those in folders as "paper/grpo"."""
    return sorted(path.relative_to(_SHIPPED).with_suffix("").as_posix() for path in _SHIPPED.rglob("*.toml"))


def to_toml(config: Config) -> str:
    """The whole tree, fully resolved; `load_config` of it gives the same tree."""
    lines = []
    for section in fields(config):
        lines.append(f"[{section.name}]")
        settings = getattr(config, section.name)
        lines += [f"{entry.name} = {_toml(getattr(settings, entry.name))}" for entry in fields(settings)]
        lines.append("")
    return "\n".join(lines)


def describe() -> str:
    """Every key with its type, default and help, for reading."""
    lines = []
    section = ""
    for key in keys():
        if key.name.split(".")[0] != section:
            section = key.name.split(".")[0]
            lines += ["", f"[{section}]"]
        lines.append(f"  --{key.name} {_toml(key.default)}  ({key.type_name})")
        lines.append(f"      {key.help}")
    return "\n".join(lines[1:])


def _read_recipe(path: Path, trail: tuple[Path, ...]) -> dict[str, tuple[Any, str]]:
    """Its settings with the file that said each, on top of those of the recipe that it extends.

    `trail` are the recipes that led here.
    """
    if any(path.samefile(other) for other in trail):
        raise UserError(f"{trail[-1]}: extends: leads back to {path}: a recipe cannot stand on itself")
    document = _read_toml(path)
    under = document.pop("extends", None)
    if under is not None and not isinstance(under, str):
        raise UserError(f"{path}: extends: is {under!r}, must be the name of a recipe, or its file")
    settings: dict[str, tuple[Any, str]] = {}
    if under is not None:
        settings = _read_recipe(_find_under(path, under), (*trail, path))
    return settings | {name: (value, str(path)) for name, value in _settings(document, path)}


def _find_under(path: Path, under: str) -> Path:
    """The recipe that the one at `path` extends: a file beside it comes first."""
    beside = path.parent / under
    try:
        return find_recipe(beside if beside.is_file() else under)
    except UserError as error:
        raise UserError(f"{path}: extends: {error}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def _settings(document: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    known = {key.name: key for key in keys()}
    sections = [section.name for section in fields(Config)]
    for section, table in document.items():
        if section not in sections:
            raise UserError(f"{path}: {section}: no such section{nearest(section, sections)}")
        if not isinstance(table, Mapping):
            raise UserError(f"{path}: {section}: must be a table, [{section}], with keys in it")
        for name, value in table.items():
            if name == "extends":
                raise UserError(
                    f"{path}: {section}.extends: no such key: put extends before the first section"
                )
            key = _known(f"{section}.{name}", known, str(path))
            yield key.name, _typed(key, value, str(path))


def _read_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    place = "command line"
    known = {key.name: key for key in keys()}
    words = iter(overrides)
    for word in words:
        if not word.startswith("--"):
            raise UserError(f"{place}: {word!r} is not a setting; write --section.key value")
        name, equals, text = word[2:].partition("=")
        key = _known(name, known, place)
        value = text if equals else next(words, None)
        if value is None:
            raise UserError(f"{place}: --{name} needs a value ({key.type_name})")
        yield key.name, _typed(key, _from_text(key, value), place)


def _known(name: str, known: Mapping[str, Key], place: str) -> Key:
    if name not in known:
        raise UserError(f"{place}: {name}: no such key{nearest(name, list(known))}")
    return known[name]


def nearest(name: str, names: Sequence[str]) -> str:
    """The suggestion at the end of a refusal. The last part of a dotted name weighs as much as the whole."""
    leaf = _leaf(name)
    leaves = {_leaf(other): other for other in reversed(names)}
    close = get_close_matches(name, names, n=1, cutoff=0.75)
    close = close or [leaves[match] for match in get_close_matches(leaf, leaves, n=1, cutoff=0.6)]
    close = close or get_close_matches(name, names, n=1)
    return (
        f" (did you mean {close[0]}?)"
        if close
        else f" (there are: {', '.join(names)})"
        if len(names) < 20
        else ""
    )


def _leaf(name: str) -> str:
    return name.rpartition(".")[2].lstrip("-")


def _from_text(key: Key, text: str) -> Any:
    """A command line's text as the value that TOML would have held; left as text where it is not one."""
    if key.type is bool:
        return {"true": True, "false": False}.get(text, text)
    if key.type in (int, float):
        try:
            return key.type(text)
        except ValueError:
            return text
    return text


def _typed(key: Key, value: Any, place: str) -> Any:
    if get_origin(key.type) is Literal:
        choices = get_args(key.type)
        if value not in choices:
            close = get_close_matches(str(value), choices, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UserError(f"{place}: {key.name}: is {value!r}, must be one of {', '.join(choices)}{hint}")
        return value
    if key.type is float and type(value) is int:
        return float(value)
    if type(value) is not key.type:
        expected = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[key.type]
        raise UserError(f"{place}: {key.name}: is {value!r}, must be {expected}")
    return value


def _build(settings: Mapping[str, Any]) -> Config:
    sections = {}
    for section, section_type in get_type_hints(Config).items():
        own = {
            name.partition(".")[2]: value
            for name, value in settings.items()
            if name.startswith(f"{section}.")
        }
        sections[section] = section_type(**own)
    return Config(**sections)


def _toml(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
