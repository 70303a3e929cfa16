"""The lines that a running pipeline prints."""

import io
import json

import pytest

from inorder.cli.batches import BATCH_FIELDS, Lines

counts = pytest.importorskip("inorder.spark.counts", reason="pyspark is not installed: make setup")
running = pytest.importorskip("inorder.spark.pipelines.running", reason="pyspark is not installed: make setup")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def progress(batch: int, rows: int, waiting: int | None = None, **fates: int) -> object:
    return running.Progress(batch, rows, 0.5, None if waiting is None else counts.Counts(fates, waiting))


def test_a_line_for_each_batch_that_did_something() -> None:
    stream = io.StringIO()
    lines = Lines(stream)
    lines(progress(0, 1_000, 12, released=900, duplicate=5, gap=1))
    lines(progress(1, 0, 12))
    lines(progress(2, 0, 0, released=12, gap=2))
    lines.end()
    assert stream.getvalue().splitlines() == [
        "batch 0: 1,000 rows in 0.5 s, 2,000 rows/s, 12 waiting, 1 gap, 5 duplicate",
        "batch 2: 0 rows in 0.5 s, 0 rows/s, 0 waiting, 2 gaps",
    ]
    assert lines.summary(stopped=True) == "stopped: 1,000 rows in 3 batches, 667 rows/s"


def test_one_line_that_changes_on_a_terminal() -> None:
    stream = Terminal()
    lines = Lines(stream)
    lines(progress(0, 1))
    lines(progress(1, 0))
    lines.end()
    drawn = ["batch 0: 1 row in 0.5 s, 2 rows/s", "batch 1: 0 rows in 0.5 s, 0 rows/s"]
    assert stream.getvalue() == "".join(f"\r\x1b[K{line}" for line in drawn) + "\n"


def test_a_quiet_run_says_only_how_it_ended() -> None:
    stream = io.StringIO()
    lines = Lines(stream, quiet=True)
    lines(progress(0, 2, 1))
    lines.end()
    assert stream.getvalue() == ""
    assert lines.summary(stopped=False) == "all done: 2 rows in 1 batch, 4 rows/s; 1 row waiting for earlier ones"


def test_programs_get_an_object_for_each_batch() -> None:
    stream = io.StringIO()
    lines = Lines(io.StringIO(), quiet=True, as_json=stream)
    lines(progress(0, 2, 1, released=1))
    lines(progress(1, 0))
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert found == [
        {"batch": 0, "rows": 2, "seconds": 0.5, "waiting": 1, "fates": {"released": 1}},
        {"batch": 1, "rows": 0, "seconds": 0.5, "waiting": None, "fates": None},
    ]
    assert {*found[0]} == {*BATCH_FIELDS}
