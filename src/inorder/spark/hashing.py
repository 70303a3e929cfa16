"""The hash of `inorder.patterns.slot_of`, for a whole column of keys at once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inorder.options import SLOTS

Numbers: TypeAlias = npt.NDArray[np.int64]
Hashes: TypeAlias = npt.NDArray[np.uint32]

_KNUTH = np.uint32(2654435761)
_BITS_PER_SLOT = 32 - (SLOTS.bit_length() - 1)


def _crc_table() -> Hashes:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table


_TABLE = _crc_table()


def hashes(keys: pa.StringArray) -> Hashes:
    """Of each key its CRC-32 times Knuth's number, modulo 2**32: the highest 12 bits are its slot. No nulls.

    A step per byte of the longest key, each over all keys that are so long.
    """
    if not len(keys):
        return np.empty(0, np.uint32)
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    starts, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    crc = np.full(len(keys), 0xFFFFFFFF, np.uint32)
    shortest = int(lengths.min())
    for place in range(int(lengths.max())):
        if place < shortest:
            crc = _TABLE[(crc ^ data[starts + place]) & 0xFF] ^ (crc >> 8)
        else:
            longer = np.flatnonzero(lengths > place)
            part = crc[longer]
            crc[longer] = _TABLE[(part ^ data[starts[longer] + place]) & 0xFF] ^ (part >> 8)
    hashed: Hashes = (crc ^ np.uint32(0xFFFFFFFF)) * _KNUTH
    return hashed


def buckets_of(hashed: Hashes, count: int) -> Numbers:
    """The bucket of each hash: the slots in `count` ranges, all of one size or nearly so."""
    slots = (hashed >> np.uint32(_BITS_PER_SLOT)).astype(np.int64)
    return slots * count // SLOTS
