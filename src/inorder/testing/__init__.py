"""What the library is tested with, for the tests of those who use it.

`inorder.testing.conformance` has the suites that every broker passes; it needs pytest, this does not.
"""

from inorder.testing.clock import ManualClock
from inorder.testing.history import Anomalies, Anomaly, History, anomalies
from inorder.testing.virtual import Deadlock, VirtualLoop, run_virtually

__all__ = [
    "Anomalies",
    "Anomaly",
    "Deadlock",
    "History",
    "ManualClock",
    "VirtualLoop",
    "anomalies",
    "run_virtually",
]
