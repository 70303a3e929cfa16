"""Whether what one Avro type wrote can be read as another: the rules of Avro's schema resolution.

A new revision must hold in both directions: old messages for new readers, new messages for old readers.
"""

from typing import NamedTuple

from inorder.server.schemas.avro_types import AvroField, AvroType
from inorder.server.schemas.mismatch import Mismatch

# What a reader may declare for what was written.
_PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}

Pair = tuple[AvroType, AvroType]


def check_readable(written: AvroType, read: AvroType) -> None:
    """Raise a Mismatch that says why `read` cannot read all that `written` writes."""
    _check(written, read, _Known(set(), {}))


class _Known(NamedTuple):
    """Each pair of types is looked at once, however often it occurs."""

    granted: set[Pair]  # or under way: of a type within itself, whoever began with the pair finds out
    refused: dict[Pair, str]


def _check(written: AvroType, read: AvroType, known: _Known) -> None:
    pair = (written, read)
    if pair in known.refused:
        raise Mismatch(known.refused[pair])
    if pair in known.granted:
        return
    known.granted.add(pair)
    try:
        _look(written, read, known)
    except Mismatch as mismatch:
        known.refused[pair] = str(mismatch)
        raise


def _look(written: AvroType, read: AvroType, known: _Known) -> None:
    if written.kind == "union":
        for branch in written.branches:
            _check(branch, read, known)
    elif read.kind == "union":
        if not any(_is_readable(written, branch, known) for branch in read.branches):
            raise Mismatch(f"{written.name} is no branch of: {', '.join(branch.name for branch in read.branches)}")
    elif written.kind != read.kind:
        if read.kind not in _PROMOTIONS.get(written.kind, ()):
            raise Mismatch(f"{written.name} cannot be read as {read.name}")
    else:
        _check_same_kind(written, read, known)


def _is_readable(written: AvroType, read: AvroType, known: _Known) -> bool:
    # What an attempt takes for granted counts only if it succeeds; what it refuses counts always.
    attempt = _Known(set(known.granted), known.refused)
    try:
        _check(written, read, attempt)
    except Mismatch:
        return False
    known.granted.update(attempt.granted)
    return True


def _check_same_kind(written: AvroType, read: AvroType, known: _Known) -> None:
    match written.kind:
        case "array" | "map":
            assert written.items is not None
            assert read.items is not None
            try:
                _check(written.items, read.items, known)
            except Mismatch as mismatch:
                raise mismatch.within("items" if written.kind == "array" else "values") from None
        case "fixed":
            _check_names(written, read)
            if written.size != read.size:
                raise Mismatch(f"fixed {read.name}: {written.size} bytes cannot be read as {read.size}")
        case "enum":
            _check_names(written, read)
            unknown = [symbol for symbol in written.symbols if symbol not in read.symbols]
            if unknown and not read.has_default:
                raise Mismatch(f"enum {read.name}: symbol {unknown[0]!r} is unknown, and there is no default")
        case "record":
            _check_names(written, read)
            _check_fields(written, read, known)


def _check_names(written: AvroType, read: AvroType) -> None:
    if _last(written.name) != _last(read.name) and written.name not in read.aliases:
        raise Mismatch(f"{written.kind} {written.name} cannot be read as {read.name}")


def _check_fields(written: AvroType, read: AvroType, known: _Known) -> None:
    by_name = {field.name: field for field in written.fields}
    for field in read.fields:
        source = _source(field, by_name)
        if source is None:
            if not field.has_default:
                raise Mismatch("the field is in one of the revisions only, and has no default there").within(field.name)
            continue
        try:
            _check(source.type, field.type, known)
        except Mismatch as mismatch:
            raise mismatch.within(field.name) from None


def _source(field: AvroField, written: dict[str, AvroField]) -> AvroField | None:
    return next((written[name] for name in (field.name, *field.aliases) if name in written), None)


def _last(name: str) -> str:
    return name.rpartition(".")[2]
