"""The state of a key as bytes, and back, for whoever stores it; and the digest that decides ties.

The bytes are JSON, so that a person, or another language, can read them: tuples are arrays, and what JSON lacks
is an object with one letter: {"b": base64} is bytes, {"l": […]} a list, {"d": [[key, value], …]} a dict. It
starts with the name and the version of the pattern, so that no pattern takes the state of another for its own.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from hashlib import sha256
from types import NoneType
from typing import Any, TypeVar
from zlib import crc32

from inorder.errors import ForeignState, InvalidArgument

S = TypeVar("S")


def dump(name: str, state: tuple[Any, ...]) -> bytes:
    """A state that consists of plain values."""
    return _json([name, *map(_packed, state)])


def load(name: str, data: bytes, make: Callable[..., S]) -> S:
    """The state that `dump` wrote under the same name, made of its fields."""
    try:
        found, *fields = _decode(data.decode())
        if found == name:
            return make(*map(_unpacked, fields))
    except (ValueError, TypeError, KeyError) as error:
        raise ForeignState(name, f"damaged, {error}") from None
    raise ForeignState(name, f"it is one of {found!r}")


def text(value: str) -> str:
    """A string as `dump` writes it."""
    return _json(value).decode()


def digest(value: Any) -> str:
    """16 hexadecimal digits that depend on the content alone: CRC-32 of the bytes, then the first of SHA-256.

    Two contents are taken for one in 2**64 cases. CRC-32 comes first because everybody has it at hand, databases too,
    and it decides nearly always. What is not bytes is written as JSON first, the keys of dicts sorted.
    """
    content = value if type(value) is bytes else _json(_packed(value))
    return f"{crc32(content):08x}{sha256(content).hexdigest()[:8]}"


_decode = json.JSONDecoder().decode  # both are made once, not with each call
# What is packed was made anew, and has no circles: nobody looks for them.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False, check_circular=False).encode


def _json(value: Any) -> bytes:
    try:
        return _encode(value).encode()
    except ValueError as error:  # NaN, or half of a surrogate pair
        raise InvalidArgument(f"not a plain value: {error}") from None


_SCALARS = frozenset({NoneType, bool, int, float, str})


def _packed(value: Any) -> Any:
    kind = type(value)  # by exact type first: most of a state are numbers, and there are many states
    if kind in _SCALARS:
        return value
    if kind is bytes:
        return {"b": b64encode(value).decode()}
    if isinstance(value, tuple):
        return [one if type(one) in _SCALARS else _packed(one) for one in value]
    if isinstance(value, list):
        return {"l": list(map(_packed, value))}
    if isinstance(value, dict):
        if not {*map(type, value)} <= {str}:
            raise InvalidArgument(f"not a plain value: a dict with keys that are not strings: {value!r}")
        return {"d": [[key, _packed(value[key])] for key in sorted(value)]}
    if isinstance(value, bytes):
        return {"b": b64encode(value).decode()}
    if isinstance(value, bool | int | float | str):
        return value
    raise InvalidArgument(f"not a plain value: {kind.__name__}, where bytes, text, numbers and the like may be")


def _unpacked(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return tuple(map(_unpacked, value))
    if kind is dict:
        return _unmarked(value)
    return value


def _unmarked(value: dict[str, Any]) -> Any:
    match value:
        case {"b": data}:
            return b64decode(data, validate=True)
        case {"l": items}:
            return list(map(_unpacked, items))
        case {"d": items}:
            return {key: _unpacked(one) for key, one in items}
    raise ValueError(f"an unknown mark: {value}")
