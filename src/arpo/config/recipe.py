"""Recipes: read TOML and command-line overrides into a `Config`, and write a `Config` as TOML.

A recipe can extend another one: the line `extends = "paper"` before the first section starts from its
settings. Paths of inputs (PATH_KEYS) are relative to the recipe that sets them; those in the recipe of a run
are relative to the current folder, as its line `paths = "current folder"` says. Every error names the file,
the key, the reason and the nearest valid name. Values keep their type: the string "1" is not a number, and
the number 1 is not true.
"""

from __future__ import annotations

import json
import math
import os
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from shutil import which
from typing import Any, Literal, get_args, get_origin, get_type_hints

from arpo.config import Config
from arpo.config.checks import shorten
from arpo.config.removed import REMOVED, advice, has_no_effect
from arpo.config.settings import LARGEST, OnResume
from arpo.config.task_set_names import MINIWOB
from arpo.errors import BadSetting, UserError

COMMAND_LINE = "command line"
SETTINGS = "settings"  # given to `load_config` as a dict
MAX_EXTENDED = 20
TASK_SOURCE_KEYS = ("tasks.train", "tasks.heldout", "tasks.overall")
HELDOUT_KEY = "tasks.heldout"  # several sources, separated by commas
TASK_SOURCE_ALIASES = {"desktop:": "osworld:"}
# Existing files and folders.
INPUT_KEYS = (*TASK_SOURCE_KEYS, "tasks.examples", "offline.source", "replay.seeds")
# Keys with the path of an input. Outputs (run.dir) are relative to the current folder.
PATH_KEYS = (
    *INPUT_KEYS,
    "model.path",
    "model.prompt",
    "osworld.python",
    "osworld.cache",
    "osworld.network",
    "osworld.machine",
    "engine.python",
)
CURRENT_FOLDER = "current folder"
NAMES = ("", "auto", "base", "desk", "on", "off")  # values of PATH_KEYS without a path
_SHIPPED = Path(str(files("arpo"))) / "recipes"
# Folder of the programs installed by ARPO: the checkout with this package, or a folder of the user.
_CHECKOUT = Path(__file__).resolve().parents[3]
_USER_DATA = Path(os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")) / "arpo"
PROJECT = _CHECKOUT if (_CHECKOUT / "pyproject.toml").is_file() else _USER_DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One config key.

    >>> Key(name="loss.kl", type=float, default=0.0, range=">= 0", help="Weight of the KL term").type_name
    'float'
    """

    name: str
    type: Any  # bool, int, float, str or a Literal of strings
    default: Any
    range: str  # for example ">= 0, < 1"; empty if there is none
    help: str
    on_resume: OnResume = OnResume.FIXED

    @property
    def type_name(self) -> str:
        return " | ".join(get_args(self.type)) if get_origin(self.type) is Literal else self.type.__name__


@cache
def keys() -> tuple[Key, ...]:
    """All config keys, in the order of `Config`."""
    return tuple(_keys())


def _keys() -> Iterator[Key]:
    for section, section_type in get_type_hints(Config).items():
        hints = get_type_hints(section_type)
        for entry in fields(section_type):
            assert entry.default is not MISSING
            bounds = entry.metadata["bounds"].items()
            yield Key(
                name=f"{section}.{entry.name}",
                type=hints[entry.name],
                default=entry.default,
                range=", ".join(f"{sign} {bound}" for sign, bound in bounds if bound is not None),
                help=entry.metadata["help"],
                on_resume=entry.metadata["on_resume"],
            )


def changed(one: Config, other: Config) -> list[str]:
    """Names of the keys with different values. Two paths of the same file are equal."""
    return [key.name for key in keys() if not _equal(key.name, value(one, key.name), value(other, key.name))]


def _equal(name: str, one: Any, other: Any) -> bool:
    if one == other:
        return True
    if name not in PATH_KEYS or one in NAMES or other in NAMES:
        return False
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def value(config: Config, name: str) -> str | float:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def load_config(
    recipe: Path | str | Config | None = None, overrides: Sequence[str] | Mapping[str, object] = ()
) -> Config:
    """Read a recipe (a path or the name of a shipped recipe; None: all defaults), then apply the overrides.

    The overrides are words of the command line, or a dict of typed values. The recipe may be a Config.

    >>> load_config("desk", ["--loss.clip_low", "0.1", "--replay.enabled=false"]).loss.clip_low
    0.1
    >>> load_config("desk", {"loss.clip_low": 0.1}).loss.clip_low
    0.1
    """
    settings: dict[str, tuple[Any, str]] = {}  # key -> (value, source)
    given = SETTINGS if isinstance(overrides, Mapping) else COMMAND_LINE
    source = given
    if isinstance(recipe, Config):
        settings.update((key.name, (value(recipe, key.name), given)) for key in keys())
    elif recipe is not None:
        path = find_recipe(recipe)
        source = str(path)
        settings.update(_read_recipe(path, ()))
    settings.update((name, (value, given)) for name, value in _read_overrides(overrides))
    try:
        return _build({name: value for name, (value, _) in settings.items()})
    except BadSetting as error:
        raise UserError(f"{settings.get(error.key, (None, source))[1]}: {error}") from None


def load_recorded(path: Path) -> tuple[Config, list[str]]:
    """The recipe that a run of any version wrote, and its keys that this version does not accept."""
    try:
        return parse_recorded(path.read_text("utf-8"))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (ValueError, OSError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as TOML: {error}") from None


def load_recorded_model(path: Path) -> Config:
    """The recipe that a run of any version wrote, to load the run's weights.

    Raises UserError if they mean something else in this version.
    """
    config, refused = load_recorded(path)
    if config.model.train == "lora" and "model.lora_alpha" in refused:
        raise UserError(
            f"{path}: model.lora_alpha: {advice('model.lora_alpha')}: the adapters of this run have another "
            "scale. Export them with the version that trained them"
        )
    return config


def parse_recorded(text: str) -> tuple[Config, list[str]]:
    """The recipe that a run of any version wrote, and its keys that this version does not accept.

    They have their defaults in the Config. Text that is not TOML raises ValueError or RecursionError, a value
    of a wrong type UserError.
    """
    known = {key.name: key for key in keys()}
    settings: dict[str, Any] = {}
    refused = []
    for section, table in tomllib.loads(text).items():
        for name, found in table.items() if isinstance(table, Mapping) else ():
            key = known.get(f"{section}.{name}")
            if key is None:
                refused += [] if has_no_effect(f"{section}.{name}", found) else [f"{section}.{name}"]
            elif isinstance(found, str) and found not in (get_args(key.type) or (found,)):
                refused.append(key.name)
            else:
                settings[key.name] = _typed(key, found, "recipe")
    return _build(settings), refused


def find_recipe(recipe: Path | str) -> Path:
    if Path(recipe).is_file():
        return Path(recipe)
    names = shipped_recipes()
    if str(recipe) in names:
        return _SHIPPED / f"{recipe}.toml"
    raise UserError(
        f"{recipe}: no such recipe: neither a file nor a shipped recipe{nearest(str(recipe), names)}"
    )


def shipped_recipes() -> list[str]:
    """Names of all shipped recipes, for example "desk" and "paper/grpo"."""
    return sorted(path.relative_to(_SHIPPED).with_suffix("").as_posix() for path in _SHIPPED.rglob("*.toml"))


def own_settings(recipe: Path) -> tuple[str | None, list[str]]:
    """The recipe extended by a file (None: none), and the keys set by the file itself."""
    document = _read_toml(recipe)
    tables = {section: table for section, table in document.items() if isinstance(table, Mapping)}
    return document.get("extends"), [f"{section}.{key}" for section in tables for key in tables[section]]


def to_toml(config: Config) -> str:
    """All keys with their values as TOML. `load_config` reads it back as an equal Config."""
    lines = [f'paths = "{CURRENT_FOLDER}"', ""]
    for section in fields(config):
        lines.append(f"[{section.name}]")
        settings = getattr(config, section.name)
        lines += [
            f"{entry.name} = {format_value(getattr(settings, entry.name))}" for entry in fields(settings)
        ]
        lines.append("")
    return "\n".join(lines)


def describe(only: str = "") -> str:
    """Listing of all keys by section, each with its default, type, range, help text and use on resume.

    `only` is a section, such as "engine"; "": all of them. Raises UserError for an unknown one.
    """
    sections = get_type_hints(Config)
    if only and only not in sections:
        raise UserError(f"--help-keys {shorten(only)}: unknown section{nearest(only, list(sections))}")
    lines = [
        "Every config key with its default value, type and range, and whether it may change on resume.",
        f"A number without an upper limit is at most {LARGEST:,}.",
        "In a recipe (TOML), write `key = value` under [section]; on the command line, --section.key VALUE.",
    ]
    section = ""
    for key in keys():
        if only and not key.name.startswith(f"{only}."):
            continue
        if key.name.split(".")[0] != section:
            section = key.name.split(".")[0]
            lines += ["", f"[{section}]  {sections[section].__doc__}"]
        facts = (key.type_name, key.range, key.on_resume.value)
        lines.append(f"  --{key.name} {format_value(key.default)}  ({', '.join(filter(None, facts))})")
        lines += textwrap.wrap(key.help, 100, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)


def _read_recipe(path: Path, extended_by: tuple[Path, ...]) -> dict[str, tuple[Any, str]]:
    """Settings of a recipe and of the recipes above it: key -> (value, file).

    `extended_by`: the recipes on the way from the user's recipe to this one, to detect a cycle.
    """
    if any(path.samefile(other) for other in extended_by):
        raise UserError(f"{extended_by[-1]}: extends: a recipe cannot extend itself, here through {path}")
    if len(extended_by) > MAX_EXTENDED:
        raise UserError(f"{path}: extends: more than {MAX_EXTENDED} recipes extend each other: merge some")
    document = _read_toml(path)
    extended = document.pop("extends", None)
    if extended is not None and not isinstance(extended, str):
        raise UserError(f"{path}: extends: is {shorten(extended)}, must be the name or the file of a recipe")
    folder = _folder_of_paths(document.pop("paths", "recipe"), path)
    settings: dict[str, tuple[Any, str]] = {}
    if extended is not None:
        settings = _read_recipe(_find_extended(path, extended), (*extended_by, path))
    return settings | {name: (value, str(path)) for name, value in _settings(document, path, folder)}


def _find_extended(path: Path, extended: str) -> Path:
    """Path of the recipe extended by `path`. A file in the same folder wins over a shipped recipe."""
    beside = path.parent / extended
    try:
        return find_recipe(beside if beside.is_file() else extended)
    except UserError as error:
        raise UserError(f"{path}: extends: {error}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(f"{path}: cannot be read as TOML: {reason}") from None


def _settings(document: Mapping[str, Any], path: Path, folder: Path) -> Iterator[tuple[str, Any]]:
    known = {key.name: key for key in keys()}
    sections = [section.name for section in fields(Config)]
    earlier = {name.partition(".")[0] for name in REMOVED}
    for section, table in document.items():
        if section not in (*sections, *earlier):
            raise UserError(f"{path}: {section}: unknown section{nearest(section, sections)}")
        if not isinstance(table, Mapping):
            raise UserError(f"{path}: {section}: is a value, must be a section: [{section}]")
        for name, value in table.items():
            if name == "extends":
                raise UserError(
                    f"{path}: {section}.extends: unknown key; put extends before the first section"
                )
            key = _known(f"{section}.{name}", known, str(path))
            yield key.name, _located(key, _typed(key, value, str(path)), folder)


def _folder_of_paths(paths: Any, recipe: Path) -> Path:
    """The folder that the paths in a recipe are relative to: its own, or the current one.

    A shipped recipe names files of the user. The recipes of runs of earlier versions lack the line `paths`.
    """
    if paths not in ("recipe", CURRENT_FOLDER):
        raise UserError(f'{recipe}: paths: is {shorten(paths)}, must be "recipe" or "{CURRENT_FOLDER}"')
    of_a_run = recipe.name == "recipe.toml" and (recipe.parent / "metrics.jsonl").is_file()
    if paths == CURRENT_FOLDER or of_a_run or recipe.is_relative_to(_SHIPPED):
        return Path()
    return recipe.parent


def _located(key: Key, value: Any, folder: Path) -> Any:
    """The value of a recipe, with a path relative to `folder` made relative to the current folder.

    A path that exists only relative to the current folder stays as it is. So does a name that is no file in
    `folder`, for example a model of the hub.
    """
    if key.name not in PATH_KEYS or value in NAMES or folder == Path() or value.startswith(MINIWOB):
        return value
    if key.name == HELDOUT_KEY and "," in value:
        return ",".join(_located(key, source, folder) for source in value.split(","))
    path, colon, attribute = value.partition(":")
    if colon and not path.endswith(".py"):  # for example desk:32
        return value
    missing = key.name in INPUT_KEYS and not Path(path).exists()
    return f"{folder / path}{colon}{attribute}" if missing or (folder / path).exists() else value


def _read_overrides(overrides: Sequence[str] | Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    known = {key.name: key for key in keys()}
    if isinstance(overrides, Mapping):
        yield from (
            (name, _typed(_known(name, known, SETTINGS), value, SETTINGS))
            for name, value in overrides.items()
        )
        return
    words = iter(overrides)
    for word in words:
        if not word.startswith("--"):
            raise UserError(f"{COMMAND_LINE}: {word!r} is not a setting; write --section.key VALUE")
        name, equals, text = word[2:].partition("=")
        key = _known(name, known, COMMAND_LINE)
        value = text if equals else next(words, None)
        if value is None:
            raise UserError(f"{COMMAND_LINE}: --{name} needs a value ({key.type_name})")
        yield key.name, _typed(key, _from_text(key, value), COMMAND_LINE)


def _known(name: str, known: Mapping[str, Key], source: str) -> Key:
    if name in REMOVED:
        raise UserError(f"{source}: {name}: {advice(name)}")
    if name not in known:
        hint = nearest(name.replace("-", "_"), list(known))
        raise UserError(f"{source}: {name}: unknown key{hint}")
    return known[name]


def nearest(name: str, names: Sequence[str]) -> str:
    """A suggestion for the end of an error message. Compares the whole name and its part after the dot.

    Also finds abbreviations. Another section needs a closer match than the same one.

    >>> nearest("loss.cliplow", ["loss.clip_low", "loss.kl"])
    ' (did you mean loss.clip_low?)'
    >>> nearest("optim.learning_rate", ["env.quarantine_after", "optim.lr"])
    ' (did you mean optim.lr?)'
    """
    leaf, section = _leaf(name), name.rpartition(".")[0]
    initials = "".join(word[:1] for word in leaf.split("_"))
    leaves = {_leaf(other): other for other in reversed(names)}
    same = {key: other for key, other in leaves.items() if section and other.rpartition(".")[0] == section}
    close = get_close_matches(name, names, n=1, cutoff=0.75)
    for known, cutoff in ((same, 0.6), (leaves, 0.75 if same else 0.6)):
        close = close or [known[match] for match in get_close_matches(leaf, known, n=1, cutoff=cutoff)]
        close = close or [other for key, other in known.items() if len(key) > 1 and key == initials]
    close = close or get_close_matches(name, names, n=1)
    return (
        f" (did you mean {close[0]}?)"
        if close
        else f" (valid: {', '.join(names)})"
        if len(names) < 20
        else ""
    )


def _leaf(name: str) -> str:
    return name.rpartition(".")[2].lstrip("-")


def _from_text(key: Key, text: str) -> Any:
    """Convert text of the command line to the key's type. Invalid text stays text: `_typed` rejects it."""
    if key.type is bool:
        return {"true": True, "True": True, "false": False, "False": False}.get(text, text)
    if key.type in (int, float):
        try:
            return key.type(text)
        except ValueError:
            return text
    return text


def _typed(key: Key, value: Any, source: str) -> Any:
    if get_origin(key.type) is Literal:
        choices = get_args(key.type)
        if value not in choices:
            close = get_close_matches(str(value), choices, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise UserError(
                f"{source}: {key.name}: is {shorten(value)}, must be one of {', '.join(choices)}{hint}"
            )
        return value
    if key.type is float and type(value) is int:
        return float(value) if abs(value) < 1 << 1000 else math.inf
    if type(value) is not key.type:
        expected = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}[key.type]
        raise UserError(f"{source}: {key.name}: is {shorten(value)}, must be {expected}")
    if isinstance(value, str) and not _is_storable(value):
        raise UserError(f"{source}: {key.name}: is {shorten(value)}, must be text in UTF-8 without NUL")
    if key.name == HELDOUT_KEY:
        return ",".join(canonical_task_source(source.strip()) for source in value.split(","))
    return canonical_task_source(value) if key.name in TASK_SOURCE_KEYS else value


def _is_storable(text: str) -> bool:
    """False for NUL, and for the surrogates that stand for bytes of the command line outside UTF-8."""
    return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text)


def canonical_task_source(source: str) -> str:
    """Replace an alias of a prefix, so that two names of one shipped task list compare equal.

    >>> canonical_task_source("desktop:train"), canonical_task_source("tasks.json")
    ('osworld:train', 'tasks.json')
    """
    for alias, prefix in TASK_SOURCE_ALIASES.items():
        if source.startswith(alias):
            return prefix + source.removeprefix(alias)
    return source


def find_program(path: str) -> str | None:
    """The absolute path of a program, None if there is none. Example: ".venv-osworld/bin/python", "python3".

    A relative path is relative to the current folder or else to the project's folder, where `arpo osworld
    install` installs programs: so the default of osworld.python works in every folder.
    """
    found = which(path) or which(PROJECT / path)
    return str(Path(found).absolute()) if found else None


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


def format_value(value: bool | float | str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
