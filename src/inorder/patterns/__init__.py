"""The ordering patterns, as pure steps: what to do with an event that came when it came.

A pattern is a value with options. `fold` runs one over a list; a consumer, or a pipeline, runs the same steps with
its own clock and store.
"""

from inorder.patterns.deduplication import DeduplicateIds, DeduplicateSequences
from inorder.patterns.dispatcher import Call, Events, Handler, Plan
from inorder.patterns.hybrid_clock import HybridLogicalClock
from inorder.patterns.independent_fields import FieldsWritten, IndependentFields, latest_of
from inorder.patterns.last_write_wins import LastWriteWins, Newest, Write
from inorder.patterns.parking import Line
from inorder.patterns.partitioning import Move, ResizePlan, SlotTable, slot_of
from inorder.patterns.sequencing import Resequencer, Sequenced
from inorder.patterns.skew import SkewReport, skew_report
from inorder.patterns.step import (
    APPLIED,
    SETTLED,
    Batch,
    Event,
    Fate,
    Folded,
    Missing,
    Outcome,
    Pattern,
    Step,
    fold,
    fold_timed,
)
from inorder.patterns.versioning import Versioned, VersionGate

__all__ = [
    "APPLIED",
    "SETTLED",
    "Batch",
    "Call",
    "DeduplicateIds",
    "DeduplicateSequences",
    "Event",
    "Events",
    "Fate",
    "FieldsWritten",
    "Folded",
    "Handler",
    "HybridLogicalClock",
    "IndependentFields",
    "LastWriteWins",
    "Line",
    "Missing",
    "Move",
    "Newest",
    "Outcome",
    "Pattern",
    "Plan",
    "Resequencer",
    "ResizePlan",
    "Sequenced",
    "SkewReport",
    "SlotTable",
    "Step",
    "VersionGate",
    "Versioned",
    "Write",
    "fold",
    "fold_timed",
    "latest_of",
    "skew_report",
    "slot_of",
]
