"""`resequence` and `apply_versions` from a source to a sink: what the pure patterns tell, whatever fails on the way."""

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from inorder.errors import InvalidArgument, StateRefused
from inorder.patterns import Resequencer, VersionGate
from inorder.spark.operators import apply_versions, resequence

from ..unit.spark.histories import expected
from .streams import SECOND, Stream, by_key, generated, outcomes


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    return Stream(spark, tmp_path)


def ordered(stream: Stream, **options: Any) -> Any:
    options = {"key": "key", "sequence": "number", "position": "position", "keep_dropped": True, **options}
    return resequence(stream.rows(), **options)


def numbers(told: list[tuple[str, Any]], fate: str = "released") -> list[int]:
    return [what[1] for found, what in told if found == fate]


@pytest.mark.parametrize(
    ("seed", "pattern", "options"),
    [
        (1, Resequencer(gap_timeout_seconds=2, late="emit"), {"gap_timeout": "2 seconds", "late": "emit"}),
        (
            2,
            Resequencer(initial="first_seen", gap_timeout_seconds=3, late="quarantine", duplicates="quarantine"),
            {"initial": "first_seen", "gap_timeout": 3, "late": "quarantine", "duplicates": "quarantine"},
        ),
        (3, Resequencer(initial=0, capacity=4, when_full="gap"), {"initial": 0, "capacity": 4, "when_full": "gap"}),
    ],
)
def test_a_stream_tells_what_its_pattern_tells(stream: Stream, seed: int, pattern: Any, options: Any) -> None:
    history = generated(seed, batches=6, rows=60)
    for _, rows in history:
        stream.put(*rows)
    stream.run(ordered(stream, **options), [now_us for now_us, _ in history])
    assert by_key(stream.told()) == expected(pattern, history)[0]


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        (VersionGate(gap_timeout_seconds=2), {"gap_timeout": "2 seconds"}),
        (VersionGate(mode="latest_only", first_version=0), {"mode": "latest_only", "first_version": 0}),
    ],
)
def test_versions_tell_what_their_pattern_tells(stream: Stream, pattern: Any, options: Any) -> None:
    history = generated(4, batches=4, rows=60)
    for _, rows in history:
        stream.put(*rows)
    operator = apply_versions(
        stream.rows(), key="key", version="number", position="position", keep_dropped=True, **options
    )
    stream.run(operator, [now_us for now_us, _ in history])
    assert by_key(stream.told()) == expected(pattern, history)[0]


TABLES = [
    (Resequencer(), {}),
    (Resequencer(gap_timeout_seconds=1, late="emit", initial=3), {"gap_timeout": 1, "late": "emit", "initial": 3}),
    (
        Resequencer(initial="first_seen", duplicates="quarantine"),
        {"initial": "first_seen", "duplicates": "quarantine"},
    ),
    (VersionGate(first_version=2), {"first_version": 2}),
    (VersionGate(mode="latest_only"), {"mode": "latest_only"}),
]


@pytest.mark.parametrize(("pattern", "options"), TABLES, ids=[str(pattern) for pattern, _ in TABLES])
def test_a_table_tells_what_its_pattern_tells(spark: SparkSession, pattern: Any, options: Any) -> None:
    [(now_us, rows)] = generated(5, batches=1, rows=150)
    names = {"key": "key", "position": "position", "keep_dropped": True}
    table = spark.createDataFrame(rows, "key STRING, number INT, position BIGINT").repartition(3)
    if isinstance(pattern, VersionGate):
        found = apply_versions(table, version="number", **names, **options)
    else:
        found = resequence(table, sequence="number", **names, **options)
    assert isinstance(found, DataFrame)
    told = list(outcomes(row.asDict(recursive=True) for row in found.collect()))
    settled, lines = expected(pattern, [(now_us, rows), (now_us + 10 * SECOND, [])])
    assert by_key([one for one in told if one[0] != "parked"]) == settled
    parked = {event for line in lines.values() for _, _, event in line.parked}
    assert {what for fate, what in told if fate == "parked"} == parked


