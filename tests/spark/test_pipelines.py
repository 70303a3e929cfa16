"""Pipelines that are files, run by the program as a user runs it: from disorder to a sink, each row once."""

import inspect
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, get_args, get_type_hints

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import inorder.spark
from inorder.broker import MessageQueue
from inorder.cli import main
from inorder.message import Message
from inorder.spark.counts import Counts
from inorder.spark.pipelines import read_pipeline
from inorder.spark.pipelines.building import build
from inorder.spark.pipelines.checking import OF_KEYS, OPERATORS
from inorder.spark.pipelines.running import Progress, Run
from inorder.testing import ManualClock

from .. import postgres

CAPSYS = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("spark")  # which the command takes, as it is there

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"

HEAD = """
name = "orders"
checkpoint = "./checkpoint"
"""
TOPIC = """
[source]
format = "inorder"
url = "./data"
topic = "orders"
options = { maxRowsPerTrigger = 40 }
sql = '''
SELECT ordering_key AS order_id, cast(attributes['n'] AS bigint) AS n, position, cast(data AS string) AS data
FROM source'''
"""
FILES = """
[source]
format = "json"
path = "./in"
schema = "order_id STRING, n BIGINT, data STRING"
options = { maxFilesPerTrigger = 1 }
"""
ORDER = """
[order]
operator = "resequence"
key = "order_id"
sequence = "n"
buckets = 2
"""
LATER = 'gap_timeout = "30 minutes"\n'
SOON = 'gap_timeout = "50 milliseconds"\n'
PARQUET = """
[sink]
format = "parquet"
path = "./table"
"""
AVAILABLE_NOW = """
[trigger]
available_now = true
"""


def transform(**one: str) -> str:
    [(kind, text)] = one.items()
    return f'[[transform]]\n{kind} = """{text}"""\n'


RELEASED = transform(sql="SELECT * FROM rows WHERE _fate = 'released'")
KEYS = [f"order-{number}" for number in range(4)]


def events(seed: int = 1, numbers: int = 25) -> list[tuple[str, int]]:
    """Of some keys, disordered, with repetitions."""
    random = Random(seed)
    found = [(key, number) for key in KEYS for number in range(1, numbers + 1)]
    found += random.sample(found, len(found) // 10)
    return sorted(found, key=lambda event: event[1] + random.uniform(0, 8))


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[MessageQueue]:
    with closing(MessageQueue.open(tmp_path / "data", clock=ManualClock())) as broker:
        broker.register_topic("orders", {"message_retention_duration": 3600})
        yield broker


def publish(queue: MessageQueue, some: list[tuple[str, int]]) -> None:
    queue.publish("orders", [Message(f"{key} {n}".encode(), {"n": str(n)}, key) for key, n in some])


def put(folder: Path, *batches: list[dict[str, Any]]) -> None:
    """A file of JSON for each batch."""
    (folder / "in").mkdir(exist_ok=True)
    for batch in batches:
        number = len(list((folder / "in").iterdir()))
        file = folder / "in" / f"{number}.json"
        file.write_text("".join(json.dumps(row) + "\n" for row in batch))
        os.utime(file, (1_000_000_000 + number,) * 2)  # by which the source sorts them


def pipeline(folder: Path, *parts: str) -> Path:
    (folder / "pipeline.toml").write_text("\n".join(parts))
    return folder / "pipeline.toml"


def run(capsys: CAPSYS, verb: str, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["pipeline", verb, *map(str, arguments)])
    return code, *capsys.readouterr()


def written(folder: Path) -> list[dict[str, Any]]:
    """The rows of all batches, in order."""
    batches = sorted(folder.glob("batch_id=*"), key=lambda path: int(path.name.partition("=")[2]))
    return [row for batch in batches for file in sorted(batch.glob("*.parquet")) for row in _rows(file)]


def _rows(file: Path) -> list[dict[str, Any]]:
    return pq.ParquetFile(file).read().to_pylist()  # type: ignore[no-any-return]


def by_key(rows: list[dict[str, Any]], value: str = "n") -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["order_id"], []).append(row[value])
    return found


