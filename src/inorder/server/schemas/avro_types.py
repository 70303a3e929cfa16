"""An Avro definition as a tree of types, or the reason why it is none.

Strict where libraries are lenient: unions in unions, fields named twice or a fixed of a negative size would only
be noticed when messages come. Logical types are notes for readers, so nothing here knows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from inorder.server.schemas.mismatch import Mismatch

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEEPEST = 200  # types within types: far more than anybody writes, far less than the stack holds

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(slots=True, eq=False)
class AvroType:
    """One type. A record may contain itself, so types are compared by identity."""

    kind: str
    name: str  # the full name where it has one, else its kind: what a union calls it in JSON
    aliases: tuple[str, ...] = ()
    fields: list[AvroField] = field(default_factory=list)
    symbols: tuple[str, ...] = ()
    has_default: bool = False  # an enum's: for symbols that a reader does not know
    size: int = 0
    items: AvroType | None = None  # of an array; the values of a map
    branches: list[AvroType] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class AvroField:
    name: str
    type: AvroType
    aliases: tuple[str, ...]
    has_default: bool


def read_avro(definition: str) -> AvroType:
    """The type that a definition defines; a Mismatch says what is wrong with it."""
    try:
        raw = json.loads(definition, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Mismatch(f"not JSON: {error}") from None
    if isinstance(raw, list):
        raise Mismatch("a union at the top: define exactly one top-level type")
    return _Reader().type_of(raw, namespace="", depth=0)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class _Reader:
    """Knows the names that were defined so far."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type_of(self, raw: Any, namespace: str, depth: int) -> AvroType:
        if depth > DEEPEST:
            raise Mismatch(f"types within types, deeper than {DEEPEST}")
        match raw:
            case str():
                return self._by_name(raw, namespace)
            case list():
                return self._union(raw, namespace, depth)
            case {"type": "record" | "error", **_rest}:
                return self._record(raw, namespace, depth)
            case {"type": "enum", **_rest}:
                return self._enum(raw, namespace)
            case {"type": "fixed", **_rest}:
                return self._fixed(raw, namespace)
            case {"type": "array", **_rest}:
                return AvroType("array", "array", items=self._part(raw, "items", namespace, depth))
            case {"type": "map", **_rest}:
                return AvroType("map", "map", items=self._part(raw, "values", namespace, depth))
            case {"type": inner, **_rest}:
                return self.type_of(inner, namespace, depth + 1)
            case dict():
                raise Mismatch("a type without 'type'")
        raise Mismatch(f"expected a type, not {_shown(raw)}")

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name, name)
        for candidate in [name] if "." in name else [_full(name, namespace), name]:
            if candidate in self._named:
                return self._named[candidate]
        raise Mismatch(f"unknown type {_shown(name)}")

    def _union(self, raw: list[Any], namespace: str, depth: int) -> AvroType:
        branches = [self.type_of(branch, namespace, depth + 1) for branch in raw]
        seen: set[str] = set()
        for branch in branches:
            if branch.kind == "union":
                raise Mismatch("a union directly within a union")
            if branch.name in seen:
                raise Mismatch(f"a union with two branches of type {branch.name!r}")
            seen.add(branch.name)
        if not branches:
            raise Mismatch("a union without branches")
        return AvroType("union", "union", branches=branches)

    def _part(self, raw: dict[str, Any], part: str, namespace: str, depth: int) -> AvroType:
        if part not in raw:
            raise Mismatch(f"{raw['type']} without {part!r}")
        try:
            return self.type_of(raw[part], namespace, depth + 1)
        except Mismatch as mismatch:
            raise mismatch.within(part) from None

    def _define(self, raw: dict[str, Any], kind: str, namespace: str) -> tuple[AvroType, str]:
        """A new named type, and the namespace within it."""
        name = raw.get("name")
        if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
            raise Mismatch(f"{kind} name: letters, digits and _ only, not {_shown(name)}")
        given = raw.get("namespace")
        if given is not None and not (isinstance(given, str) and (not given or _FULL_NAME.fullmatch(given))):
            raise Mismatch(f"{kind} {name}: namespace {_shown(given)} is none")
        full = name if "." in name else _full(name, namespace if given is None else given)
        if full in self._named:
            raise Mismatch(f"{full!r} is defined twice")
        if full in PRIMITIVES:
            raise Mismatch(f"{full!r} is a type of Avro's own")
        inside = full.rpartition(".")[0]
        aliases = tuple(alias if "." in alias else _full(alias, inside) for alias in _strings(raw, "aliases"))
        defined = self._named[full] = AvroType(kind, full, aliases)
        return defined, inside

    def _record(self, raw: dict[str, Any], namespace: str, depth: int) -> AvroType:
        record, inside = self._define(raw, "record", namespace)
        listed = raw.get("fields")
        if not isinstance(listed, list):
            raise Mismatch(f"record {record.name}: 'fields' must be a list, not {_shown(listed)}")
        seen: set[str] = set()
        for each in listed:
            name = each.get("name") if isinstance(each, dict) else None
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise Mismatch(f"record {record.name}: a field's name is letters, digits and _, not {_shown(name)}")
            if name in seen:
                raise Mismatch(f"record {record.name}: field {name!r} is there twice")
            seen.add(name)
            try:
                record.fields.append(self._field(name, each, inside, depth))
            except Mismatch as mismatch:
                raise mismatch.within(name) from None
        return record

    def _field(self, name: str, raw: dict[str, Any], namespace: str, depth: int) -> AvroField:
        if "type" not in raw:
            raise Mismatch("a field without 'type'")
        # A field's 'type' is the type itself; in {"type": …} a type says of which kind it is.
        type_ = self.type_of(raw["type"], namespace, depth + 1)
        if "default" in raw and not _fits(raw["default"], type_):
            raise Mismatch(f"the default {_shown(raw['default'])} is no {type_.name}")
        return AvroField(name, type_, tuple(_strings(raw, "aliases")), "default" in raw)

    def _enum(self, raw: dict[str, Any], namespace: str) -> AvroType:
        enum, _ = self._define(raw, "enum", namespace)
        enum.symbols = tuple(_strings(raw, "symbols"))
        if not enum.symbols:
            raise Mismatch(f"enum {enum.name}: without symbols")
        for symbol in enum.symbols:
            if not _NAME.fullmatch(symbol):
                raise Mismatch(f"enum {enum.name}: symbol {_shown(symbol)}: letters, digits and _ only")
        if len(set(enum.symbols)) < len(enum.symbols):
            raise Mismatch(f"enum {enum.name}: a symbol is there twice")
        enum.has_default = "default" in raw
        if enum.has_default and raw["default"] not in enum.symbols:
            raise Mismatch(f"enum {enum.name}: the default {_shown(raw['default'])} is no symbol of it")
        return enum

    def _fixed(self, raw: dict[str, Any], namespace: str) -> AvroType:
        fixed, _ = self._define(raw, "fixed", namespace)
        size = raw.get("size")
        if type(size) is not int or size < 0:
            raise Mismatch(f"fixed {fixed.name}: size {_shown(size)} is no number of bytes")
        fixed.size = size
        return fixed


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _strings(raw: dict[str, Any], key: str) -> Iterator[str]:
    listed = raw.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise Mismatch(f"{key!r} must be a list of strings, not {_shown(listed)}")
    yield from listed


def _fits(default: Any, type_: AvroType) -> bool:
    """Whether a default is one of the type, roughly: it is for readers, and no message is checked by it."""
    match type_.kind:
        case "null":
            return default is None
        case "boolean":
            return isinstance(default, bool)
        case "int" | "long" | "float" | "double":
            return _is_number(default)
        case "bytes" | "string" | "fixed":
            return isinstance(default, str)
        case "enum":
            return default in type_.symbols
        case "array":
            return isinstance(default, list)
        case "record" | "map":
            return isinstance(default, dict)
    return any(_fits(default, branch) for branch in type_.branches)


def _is_number(default: Any) -> bool:
    """Numbers in quotes are met in the wild, and read by most."""
    if isinstance(default, str):
        try:
            float(default)
        except ValueError:
            return False
        return True
    return isinstance(default, int | float) and not isinstance(default, bool)
