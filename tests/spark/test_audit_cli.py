"""`inorder audit`: what it prints, how it ends, and what it says when it cannot."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from inorder.broker import MessageQueue
from inorder.cli import main
from inorder.message import Message

CAPSYS = pytest.CaptureFixture[str]

pytestmark = pytest.mark.usefixtures("spark")  # which the command takes, as it is there


def run(capsys: CAPSYS, *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(["audit", *map(str, arguments)])
    return code, *capsys.readouterr()


def csv(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["user,number,at", *lines, ""]))
    return path


def test_a_broken_file_is_told_with_its_first_violations(tmp_path: Path, capsys: CAPSYS) -> None:
    log = csv(tmp_path / "log.csv", "a,1,2026-01-01 00:00:00", "a,4,2026-01-01 00:00:01", "a,2,2026-01-01 00:00:06")
    page = tmp_path / "audit.html"
    given = ("--key", "user", "--sequence", "number", "--arrival-time", "at")
    code, out, _ = run(capsys, log, *given, "--html", page)
    assert code == 1
    assert out.splitlines() == [
        "broken: 1 reordered, 1 gap among 3 events of 1 key",
        "order of arrival: block of the file, then the line within it",
        "1 number missing in 1 gap",
        "latest event: 1 event of its key behind its overtaker",
        "to repair it: a buffer of 1 event per key, a timeout of more than 5 s",
        "hottest key: a, 3 events (100.0%)",
        "hottest of 8 partitions: 8.00 times an equal share",
        "",
        "position  what       key  what happened",
        "0, 1      gap        a    number 3 is missing; a higher number came here",
        "0, 2      reordered  a    number 2 came 1 event of its key and 5 s after it was overtaken, at position 0, 1",
    ]
    assert "Order is broken" in page.read_text()
    code, out, _ = run(capsys, log, *given, "--json", "--top", 1, "--allow", "gap")
    assert code == 1
    assert [one["kind"] for one in json.loads(out)["violations"]] == ["reordered"]


def test_a_file_in_order_ends_well(tmp_path: Path, capsys: CAPSYS) -> None:
    log = csv(tmp_path / "log.csv", "a,1,", "b,7,", "a,2,", "b,8,")
    code, out, _ = run(capsys, log, "--key", "user", "--sequence", "number")
    assert (code, out.splitlines()[0]) == (0, "in order: 4 events of 2 keys")


def test_a_key_changes_no_terminal_and_takes_one_line(tmp_path: Path, capsys: CAPSYS) -> None:
    log = tmp_path / "log.json"
    log.write_text("".join(json.dumps({"user": "red\x1b[31m\nblue", "number": number}) + "\n" for number in (1, 3)))
    code, out, _ = run(capsys, log, "--key", "user", "--sequence", "number")
    assert (code, "\x1b" in out) == (1, False)
    assert r"hottest key: red\x1b[31m\nblue, 2 events (100.0%)" in out.splitlines()
    assert out.splitlines()[-1].split()[:4] == ["0,", "1", "gap", r"red\x1b[31m\nblue"]


@pytest.mark.parametrize("source", ["log.csv", "file:log.csv", "file:./log.csv"])
def test_a_relative_path_starts_where_the_command_does(
    tmp_path: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    csv(tmp_path / "log.csv", "a,1,", "a,2,")
    code, out, err = run(capsys, source, "--key", "user", "--sequence", "number")
    assert (code, out.splitlines()[:1], err) == (0, ["in order: 2 events of 1 key"], "")


def test_a_file_that_is_read_in_pieces_keeps_the_order_of_its_lines(
    tmp_path: Path, capsys: CAPSYS, spark: SparkSession
) -> None:
    lines = [json.dumps({"k": f"k{number % 3}", "n": number // 3, "x": "x" * (number % 7)}) for number in range(3_000)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    spark.conf.set("spark.sql.files.maxPartitionBytes", "4000")
    try:
        pieces = spark.read.json(str(tmp_path / "log.jsonl")).rdd.getNumPartitions()
        code, out, _ = run(capsys, tmp_path / "log.jsonl", "--key", "k", "--sequence", "n")
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert pieces > 10
    assert (code, out.splitlines()[0]) == (0, "in order: 3,000 events of 3 keys")


def test_a_line_that_was_cut_short_is_no_event_without_a_key(tmp_path: Path, capsys: CAPSYS) -> None:
    log = tmp_path / "log.csv"
    log.write_text("number,user,at\n1,a,\n2,a,\n3")
    code, _, err = run(capsys, log, "--key", "user", "--sequence", "number")  # without `at`
    assert (code, "log.csv cannot be read" in err, "[3,null]" in err) == (2, True, True)
    code, out, _ = run(capsys, log, "--key", "user", "--sequence", "number", "--option", "mode=DROPMALFORMED")
    assert (code, out.splitlines()[0]) == (0, "in order: 2 events of 1 key")


def test_several_files_of_text_need_a_position(tmp_path: Path, capsys: CAPSYS) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    csv(folder / "1.csv", "a,1,2026-01-01 00:00:00")
    csv(folder / "2.csv", "a,2,2026-01-01 00:00:01")
    code, _, err = run(capsys, folder, "--key", "user", "--sequence", "number")
    assert code == 2
    assert err.startswith("inorder: position: name the column, or columns, that say in which order the events arrived")
    given = ("--key", "user", "--sequence", "number", "--position", "at", "--position", "number")
    code, _, _ = run(capsys, folder, *given)
    assert code == 0


def test_a_topic_knows_its_key_its_order_and_its_times(tmp_path: Path, capsys: CAPSYS) -> None:
    with closing(MessageQueue.open(str(tmp_path / "data"))) as queue:
        queue.register_topic("orders", {"message_retention_duration": 3600})
        numbered = [("a", 1), ("a", 2), ("b", 1), ("a", 4), ("b", 2), ("a", 3)]
        queue.publish("orders", [Message(b"", {"n": str(number)}, key) for key, number in numbered])
        queue.publish("orders", [Message(b"")])
    given = (tmp_path / "data", "--sequence", "attributes['n']")
    code, out, err = run(capsys, *given, "--topic", "orders", "--json")
    assert code == 1, err
    found = json.loads(out)
    assert found["verdict"] == "broken: 1 reordered among 6 events of 2 keys"
    assert (found["unkeyed"], found["buffer"], found["violations"][0]["position"]) == (1, 1, "5")
    assert found["columns"]["arrival_time"] == "publish_time"
    code, _, err = run(capsys, *given)
    assert (code, err) == (2, f"inorder: {tmp_path / 'data'} is the folder of a broker: name the topic\n")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.csv"], "cannot be read"),
        (["nowhere"], "there is no file or folder nowhere"),
        (["log.txt"], "log.txt: cannot tell what it is; name its format"),
        (["log.txt", "--format", "delta-lake"], "log.txt cannot be read: [DATA_SOURCE_NOT_FOUND]"),
        (["log.txt", "--format", "csv"], "sequence or time: name the column"),
        (["log.txt", "--format", "csv", "--topic", "t"], "topic: it means nothing to format 'csv'"),
        (["log.txt", "--html", "no/folder/x.html"], "--html: there is no folder"),
        (["log.txt", "--html", "."], "--html: a file, and . is a folder"),
        (["log.txt", "--conf", "x"], "--conf: NAME=VALUE, not 'x'"),
    ],
)
def test_what_cannot_be_audited_is_told_in_a_line(
    tmp_path: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    csv(tmp_path / "log.txt", "a,1,")
    code, out, err = run(capsys, *arguments, "--key", "user")
    assert (code, out) == (2, "")
    assert err.startswith("inorder: ")
    assert complaint in err
    assert len(err.splitlines()) == 1


def test_without_spark_it_says_how_to_get_it() -> None:
    program = "import sys; sys.modules['pyspark'] = None; from inorder.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "audit", "x.csv", "--key", "k", "--sequence", "n"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "inorder: the audit runs on Spark, which is not here: pip install 'inorder[spark]'\n"


@pytest.mark.parametrize("name", ["numpy", "pandas", "pyarrow"])
def test_what_pyspark_does_not_bring_along_is_asked_for(name: str) -> None:
    program = f"import sys; sys.modules[{name!r}] = None; from inorder.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "audit", "x.csv", "--key", "k", "--sequence", "n"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"inorder: the audit needs {name}, which is not here: pip install 'inorder[spark]'\n"


def test_a_command_of_its_own_says_what_is_wrong_and_nothing_of_sparks_start(tmp_path: Path) -> None:
    """But for a line of Java's, which no setting keeps away."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"k": "a", "s": 1}\n{"k": "a", "s": 2}\n')
    command = [sys.executable, "-m", "inorder", "audit", str(path), "--key", "kk", "--sequence", "s"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line for line in done.stderr.splitlines() if "incubator modules" not in line] == [
        "inorder: key: 'kk' is neither a column nor an SQL expression over the columns, which are k, s"
    ]