FUNCTIONS = """
import os
from pyspark.sql import functions as F

@F.udf("string")
def shout(text):
    if text == "order-2 17" and not os.path.exists({mark!r}):
        raise RuntimeError("not now")
    return text.upper()

def enrich(rows):
    return rows.withColumn("data", shout("data"))
"""


def test_a_run_that_fails_is_told_in_a_line_and_the_next_one_goes_on_without_loss_or_duplicates(
    tmp_path: Path, capsys: CAPSYS
) -> None:
    rows = [{"order_id": key, "n": n, "data": f"{key} {n}"} for key, n in events()]
    put(tmp_path, rows[:40], rows[40:90], rows[90:])
    mark = tmp_path / "mark"
    (tmp_path / "my_functions.py").write_text(FUNCTIONS.format(mark=str(mark)))
    enrich = transform(python="my_functions:enrich")
    file = pipeline(tmp_path, HEAD, FILES, ORDER + LATER, RELEASED, enrich, PARQUET, AVAILABLE_NOW)
    code, out, err = run(capsys, "run", file)
    assert (code, out) == (1, ""), err
    note, first, failure = err.splitlines()
    assert note.startswith("inorder: note: [order] gap_timeout: with available_now")
    assert first.startswith("batch 0: 40 rows in ")
    assert " rows/s, " in first
    assert " waiting" in first
    assert failure == "inorder: batch 1 failed: RuntimeError: not now"
    mark.touch()
    code, _, err = run(capsys, "run", file, "--quiet")
    assert code == 0, err
    assert err.splitlines()[-1].startswith("all done: 70 rows in 2 batches, ")
    assert by_key(written(tmp_path / "table")) == {key: [*range(1, 26)] for key in KEYS}
    assert {row["data"] for row in written(tmp_path / "table")} == {
        f"{key.upper()} {n}" for key in KEYS for n in range(1, 26)
    }


def test_a_function_may_use_other_modules_of_the_folder_in_workers(tmp_path: Path, capsys: CAPSYS) -> None:
    put(tmp_path, [{"order_id": "a", "n": 1, "data": "x"}])
    (tmp_path / "sounds").mkdir()
    (tmp_path / "sounds" / "__init__.py").write_text("def twice(text):\n    return text * 2\n")
    (tmp_path / "loudness.py").write_text("import sounds\ndef louder(text):\n    return sounds.twice(text).upper()\n")
    function = (
        "import loudness\ndef enrich(rows):\n    return rows.withColumn('data', F.udf(loudness.louder)('data'))\n"
    )
    (tmp_path / "loud_functions.py").write_text(f"from pyspark.sql import functions as F\n{function}")
    file = pipeline(tmp_path, HEAD, FILES, transform(python="loud_functions:enrich"), PARQUET, AVAILABLE_NOW)
    code, _, err = run(capsys, "run", file)
    assert code == 0, err
    assert [row["data"] for row in written(tmp_path / "table")] == ["XX"]


