"""The skew of partitions as they are, also after a resize that was cancelled half-way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inorder.consumers.partitions.routes import Routes
from inorder.patterns.partitioning import SlotTable
from inorder.patterns.skew import SkewReport, skew_report


def live_skew(loads: Mapping[str, float], routes: Routes, top: int) -> SkewReport:
    """The report for load by key. Partitions that have no slot are left out."""
    owners = routes.owners
    used = sorted({*owners})
    rank = {partition: number for number, partition in enumerate(used)}
    report = skew_report(loads, SlotTable(tuple(rank[owner] for owner in owners)), top=top)
    return replace(report, partitions=tuple(one._replace(number=used[one.number]) for one in report.partitions))
