"""The file of a pipeline: what it may say, and that all that is wrong with it is told at once, without Spark."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from inorder.errors import InvalidArgument, NotFound, PipelineInvalid
from inorder.spark.addresses import folder_of
from inorder.spark.buckets import BucketState, Manifest
from inorder.spark.folders import Folder
from inorder.spark.pipelines import Pipeline, read_pipeline
from inorder.spark.pipelines.checking import OPERATORS, SOURCE, TOP, TRANSFORM, TRIGGER
from inorder.spark.pipelines.definition import Order, Transform, Trigger
from inorder.spark.pipelines.explaining import explanation, tick_seconds, warnings
from inorder.spark.sinks.files import ParquetFolder
from inorder.spark.sinks.topic import InorderTopic

GOOD = """
name = "orders"
checkpoint = "./checkpoint"

[source]
format = "inorder"
url = "./data"
topic = "orders"
sql = "SELECT * FROM source"
options = { maxRowsPerTrigger = 100, failOnDataLoss = false }

[order]
operator = "resequence"
key = "order_id"
sequence = "sequence"
gap_timeout = "30 minutes"

[[transform]]
sql = "SELECT * FROM rows"
[[transform]]
python = "my.functions:enrich"

[sink]
format = "parquet"
path = "table"

[trigger]
processing_time = "10 seconds"

