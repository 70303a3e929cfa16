"""Keys and their slots, a column at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from inorder.patterns.partitioning import slot_of


def slots(keys: pa.Array) -> np.ndarray:
    """The slot of each key, as `inorder.patterns.slot_of` has it; what has no key is in slot 0."""
    encoded = keys.dictionary_encode()
    of_key = [slot_of(key) for key in encoded.dictionary.to_pylist()]
    indices = encoded.indices.fill_null(len(of_key)).to_numpy(zero_copy_only=False)
    found: np.ndarray = np.array([*of_key, 0], dtype=np.int64)[indices]
    return found


def of_slots(batch: pa.RecordBatch, first: int, end: int) -> pa.RecordBatch:
    """The rows whose keys are in the slots from `first` up to `end`."""
    found = slots(batch.column("ordering_key"))
    return batch.filter(pa.array((first <= found) & (found < end)))
