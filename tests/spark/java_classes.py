"""Writes an archive of the classes that Java loads when Spark starts: from it, Spark starts in two thirds of the time.

    python tests/spark/java_classes.py ARCHIVE

The tests start Spark again and again. Never fails: without the archive they only take longer.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

# For Java that lives for a minute only: to optimize and to collect garbage on many threads costs more than it gains
# (measured: half of all its time). And it need not say that an archive is not for it.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
PATIENCE_SECONDS = 300


def main(archive: Path) -> None:
    unfinished = archive.with_suffix(".unfinished")
    os.environ["SPARK_SUBMIT_OPTS"] = f'{SHORT_LIVED} "-XX:ArchiveClassesAtExit={unfinished}"'
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    with TemporaryDirectory() as folder:
        rows = spark.createDataFrame([("a", 1), ("b", 2)], "key STRING, number INT")
        rows.groupBy("key").count().write.parquet(f"{folder}/counts")
        spark.read.parquet(f"{folder}/counts").orderBy("key").collect()
    java = SparkContext._gateway.proc
    spark.stop()
    java.stdin.close()  # which ends it, and at its end it writes the archive
    if java.wait(PATIENCE_SECONDS):
        raise RuntimeError(f"Java ended with exit code {java.returncode}")  # and may have written a part of it
    unfinished.rename(archive)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        print(f"No archive of Spark's classes, so the tests take longer: {error}")
