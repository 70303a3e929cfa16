"""A message can always be printed, also one that no publish would take."""

from typing import Any

import pytest

from inorder.message import Message


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
