"""The state of a key as bytes, and back, for whoever stores it; and the digest that decides ties.

The bytes are JSON, so that a person, or another language, can read them: tuples are arrays, and what JSON lacks
is an object with one letter: {"b": base64} is bytes, {"l": […]} a list, {"d": [[key, value], …]} a dict. It
starts with the name and the version of the pattern, so that no pattern takes the state of another for its own.
"""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Callable, Iterable
from hashlib import sha256
from json.encoder import encode_basestring as _quoted
from math import isfinite
from types import NoneType
from typing import Any, TypeVar
from zlib import crc32

from inorder.errors import ForeignState, InvalidArgument

S = TypeVar("S")

# Versions of Python differ in how much deeper they write than they read: what is written must be readable by all.
MAX_LEVELS = 100


def dump(name: str, state: tuple[Any, ...]) -> bytes:
    """A state that consists of plain values."""
    return _json((name, *state))


def load(name: str, data: bytes, make: Callable[..., S]) -> S:
    """The state that `dump` wrote under the same name, made of its fields."""
    try:
        found, *fields = _decode(data.decode())
        if found == name:
            return make(*map(_unpacked, fields))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ForeignState(name, f"damaged, {error}") from None
    raise ForeignState(name, f"it is one of {found!r}")


def text(value: Any, level: int = 0) -> str:
    """A plain value as `dump` writes it, inside of so many others."""
    kind = type(value)
    if kind in _FLAT:
        return _FLAT[kind](value)
    if kind in _NESTED:
        return _NESTED[kind](value, level)
    for known, write in _FLAT.items():  # one that was derived from a plain one
        if isinstance(value, known):
            return write(value)
    for known, write_nested in _NESTED.items():
        if isinstance(value, known):
            return write_nested(value, level)
    raise InvalidArgument(f"not a plain value: {kind.__name__}, where bytes, text, numbers and the like may be")


def encoded(written: str) -> bytes:
    """What was written as text, in bytes."""
    try:
        return written.encode()
    except ValueError as error:  # half of a surrogate pair
        raise InvalidArgument(f"not a plain value: {error}") from None


def check_plain(value: Any) -> None:
    """Refuse what `dump` could not write as part of a state."""
    # A state has some levels of its own, which count where a value is nested as deeply as can be.
    _json(value if type(value) in _FLAT else ((((((((value,),),),),),),),))


def digest(value: Any) -> str:
    """16 hexadecimal digits that depend on the content alone: CRC-32 of the bytes, then the first of SHA-256.

    Two contents are taken for one in 2**64 cases. CRC-32 comes first because everybody has it at hand, databases too,
    and it decides nearly always. What is not bytes is written as JSON first, the keys of dicts sorted.
    """
    content = value if type(value) is bytes else _json(value)
    return f"{crc32(content):08x}{sha256(content).hexdigest()[:8]}"


_decode = json.JSONDecoder().decode  # made once, not with each call


def _json(value: Any) -> bytes:
    try:
        return encoded(text(value))
    except ValueError as error:  # NaN, or a number of thousands of digits
        raise InvalidArgument(f"not a plain value: {error}") from None
    except RecursionError:
        raise InvalidArgument("not a plain value: it is nested too deeply") from None


# Text is written at once: lists and dicts in between, for `json` to write, would cost a quarter more.


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    if not isfinite(value):
        raise ValueError(f"{value!r}, which JSON does not know")
    return float.__repr__(value)


def _bytes(value: bytes) -> str:
    return f'{{"b":"{b2a_base64(value, newline=False).decode()}"}}'


def _tuple(value: Iterable[Any], level: int) -> str:
    if level >= MAX_LEVELS:
        raise _TooDeep
    level += 1
    parts: list[str] = []
    for one in value:
        kind = type(one)
        if kind in _FLAT:
            parts.append(_FLAT[kind](one))
        elif kind is tuple:  # of which a state mostly consists
            parts.append(_tuple(one, level))
        else:
            parts.append(text(one, level))
    return f"[{','.join(parts)}]"


def _list(value: list[Any], level: int) -> str:
    return f'{{"l":{_tuple(value, level)}}}'


def _dict(value: dict[Any, Any], level: int) -> str:
    if not {*map(type, value)} <= {str}:
        raise InvalidArgument(f"not a plain value: a dict with keys that are not strings: {value!r}")
    if level >= MAX_LEVELS:
        raise _TooDeep
    level += 1
    return f'{{"d":[{",".join([f"[{_quoted(key)},{text(value[key], level)}]" for key in sorted(value)])}]}}'


class _TooDeep(InvalidArgument):
    def __init__(self) -> None:
        super().__init__(f"not a plain value: it is nested in more than {MAX_LEVELS} levels")


_FLAT: dict[type, Callable[[Any], str]] = {
    NoneType: lambda _: "null",
    bool: _bool,  # before int, of which it is derived
    int: int.__repr__,
    float: _float,
    str: _quoted,
    bytes: _bytes,
}

_NESTED: dict[type, Callable[[Any, int], str]] = {tuple: _tuple, list: _list, dict: _dict}


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
