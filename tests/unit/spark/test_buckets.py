"""State files: found again, refused where they do not fit, and never taken for a new beginning."""

import os
import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import StateDamaged, StateRefused
from inorder.spark.buckets import Bucket, BucketState, Manifest
from inorder.spark.folders import Folder, whole
from inorder.spark.hashing import hashes
from inorder.spark.lines import by_hash
from inorder.spark.runs import Runs, _places

LINES = pa.schema(
    [
        pa.field("hash", pa.uint32()),
        pa.field("key", pa.string()),
        pa.field("since_us", pa.int64()),
        pa.field("expected", pa.int64()),
    ]
)
EMPTY = LINES.empty_table()


def lines(values: dict[str, tuple[int | None, int]]) -> pa.Table:
    """Lines as a kernel hands them over: by hash and key."""
    keys = pa.array(values, pa.string())
    since_us, expected = ([one[place] for one in values.values()] for place in (0, 1))
    found = pa.table([pa.array(hashes(keys)), keys, pa.array(since_us, pa.int64()), pa.array(expected)], schema=LINES)
    return found.sort_by([("hash", "ascending"), ("key", "ascending")]).combine_chunks()


def content(table: pa.Table) -> dict[str, tuple[int | None, int]]:
    return {line["key"]: (line["since_us"], line["expected"]) for line in table.to_pylist()}


changes = st.dictionaries(
    st.sampled_from([f"key-{number}" for number in range(12)]),
    st.tuples(st.none() | st.integers(0, 9), st.integers(0, 99)),
    max_size=8,
)


@given(st.lists(changes, max_size=12), st.integers(0, 9))
def test_the_newest_line_of_a_key_counts(history: list[dict[str, Any]], since_us: int) -> None:
    tables: list[pa.Table] = []
    newest: dict[str, Any] = {}
    for changed in history:
        kept, run = Runs(tables, EMPTY).with_changes(lines(changed))
        tables = [*tables[:kept], run]
        newest |= changed
    runs = Runs(tables, EMPTY)
    wanted = pa.array(["key-1", "key-3", "never", *newest]).unique()
    assert content(runs.find(wanted, hashes(wanted))) == newest
    waiting = {key: line for key, line in newest.items() if line[0] is not None and line[0] <= since_us}
    assert content(runs.waiting(since_us)) == waiting
    lengths = [len(table) for table in tables]
    assert all(older > 2 * newer for older, newer in pairwise(lengths))


def test_keys_of_one_hash_are_told_apart() -> None:
    table = lines({f"key-{number}": (None, number) for number in range(4)})
    same = table.set_column(0, LINES.field("hash"), pa.array(np.zeros(4), pa.uint32())).sort_by("key").combine_chunks()
    runs = Runs([same], EMPTY)
    wanted = pa.array(["key-3", "key-9", "key-0"])
    assert _places(same, wanted, np.zeros(3, np.uint32)).tolist() == [3, -1, 0]
    assert content(runs.waiting(10)) == {}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", "c"]))))
def test_lines_are_sorted_by_hash_and_key_and_else_stay_as_they_are(pairs: list[tuple[int, str]]) -> None:
    hashed, keys = np.array([one[0] for one in pairs], np.uint32), pa.array([one[1] for one in pairs], pa.string())
    assert by_hash(keys, hashed).tolist() == sorted(range(len(pairs)), key=lambda place: pairs[place])


MANIFEST = Manifest(
    operator="resequence",
    buckets=2,
    columns={"key": "id", "number": "seq", "position": None},
    schema={"id": "string", "seq": "bigint"},
    query="q1",
)


def changed(**changes: Any) -> Manifest:
    return Manifest(**{**{name: getattr(MANIFEST, name) for name in Manifest.__dataclass_fields__}, **changes})


def run_batch(state: BucketState, batch: int, now_us: int = 0, **values: int) -> None:
    """What a query does, without Spark: each bucket takes some lines in."""
    pinned = state.begin(batch, now_us, {"late": "drop"})
    for number in range(state.manifest.buckets):
        bucket = Bucket(state.folder, number, batch, pinned.runs.get(number, []))
        new = lines({f"{key}-{number}": (None, value) for key, value in values.items()})
        bucket.write(*bucket.read(EMPTY).with_changes(new))
    assert state.missing(batch) == []
    state.commit(pinned)


def stored(state: BucketState, batch: int) -> dict[str, Any]:
    """All lines as they are before a batch."""
    runs = state.begin(batch, 0, {}).runs
    found = [Bucket(state.folder, number, batch, runs[number]).read(EMPTY) for number in runs]
    keys = pa.array([f"{key}-{number}" for key in "abc" for number in (0, 1)])
    return {key: line[1] for bucket in found for key, line in content(bucket.find(keys, hashes(keys))).items()}


@pytest.fixture
def state(tmp_path: Path) -> BucketState:
    state = BucketState(Folder(str(tmp_path / "state")), MANIFEST)
    state.open()
    return state