def test_as_a_dataframe_a_stream_tells_the_same(stream: Stream) -> None:
    history = generated(8, batches=4, rows=60)
    for _, rows in history:
        stream.put(*rows)
    told: list[Any] = []

    def run(**options: Any) -> None:
        frame = ordered(stream, initial=0, **options).dataframe()
        assert frame.isStreaming

        def collect(rows: DataFrame, batch_id: int) -> None:
            told.extend(outcomes(row.asDict(recursive=True) for row in rows.collect()))

        query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(stream.checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    assert by_key(told) == expected(Resequencer(initial=0), history)[0]
    stream.put(*((f"key-{number}", 1_000, number) for number in range(6)))
    with pytest.raises(StreamingQueryException, match="it is of"):
        run(buckets=3)


def test_as_a_dataframe_a_gap_times_out(stream: Stream) -> None:
    stream.put(("a", 2, 0))
    told: list[Any] = []
    done = threading.Event()

    def collect(rows: DataFrame, batch_id: int) -> None:
        told.extend(outcomes(row.asDict(recursive=True) for row in rows.collect()))
        if told:
            done.set()

    frame = ordered(stream, gap_timeout="10 milliseconds").dataframe()
    query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(stream.checkpoint)).start()
    assert done.wait(60), query.exception()
    query.stop()
    assert told == [("gap", ("a", 1, 1, "timeout")), ("released", ("a", 2, 0))]


def test_a_query_goes_on_where_it_was(stream: Stream) -> None:
    stream.put(("a", 1, 0), ("a", 3, 1), ("b", 2, 2))
    stream.run(ordered(stream))
    stream.put(("a", 2, 3), ("b", 1, 4))
    stream.run(ordered(stream))
    assert stream.told_in(0) == [("released", ("a", 1, 0))]
    assert by_key(stream.told_in(1)) == by_key(
        [
            ("released", ("a", 2, 3)),
            ("released", ("a", 3, 1)),
            ("released", ("b", 1, 4)),
            ("released", ("b", 2, 2)),
        ]
    )


def test_a_query_goes_on_whatever_width_texts_have_in_its_session(stream: Stream) -> None:
    stream.put(("a", 2, 0))
    stream.run(ordered(stream))
    stream.put(("a", 1, 1))
    stream.spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        stream.run(ordered(stream))
    finally:
        stream.spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert stream.told_in(1) == [("released", ("a", 1, 1)), ("released", ("a", 2, 0))]


@pytest.mark.parametrize("dies", ["before our commit", "before Spark's commit"])
def test_a_batch_that_comes_again_tells_and_stores_the_same(stream: Stream, dies: str) -> None:
    stream.put(("a", 1, 0), ("a", 4, 1))
    stream.run(ordered(stream, gap_timeout=5), [1 * SECOND])
    stream.put(("a", 5, 2), ("a", 2, 3))
    seen: list[Any] = []

    def fragile(rows: DataFrame, batch_id: int) -> None:
        seen.append([tuple(row) for row in rows.collect()])
        if dies == "before our commit" and len(seen) == 1:
            raise OSError("the disk of the sink is full")

    query = ordered(stream, gap_timeout=5).write(fragile)
    if dies == "before our commit":
        assert "the disk of the sink is full" in stream.failure(query)
    else:
        stream.run(query, [2 * SECOND])
    first = stream.state_files()
    if dies != "before our commit":
        stream.forget_commit(1)
    stream.run(query, [1_000 * SECOND])  # by now the gap would have timed out, but the batch keeps its time
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert first.items() <= stream.state_files().items()


def test_a_gap_times_out_in_a_batch_without_its_key(stream: Stream) -> None:
    stream.put(("a", 2, 0))
    stream.put()
    stream.put(("a", 1, 1))
    stream.run(ordered(stream, gap_timeout="30 seconds", late="emit"), [0, 30 * SECOND, 31 * SECOND])
    assert stream.told() == [("gap", ("a", 1, 1, "timeout")), ("released", ("a", 2, 0)), ("late", ("a", 1, 1))]


def failing_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch
        if context.attemptNumber() < 2:
            raise OSError("a task that fails")


def test_a_task_that_fails_is_run_again(stream: Stream) -> None:
    history = generated(6, batches=3, rows=60)
    for _, rows in history:
        stream.put(*rows)

    def write(rows: DataFrame, batch_id: int) -> None:
        flaky = rows.mapInArrow(failing_at_first, rows.schema)
        flaky.write.mode("overwrite").parquet(f"{stream.out}/batch_id={batch_id}")

    stream.run(ordered(stream, initial=0).write(write))
    assert by_key(stream.told()) == expected(Resequencer(initial=0), history)[0]


