"""Brings what a snapshot says of the segments before it in line with what can still be read of them.

A broker does not start while a segment is gone that its snapshot names, so whoever repairs a journal writes the
snapshot anew: it then names the messages that are there, and the others are passed over as dropped ones are.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from inorder.journal import SEGMENT_BLOCK, Location, Part
from inorder.journal.codec import PUBLISHED, Stored, batch, entries
from inorder.journal.files import File, Files
from inorder.journal.frames import (
    OFFSET_MASK,
    SEGMENT_SHIFT,
    BadFrame,
    first_location,
    frames_in,
    headers_behind,
    segment_of,
)
from inorder.journal.index import INDEXES, PARTS, TopicIndex, index_from_json, plain_snapshot
from inorder.journal.layout import log_name

Runs = Iterable[tuple[Location, Location, bytes]]
"""Frames that can be read: where the run of them begins, where the frame does, and its body."""


def mended(snapshot: bytes, files: Files, damaged: Iterable[int]) -> bytes:
    """A snapshot without what cannot be read any more of the segments of these numbers."""
    plain = plain_snapshot(snapshot)
    if INDEXES not in plain:
        return snapshot  # it is not a broker's, and names nothing
    indexes = index_from_json(plain[INDEXES])
    names = files.names()
    for number in damaged:
        there = log_name(number) in names
        runs = list(_runs(files.open(log_name(number)), number)) if there else []
        for serial, index in indexes.items():
            index.replace(_whole_part(number), _index_of(serial, runs))
    plain[INDEXES] = {str(serial): index.columns() for serial, index in indexes.items()}
    if PARTS in plain:
        plain[PARTS] = list(_parts(plain[PARTS], files, names))
    return json.dumps(plain, separators=(",", ":")).encode()


def _whole_part(number: int) -> Part:
    return Part(first_location(number), number << SEGMENT_SHIFT | OFFSET_MASK, 0)


def _parts(parts: Any, files: Files, names: list[str]) -> Iterator[list[Location]]:
    for first, end in parts:
        number = segment_of(first)
        if log_name(number) in names:
            yield [first, min(end, number << SEGMENT_SHIFT | files.open(log_name(number)).size())]


def _runs(file: File, number: int) -> Runs:
    start, end = first_location(number), number << SEGMENT_SHIFT | file.size()
    while start < end:
        run = start
        try:
            for location, body in frames_in(file, run, end):
                yield run, location, body
            return
        except BadFrame as bad:
            start = next((header.location for header in headers_behind(file, bad.location, end)), end)


def _index_of(serial: int, runs: Runs) -> TopicIndex:
    index = TopicIndex()
    for run, location, body in runs:
        for kind, entry in entries(body):
            if kind == PUBLISHED and (found := batch(entry)).serial == serial:
                stored = Stored(serial, found.first, found.end, found.size, found.stored_us)
                index.add(location, stored, run, SEGMENT_BLOCK)
    return index