def files(state: BucketState) -> dict[str, bytes]:
    root = Path(state.folder.uri)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_version_has_what_all_batches_before_it_wrote(state: BucketState) -> None:
    run_batch(state, 0, a=1, b=1, c=1)
    run_batch(state, 1, b=2)
    run_batch(state, 2, c=3)
    assert stored(state, 3) == {"a-0": 1, "a-1": 1, "b-0": 2, "b-1": 2, "c-0": 3, "c-1": 3}


def test_a_batch_that_runs_again_writes_the_same(state: BucketState) -> None:
    run_batch(state, 0, now_us=5, a=1)
    run_batch(state, 1, now_us=7, b=2)
    before = files(state)
    run_batch(state, 1, now_us=1_000, b=2)
    assert files(state) == before


def test_the_clock_of_a_batch_is_pinned_and_never_goes_back(state: BucketState) -> None:
    assert state.begin(0, 100, {}).now_us == 100
    assert state.begin(0, 200, {}).now_us == 100
    run_batch(state, 0, a=1)
    assert state.begin(1, 50, {}).now_us == 100


def test_a_batch_keeps_its_options_once_it_has_a_version(state: BucketState) -> None:
    state.begin(0, 0, {"late": "error"})
    run_batch(state, 0, a=1)
    assert state.begin(0, 0, {"late": "emit"}).options == {"late": "drop"}


def test_what_a_failed_attempt_wrote_does_not_count(state: BucketState) -> None:
    Bucket(state.folder, 1, 0, []).write(0, lines({"a-1": (None, 99)}))
    pinned = state.begin(0, 0, {})
    assert state.missing(pinned.batch) == [0, 1]


def test_old_versions_and_their_files_go(state: BucketState) -> None:
    for batch in range(40):
        run_batch(state, batch, a=batch, b=batch)
    found = files(state)
    assert sorted(name for name in found if name.startswith("versions")) == [
        "versions/00000038.json",
        "versions/00000039.json",
    ]
    assert len(found) <= 1 + 2 + 2 + 4
    assert stored(state, 40)["a-0"] == 39


def test_a_batch_that_changes_few_keys_of_many_writes_few(tmp_path: Path) -> None:
    state = BucketState(Folder(str(tmp_path)), changed(buckets=1))
    state.open()
    pinned = state.begin(0, 0, {})
    many = lines({f"key-{number}": (None, 1) for number in range(10_000)})
    Bucket(state.folder, 0, 0, []).write(0, many)
    state.commit(pinned)
    run_batch(state, 1, a=1)
    written = {name: len(data) for name, data in files(state).items() if name.startswith("runs/00000001")}
    assert written.keys() == {"runs/00000001/000-1.arrow"}
    assert sum(written.values()) < 2_000


REFUSED = {
    "another operator": ({"operator": "deduplicate"}, "it is of resequence, not of deduplicate"),
    "more buckets": ({"buckets": 3}, "it has 2 buckets, not 3: keys would not find their state; leave buckets=2"),
    "another key": ({"columns": {"key": "seq", "number": "seq"}}, "it was made with key='id', number='seq'"),
    "a column less": ({"schema": {"id": "string"}}, "seq is gone"),
    "a column more": ({"schema": {**MANIFEST.schema, "x": "int"}}, "x is new"),
    "another type": ({"schema": {"id": "string", "seq": "int"}}, "seq was bigint and is int"),
    "another order": ({"schema": {"seq": "bigint", "id": "string"}}, "the order of the columns"),
    "another query": ({"query": "q2"}, "it belongs to query q1, and this is query q2"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_state_of_something_else_is_refused(state: BucketState, changes: dict[str, Any], reason: str) -> None:
    run_batch(state, 0, a=1)
    before = files(state)
    with pytest.raises(StateRefused) as refused:
        BucketState(state.folder, changed(**changes)).open()
    assert reason in str(refused.value)
    assert files(state) == before


def test_a_query_that_is_behind_its_state_is_refused(state: BucketState) -> None:
    for batch in range(3):
        run_batch(state, batch, a=1)
    with pytest.raises(StateRefused, match="it is at version 2, and the query is at batch 0"):
        state.begin(0, 0, {})


def test_a_missing_version_is_no_new_beginning(state: BucketState) -> None:
    with pytest.raises(StateDamaged, match="batch 4 needs version 3, and there is none at all"):
        state.begin(4, 0, {})


def test_a_missing_manifest_is_no_new_beginning(state: BucketState) -> None:
    run_batch(state, 0, a=1)
    (Path(state.folder.uri) / "manifest.json").unlink()
    with pytest.raises(StateDamaged, match=r"manifest\.json is missing"):
        state.open()


def go_on(state: BucketState) -> None:
    state.open()
    state.begin(1, 0, {})


def damage(path: Path, how: str) -> None:
    if how == "missing":
        path.unlink()
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-10])
    elif how == "flipped":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize("how", ["missing", "short", "overwritten", "flipped"])