def test_a_spark_that_ends_in_the_middle_is_told_in_words(tmp_path: Path) -> None:
    kill = "os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)"  # as a system does that has no memory left
    lines = [
        "import os, signal",
        "from pyspark import SparkContext",
        "def end(rows):",
        f"    {kill}",
        "    return rows",
    ]
    (tmp_path / "deadly.py").write_text("\n".join(lines))
    (tmp_path / "in").mkdir()
    file = pipeline(tmp_path, HEAD, FILES, transform(python="deadly:end"), PARQUET)
    done = subprocess.run([sys.executable, "-m", "inorder", "pipeline", "check", file], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "inorder: Spark has ended in the middle of it" in done.stderr


def test_a_batch_that_is_done_is_not_blamed_for_the_one_that_could_not_begin(
    queue: MessageQueue, tmp_path: Path, capsys: CAPSYS
) -> None:
    file = pipeline(tmp_path, HEAD, TOPIC, PARQUET, AVAILABLE_NOW)
    publish(queue, [("order-1", 1)])
    assert run(capsys, "run", file)[0] == 0
    queue.unregister_topic("orders")
    queue.register_topic("orders", {"message_retention_duration": 3600})
    publish(queue, [("order-1", 1)])
    code, _, err = run(capsys, "run", file)
    assert code == 1
    assert err.splitlines()[-1].startswith("inorder: batch 1 failed: topic 'orders' was deleted and created again")


def test_a_table_of_postgresql_has_the_newest_row_of_each_key_and_its_history(
    postgres_url: str, tmp_path: Path, capsys: CAPSYS
) -> None:
    import psycopg

    rows = [{"order_id": key, "n": n, "data": f"{key} {n}"} for key, n in events()]
    put(tmp_path, rows[:60], rows[60:])
    with postgres.schema(postgres_url) as url:
        sink = f'[sink]\nformat = "jdbc"\nurl = "{url}"\ntable = "newest"\nkey = "order_id"\nnewest_by = ["n"]\n'
        file = pipeline(tmp_path, HEAD, FILES, ORDER, sink, 'history = "all_of_them"', AVAILABLE_NOW)
        code, _, err = run(capsys, "run", file)
        assert code == 0, err
        with psycopg.connect(url.replace("+psycopg", "")) as connection:
            newest = connection.execute("SELECT order_id, n FROM newest ORDER BY 1").fetchall()
            history = connection.execute("SELECT order_id, n FROM all_of_them ORDER BY 1, 2").fetchall()
    assert newest == [(key, 25) for key in KEYS]
    assert history == [(key, n) for key in KEYS for n in range(1, 26)]


def test_a_topic_gets_each_row_once_and_each_key_in_order(queue: MessageQueue, tmp_path: Path, capsys: CAPSYS) -> None:
    queue.register_topic("clean")
    queue.register_subscription("s", "clean", {"enable_message_ordering": True})
    sink = '[sink]\nformat = "inorder"\nurl = "file:./data"\ntopic = "clean"\n'
    messages = transform(sql="SELECT order_id AS ordering_key, data FROM rows WHERE _fate = 'released'")
    file = pipeline(tmp_path, HEAD, TOPIC, ORDER, messages, sink, AVAILABLE_NOW)
    publish(queue, events()[:60])
    assert run(capsys, "run", file)[0] == 0
    found = received(queue)
    # The driver dies after our commit and before it has noted its own: the batch is run again.
    for name in ("1", ".1.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    publish(queue, events()[60:])
    assert run(capsys, "run", file)[0] == 0
    found += received(queue)
    of_key: dict[str | None, list[bytes]] = {}
    for message in found:
        of_key.setdefault(message.ordering_key, []).append(message.data)
    assert of_key == {key: [f"{key} {n}".encode() for n in range(1, 26)] for key in KEYS}


def received(queue: MessageQueue) -> list[Message]:
    queue.take_in()
    found: list[Message] = []
    while messages := queue.pull("s", 1_000):
        found += messages
        queue.ack(messages)
    return found


def until_a_gap(spark: SparkSession, file: Path) -> list[Progress]:
    """What a run without end tells until a gap is in the table."""
    run = Run(build(spark, read_pipeline(file)))
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        if any(row["_fate"] == "gap" for row in written(file.parent / "table")):
            run.stop.ask()

    run.watch(tell)
    return told


# Longer than it takes to look, so that no batch goes by unseen.
OFTEN = '[trigger]\nprocessing_time = "400 milliseconds"\n'


def test_a_gap_is_given_up_although_no_message_comes(spark: SparkSession, queue: MessageQueue, tmp_path: Path) -> None:
    publish(queue, [("a", 1), ("a", 3)])
    source = TOPIC.replace("maxRowsPerTrigger = 40", "tickSeconds = 0.1")
    told = until_a_gap(spark, pipeline(tmp_path, HEAD, source, ORDER + SOON, PARQUET, OFTEN))
    rows = [(row["n"], row["_fate"]) for row in written(tmp_path / "table")]
    assert rows == [(1, "released"), (2, "gap"), (3, "released")]
    assert [progress.rows for progress in told if progress.rows] == [2]
    assert [one.counts for one in told if one.counts and one.counts.fates.get("gap")] == [
        Counts({"gap": 1, "released": 1}, 0)
    ]


def test_a_source_that_knows_no_time_gets_a_clock_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, [{"order_id": "a", "n": 1}], [{"order_id": "a", "n": 4}])
    file = pipeline(tmp_path, HEAD, FILES, ORDER, PARQUET, AVAILABLE_NOW)
    Run(build(spark, read_pipeline(file))).watch(lambda progress: None)  # which ends by itself
    assert by_key(written(tmp_path / "table")) == {"a": [1]}
    pipeline(tmp_path, HEAD, FILES, ORDER + SOON, PARQUET, OFTEN)
    told = until_a_gap(spark, file)  # with the checkpoint of a run that had no gap timeout
    assert by_key(written(tmp_path / "table")) == {"a": [1, 2, 4]}
    assert told[-1].rows == 0


def test_what_is_latest_is_told_as_it_changes(tmp_path: Path, capsys: CAPSYS) -> None:
    put(
        tmp_path,
        [{"order_id": "a", "n": 2, "data": "second"}, {"order_id": "b", "n": 1, "data": "only"}],
        [{"order_id": "a", "n": 1, "data": "first"}, {"order_id": "a", "n": 3, "data": None}],
    )
    latest = '[order]\noperator = "latest"\nkey = "order_id"\ntime = "n"\nvalue = "data"\nmax_drift = "none"\n'
    kept = transform(sql="SELECT order_id, n, _deleted FROM rows")
    file = pipeline(tmp_path, HEAD, FILES, latest, kept, PARQUET, AVAILABLE_NOW)
    code, _, err = run(capsys, "run", file)
    assert code == 0, err
    first, second = (sorted(map(tuple, (row.values() for row in _batch(tmp_path, batch)))) for batch in (0, 1))
    assert first == [("a", 2, False), ("b", 1, False)]
    assert second == [("a", 3, True)]
    assert "note: [sink] parquet keeps every change of a key" in err


def _batch(folder: Path, batch: int) -> list[dict[str, Any]]:
    return [row for file in (folder / "table" / f"batch_id={batch}").glob("*.parquet") for row in _rows(file)]


def test_a_column_may_have_the_name_that_means_no_drift(tmp_path: Path, capsys: CAPSYS) -> None:
    put(tmp_path, [{"none": "a", "at": 2**60, "value": "x"}])
    source = FILES.replace("order_id STRING, n BIGINT, data STRING", "none STRING, at BIGINT, value STRING")
    order = '[order]\noperator = "latest"\nkey = "none"\ntime = "at"\nvalue = "value"\nmax_drift = "none"\n'
    code, _, _ = run(capsys, "run", pipeline(tmp_path, HEAD, source, order, PARQUET, AVAILABLE_NOW))
    assert code == 0
    assert [(row["none"], row["value"]) for row in written(tmp_path / "table")] == [("a", "x")]


def test_fields_are_merged(tmp_path: Path, capsys: CAPSYS) -> None:
    facts = [{"order_id": "a", "n": 1, "data": "Placed"}, {"order_id": "a", "n": 2, "data": "Shipped"}]
    put(tmp_path, facts)
    merged = '[order]\noperator = "merge_fields"\nkey = "order_id"\nevent_type = "data"\ntime = "n"\n'
    owns = 'owns = { Placed = ["placed"], Shipped = ["shipped"] }\n'
    source = FILES + 'sql = "SELECT *, n * 10 AS placed, n * 100 AS shipped FROM source"\n'
    assert run(capsys, "run", pipeline(tmp_path, HEAD, source, merged + owns, PARQUET, AVAILABLE_NOW))[0] == 0
    assert written(tmp_path / "table") == [{"order_id": "a", "placed": 10, "shipped": 200}]


def test_without_an_operator_rows_only_pass_and_the_console_shows_them(tmp_path: Path, capsys: CAPSYS) -> None:
    put(tmp_path, [{"order_id": "a", "n": 2, "data": "x"}])
    sink = '[sink]\nformat = "console"\nrows = 5\n'
    upper = transform(sql="SELECT order_id, upper(data) AS data FROM rows")
    code, out, err = run(capsys, "run", pipeline(tmp_path, HEAD, FILES, upper, sink), "--available-now")
    assert code == 0
    assert out.splitlines()[0] == "batch 0"
    assert "|       a|   X|" in out.splitlines()
    assert "waiting" not in err


INTERRUPTING = """
import os
import signal

calls = 0

def interrupt(rows):
    global calls
    calls += 1
    if calls == 2:  # the first is without rows, for the columns
        os.kill(os.getpid(), signal.SIGINT)
    return rows
"""


def test_ctrl_c_ends_a_run_after_its_batch(tmp_path: Path, capsys: CAPSYS) -> None:
    put(tmp_path, [{"order_id": "a", "n": 1}], [{"order_id": "a", "n": 2}])
    # The batch itself sends the signal: so nobody waits, and nothing depends on who is faster.
    (tmp_path / "interrupting.py").write_text(INTERRUPTING)
    every = '[trigger]\nprocessing_time = "1 hour"\n'
    file = pipeline(tmp_path, HEAD, FILES, ORDER, transform(python="interrupting:interrupt"), PARQUET, every)
    before = signal.getsignal(signal.SIGINT)
    code, _, err = run(capsys, "run", file)
    assert code == 0, err
    assert "ending after this batch; once more ends it at once" in err
    assert err.splitlines()[-1].startswith("stopped: ")
    assert signal.getsignal(signal.SIGINT) is before
    code, _, err = run(capsys, "run", file, "--available-now")
    assert by_key(written(tmp_path / "table")) == {"a": [1, 2]}


MESSAGES = '[sink]\nformat = "inorder"\nurl = "./data"\ntopic = "clean"\n'


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([TOPIC.replace('"orders"', '"oders"'), ORDER, PARQUET], "[source] Topic not found: oders"),
        ([TOPIC.replace("maxRows", "maxRow"), ORDER, PARQUET], "[source] unknown option 'maxRowPerTrigger'"),
        (
            [TOPIC.replace("maxRowsPerTrigger", "endingPosition"), ORDER, PARQUET],
            "[source] endingPosition: a table ends",
        ),
        ([TOPIC.replace("position,", "place,"), ORDER, PARQUET], "[source] [UNRESOLVED_COLUMN"),
        ([FILES.replace("BIGINT", "BIGINTEGER"), ORDER, PARQUET], "[source] "),
        ([TOPIC, ORDER.replace('"n"', '"number"'), PARQUET], "[order] sequence: there is no column 'number', only"),
        ([TOPIC, ORDER.replace('"n"', '"data"'), PARQUET], "[order] sequence: 'data' is string, and must be whole"),
        ([TOPIC, ORDER, transform(sql="SELEKT 1"), PARQUET], "[[transform]] 1 [PARSE_SYNTAX_ERROR]"),
        ([TOPIC, ORDER, RELEASED, transform(sql="SELECT x FROM rows"), PARQUET], "[[transform]] 2 [UNRESOLVED_COL"),
        ([TOPIC, ORDER, transform(python="nowhere:f"), PARQUET], "[[transform]] 1 python: nowhere cannot be imported"),
        ([TOPIC, ORDER, transform(python="mine:nothing"), PARQUET], "[[transform]] 1 python: mine ("),
        ([TOPIC, ORDER, transform(python="mine:none"), PARQUET], "1 python: the function returns NoneType, and must"),
        ([TOPIC, ORDER, transform(python="mine:wrong"), PARQUET], "[[transform]] 1 python: ZeroDivisionError"),
        ([TOPIC, ORDER, RELEASED, MESSAGES], "[sink] column 'order_id' is no part of a message: select data, order"),
        ([TOPIC, ORDER, transform(sql="SELECT data FROM rows"), MESSAGES], "[sink] Topic not found: clean"),
    ],
)
def test_what_spark_would_not_do_is_told_before_anything_runs(
    queue: MessageQueue, tmp_path: Path, capsys: CAPSYS, parts: list[str], complaint: str
) -> None:
    (tmp_path / "mine.py").write_text("def none(rows): ...\ndef wrong(rows): return 1 / 0\n")
    (tmp_path / "in").mkdir()
    code, out, err = run(capsys, "check", pipeline(tmp_path, HEAD, *parts))
    assert (code, out) == (2, ""), err
    assert complaint in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("inorder: [")
    assert not (tmp_path / "checkpoint").exists()


