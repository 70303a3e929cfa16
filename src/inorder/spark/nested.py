"""Types of Arrow, also those that stand within others."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa


def retyped(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The same type, with each that is not made of others changed, wherever it stands."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, retyped(one.type, change)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(retyped(kind.value_type, change))
    if pa.types.is_map(kind):
        return pa.map_(retyped(kind.key_type, change), retyped(kind.item_type, change))
    return change(kind)
