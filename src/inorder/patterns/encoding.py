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
from typing import Any, TypeVar

from inorder.errors import ForeignState, InvalidArgument

S = TypeVar("S")

DIGEST_DIGITS = 16  # 64 bits: two contents that tie otherwise are taken for one in 2**64 cases


def dump(name: str, state: tuple[Any, ...]) -> bytes:
    """A state that consists of plain values."""
    return _json([name, *map(_packed, state)])


def load(name: str, data: bytes, make: Callable[..., S]) -> S:
    """The state that `dump` wrote under the same name, made of its fields."""
    try:
        found, *fields = json.loads(data)
        if found == name:
            return make(*map(_unpacked, fields))
    except (ValueError, TypeError, KeyError) as error:
        raise ForeignState(name, f"damaged, {error}") from None
    raise ForeignState(name, f"it is one of {found!r}")


def digest(value: Any) -> str:
    """16 hexadecimal digits that depend on the content alone: the first of SHA-256 of the bytes.

    What is not bytes is written as JSON first, the keys of dicts sorted.
    """
    return sha256(value if type(value) is bytes else _json(_packed(value))).hexdigest()[:DIGEST_DIGITS]


def _json(value: Any) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # NaN, or half of a surrogate pair
        raise InvalidArgument(f"not a plain value: {error}") from None


def _packed(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return {"b": b64encode(value).decode()}
        case tuple():
            return [_packed(one) for one in value]
        case list():
            return {"l": [_packed(one) for one in value]}
        case dict():
            if not all(type(key) is str for key in value):
                raise InvalidArgument(f"not a plain value: a dict with keys that are not strings: {value!r}")
            return {"d": [[key, _packed(value[key])] for key in sorted(value)]}
    raise InvalidArgument(f"not a plain value: {type(value).__name__}, where bytes, text, numbers and the like may be")


def _unpacked(value: Any) -> Any:
    match value:
        case list():
            return tuple(map(_unpacked, value))
        case {"b": data}:
            return b64decode(data, validate=True)
        case {"l": items}:
            return list(map(_unpacked, items))
        case {"d": items}:
            return {key: _unpacked(one) for key, one in items}
        case dict():
            raise ValueError(f"an unknown mark: {value}")
    return value