def test_a_transform_that_moves_rows_is_noticed(queue: MessageQueue, tmp_path: Path, capsys: CAPSYS) -> None:
    file = pipeline(tmp_path, HEAD, TOPIC, ORDER + SOON, RELEASED, PARQUET)
    code, out, err = run(capsys, "check", file)
    assert (code, err) == (0, "")
    assert out == f"{file}: right; rows go out with order_id, n, position, data, _fate, _gap\n"
    code, out, _ = run(capsys, "check", file, "--json")
    assert json.loads(out) == {"file": str(file), "columns": ["order_id", "n", "position", "data", "_fate", "_gap"]}
    moving = transform(sql="SELECT n % 2 AS odd, count(*) AS count FROM rows GROUP BY 1")
    code, _, err = run(capsys, "check", pipeline(tmp_path, HEAD, TOPIC, ORDER + SOON, moving, PARQUET))
    assert code == 0
    assert err.startswith("inorder: note: [[transform]]: one of them moves rows between tasks")
    code, out, _ = run(capsys, "explain", file, "--plan")
    assert code == 0
    assert "MapInArrow" in out
    code, out, _ = run(capsys, "explain", file, "--json")
    assert {*map(frozenset, map(json.loads, out.splitlines()))} == {frozenset(["subject", "sentence"])}


