"""How hard generated tests search (HYPOTHESIS_PROFILE names the profile, "default" or "soak"), and what tests share."""

import gc
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from inorder import put_off

from . import postgres
from .spark.java_classes import SHORT_LIVED

# Examples take turns and leases, not microseconds: a deadline per example would only measure the machine.
# `make test` searches the same histories every time, so that it fails for what was changed; `make soak` looks for more.
settings.register_profile("default", max_examples=30, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("soak", max_examples=5_000, deadline=None, derandomize=False, print_blob=True)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Spark starts its workers by this name, and else by the first python3 that it finds.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # whatever networks the machine has
SPARK_CLASSES = Path(sys.prefix, "spark-classes.jsa")  # which `make test` makes
_from_archive = f' "-XX:SharedArchiveFile={SPARK_CLASSES}"' if SPARK_CLASSES.exists() else ""
os.environ.setdefault("SPARK_SUBMIT_OPTS", SHORT_LIVED + _from_archive)
# What tests send to the workers is found there, in whichever folder Spark was started, and PySpark without a zip.
ON_THE_PATH = [Path(__file__).parents[1], Path(__file__).parent / "spark" / "path"]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*map(str, ON_THE_PATH), os.environ.get("PYTHONPATH")]))

SHARED_SPARK = re.compile(r"tests/spark/")
OWN_SPARK = re.compile(
    r"tests/spark/test_(connect|declarative|killed_drivers|lake_tables)\.py|whole_story|\[(spark|audit)\.md\]"
)


def pytest_collection_finish() -> None:
    """Thousands of tests are there to stay: no collection of garbage needs to look at them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares a session of Spark runs in one worker, what starts its own in another: two at a time are enough."""
    from xdist.scheduler import LoadScopeScheduling

    class TwoSparks(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if OWN_SPARK.search(nodeid):
                return "own Spark"
            return "shared Spark" if SHARED_SPARK.search(nodeid) else nodeid

    return TwoSparks(config, log)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture
def loops_in_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No loop is ever late, however busy the machine is: nobody else does what it has put off."""
    monkeypatch.setattr(put_off, "LATE_US", 10**12)
    put_off._put_off.forget()
    yield
    put_off._put_off.forget()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no `mount` on this machine, so no small disk to fill")
    if mounted.returncode:
        pytest.skip(f"no right to mount a small disk to fill: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
