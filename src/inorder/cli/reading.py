"""What is to be published, from arguments, files and standard input: one message at a time, each with its place."""

from __future__ import annotations

import argparse
import codecs
import json
import os
import stat
import sys
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, BinaryIO, Final, NamedTuple

from inorder.errors import InorderError, InvalidArgument
from inorder.message import Message, make_entry

FORMATS: Final = {
    "text": "each line is a message, without its end, which may be that of Windows",
    "json": "each line is a message, and must be JSON",
    "messages": "each line is a message as --json prints it",
    "whole": "each file is a message",
}
STDIN: Final = "-"

_CHUNK: Final = 1 << 20
_MAX_LINE: Final = 64 << 20  # far more than a message may have; beyond it there are no lines


class BadInput(InvalidArgument):
    """A line that is no message."""

    def __init__(self, place: Place, problem: object) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place


class Place(NamedTuple):
    """Where a message was read."""

    source: str  # a file, or what stands for one
    line: int  # from 1; 0: it has no lines

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}" if self.line else self.source


class Piece(NamedTuple):
    """A message, checked."""

    place: Place
    message: Message
    size: int
    read: int  # bytes of the input so far


class Reading:
    """Goes through the input once. `None` between messages says that there are no more at the moment."""

    def __init__(self, given: argparse.Namespace, attributes: dict[str, str]) -> None:
        self._key: str | None = given.ordering_key
        self._key_field: str | None = given.ordering_key_field
        self._attributes = attributes
        self._attributes_field: str | None = given.attributes_field
        self._arguments: Sequence[str] = given.data
        self._files: Sequence[str] = given.file or ([] if given.data else [STDIN])
        self._format: str = given.format or ("json" if self._key_field or self._attributes_field else "text")
        if self._format != "json" and (self._key_field or self._attributes_field):
            raise InvalidArgument(f"--ordering-key-field and --attributes-field: of --format json, not {self._format}")
        self._message: Callable[[bytes], Message] = {
            "text": self._from_text,
            "json": self._from_json,
            "messages": self._from_messages,
            "whole": self._from_text,
        }[self._format]
        self._read = 0

    def waits_for_somebody(self) -> bool:
        """Whether somebody at a terminal has to type it."""
        return STDIN in self._files and sys.stdin.isatty()

    def total(self) -> int | None:
        """Bytes of all input; None if nobody knows."""
        sizes = [len(text.encode(errors="surrogateescape")) for text in self._arguments]
        for file in self._files:
            status = os.fstat(sys.stdin.fileno()) if file == STDIN else os.stat(file)
            if not stat.S_ISREG(status.st_mode):
                return None
            sizes.append(status.st_size)
        return sum(sizes)

    def __iter__(self) -> Iterator[Piece | None]:
        for number, text in enumerate(self._arguments, 1):
            yield self._piece(Place(f"argument {number}", 0), text.encode(errors="surrogateescape"), 0)
        for file in self._files:
            name = "standard input" if file == STDIN else file
            with nullcontext(sys.stdin.buffer) if file == STDIN else open(file, "rb") as opened:
                if self._format == "whole":
                    yield self._piece(Place(name, 0), opened.read(), 0)
                else:
                    yield from self._lines(name, opened)

    def _lines(self, name: str, file: BinaryIO) -> Iterator[Piece | None]:
        rest: list[bytes] = []  # of the line that has not ended; put together once, as pipes give it in many pieces
        size = number = 0
        while chunk := file.read1(_CHUNK):  # type: ignore[attr-defined]
            end, *lines = chunk.split(b"\n")
            rest.append(end)
            size += len(end)
            if lines:
                rest, lines = lines[-1:], [b"".join(rest), *lines[:-1]]
                size = len(rest[0])
            for line in lines:
                number += 1
                if piece := self._line(Place(name, number), line):
                    yield piece
            if size > _MAX_LINE:
                raise BadInput(Place(name, number + 1), f"it has more than {_MAX_LINE} bytes; is this a text?")
            yield None
        if (line := b"".join(rest)) and (piece := self._line(Place(name, number + 1), line)):
            yield piece

    def _line(self, place: Place, line: bytes) -> Piece | None:
        if place.line == 1:
            line = line.removeprefix(codecs.BOM_UTF8)  # which some editors put before a text; it is no part of it
        if self._format != "text" and not line.strip():
            self._read += len(line) + 1
            return None
        return self._piece(place, line.removesuffix(b"\r"), 1)

    def _piece(self, place: Place, data: bytes, end: int) -> Piece:
        self._read += len(data) + end
        try:
            message = self._message(data)
            *_, size = make_entry(message.data, message.attributes, message.ordering_key)
        except (InorderError, _NotSo) as problem:
            raise BadInput(place, problem) from None
        return Piece(place, message, size, self._read)

    # -- formats -----------------------------------------------------------------------------------

    def _from_text(self, data: bytes) -> Message:
        return Message(data, self._attributes, self._key)

    def _from_json(self, data: bytes) -> Message:
        found = _parsed(data)
        attributes, key = self._attributes, self._key
        if self._attributes_field is not None:
            attributes = {**attributes, **_attributes(self._attributes_field, _field(found, self._attributes_field))}
        if self._key_field is not None:
            key = _key(self._key_field, _field(found, self._key_field))
        return Message(data.strip(), attributes, key)

    def _from_messages(self, data: bytes) -> Message:
        found = _parsed(data)
        if not isinstance(found, dict):
            raise _NotSo(f"an object with data, ordering_key and attributes is expected, not {_short(found)}")
        if "gap" in found:
            raise _NotSo("a gap record is no message: to leave them out, grep -v '^{\"gap\"'")
        key = self._key
        if found.get("ordering_key") not in (None, ""):  # 0 is a key, as with --ordering-key-field
            key = _key("ordering_key", found["ordering_key"])
        attributes = {**self._attributes, **_attributes("attributes", found.get("attributes") or {})}
        return Message(_data(found), attributes, key)


class _NotSo(Exception):
    """What is wrong with a line, without its place."""


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _NotSo(f"not JSON: {error}") from None


def _no_number(name: str) -> None:
    """Python reads NaN and Infinity, which others refuse."""
    raise ValueError(f"{name} is no number of JSON")


def _field(found: Any, name: str) -> Any:
    if not isinstance(found, dict):
        raise _NotSo(f"an object with the field {name!r} is expected, not {_short(found)}")
    if name not in found:
        raise _NotSo(f"the field {name!r} is missing")
    return found[name]


def _key(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _NotSo(f"the field {name!r}: a string or a whole number, not {_short(value)}")
    return str(value)


def _attributes(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise _NotSo(f"the field {name!r}: an object of strings, not {_short(value)}")
    return value


def _data(found: dict[str, Any]) -> bytes:
    data, coded = found.get("data"), found.get("data_base64")
    if data is None and coded is None:
        raise _NotSo("neither data nor data_base64 is there")
    if data is not None and coded is not None:
        raise _NotSo("data and data_base64 are both there, and a message has one of them")
    try:
        if coded is not None:
            return b64decode(coded, validate=True)
        return data.encode()  # type: ignore[union-attr, no-any-return]
    except (ValueError, TypeError, AttributeError) as error:
        raise _NotSo(f"data: a string, or data_base64: {error}") from None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."
