"""Messages in Avro's binary encoding: walked over, not read.

Nobody here needs the values, so none is made. That also keeps short messages from becoming large ones: nine bytes
can announce 2⁶³ nulls, and a library that builds the list never comes back.
"""

from collections.abc import Callable

from inorder.server.schemas.avro_json import INT
from inorder.server.schemas.avro_types import AvroType
from inorder.server.schemas.mismatch import Mismatch

Skip = Callable[[bytes, int], int]  # the bytes, and where the value begins → where it ends


def binary_check(avro: AvroType) -> Callable[[bytes], None]:
    """A function that raises a Mismatch unless the bytes are one value of the type, and nothing more."""
    skip = _Skips().of(avro)

    def check_bytes(data: bytes) -> None:
        try:
            end = skip(data, 0)
        except IndexError:
            raise Mismatch("the data ends too early") from None
        except RecursionError:
            raise Mismatch("nested too deeply") from None
        if end != len(data):
            raise Mismatch(f"the value ends at byte {end}, and there are {len(data)}")

    return check_bytes


class _Skips:
    """Makes the walk over each type once, so that a record may contain itself."""

    def __init__(self) -> None:
        self._made: dict[AvroType, Skip] = {}

    def of(self, avro: AvroType) -> Skip:
        if avro not in self._made:
            self._made[avro] = self._make(avro)
        return self._made[avro]

    def _make(self, avro: AvroType) -> Skip:
        match avro.kind:
            case "record":
                return self._record(avro)
            case "union":
                return self._union(avro)
            case "array":
                assert avro.items is not None
                return _blocks(self.of(avro.items))
            case "map":
                assert avro.items is not None
                return _blocks(_entry(self.of(avro.items)))
            case "enum":
                return _enum(avro)
            case "fixed":
                return _fixed(avro.size)
        return _PRIMITIVES[avro.kind]

    def _record(self, avro: AvroType) -> Skip:
        skips: list[tuple[str, Skip]] = []

        def skip(data: bytes, at: int) -> int:
            name = ""
            try:
                for name, skip_field in skips:  # noqa: B007 - it says where, if need be
                    at = skip_field(data, at)
            except Mismatch as mismatch:
                raise mismatch.within(name) from None
            return at

        self._made[avro] = skip
        skips += [(field.name, self.of(field.type)) for field in avro.fields]
        return skip

    def _union(self, avro: AvroType) -> Skip:
        branches = [self.of(branch) for branch in avro.branches]

        def skip(data: bytes, at: int) -> int:
            index, at = _long_at(data, at)
            if not 0 <= index < len(branches):
                raise Mismatch(f"branch {index} of a union that has {len(branches)}")
            return branches[index](data, at)

        return skip


def _long_at(data: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits per byte, zigzag, and where it ends."""
    byte = data[at]
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise Mismatch("a number of more than ten bytes")
    if value >= 2**64:
        raise Mismatch("a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), at


def _length_at(data: bytes, at: int) -> tuple[int, int]:
    """Where the content begins, and where it ends."""
    length, at = _long_at(data, at)
    if length < 0:
        raise Mismatch(f"a length of {length}")
    if at + length > len(data):
        raise Mismatch(f"{length} bytes are announced, and {len(data) - at} are left")
    return at, at + length


def _null(data: bytes, at: int) -> int:
    return at


def _boolean(data: bytes, at: int) -> int:
    if data[at] > 1:
        raise Mismatch(f"a boolean is 0 or 1, not {data[at]}")
    return at + 1


def _int(data: bytes, at: int) -> int:
    value, at = _long_at(data, at)
    if not INT[0] <= value <= INT[1]:
        raise Mismatch(f"{value} does not fit into int, {INT[0]} to {INT[1]}")
    return at


def _long(data: bytes, at: int) -> int:
    return _long_at(data, at)[1]


def _bytes(data: bytes, at: int) -> int:
    return _length_at(data, at)[1]


def _string(data: bytes, at: int) -> int:
    at, end = _length_at(data, at)
    try:
        data[at:end].decode()
    except UnicodeDecodeError as error:
        raise Mismatch(f"a string that is not UTF-8 at byte {at + error.start}") from None
    return end


def _fixed(size: int) -> Skip:
    def skip(data: bytes, at: int) -> int:
        if at + size > len(data):
            raise Mismatch(f"{size} bytes are expected, and {len(data) - at} are left")
        return at + size

    return skip


def _enum(avro: AvroType) -> Skip:
    count = len(avro.symbols)

    def skip(data: bytes, at: int) -> int:
        index, at = _long_at(data, at)
        if not 0 <= index < count:
            raise Mismatch(f"symbol {index} of an enum that has {count}")
        return at

    return skip


def _entry(skip_value: Skip) -> Skip:
    def skip(data: bytes, at: int) -> int:
        return skip_value(data, _string(data, at))

    return skip


def _blocks(skip_item: Skip) -> Skip:
    """Blocks of items, each behind its count; a negative count is followed by the block's size in bytes."""

    def skip(data: bytes, at: int) -> int:
        while True:
            count, at = _long_at(data, at)
            if count == 0:
                return at
            end = None
            if count < 0:
                count = -count
                _, end = _length_at(data, at)
                at = _long_at(data, at)[1]
            at = _items(data, at, count)
            if end is not None and at != end:
                raise Mismatch(f"a block ends at byte {at}, and should at {end}")

    def _items(data: bytes, at: int, count: int) -> int:
        for _ in range(count):
            begin, at = at, skip_item(data, at)
            if at == begin:  # an item without bytes has none ever, so all the others are skipped, too
                break
        return at

    return skip


_PRIMITIVES: dict[str, Skip] = {
    "null": _null,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _fixed(4),
    "double": _fixed(8),
    "bytes": _bytes,
    "string": _string,
}
