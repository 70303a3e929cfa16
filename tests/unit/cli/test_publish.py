"""`inorder publish`: what becomes a message, and what is said when something does not."""

import json
import os
import threading
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from inorder.cli import main
from inorder.cli.exits import TERMINATED
from inorder.cli.reading import Reading
from inorder.client.topic import Topic
from inorder.message import Message
from inorder.pending import Pending

from .conftest import Program


@pytest.fixture
def orders(inorder: Program) -> Program:
    inorder.ok("topic", "create", "orders", "--message-retention-duration", 3600)
    return inorder


def all_of(program: Program) -> list[tuple[str | None, str, dict[str, str] | None]]:
    found = program.json("tail", "orders", "--from", 0)
    return [(one.get("ordering_key"), one["data"], one.get("attributes")) for one in found]


def test_arguments_are_messages(orders: Program) -> None:
    given = ("a", "b c", "--ordering-key", "k", "--attribute", "n=1", "--attribute", "m=x=y")
    [said] = orders.json("publish", "orders", *given)
    assert (said["topic"], said["messages"]) == ("orders", 2)
    assert said["first_id"].endswith("-0")
    assert said["last_id"].endswith("-1")
    assert all_of(orders) == [("k", "a", {"n": "1", "m": "x=y"}), ("k", "b c", {"n": "1", "m": "x=y"})]


def test_options_may_stand_among_arguments(orders: Program) -> None:
    given = ("--attribute", "n=1", "orders", "--ordering-key", "k", "a", "--batch", 1, "b")
    assert orders.ok("publish", *given) == ["published 2 messages to orders"]
    assert all_of(orders) == [("k", "a", {"n": "1"}), ("k", "b", {"n": "1"})]


def test_lines_of_files_are_messages_in_order(orders: Program, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"first\n\n third \n")
    (tmp_path / "two").write_bytes(b"last")
    said = orders.ok("publish", "orders", "argument", "--file", tmp_path / "one", "--file", tmp_path / "two")
    assert said == ["published 5 messages to orders"]
    assert [data for _, data, _ in all_of(orders)] == ["argument", "first", "", " third ", "last"]


def test_a_text_may_come_from_windows(orders: Program, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"\xef\xbb\xbfone\r\n\r\nthree\r")
    (tmp_path / "objects").write_bytes(b'\xef\xbb\xbf{"k": "four"}\r\n')
    orders.ok("publish", "orders", "--file", tmp_path / "lines")
    orders.ok("publish", "orders", "--file", tmp_path / "objects", "--ordering-key-field", "k")
    assert [data for _, data, _ in all_of(orders)] == ["one", "", "three", '{"k": "four"}']


class OfAPipe(bytes):
    """A piece of a line that must not be put behind those before it one by one: that takes the square of their time."""

    def __radd__(self, before: bytes) -> bytes:
        raise AssertionError(f"{len(before)} bytes were copied")


def test_the_pieces_of_a_line_are_put_together_once() -> None:
    class Pipe:
        pieces = iter([b"one\ntw", b"o", b"", b"\n\nthr", b"ee"])

        def read1(self, _: int) -> bytes:
            return next((OfAPipe(piece) for piece in self.pieces if piece), b"")

    none = dict.fromkeys(("ordering_key", "ordering_key_field", "attributes_field", "format"))
    reading = Reading(Namespace(data=[], file=["pipe"], **none), {})
    pipe: Any = Pipe()
    read = [(str(piece.place), piece.message.data) for piece in reading._lines("pipe", pipe) if piece]
    assert read == [
        ("pipe, line 1", b"one"),
        ("pipe, line 2", b"two"),
        ("pipe, line 3", b""),
        ("pipe, line 4", b"three"),
    ]


def test_a_line_of_a_pipe_that_is_too_long_is_refused_by_its_number(orders: Program, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writing = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"short\n" + b"x" * 40_000_000,))
    writing.start()
    ran = orders("publish", "orders", "--file", tmp_path / "pipe")
    writing.join()
    assert (ran.code, "line 2: message of 40000000 bytes" in ran.err) == (2, True)
    assert [data for _, data, _ in all_of(orders)] == ["short"]


