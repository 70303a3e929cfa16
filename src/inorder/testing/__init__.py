"""What the library is tested with, for the tests of those who use it.

`inorder.testing.conformance` has the suites that every broker passes; it needs pytest, this does not.
"""

from inorder.testing.clock import ManualClock
from inorder.testing.history import Anomalies, Anomaly, History, anomalies

__all__ = ["Anomalies", "Anomaly", "History", "ManualClock", "anomalies"]
