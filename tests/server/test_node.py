"""Google's client for Node: fetched by `npm` once, into the environment, and skipped where that cannot be."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Serve

CLIENT = "@google-cloud/pubsub@5.3.1"
CACHE = Path(os.environ.get("INORDER_TEST_NODE", Path(sys.prefix) / "node"))  # gone with the environment
PATIENCE_SECONDS = 200
SMOKE = Path(__file__).parent / "node" / "smoke.js"


def modules() -> Path:
    """The folder of the client and what it needs."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"no {program} on this machine")
    folder = CACHE / CLIENT.rpartition("@")[2]
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(unfinished), CLIENT]
        try:
            fetched = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{CLIENT} cannot be fetched: npm took more than {PATIENCE_SECONDS} seconds")
        if fetched.returncode:
            pytest.skip(f"{CLIENT} cannot be fetched: {fetched.stderr.strip()[-500:]}")
        unfinished.rename(folder)
    return folder / "node_modules"


@pytest.fixture
def told(serve: Serve) -> dict[str, Any]:
    """What the program in Node saw."""
    environment = {
        **os.environ,
        "NODE_PATH": str(modules()),
        "PUBSUB_EMULATOR_HOST": serve().address,
        "METADATA_SERVER_DETECTION": "none",  # it is not in Google's cloud
    }
    run = subprocess.run(["node", str(SMOKE)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr[-5000:]
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def test_googles_client_for_node(told: dict[str, Any]) -> None:
    assert told["admin"] == {
        "exists": True,
        "missing": False,
        "again": 6,  # ALREADY_EXISTS
        "ackDeadlineSeconds": 45,
        "labels": {"team": "north"},
        "ordering": True,
        "topics": ["projects/shop/topics/orders"],
        "subscriptions": ["projects/shop/subscriptions/worker"],
    }
    seen = "".join(told["ordered"])  # b failed once, and so it comes again, with all that is behind it
    assert seen.startswith("ab")
    assert seen.endswith("bcde")
    assert seen.count("b") == 2
    assert told["resume"] == {"refused": 3, "behind": 3, "resumed": "published"}
    assert told["pull"] == [["paused", "z"]]
    assert told["remove"] == {"code": 5}  # NOT_FOUND
