"""The order-preserving worker pool."""

from inorder.pool.metrics import PoolMetrics
from inorder.pool.options import PoolOptions, Retry
from inorder.pool.outcomes import ItemError, ItemGap, ItemTimeout, Outputs, WorkerDied, WorkersGone, WorkersStuck
from inorder.pool.pool import Results, WorkerPool
from inorder.pool.scaling import Autoscale, ScaleEvent
from inorder.pool.window import HeadOfLine

__all__ = [
    "Autoscale",
    "HeadOfLine",
    "ItemError",
    "ItemGap",
    "ItemTimeout",
    "Outputs",
    "PoolMetrics",
    "PoolOptions",
    "Results",
    "Retry",
    "ScaleEvent",
    "WorkerDied",
    "WorkerPool",
    "WorkersGone",
    "WorkersStuck",
]