[spark]
"spark.sql.shuffle.partitions" = 8
spark.ui.enabled = false
"""


def read(folder: Path, text: str) -> Pipeline:
    (folder / "pipeline.toml").write_text(text)
    return read_pipeline(folder / "pipeline.toml")


def wrong(folder: Path, text: str) -> list[str]:
    with pytest.raises(PipelineInvalid) as caught:
        read(folder, text)
    lines = str(caught.value).splitlines()
    assert lines == [f"{folder / 'pipeline.toml'}:", *(f"  {problem}" for problem in caught.value.problems)]
    return list(caught.value.problems)


def test_a_good_file_is_read_and_its_addresses_start_at_its_folder(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert (found.name, found.checkpoint, found.folder) == ("orders", str(tmp_path / "checkpoint"), tmp_path)
    assert (found.source.url, found.source.topic) == (str(tmp_path / "data"), "orders")
    assert found.source.options == {"maxRowsPerTrigger": "100", "failOnDataLoss": "false"}
    wanted = {"key": "order_id", "sequence": "sequence", "gap_timeout": "30 minutes"}
    assert found.order == Order("resequence", wanted)
    assert found.transforms == (Transform(sql="SELECT * FROM rows"), Transform(python="my.functions:enrich"))
    assert found.sink == ParquetFolder(str(tmp_path / "table"))
    assert found.trigger == Trigger(processing_time="10 seconds")
    assert found.spark == {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "false"}
    assert read_pipeline(tmp_path) == found  # by its folder


def test_what_has_a_scheme_is_left_as_it_is(tmp_path: Path) -> None:
    text = GOOD.replace('"./checkpoint"', '"s3a://bucket/checkpoint"').replace('"./data"', '"file:data"')
    found = read(tmp_path, text.replace('"table"', '"/table"'))
    assert (found.checkpoint, found.sink) == ("s3a://bucket/checkpoint", ParquetFolder("/table"))
    assert found.source.url == f"file:{tmp_path / 'data'}"


def test_a_home_behind_a_scheme_is_that_of_who_runs_it(tmp_path: Path) -> None:
    text = GOOD.replace('"./checkpoint"', '"file:~/checkpoint"').replace('"./data"', '"file:~/data"')
    found = read(tmp_path, text)
    assert (found.source.url, found.checkpoint) == (f"file:{Path.home()}/data", f"file:{Path.home()}/checkpoint")


@pytest.mark.parametrize("given", ["./data", "file:./data", "file:my%20data?sync=none"])
def test_a_folder_may_have_a_name_that_a_url_would_quote(tmp_path: Path, given: str) -> None:
    folder = tmp_path / "feature%2Forders, really?"
    folder.mkdir()
    found = read(folder, GOOD.replace('"./data"', f'"{given}"').replace('"./checkpoint"', '"file:checkpoint"'))
    assert found.source.url is not None
    assert folder_of(found.source.url) == str(folder / ("my data" if "my" in given else "data"))
    assert found.checkpoint == f"file:{folder}/checkpoint"  # which nobody takes for a URL


def test_the_least_that_a_file_says(tmp_path: Path) -> None:
    text = 'name = "n"\ncheckpoint = "c"\n[source]\ntable = "orders"\n[sink]\nformat = "console"'
    found = read(tmp_path, text)
    assert (found.order, found.transforms) == (None, ())
    assert found.trigger.for_spark == {"processingTime": "1000 milliseconds"}


@pytest.mark.parametrize(
    ("interval", "told"), [('"1.5 minutes"', 90_000), ('"2 Hours"', 7_200_000), ('"20 milliseconds"', 20), ("0.2", 200)]
)
def test_an_interval_is_told_to_spark_in_a_unit_of_which_it_needs_no_parts(
    tmp_path: Path, interval: str, told: int
) -> None:
    found = read(tmp_path, change('"10 seconds"', interval))
    assert found.trigger.for_spark == {"processingTime": f"{told} milliseconds"}


def change(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


SEQUENCE = 'sequence = "sequence"'
WRONG = {
    "a field that is near": (
        change("gap_timeout", "gap_timout"),
        ["[order] gap_timout: there is no such field; did you mean 'gap_timeout'?"],
    ),
    "a field that is far": (
        change('path = "table"', 'path = "table"\nzzz = 1'),
        ["[sink] zzz: there is no such field; there are path"],
    ),
    "a section that is near": (
        change("[trigger]", "[triger]"),
        ["triger: there is no such field; did you mean 'trigger'?"],
    ),
    "a section that is missing": (
        change('[sink]\nformat = "parquet"\npath = "table"\n', ""),
        ["[sink]: it is missing; where the rows go"],
    ),
    "a section that is none": (
        GOOD.replace("[order]", "[ordering]").replace('name = "orders"', 'name = "orders"\norder = 5'),
        ["ordering: there is no such field; did you mean 'order'?", "[order]: a section, not 5"],
    ),
    "an operator that is near": (
        change('"resequence"', '"resequense"'),
        [
            (
                "[order] operator: one of 'resequence', 'apply_versions', 'latest', 'merge_fields', 'deduplicate', "
                "not 'resequense'; did you mean 'resequence'?"
            )
        ],
    ),
    "no operator": (
        change('operator = "resequence"\n', ""),
        [
            (
                "[order] operator: it is missing; one of 'resequence', 'apply_versions', 'latest', 'merge_fields', "
                "'deduplicate'"
            )
        ],
    ),
    "a missing column": (
        change(SEQUENCE, ""),
        ["[order] sequence: it is missing; the name of a column"],
    ),
    "a duration that is none": (
        change('"30 minutes"', '"half an hour"'),
        ["[order] gap_timeout: seconds above 0, or text such as '30 seconds' or '5 minutes', not 'half an hour'"],
    ),
    "a duration that is too long": (
        change('"30 minutes"', '"99 days"'),
        ["[order] gap_timeout: above 0, up to 2678400, not 8553600.0"],
    ),
    "a policy that is none": (
        change(SEQUENCE, f'{SEQUENCE}\nlate = "dropp"'),
        ["[order] late: one of 'drop', 'emit', 'error', 'quarantine', not 'dropp'; did you mean 'drop'?"],
    ),
    "a number that is text": (
        change(SEQUENCE, f'{SEQUENCE}\ncapacity = "10"'),
        ["[order] capacity: a whole number of at least 1, not '10'"],
    ),
    "too many buckets": (
        change(SEQUENCE, f"{SEQUENCE}\nbuckets = 5000"),
        ["[order] buckets: a whole number of at least 1, up to 4096, not 5000"],
    ),
    "a flag that is text": (
        change(SEQUENCE, f'{SEQUENCE}\nkeep_dropped = "yes"'),
        ["[order] keep_dropped: true or false, not 'yes'"],
    ),
    "an initial that is none": (
        change(SEQUENCE, f'{SEQUENCE}\ninitial = "first"'),
        ["[order] initial: a whole number of at least 0, or 'first_seen' or 'stored', not 'first'"],
    ),
    "no format and no table": (
        change('format = "inorder"\n', ""),
        ["[source] format: it is missing, and table too"],
    ),
    "a format and a table": (
        change('topic = "orders"', 'topic = "orders"\ntable = "t"'),
        ["[source] format: it is given, and table too; give one of them"],
    ),
    "a topic in memory": (
        change('url = "./data"', 'url = "memory:"'),
        ["[source] url: 'file:' and a folder, a path, or grpc://host:port, not 'memory:'"],
    ),
    "a topic of a server without a port": (
        change('url = "./data"', 'url = "grpc://shop"'),
        ["[source] url: a server: grpc://host:port, as in grpc://127.0.0.1:8085, not 'grpc://shop'"],
    ),
    "a topic without a url, with a path": (
        change("url =", "path ="),
        [
            (
                "[source] url: it is missing; format 'inorder' needs "
                "'file:' and the folder of a broker, or its path, or grpc://host:port of a server"
            ),
            "[source] path: it means nothing to format 'inorder'",
        ],
    ),
    "json without a schema": (
        change('format = "inorder"\nurl = "./data"\ntopic = "orders"', 'format = "json"\npath = "in"'),
        [
            (
                "[source] schema: it is missing; a stream of json needs columns and types, "
                "such as 'order_id STRING, sequence BIGINT'"
            )
        ],
    ),
    "options in options": (
        change("failOnDataLoss = false", "failOnDataLoss = [false]"),
        [
            (
                "[source] options: options of Spark's reader, such as { maxFilesPerTrigger = 1 }, "
                "not {'maxRowsPerTrigger': 100, 'failOnDataLoss': [False]}"
            )
        ],
    ),
    "a transform of two kinds": (
        change('sql = "SELECT * FROM rows"', 'sql = "SELECT 1"\npython = "a:b"'),
        ["[[transform]] 1: give sql or python, one of them"],
    ),
    "a transform of no kind": (
        change('python = "my.functions:enrich"', 'pyton = "a:b"'),
        [
            "[[transform]] 2: pyton: there is no such field; did you mean 'python'?",
            "[[transform]] 2: give sql or python, one of them",
        ],
    ),
    "a function that is none": (
        change("my.functions:enrich", "my_functions.py"),
        ["[[transform]] 2: python: module:function, such as 'my_functions:enrich', not 'my_functions.py'"],
    ),
    "a transform with one bracket": (
        'name = "n"\ncheckpoint = "c"\n[source]\ntable = "t"\n[transform]\nsql = "x"\n[sink]\nformat = "console"',
        ["[[transform]]: sections with two brackets, not {'sql': 'x'}"],
    ),
    "a sink that is near": (
        change('format = "parquet"', 'format = "Parkuet"'),
        ["[sink] format: "],
    ),
    "a sink without its path": (
        change('path = "table"\n', ""),
        ["[sink] path: it is missing; format 'parquet' needs it"],
    ),
    "a sink with an empty path": (change('path = "table"', "path = 5"), ["[sink] path: a folder, not 5"]),
    "two triggers": (
        change("[trigger]", "[trigger]\navailable_now = true"),
        ["[trigger] processing_time: it is given, and available_now = true too; give one of them"],
    ),
    "a setting that is none of Spark's": (
        change('"spark.sql.shuffle.partitions" = 8', "shuffle.partitions = 8"),
        ["[spark] shuffle.partitions: a setting of Spark, whose name starts with 'spark.'"],
    ),
    "a name that is empty": (change('name = "orders"', 'name = " "'), ["name: the name of the query, not ' '"]),
    "no TOML": ("name = ", ["this is not TOML: Invalid value (at end of document)"]),
    "all at once": (
        "[source]\nformat = 1\n[order]\noperator = 'deduplicate'\nkey = ''\n[trigger]\navailable_now = 'yes'",
        [
            "name: it is missing; the name of the query",
            "checkpoint: it is missing; the folder that remembers how far the pipeline came",
            "[source] format: 'inorder', 'parquet', 'json', 'csv', 'kafka', 'delta' or any that Spark reads, not 1",
            "[order] key: the name of a column, not ''",
            "[trigger] available_now: true or false, not 'yes'",
            "[sink]: it is missing; where the rows go",
        ],
    ),
}


@pytest.mark.parametrize(("text", "problems"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_told(tmp_path: Path, text: str, problems: list[str]) -> None:
    found = wrong(tmp_path, text)
    assert len(found) == len(problems), found
    for one, problem in zip(found, problems, strict=True):
        assert one.startswith(problem)


def order(text: str) -> str:
    return GOOD[: GOOD.index("[order]")] + "[order]\n" + text + GOOD[GOOD.index("\n[[transform]]") :]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id = 'a'\nsequence = 's'", "[order] id: give id, or producer and sequence, and not both"),
        ("producer = 'p'", "[order] id: give id, or producer and sequence, and not both"),
        ("id = 'a'\nwindow = 5", "[order] window: it means nothing to deduplication by id"),
        ("id = 'a'\nmax_age = '40 days'", "[order] max_age: above 0, up to 2678400, not 3456000.0"),
    ],
)
def test_a_deduplication_is_by_id_or_by_sequence(tmp_path: Path, text: str, problem: str) -> None:
    assert wrong(tmp_path, order(f"operator = 'deduplicate'\nkey = 'k'\n{text}\n")) == [problem]


def test_a_field_of_an_entity_has_one_owner(tmp_path: Path) -> None:
    text = "operator = 'merge_fields'\nkey = 'k'\nevent_type = 'e'\ntime = 't'\n"
    [problem] = wrong(tmp_path, order(f"{text}owns = {{ A = ['note'], B = ['note'] }}\n"))
    assert "note" in problem
    assert read(tmp_path, order(f"{text}owns = {{ A = ['note'] }}\n")).order is not None
    [problem] = wrong(tmp_path, order(f"{text}owns = {{ A = 'note' }}\n"))
    assert problem.startswith("[order] owns: event types with lists of the columns they write, not")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file .*pipeline\.toml"):
        read_pipeline(tmp_path)


def test_a_topic_as_a_sink(tmp_path: Path) -> None:
    text = change('format = "parquet"\npath = "table"', 'format = "inorder"\nurl = "out"\ntopic = "clean"')
    assert read(tmp_path, text).sink == InorderTopic(str(tmp_path / "out"), "clean")
    assert wrong(tmp_path, text.replace('"clean"', '"1"'))[0].startswith("[sink] topic name '1': start with a letter")
    named = text.replace('topic = "clean"', 'topic = "clean"\nwriter = ".x"')
    assert wrong(tmp_path, named)[0].startswith("[sink] writer: 1 to 200 letters")


# Names and values from a file's own words, so that many of them are nearly right.
NAMES = st.sampled_from([*TOP, *SOURCE, *TRANSFORM, *TRIGGER, *OPERATORS["resequence"], "operator", "x"])
VALUES: Any = st.recursive(
    st.sampled_from(["resequence", "inorder", "parquet", "", "a:b", "5 minutes", "none", 0, -1, 1.5, True, "\x00"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
SECTIONS = st.sampled_from(["source", "order", "transform", "sink", "trigger", "spark"])


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{name}" = {as_toml(one)}' for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_toml, value)) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\x00", "\\u0000") + '"'
    return str(value).lower()


@given(st.dictionaries(SECTIONS | NAMES, VALUES, max_size=8))
def test_whatever_a_file_says_it_is_read_or_refused_in_words(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, Any]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    text = "\n".join(f'"{name}" = {as_toml(value)}' for name, value in said.items())
    with suppress(PipelineInvalid):
        found = read(folder, text)
        assert dict(explanation(found))
        list(warnings(found))


@pytest.mark.parametrize(
    ("timeout", "tick"), [('"30 minutes"', 60), ('"1 minute"', 6), ("2", 1), ('"100 milliseconds"', 1)]
)
def test_a_tick_is_a_tenth_of_the_timeout_within_bounds(tmp_path: Path, timeout: str, tick: float) -> None:
    found = read(tmp_path, change('"30 minutes"', timeout))
    assert tick_seconds(found, found.trigger) == tick
    assert tick_seconds(found, Trigger(available_now=True)) is None


def test_it_is_explained_without_spark(tmp_path: Path) -> None:
    (tmp_path / "pipeline.toml").write_text(GOOD)
    for verb in ("explain", "check"):
        program = "import sys; sys.modules['pyspark'] = None; from inorder.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "pipeline", verb, tmp_path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        if verb == "explain":
            assert "the rows of each order_id come out in the order of sequence, each number once" in done.stdout
            assert "every 60 s somebody looks, also when no row comes" in done.stdout
        else:
            assert "columns and SQL were not looked at, as Spark is not here" in done.stdout


def test_a_state_that_exists_says_how_many_buckets_it_has(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert "as many buckets as the cluster has cores when it first runs" in dict(explanation(found))["state"]
    manifest = Manifest(operator="resequence", buckets=3, columns={}, schema={})
    BucketState(Folder(f"{found.checkpoint}/inorder"), manifest).open()
    assert "in 3 buckets, as it began with" in dict(explanation(found))["state"]


def test_the_token_of_a_server_is_not_explained(tmp_path: Path) -> None:
    found = read(tmp_path, change('"./data"', '"grpc://127.0.0.1:8085?token=secret"'))
    assert dict(explanation(found))["source"].startswith("topic orders in grpc://127.0.0.1:8085, by position")
    [problem] = wrong(tmp_path, change('"./data"', '"grpcs://127.0.0.1:8085?token=secret"'))
    assert problem.endswith("not 'grpcs://127.0.0.1:8085'")


def test_what_may_surprise_is_said(tmp_path: Path) -> None:
    [note] = warnings(read(tmp_path, change('gap_timeout = "30 minutes"', "")))
    assert note.startswith("[order] gap_timeout: there is none, so a row that never comes holds up its key, until 1000")
    [note] = warnings(read(tmp_path, change('processing_time = "10 seconds"', "available_now = true")))
    assert note.startswith("[order] gap_timeout: with available_now time only passes from one run to the next")
    text = order("operator = 'latest'\nkey = 'k'\ntime = 't'\nvalue = 'v'\nmax_drift = 'none'\n")
    [note] = warnings(read(tmp_path, text))
    assert note.startswith("[sink] parquet keeps every change of a key")
    sink = 'format = "parquet"\npath = "table"'
    [note] = warnings(read(tmp_path, change(sink, 'format = "inorder"\nurl = "file:./data"\ntopic = "orders"')))
    assert note.startswith("[sink] topic: it is that of the source, so what a batch writes comes again")
    assert [*warnings(read(tmp_path, change(sink, 'format = "inorder"\nurl = "./data"\ntopic = "others"')))] == []


@pytest.mark.parametrize("name", ["batch_id", "Batch_ID"])
def test_a_column_that_the_folders_of_batches_would_hide_is_refused(name: str) -> None:
    sink = ParquetFolder("./table")
    sink.check(StructType().add("order_id", "string"))
    with pytest.raises(InvalidArgument, match=f"the rows have a column '{name}', as folders of batches do"):
        sink.check(StructType().add("order_id", "string").add(name, "integer"))
