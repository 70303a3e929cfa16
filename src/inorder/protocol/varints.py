"""Whole numbers as protobuf writes them: seven bits to a byte, the lowest first."""

from __future__ import annotations

SMALL = 1 << 14


def varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


VARINTS = [varint(number) for number in range(SMALL)]


def length(of: int) -> bytes:
    """The same, for numbers that are mostly small."""
    return VARINTS[of] if of < SMALL else varint(of)
