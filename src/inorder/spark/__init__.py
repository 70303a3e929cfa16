"""Data pipelines on Spark: topics as tables and streams, the ordering patterns over them, and an audit of any log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from inorder.spark.auditing import Audit, audit

__all__ = ["Audit", "audit", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("inorder")` known to a session."""
    from inorder.spark.source import InorderSource

    spark.dataSource.register(InorderSource)


def __getattr__(name: str) -> Any:
    if name in ("Audit", "audit"):
        from inorder.spark import auditing

        return getattr(auditing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