def test_two_attempts_at_once_write_the_same(stream: Stream) -> None:
    stream.put(("a", 1, 0), ("a", 1, 1), ("b", 2, 2), ("c", 1, 3))
    found: list[Any] = []
    states: list[Any] = []

    def twice(rows: DataFrame, batch_id: int) -> None:
        def collect() -> None:
            found.append(sorted(map(repr, rows.collect())))
            states.append({name: data for name, data in stream.state_files().items() if "~" not in name})

        attempts = [threading.Thread(target=collect) for _ in range(2)]
        for attempt in attempts:
            attempt.start()
        for attempt in attempts:
            attempt.join()

    stream.run(ordered(stream).write(twice))
    assert found[0] == found[1]
    runs = {name: data for name, data in stream.state_files().items() if name.startswith("runs")}
    assert len(runs) == 2
    assert runs.items() <= states[-1].items()


def test_a_sink_that_reads_little_leaves_no_state_out(stream: Stream) -> None:
    stream.put(*((f"key-{number}", 1, number) for number in range(50)))
    stream.run(ordered(stream).write(lambda rows, batch_id: None))
    stream.put(*((f"key-{number}", 2, number) for number in range(50)))
    stream.run(ordered(stream))
    assert len(numbers(stream.told_in(1))) == 50


