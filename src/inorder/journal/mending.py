"""Brings what a snapshot says of the parts before it in line with what can still be read of them.

A broker does not start while a part is gone that its snapshot names, or if the next messages cannot be read. So
whoever repairs a journal writes the snapshot anew: it then names what is there, and the rest is passed over as
dropped parts are.
"""

import json
from collections.abc import Iterable

from inorder.journal import Location, Part
from inorder.journal.codec import PUBLISHED, Stored, batch, entries
from inorder.journal.files import File, Files
from inorder.journal.frames import (
    OFFSET_MASK,
    SEGMENT_SHIFT,
    BadFrame,
    first_location,
    frames_in,
    headers_behind,
)
from inorder.journal.index import INDEXES, PARTS, TopicIndex, index_from_json, plain_snapshot
from inorder.journal.layout import log_name

Runs = Iterable[tuple[Location, Location, bytes]]
"""Frames that can be read: where the run of them begins, where the frame does, and its body."""


def mended(snapshot: bytes, damaged: Iterable[tuple[Part, Runs]], left: Iterable[Part], block: int) -> bytes:
    """A snapshot without what cannot be read any more of damaged parts; `left` are those that are there."""
    plain = plain_snapshot(snapshot)
    if INDEXES not in plain:
        return snapshot  # it is not a broker's, and names nothing
    indexes = index_from_json(plain[INDEXES])
    for part, frames in damaged:
        runs = list(frames)
        for serial, index in indexes.items():
            index.replace(part, _index_of(serial, runs, block))
    plain[INDEXES] = {str(serial): index.columns() for serial, index in indexes.items()}
    if PARTS in plain:
        ends = {part.first: part.end for part in left}
        plain[PARTS] = [[first, min(end, ends[first])] for first, end in plain[PARTS] if first in ends]
    return json.dumps(plain, separators=(",", ":")).encode()


def segment_and_runs(files: Files, number: int) -> tuple[Part, Runs]:
    """A segment as a part, and the frames in it that can be read."""
    part = Part(first_location(number), number << SEGMENT_SHIFT | OFFSET_MASK, 0)
    try:
        return part, _runs(files.open(log_name(number)), number)
    except FileNotFoundError:
        return part, ()


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


def _index_of(serial: int, runs: Runs, block: int) -> TopicIndex:
    index = TopicIndex()
    for run, location, body in runs:
        for kind, entry in entries(body):
            if kind == PUBLISHED and (found := batch(entry)).serial == serial:
                stored = Stored(serial, found.first, found.end, found.size, found.stored_us)
                index.add(location, stored, run, block)
    return index
