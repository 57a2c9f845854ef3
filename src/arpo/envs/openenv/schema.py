"""Reads the part of JSON Schema that OpenEnv servers send in /schema (pydantic models)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
# The parts that are read here, and what JSON Schema allows as their value.
_PARTS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "properties": (dict, "an object"),
    "$defs": (dict, "an object"),
    "required": (list, "a list of texts"),
    "enum": (list, "a list"),
    "anyOf": (list, "a list"),
    "oneOf": (list, "a list"),
    "$ref": (str, "a text"),
    "type": ((str, list), "a text or a list of texts"),
}


def require_schema(schema: Any, path: str) -> None:
    """Raise ValueError with the place if a part of a schema is none: "action.enum: is 5, must be a list"."""
    if not isinstance(schema, dict):  # `true`: anything
        return
    for name, (kind, wanted) in _PARTS.items():
        if name not in schema:
            continue
        value = schema[name]
        texts = value if name in ("required", "type") and isinstance(value, list) else ()
        if not isinstance(value, kind) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path}.{name}: is {str(value)[:60]}, must be {wanted}")
    inner = {name: schema[name] for name in ("items", "additionalProperties") if name in schema}
    for name in ("properties", "$defs"):
        inner |= {f"{name}.{key}": value for key, value in schema.get(name, {}).items()}
    for name in ("anyOf", "oneOf"):
        inner |= {f"{name}[{number}]": value for number, value in enumerate(schema.get(name, []))}
    for name, value in inner.items():
        require_schema(value, f"{path}.{name}")


def field_types(schema: Json, path: str) -> set[str]:
    """The types of the field at a path such as "screen.png"; empty: any type.

    Raises LookupError with the fields that there are.
    """
    found = list(_alternatives(schema, schema))
    for depth, name in enumerate(path.split(".")):
        deeper = [inner for one in found for inner in _inside(one, name, schema)]
        if not deeper:
            place = ".".join(["observation", *path.split(".")[:depth]])
            names = sorted({field for one in found for field in one.get("properties", {})})
            raise LookupError(
                f"the server's /schema has no field {name!r} in {place}; its fields are: "
                f"{', '.join(names) or 'none'}"
            )
        found = deeper
    types = {one.get("type", "") for one in found}
    return set() if "" in types else types


def fault_in(value: Any, schema: Json, path: str, root: Json | None = None) -> str:
    """Why the schema refuses the value, such as "action.x: must be of type integer"; "" if it does not."""
    root = root or schema
    faults = [_fault(value, one, path, root) for one in _alternatives(schema, root)]
    return next(iter(faults), "") if all(faults) else ""


def _fault(value: Any, schema: Json, path: str, root: Json) -> str:
    """`fault_in` for a schema without alternatives."""
    kind = schema.get("type")
    is_number = isinstance(value, bool) and kind in ("integer", "number")  # Python says that it is one
    if kind in _TYPES and (is_number or not isinstance(value, _TYPES[kind])):
        return f"{path}: is {str(value)[:60]!r}, must be of type {kind}"
    allowed = [schema["const"]] if "const" in schema else schema.get("enum", [value])
    if value not in allowed:
        return f"{path}: is {str(value)[:60]!r}, must be one of {', '.join(map(str, allowed))}"
    if isinstance(value, list):
        faults = (fault_in(one, schema.get("items", {}), path, root) for one in value)
        return next(filter(None, faults), "")
    if not isinstance(value, dict):
        return ""
    fields = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path}: the field {name!r} is missing"
    for name, inner in value.items():
        if name not in fields and not schema.get("additionalProperties", not fields):
            return f"{path}: no field {name!r}; the fields are: {', '.join(fields) or 'none'}"
        if fault := fault_in(inner, fields.get(name, {}), f"{path}.{name}", root):
            return fault
    return ""


def _alternatives(schema: Any, root: Json) -> Iterator[Json]:
    """The schema without references; each branch of a union, each type of a list. null is none of them."""
    if not isinstance(schema, dict):  # `true`: anything
        yield {}
    elif "$ref" in schema:
        yield from _alternatives(root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), root)
    elif branches := schema.get("anyOf") or schema.get("oneOf"):
        for branch in branches:
            yield from (one for one in _alternatives(branch, root) if one.get("type") != "null")
    elif isinstance(kinds := schema.get("type"), list):
        yield from ({**schema, "type": kind} for kind in kinds if kind != "null")
    else:
        yield schema


def _inside(schema: Json, name: str, root: Json) -> list[Json]:
    """The schemas of a field of an object, or of an element of a list; empty if there is none."""
    if name.isdigit() and schema.get("type") == "array":
        return list(_alternatives(schema.get("items", {}), root))
    fields = schema.get("properties", {})
    if name in fields:
        return list(_alternatives(fields[name], root))
    others = schema.get("additionalProperties", not fields)
    return [{}] if others and schema.get("type", "object") == "object" else []
