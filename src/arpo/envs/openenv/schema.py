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
    return "" if not all(faults) else faults[0]


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
    """The schema without references; each branch of a union. null is none of them."""
    if not isinstance(schema, dict):  # `true`: anything
        yield {}
    elif "$ref" in schema:
        yield from _alternatives(root.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), root)
    elif branches := schema.get("anyOf") or schema.get("oneOf"):
        for branch in branches:
            yield from (one for one in _alternatives(branch, root) if one.get("type") != "null")
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