def test_one_key_with_nearly_all_rows_is_one_key_still(stream: Stream) -> None:
    hot = [("hot", number, number) for number in range(1, 3_601)]
    cold = [(f"cold-{number % 80}", number // 80 + 1, number) for number in range(400)]
    rows = [*hot, *cold]
    Random(7).shuffle(rows)
    for batch in range(4):
        stream.put(*rows[batch * 1_000 : (batch + 1) * 1_000])
    stream.run(ordered(stream, capacity=10_000))
    assert numbers([one for one in stream.told() if one[1][0] == "hot"]) == list(range(1, 3_601))
    assert len(numbers(stream.told())) == 4_000


def test_rows_that_cannot_be_read_stop_the_query_or_are_handed_on(stream: Stream) -> None:
    bad = [(None, 1, 0), ("", 1, 1), ("a", None, 2), ("a", -1, 3), ("x" * 1_025, 1, 4), ("a", 2**63 - 1, 5)]
    stream.put(*bad, ("a", 1, 6))
    told = stream.failure(ordered(stream))
    assert "rows cannot be read" in told
    assert "invalid='quarantine'" in told
    stream.run(ordered(stream, invalid="quarantine"))
    assert sorted(what[2] for fate, what in stream.told() if fate == "quarantined") == [0, 1, 2, 3, 4, 5]
    assert numbers(stream.told()) == [1]


def test_without_a_position_content_decides_between_rows_of_one_number(spark: SparkSession, tmp_path: Path) -> None:
    stream = Stream(spark, tmp_path, "key STRING, number BIGINT, position STRING")
    stream.put(*(("a", 1, text) for text in "dbca"))
    stream.run(ordered(stream, position=None))
    assert [what for fate, what in stream.told() if fate == "released"] == [("a", 1, "a")]


def test_every_type_of_column_waits_and_comes_out_again(spark: SparkSession, tmp_path: Path) -> None:
    values = spark.sql(
        "SELECT cast(5 AS BIGINT) key, number, true flag, DATE'2026-01-31' day, TIMESTAMP'2026-01-31 12:00:00Z' at, "
        "TIMESTAMP_NTZ'2026-01-31 12:00:00' local, 1.50BD price, X'00FF' data, "
        "array(struct(1 AS x, 'a' AS y)) list, map('m', array(1.5D)) map, cast(null AS STRING) none "
        "FROM VALUES (2), (1) AS numbers(number)"
    )
    for number, folder in ((2, "0"), (1, "1")):
        values.where(f"number = {number}").coalesce(1).write.parquet(str(tmp_path / f"in/{folder}"))
    source = spark.readStream.schema(values.schema).option("maxFilesPerTrigger", 1).option("recursiveFileLookup", True)
    found: list[Any] = []
    query = resequence(source.parquet(str(tmp_path / "in")), key="key", sequence="number").write(
        lambda rows, batch_id: found.extend(rows.drop("_fate", "_gap").collect())
    )
    for zone in ("UTC", "Asia/Tokyo"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        running = query.start(str(tmp_path / "checkpoint"), trigger={"availableNow": True})
        running.awaitTermination()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert found == values.orderBy("number").collect()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another bucket count": ({"buckets": 3}, "it has 2 buckets, not 3"),
    "another key": ({"key": "position"}, "it was made with key='key'"),
    "another number": ({"sequence": "position"}, "number='number'"),
}


@pytest.mark.parametrize(("options", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_the_state_is_refused_at_the_start(stream: Stream, options: Any, reason: str) -> None:
    stream.put(("a", 1, 0))
    stream.run(ordered(stream))
    with pytest.raises(StateRefused, match=reason):
        stream.run(ordered(stream, **options))


def test_a_changed_schema_is_refused(stream: Stream) -> None:
    stream.put(("a", 1, 0))
    stream.run(ordered(stream))
    stream.schema += ", colour STRING"
    with pytest.raises(StateRefused, match="colour is new"):
        stream.run(ordered(stream))


def test_another_operator_is_refused(stream: Stream) -> None:
    stream.put(("a", 1, 0))
    stream.run(ordered(stream))
    with pytest.raises(StateRefused, match="it is of resequence, not of apply_versions"):
        stream.run(apply_versions(stream.rows(), key="key", version="number"))


def test_a_checkpoint_of_a_query_without_such_a_state_is_refused(stream: Stream) -> None:
    stream.put(("a", 1, 0))
    plain = stream.rows().writeStream.format("noop").option("checkpointLocation", str(stream.checkpoint))
    plain.trigger(availableNow=True).start().awaitTermination()
    with pytest.raises(StateRefused, match="is of a query that has run"):
        stream.run(ordered(stream))


def test_the_state_of_another_query_is_refused(stream: Stream, tmp_path: Path) -> None:
    stream.put(("a", 1, 0))
    state = str(tmp_path / "state")
    ordered(stream).to_parquet(str(stream.out)).start(
        str(stream.checkpoint), trigger={"availableNow": True}, state=state
    ).awaitTermination()
    query = (
        ordered(stream)
        .to_parquet(str(stream.out))
        .start(str(tmp_path / "another"), trigger={"availableNow": True}, state=state)
    )
    with pytest.raises(Exception, match="it belongs to query"):
        query.awaitTermination()


DAMAGE = {
    "a flipped byte": (
        "runs/00000000/*.arrow",
        lambda data: data[:300] + bytes([data[300] ^ 4]) + data[301:],
        "checksum",
    ),
    "a missing file": ("runs/00000000/*.arrow", None, "is missing"),
    "a missing version": ("versions/00000000.json", None, "batch 1 needs version 0"),
}


@pytest.mark.parametrize(("files", "change", "reason"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_to_the_state_stops_the_query_and_restored_it_goes_on(
    stream: Stream, files: str, change: Any, reason: str
) -> None:
    stream.put(("a", 1, 0), ("a", 3, 1), ("b", 1, 2))
    stream.run(ordered(stream))
    stream.put(("a", 2, 3))
    copy = {path: path.read_bytes() for path in stream.state.glob(files)}
    for path, data in copy.items():
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(data))
    told = stream.failure(ordered(stream))
    assert reason in told
    assert str(stream.state) in told
    for path, data in copy.items():
        path.write_bytes(data)
    stream.run(ordered(stream))
    assert stream.told_in(1) == [("released", ("a", 2, 3)), ("released", ("a", 3, 1))]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no such column": ({"sequence": "seq"}, "sequence: there is no column 'seq', only key, number, position"),
    "no number": ({"sequence": "key"}, "sequence: 'key' is string, and must be whole numbers; cast it"),
    "a retry": ({"when_full": "retry"}, "nobody who would send a row again"),
    "no duration": ({"gap_timeout": "soon"}, "gap_timeout: seconds, a timedelta, or text such as '30 seconds'"),
    "no buckets": ({"buckets": 0}, "buckets"),
}


@pytest.mark.parametrize(("options", "problem"), WRONG.values(), ids=WRONG.keys())
def test_what_makes_no_sense_is_refused_at_once(stream: Stream, options: Any, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        ordered(stream, **options)


def test_a_stream_needs_a_sink(stream: Stream, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="say where the rows go"):
        ordered(stream).start(str(tmp_path))


def test_a_relative_checkpoint_starts_where_the_program_is(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where Spark and its workers are not
    stream.checkpoint = Path("beside")
    stream.put(("a", 1, 0))
    stream.run(ordered(stream))
    assert numbers(stream.told()) == [1]
    assert (tmp_path / "beside" / "inorder" / "versions").is_dir()
    assert (tmp_path / "beside" / "commits" / "0").is_file()
