"""A pipeline as a file: source, order, transforms and sink, read by people and run by `inorder pipeline`.

To read and check a file takes nothing of Spark, which only `building` and `running` load.
"""

from __future__ import annotations

from inorder.spark.pipelines.definition import Pipeline, read_pipeline

__all__ = ["Pipeline", "read_pipeline"]