def test_fields_of_json_are_keys_and_attributes(orders: Program, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    lines = ['{"customer": "c", "meta": {"x": "1"}, "n": 1}', "", '{"customer": 7, "meta": {}}']
    file.write_text("\n".join(lines))
    given = ("--ordering-key-field", "customer", "--attributes-field", "meta", "--attribute", "y=2")
    orders.ok("publish", "orders", "--file", file, *given)
    assert all_of(orders) == [("c", lines[0], {"y": "2", "x": "1"}), ("7", lines[2], {"y": "2"})]


def test_a_file_can_be_one_message(orders: Program, tmp_path: Path) -> None:
    (tmp_path / "picture").write_bytes(b"\xff\n\x00")
    orders.ok("publish", "orders", "--format", "whole", "--file", tmp_path / "picture")
    [shown] = orders.json("tail", "orders")
    assert shown["data_base64"] == "/woA"


def test_what_json_prints_can_be_published(orders: Program, tmp_path: Path) -> None:
    orders.ok("publish", "orders", "a", "--ordering-key", "k", "--attribute", "n=1")
    (tmp_path / "bytes").write_bytes(b"\xff")
    orders.ok("publish", "orders", "--format", "whole", "--file", tmp_path / "bytes")
    before = orders.json("tail", "orders")
    (tmp_path / "copy").write_text("".join(json.dumps(one) + "\n" for one in before))
    orders.ok("publish", "orders", "--format", "messages", "--file", tmp_path / "copy")
    after = orders.json("tail", "orders", "-n", 2)
    for one in before + after:
        del one["position"], one["id"], one["publish_time"]
    assert before == after


@pytest.mark.parametrize(("given", "published"), [("0", "0"), ("7", "7"), ('""', None), ("null", None)])
def test_a_number_is_a_key_also_if_it_is_zero(
    orders: Program, tmp_path: Path, given: str, published: str | None
) -> None:
    (tmp_path / "lines").write_text(f'{{"data": "a", "ordering_key": {given}}}')
    orders.ok("publish", "orders", "--format", "messages", "--file", tmp_path / "lines")
    [shown] = orders.json("tail", "orders")
    assert shown.get("ordering_key") == published


WRONG = {
    "no JSON": ('{"k": ', "not JSON: "),
    "no number": ('{"k": NaN}', "not JSON: NaN is no number of JSON"),
    "no object": ("[1]", "an object with the field 'a' is expected, not [1]"),
    "no such field": ('{"a": {}, "x": 1}', "the field 'k' is missing"),
    "no key": ('{"a": {}, "k": [1]}', "the field 'k': a string or a whole number, not [1]"),
    "an empty key": ('{"a": {}, "k": ""}', "Ordering key cannot be empty"),
    "no attributes": ('{"k": "k", "a": 1}', "the field 'a': an object of strings, not 1"),
    "no string": ('{"k": "k", "a": {"n": 1}}', "Attribute values must be strings"),
}


@pytest.mark.parametrize(("line", "problem"), WRONG.values(), ids=WRONG.keys())
def test_a_bad_line_is_named_and_what_stands_before_it_is_published(
    orders: Program, tmp_path: Path, line: str, problem: str
) -> None:
    file = tmp_path / "my orders.jsonl"
    good = '{"k": "k", "a": {}}'
    file.write_text(f"{good}\n{good}\n\n{line}\n{good}\n")
    ran = orders("publish", "orders", "--file", file, "--ordering-key-field", "k", "--attributes-field", "a", "--json")
    assert ran.code == 2
    assert f"inorder: {file}, line 4: {problem}" in ran.err
    assert "published before that: 2 messages\n" in ran.err
    assert f"to go on from there: tail -n +4 '{file}' | inorder publish orders" in ran.err
    assert json.loads(ran.out)["messages"] == 2
    assert len(all_of(orders)) == 2


def test_a_gap_record_is_not_published_as_an_empty_message(orders: Program, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"data": "a"}\n{"gap": "dropped", "ordering_key": "k", "count": 1}\n')
    ran = orders("publish", "orders", "--file", file, "--format", "messages")
    assert ran.code == 2
    assert f"{file}, line 2: a gap record is no message" in ran.err
    assert len(all_of(orders)) == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (["--attribute", "x"], "--attribute: NAME=VALUE, not 'x'"),
        (["--batch", "0"], "--batch: 1 to 1000, not 0"),
        (["--file", "/nowhere/at/all"], "inorder: No such file or directory: '/nowhere/at/all'"),
        (["--format", "text", "--ordering-key-field", "k"], "of --format json, not text"),
        (["--attribute", "goog=x"], "argument 1: Attribute key 'goog' starts with the reserved prefix"),
    ],
)
def test_what_cannot_be_is_refused(orders: Program, given: list[str], problem: str) -> None:
    ran = orders("publish", "orders", "x", *given)
    assert ran.code == 2
    assert problem in ran.err
    assert all_of(orders) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1", "an object with data, ordering_key and attributes is expected, not 1"),
        ('{"data": 1}', "data: a string, or data_base64"),
        ('{"data_base64": "?"}', "data: a string, or data_base64"),
        ('{"dat": "misspelt"}', "neither data nor data_base64 is there"),
        ('{"data": "a", "data_base64": "Yg=="}', "data and data_base64 are both there"),
        ('{"data": "", "attributes": []}', None),
        ('{"attributes": [1]}', "the field 'attributes': an object of strings, not [1]"),
        ('{"data": "", "ordering_key": false}', "the field 'ordering_key': a string or a whole number, not false"),
        ('{"data": "", "ordering_key": []}', "the field 'ordering_key': a string or a whole number, not []"),
    ],
)
def test_a_line_that_is_no_message_is_refused(orders: Program, line: str, problem: str | None, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(line)
    ran = orders("publish", "orders", "--format", "messages", "--file", tmp_path / "lines")
    assert ran.code == (0 if problem is None else 2)
    assert problem is None or f"line 1: {problem}" in ran.err


def test_a_refused_batch_says_what_was_published_before(orders: Program, tmp_path: Path) -> None:
    limits = ("--queue-max-messages", 4, "--queue-when-full", "error")
    orders.ok("subscription", "create", "small", "orders", *limits)
    file = tmp_path / "lines"
    file.write_text("".join(f"{number}\n" for number in range(10)))
    ran = orders("publish", "orders", "--file", file, "--batch", 2)
    assert ran.code == 2
    assert "published before that: 4 messages\n" in ran.err
    assert f"tail -n +5 {file}" in ran.err
    assert "subscription 'small' is full" in ran.err
    assert len(all_of(orders)) == 4


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(TERMINATED)], ids=["Ctrl-C", "TERM"])
def test_what_was_not_answered_when_it_was_ended_is_not_known(
    orders: Program, end: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_many = Topic.publish_many

    def ended(self: Topic, messages: list[Message]) -> Pending[list[str]]:
        if messages[0].data == b"b":
            raise end
        return publish_many(self, messages)

    monkeypatch.setattr(Topic, "publish_many", ended)
    with suppress(SystemExit):
        main(["publish", "orders", "a", "b", "c", "--batch", "1", "--target", orders.target])
    told = "published before that: 1 message; whether those from argument 2 to argument 2 were, is not known"
    assert told in capsys.readouterr().err


def test_large_messages_go_by_several_requests(
    orders: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_many, requests = Topic.publish_many, []

    def noted(self: Topic, messages: list[Message]) -> Pending[list[str]]:
        requests.append(len(messages))
        return publish_many(self, messages)

    monkeypatch.setattr(Topic, "publish_many", noted)
    file = tmp_path / "lines"
    file.write_text("".join(f"{'x' * 3_000_000}\n" for _ in range(4)))
    [said] = orders.json("publish", "orders", "--file", file)
    assert said["messages"] == 4
    assert requests == [1, 1, 1, 1]
    whole = ["--file", file, "--file", file, "--format", "whole"]
    file.write_text("x" * 2_000_000)
    orders.ok("publish", "orders", *whole, *whole)
    assert requests[4:] == [2, 2]
    file.write_text("x" * 10_000_001)
    ran = orders("publish", "orders", "--file", file)
    assert f"{file}, line 1: message of 10000001 bytes exceeds the maximum" in ran.err


def test_a_topic_that_nobody_reads_is_told(inorder: Program) -> None:
    inorder.ok("topic", "create", "orders")
    ran = inorder("publish", "orders", "x")
    assert (ran.code, ran.out) == (0, "published 1 message to orders\n")
    assert "has no subscription and retains nothing, so nobody will get this" in ran.err
    inorder.ok("subscription", "create", "billing", "orders")
    inorder.ok("publish", "orders", "x")
