"""Delta and Iceberg for tests: their jars and a PySpark that they are made for, which `make soak` fetches, by `mvn`.

No release of either works with Spark 4.3.0 yet. Delta 4.4.0 for Spark 4.2 fails to read a table (NoSuchMethodError:
LogicalRDD.<init>), Iceberg 1.12.0 for Spark 4.1 cannot load its catalog (IncompatibleClassChangeError: View is not an
interface). Both have releases for Spark 4.1, so that is what their tests run on, in processes of their own.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PYSPARK = "4.1.4"
JARS = {
    "delta": [
        "io.delta:delta-spark_4.1_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
        "io.delta:delta-kernel-api:4.4.0",
        "io.delta:delta-kernel-defaults:4.4.0",
        "io.delta:delta-kernel-unitycatalog:4.4.0",
    ],
    "iceberg": ["org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"],
}
CACHE = Path(os.environ.get("INORDER_TEST_LAKES", Path(sys.prefix) / "lakes"))  # gone with the environment
PATIENCE_SECONDS = 400

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>inorder</groupId><artifactId>jars</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
NEEDED = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def run(folder: Path) -> dict[str, Any]:
    """What the child tells of each format. Skips the test where something cannot be had, and says what."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("no Java on this machine, and Spark needs 17 or later")
    found, pyspark = [jar for format in JARS for jar in jars(format)], pyspark_folder()
    child = [sys.executable, "-m", "tests.spark.lake_child", str(folder), ",".join(map(str, found))]
    root = Path(__file__).parents[2]
    path = [pyspark, root, root / "tests" / "spark" / "path"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    environment.pop("SPARK_HOME", None)
    told = subprocess.run(child, env=environment, cwd=folder, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr[-5000:]
    result: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return result


def jars(format: str) -> list[Path]:
    folder = CACHE / f"{format}-{JARS[format][0].rpartition(':')[2]}"
    if not folder.exists():
        skip_unless_fetched(JARS[format][0])
        if shutil.which("mvn") is None:
            pytest.skip(f"no mvn on this machine to fetch {JARS[format][0]}")
        unfinished = fresh(folder)
        needed = "".join(NEEDED.format(*one.split(":")) for one in JARS[format])
        (unfinished / "pom.xml").write_text(POM.format(needed))
        goal = ["dependency:copy-dependencies", "-DexcludeTransitive=true", f"-DoutputDirectory={unfinished}"]
        fetch(["mvn", "-B", "-q", "-f", str(unfinished / "pom.xml"), *goal], JARS[format][0])
        unfinished.rename(folder)
    return sorted(folder.glob("*.jar"))


def pyspark_folder() -> Path:
    folder = CACHE / f"pyspark-{PYSPARK}"
    if not folder.exists():
        skip_unless_fetched(f"PySpark {PYSPARK}")
        unfinished = fresh(folder)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(unfinished)]
        fetch([*pip, f"pyspark=={PYSPARK}"], f"pyspark {PYSPARK}")
        unfinished.rename(folder)
    return folder


def skip_unless_fetched(what: str) -> None:
    """Half a gigabyte, and minutes to unpack it: not with every test of a new machine."""
    if "FETCH_LAKES" not in os.environ:
        pytest.skip(f"{what} is not on this machine; `make soak` fetches it, and so does FETCH_LAKES=1")


def fresh(folder: Path) -> Path:
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    return unfinished


def fetch(command: list[str], what: str) -> None:
    try:
        fetched = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} cannot be fetched: {command[0]} took more than {PATIENCE_SECONDS} seconds")
    if fetched.returncode:
        pytest.skip(f"{what} cannot be fetched: {(fetched.stderr or fetched.stdout).strip()[-500:]}")
