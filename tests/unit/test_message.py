"""A message can always be printed, also one that no publish would take; batches are checked as messages are."""

from typing import Any

import pytest

from inorder.errors import InorderError
from inorder.message import Columns, Ids, Message, batch_of, delivered, make_entry, numbered, to_columns
from inorder.options import MAX_MESSAGE_BYTES, MAX_ORDERING_KEY_BYTES


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"short", "Message(b'short', "),
        (b"x" * 41, f"Message(b'{'x' * 40}...', "),
        ("x" * 50, "Message('x"),
        (None, "Message(None, "),
        (5, "Message(5, "),
        (bytearray(50), "Message(bytearray(b'"),
        (memoryview(bytes(50)), "Message(<memory"),
        ([b"x"] * 50, "Message([b'x', "),
    ],
)
def test_a_message_shows_its_data(data: Any, shown: str) -> None:
    message = Message(data, ordering_key="k")
    assert repr(message).startswith(shown)
    assert repr(message).endswith(", ordering_key='k')")
    assert len(repr(message)) < 150


ODD: list[tuple[Any, Any, Any]] = [  # data, attributes, key
    (b"", None, None),
    (b"", {}, "k"),
    (b"", {"a": "b"}, "k"),
    (bytearray(b"x"), None, "k"),
    (b"", None, "é"),
    (b"", None, "k" * MAX_ORDERING_KEY_BYTES),
    (b"", None, "é" * MAX_ORDERING_KEY_BYTES),
    (b"", None, "k" * (MAX_ORDERING_KEY_BYTES + 1)),
    (b"", None, ""),
    (b"", None, 7),
    (b"", 0, "k"),
    ("x", None, "k"),
    (bytes(MAX_MESSAGE_BYTES), None, "k"),
]


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_message_changes_nothing_for_the_others_of_its_batch(odd: tuple[Any, Any, Any]) -> None:
    parts: list[tuple[Any, Any, Any]] = [(b"1", None, "a"), odd, (b"22", None, "b")]
    data, attributes, keys = zip(*parts, strict=True)
    for messages in ([Message(*one) for one in parts], Columns(keys, data, attributes)):
        try:
            expected = to_columns([make_entry(*one) for one in parts])
        except InorderError as error:
            with pytest.raises(type(error)):
                batch_of(messages)
        else:
            assert [*map(list, batch_of(messages))] == [*map(list, expected)]


def test_a_delivered_message_without_a_key_can_be_published_again() -> None:
    source: Any = object()
    [again] = delivered([(3, "", b"x", None, 0, 1, 0)], [1], [1], source)
    assert [*map(list, batch_of([Message(b"y", ordering_key="k"), again]))] == [
        ["k", ""],
        [b"y", b"x"],
        [None, None],
        [2, 1],
    ]


def test_many_ids_are_those_of_each_number() -> None:
    for first in (0, 1, 95, 99, 100, 101, 199, 950, 12_345, 10**12 - 7):
        for count in (0, 1, 9, 10, 99, 100, 101, 350):
            assert numbered("p-", first, count) == [f"p-{number}" for number in range(first, first + count)]


def test_ids_that_nobody_has_asked_for_are_those_of_each_number() -> None:
    for first, count in ((0, 0), (95, 10), (12_345, 350)):
        expected = numbered("p-", first, count)
        ids = Ids("p-", first, count)
        assert ids == expected
        assert expected == ids
        assert ids == Ids("p-", first, count)
        assert (len(ids), ids[2:5], ids[-3:], repr(ids)) == (count, expected[2:5], expected[-3:], repr(expected))
        assert [ids[index] for index in range(-count, count)] == expected * 2
        assert ids != [*expected, "p-7"]
        assert ids != "p-"
        with pytest.raises(IndexError):
            ids[count]
