"""Data pipelines on Spark: topics as tables and streams, and the ordering patterns over them.

Nothing of Spark is loaded before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from inorder.spark.dispatching import dispatch
    from inorder.spark.operators import apply_versions, deduplicate, resequence
    from inorder.spark.streams import OrderedStream
    from inorder.spark.winners import ahead_of_time, latest, merge_fields

__all__ = [
    "OrderedStream",
    "ahead_of_time",
    "apply_versions",
    "deduplicate",
    "dispatch",
    "latest",
    "merge_fields",
    "register",
    "resequence",
]

_PLACES = {
    "OrderedStream": "streams",
    "ahead_of_time": "winners",
    "apply_versions": "operators",
    "deduplicate": "operators",
    "dispatch": "dispatching",
    "latest": "winners",
    "merge_fields": "winners",
    "resequence": "operators",
}


def register(spark: SparkSession) -> None:
    """Make `format("inorder")` known to a session."""
    from inorder.spark.source import InorderSource

    spark.dataSource.register(InorderSource)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
