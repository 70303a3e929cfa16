"""How hard generated tests search (HYPOTHESIS_PROFILE names the profile, "default" or "soak"), and what tests share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from . import postgres

# Examples take turns and leases, not microseconds: a deadline per example would only measure the machine.
settings.register_profile("default", max_examples=50, deadline=None, derandomize=False, print_blob=True)
settings.register_profile("soak", settings.get_profile("default"), max_examples=5_000)

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Spark starts its workers by this name, and else by the first python3 that it finds.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # whatever networks the machine has
# What tests send to the workers is found there, in whichever folder Spark was started.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))

PAGES_WITH_SPARK = {"spark.md", "audit.md"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares a session of Spark runs in one worker, what starts its own in another: two at a time are enough."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) or any(page in item.nodeid for page in PAGES_WITH_SPARK):
            item.add_marker(pytest.mark.xdist_group("one Spark"))
        elif item.nodeid.startswith("tests/spark/") or "whole_story" in item.nodeid:
            item.add_marker(pytest.mark.xdist_group("other Sparks"))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    with postgres.server() as url:
        yield url


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