def test_a_damaged_run_is_named(state: BucketState, how: str) -> None:
    run_batch(state, 0, a=1)
    damage(Path(state.folder.uri) / "runs/00000000/001-0.arrow", how)
    with pytest.raises(StateDamaged, match=r"runs/00000000/001-0\.arrow"):
        stored(state, 1)


@given(st.data())
def test_no_byte_of_a_file_can_change_unseen(data: st.DataObject) -> None:
    with TemporaryDirectory() as path:
        folder = Folder(path)
        folder.write_table("lines.arrow", lines({"a": (None, 1), "b": (7, 2)}))
        folder.write_record("it.json", {"now_us": 1_234})
        name = data.draw(st.sampled_from(["lines.arrow", "it.json"]))
        read = folder.read_table if name == "lines.arrow" else folder.read_record
        read(name)  # so that it was found sound once
        content = bytearray((Path(path) / name).read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        (Path(path) / name).write_bytes(content)
        os.utime(Path(path) / name, (1, 1))
        with pytest.raises(StateDamaged, match=f"{name} is not as it was written"):
            read(name)


@pytest.mark.parametrize("name", ["manifest.json", "versions/00000000.json"])
@pytest.mark.parametrize("how", ["short", "flipped"])
def test_a_damaged_record_is_named(state: BucketState, name: str, how: str) -> None:
    run_batch(state, 0, a=1)
    damage(Path(state.folder.uri) / name, how)
    with pytest.raises(StateDamaged, match=name):
        go_on(state)


def test_what_a_killed_task_left_unfinished_is_passed_over(state: BucketState) -> None:
    run_batch(state, 0, a=1)
    run = Path(state.folder.uri) / "runs/00000001/000-1.arrow~4711"
    run.parent.mkdir()
    run.write_bytes(b"half")
    assert state.missing(1) == [0, 1]
    for batch in range(1, 5):
        run_batch(state, batch, a=1)
    assert not run.parent.exists()


class Killed(BaseException):
    """Nobody catches it."""


class MortalFolder(Folder):
    """Its process dies instead of changing anything once more than so often."""

    def __init__(self, uri: str, changes: int) -> None:
        super().__init__(uri)
        self._changes = changes

    def _write(self, name: str, content: Any) -> None:
        self._live()
        super()._write(name, content)

    def delete(self, name: str) -> None:
        self._live()
        super().delete(name)

    def tidy(self, name: str) -> None:
        self._live()
        super().tidy(name)

    def _live(self) -> None:
        if not self._changes:
            raise Killed
        self._changes -= 1


def test_a_query_that_is_killed_between_any_two_files_goes_on_and_comes_to_the_same(tmp_path: Path) -> None:
    def run_batches(path: Path, first: int, changes: int) -> int:
        """The batch in which it died, or the one that is next."""
        state = BucketState(MortalFolder(str(path), changes), MANIFEST)
        batch = first
        with suppress(Killed):
            state.open()
            for batch in range(first, 6):
                run_batch(state, batch, now_us=batch, a=batch, b=1)
            batch = 6
        return batch

    assert run_batches(tmp_path / "never", 0, 1_000) == 6
    wanted = files(BucketState(Folder(str(tmp_path / "never")), MANIFEST))
    changes, died = 0, 0
    while died < 6:
        died = run_batches(tmp_path / str(changes), 0, changes)
        assert run_batches(tmp_path / str(changes), died, 1_000) == 6
        assert files(BucketState(Folder(str(tmp_path / str(changes))), MANIFEST)) == wanted, changes
        changes += 1


def test_a_copy_of_checkpoint_and_state_goes_on(state: BucketState, tmp_path: Path) -> None:
    run_batch(state, 0, a=1)
    shutil.copytree(state.folder.uri, tmp_path / "copy")
    copy = BucketState(Folder((tmp_path / "copy").as_uri()), MANIFEST)
    copy.open()
    run_batch(copy, 1, b=1)
    assert stored(copy, 2).keys() == {"a-0", "a-1", "b-0", "b-1"}


def test_what_the_tasks_have_written_elsewhere_is_not_taken_for_written(tmp_path: Path) -> None:
    """As on a cluster whose executors have disks of their own."""
    manifest = Manifest(operator="resequence", buckets=2, columns={"key": "key"}, schema={"key": "string"})
    state = BucketState(Folder(str(tmp_path / "driver")), manifest)
    state.open()
    pinned = state.begin(0, 0, {})
    Bucket(state.folder, 0, 0, []).write(0, EMPTY)
    Bucket(Folder(str(tmp_path / "executor")), 1, 0, []).write(0, EMPTY)
    with pytest.raises(StateDamaged, match="batch 0 has left nothing of bucket 1 there: driver and executors must"):
        state.commit(pinned)


def test_a_relative_path_is_made_whole_and_no_other_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert whole("./checkpoint") == str(tmp_path / "checkpoint")
    assert whole("file:checkpoint") == f"file:{tmp_path}/checkpoint"
    for uri in (f"{tmp_path}/x", f"file:{tmp_path}/x", f"file://{tmp_path}/x", "s3a://bucket/x", "hdfs:///x"):
        assert whole(uri) == uri