def test_a_state_that_does_not_fit_is_told_in_a_line(tmp_path: Path, capsys: CAPSYS) -> None:
    put(tmp_path, [{"order_id": "a", "n": 1}])
    file = pipeline(tmp_path, HEAD, FILES, ORDER, PARQUET, AVAILABLE_NOW)
    code, out, _ = run(capsys, "run", file, "--json")
    assert (code, [json.loads(line)["rows"] for line in out.splitlines()]) == (0, [1])
    pipeline(tmp_path, HEAD, FILES, ORDER.replace("buckets = 2", "buckets = 3"), PARQUET, AVAILABLE_NOW)
    code, _, err = run(capsys, "run", file)
    assert code == 2
    assert "it has 2 buckets, not 3" in err.splitlines()[-1]


def test_the_example_runs_as_the_page_says(tmp_path: Path, capsys: CAPSYS) -> None:
    folder = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    runpy.run_path(str(folder / "publish.py"), run_name="__main__")
    assert run(capsys, "check", folder)[0] == 0
    code, _, err = run(capsys, "run", folder)
    assert code == 0, err
    assert err.splitlines()[-1].endswith("; 2 rows waiting for earlier ones")  # of the order that lost its third event
    rows = written(folder / "table")
    assert len(by_key(rows, "sequence")) == 200
    assert by_key(rows, "sequence")["order-007"] == [1, 2]
    assert [numbers for key, numbers in by_key(rows, "sequence").items() if key != "order-007"] == [
        [1, 2, 3, 4, 5]
    ] * 199
    assert by_key(rows, "step")["order-123"] == ["placed", "paid", "packed", "shipped", "delivered"]
    assert str(by_key(rows, "euros")["order-123"][0]) == "123.01"

    runpy.run_path(str(folder / "publish.py"), run_name="__main__")  # all of it once more
    assert run(capsys, "run", folder)[0] == 0
    assert written(folder / "table") == rows


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_file_knows_every_option_of_an_operator(operator: str) -> None:
    function = getattr(inorder.spark, operator)
    options = {name: one for name, one in inspect.signature(function).parameters.items() if name != "rows"}
    assert set(OPERATORS[operator]) == set(options)
    hints = get_type_hints(function)
    for name, field in OPERATORS[operator].items():
        assert field.required is (options[name].default is inspect.Parameter.empty), name
        words = {word for one in (hints[name], *get_args(hints[name])) for word in get_args(one) if type(word) is str}
        if operator in OF_KEYS and name == "invalid":
            words -= {"quarantine"}  # they have no place for it
        assert set(field.choices) == words, name