def test_a_setting_that_spark_does_not_start_with_is_told_in_a_line() -> None:
    command = [sys.executable, "-m", "inorder", "audit", "x.csv", "--key", "k", "--sequence", "s"]
    done = subprocess.run([*command, "--conf", "spark.master=local[two]"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert [line for line in done.stderr.splitlines() if "incubator modules" not in line] == [
        "inorder: Spark does not start: Could not parse Master URL: 'local[two]'"
    ]


def test_a_machine_that_does_not_find_itself_by_its_name_runs_spark(tmp_path: Path) -> None:
    """As one without a network, which a laptop may be and many containers are."""
    lost = 'hostname nowhere.invalid && ip link set lo up && exec "$@"'
    alone = ["unshare", "--uts", "--net", "sh", "-c", lost, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no `unshare` and `ip` on this machine, or no right to take its network away with them")
    path = tmp_path / "log.jsonl"
    path.write_text('{"k": "a", "s": 1}\n{"k": "a", "s": 2}\n')
    command = [*alone, sys.executable, "-m", "inorder", "audit", str(path), "--key", "k", "--sequence", "s", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_may_have_any_name_whatever_the_locale_is(tmp_path: Path) -> None:
    path = tmp_path / "größe.jsonl"
    path.write_text('{"k": "a", "s": 1}\n{"k": "a", "s": 2}\n')
    command = [sys.executable, "-m", "inorder", "audit", str(path), "--key", "k", "--sequence", "s", "--json"]
    done = subprocess.run(command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
