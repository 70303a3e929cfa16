"""One Spark session for all tests: to start one takes longer than most of them."""

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java on this machine, and Spark needs 17 or later")
    from pyspark.sql import SparkSession

    import inorder.spark

    if (other := SparkSession.getActiveSession()) is not None:  # of a page of the docs, with other options
        other.stop()
    # The other manager of checkpoints starts a process, `readlink`, several times for each file that it renames.
    manager = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    session = (
        SparkSession.builder.master("local[2, 4]")  # a task may fail three times, as on a cluster
        .appName("inorder tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.checkpointFileManagerClass", manager)
        .config("spark.sql.streaming.stopTimeout", "30s")  # a query that does not end fails its test, and only that
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    inorder.spark.register(session)
    yield session
    session.stop()
