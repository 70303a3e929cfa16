"""Messages in Avro's JSON encoding, checked by functions that are made once per definition.

The encoding is Avro's own: every field is there (a default is for readers, not for writers), nothing else is, and a
union is null or names its branch: {"string": "a"}.
"""

import json
from collections.abc import Callable
from typing import Any

from inorder.server.schemas.avro_types import AvroType
from inorder.server.schemas.mismatch import Mismatch

Check = Callable[[Any], None]

INT = (-(2**31), 2**31 - 1)
LONG = (-(2**63), 2**63 - 1)


def json_check(avro: AvroType) -> Callable[[bytes], None]:
    """A function that raises a Mismatch unless the bytes are one value of the type."""
    check = _Checks().of(avro)

    def check_bytes(data: bytes) -> None:
        try:
            value = json.loads(data.decode(), parse_constant=_no_constant)
        except UnicodeDecodeError as error:
            raise Mismatch(f"not UTF-8 at byte {error.start}") from None
        except ValueError as error:
            raise Mismatch(f"not JSON: {error}") from None
        except RecursionError:
            raise Mismatch("nested too deeply") from None
        try:
            check(value)
        except RecursionError:
            raise Mismatch("nested too deeply") from None

    return check_bytes


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


class _Checks:
    """Makes the check of each type once, so that a record may contain itself."""

    def __init__(self) -> None:
        self._made: dict[AvroType, Check] = {}

    def of(self, avro: AvroType) -> Check:
        if avro not in self._made:
            self._made[avro] = self._make(avro)
        return self._made[avro]

    def _make(self, avro: AvroType) -> Check:
        match avro.kind:
            case "record":
                return self._record(avro)
            case "union":
                return self._union(avro)
            case "array":
                return self._array(avro)
            case "map":
                return self._map(avro)
            case "enum":
                return _enum(avro)
            case "bytes":
                return _bytes(None)
            case "fixed":
                return _bytes(avro.size)
        return _PRIMITIVES[avro.kind]

    def _record(self, avro: AvroType) -> Check:
        checks: dict[str, Check] = {}

        def check(value: Any) -> None:
            if type(value) is not dict:
                raise _unlike(value, f"an object ({avro.name})")
            name = ""
            try:
                for name, check_field in checks.items():
                    check_field(value[name])
            except KeyError:
                raise Mismatch("the field is missing").within(name) from None
            except Mismatch as mismatch:
                raise mismatch.within(name) from None
            if len(value) > len(checks):
                extra = next(name for name in value if name not in checks)
                raise Mismatch("there is no such field").within(extra)

        self._made[avro] = check
        checks.update({field.name: self.of(field.type) for field in avro.fields})
        return check

    def _union(self, avro: AvroType) -> Check:
        branches = {branch.name: self.of(branch) for branch in avro.branches if branch.kind != "null"}
        nullable = len(branches) < len(avro.branches)
        names = ", ".join(branch.name for branch in avro.branches)

        def check(value: Any) -> None:
            if value is None and nullable:
                return
            if type(value) is not dict or len(value) != 1:
                raise _unlike(value, f'null, or an object that names its branch, as {{"string": …}}, of: {names}')
            ((name, inner),) = value.items()
            if name not in branches:
                raise Mismatch(f"{name!r} is no branch of: {names}")
            try:
                branches[name](inner)
            except Mismatch as mismatch:
                raise mismatch.within(name) from None

        return check

    def _array(self, avro: AvroType) -> Check:
        assert avro.items is not None
        check_item = self.of(avro.items)

        def check(value: Any) -> None:
            if type(value) is not list:
                raise _unlike(value, "an array")
            index = 0
            try:
                for index, item in enumerate(value):  # noqa: B007 - it says where, if need be
                    check_item(item)
            except Mismatch as mismatch:
                raise mismatch.within(f"[{index}]") from None

        return check

    def _map(self, avro: AvroType) -> Check:
        assert avro.items is not None
        check_item = self.of(avro.items)

        def check(value: Any) -> None:
            if type(value) is not dict:
                raise _unlike(value, "an object (a map)")
            key = ""
            try:
                for key, item in value.items():  # noqa: B007 - it says where, if need be
                    check_item(item)
            except Mismatch as mismatch:
                raise mismatch.within(key) from None

        return check


def _enum(avro: AvroType) -> Check:
    symbols = frozenset(avro.symbols)

    def check(value: Any) -> None:
        if type(value) is not str or value not in symbols:
            raise _unlike(value, f"one of: {', '.join(avro.symbols[:20])}")

    return check


def _bytes(size: int | None) -> Check:
    """Bytes are written as text, one character from U+0000 to U+00FF for each."""

    def check(value: Any) -> None:
        if type(value) is not str:
            raise _unlike(value, "a string of bytes")
        if value and max(value) > "\xff":
            raise Mismatch(f"bytes are characters up to U+00FF, not {max(value)!r}")
        if size is not None and len(value) != size:
            raise Mismatch(f"expected {size} bytes, not {len(value)}")

    return check


def _null(value: Any) -> None:
    if value is not None:
        raise _unlike(value, "null")


def _boolean(value: Any) -> None:
    if type(value) is not bool:
        raise _unlike(value, "a boolean")


def _string(value: Any) -> None:
    if type(value) is not str:
        raise _unlike(value, "a string")


def _number(value: Any) -> None:
    if type(value) is not float and type(value) is not int:
        raise _unlike(value, "a number")


def _whole(kind: str, bounds: tuple[int, int]) -> Check:
    lowest, highest = bounds

    def check(value: Any) -> None:
        if type(value) is not int:
            raise _unlike(value, f"an integer ({kind})")
        if not lowest <= value <= highest:
            raise Mismatch(f"{value} does not fit into {kind}, {lowest} to {highest}")

    return check


_PRIMITIVES: dict[str, Check] = {
    "null": _null,
    "boolean": _boolean,
    "string": _string,
    "float": _number,
    "double": _number,
    "int": _whole("int", INT),
    "long": _whole("long", LONG),
}

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "an integer", float: "a number"}


def _unlike(value: Any, expected: str) -> Mismatch:
    got = _KINDS.get(type(value), "null")
    if isinstance(value, str | int | float):
        text = json.dumps(value)
        got = f"{got} {text if len(text) <= 40 else text[:37] + '...'}"
    return Mismatch(f"expected {expected}, not {got}")
