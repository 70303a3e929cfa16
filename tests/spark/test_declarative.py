"""The example of a declarative pipeline, as a user runs it: a process of its own, DECLARATIVE_RUNS times."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
RUNS = int(os.environ.get("DECLARATIVE_RUNS", "1"))  # each starts Spark


def rows(table: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(table.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]


@pytest.mark.timeout(600 * RUNS)  # half a minute on two quiet cores
def test_a_topic_and_its_events_in_order_are_streaming_tables(tmp_path: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java on this machine, and Spark needs 17 or later")
    pytest.importorskip("grpc", reason="pyspark[pipelines] is not installed: make setup")
    pytest.importorskip("yaml", reason="pyspark[pipelines] is not installed: make setup")
    copy = tmp_path / "declarative"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    spec = copy / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/inorder-declarative", str(tmp_path / "storage")))
    environment = {**os.environ, "SPARK_TESTING": "1"}  # so that its server takes any port that is free
    for number in range(RUNS):  # from the second on there are checkpoints of the one before
        folder = tmp_path / f"run-{number}"
        folder.mkdir()
        ran = subprocess.run(
            [sys.executable, copy / "run.py"], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-5000:]
        assert "Run is COMPLETED" in ran.stdout + ran.stderr
        check(folder / "spark-warehouse")


def check(warehouse: Path) -> None:
    arrived = sorted(rows(warehouse / "arrived"), key=lambda row: row["position"])
    assert [row["sequence"] for row in arrived if row["order_id"] == "order-1"] == [2, 1, 1, 4, 3]
    ordered = rows(warehouse / "in_order")
    for order, events in (
        ("order-1", ["placed", "paid", "shipped", "delivered"]),
        ("order-2", ["placed", "cancelled"]),
    ):
        assert [row["event"] for row in ordered if row["order_id"] == order] == events
    assert sorted(tuple(row.values()) for row in rows(warehouse / "progress")) == [("order-1", 4), ("order-2", 2)]
