"""What only the broker in memory can show: what a call costs, and when those who wait are woken."""

import sys
from collections.abc import Callable

from inorder.broker import MessageQueue
from inorder.message import Gap, Message
from inorder.testing.clock import ManualClock

PATIENCE_SECONDS = 30


def keyed(*keys: str) -> list[Message]:
    return [Message(b"x", ordering_key=key) for key in keys]


def count_calls(call: Callable[[], object]) -> int:
    """How many Python functions `call` runs."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def test_a_pull_costs_what_it_finds_however_many_gaps_are_among_it() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    count = 300
    options = {"enable_message_ordering": True, "queue_limits": {"max_messages": count}}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed(*(f"stored-{number}" for number in range(count))))
    queue.publish("orders", keyed(*(f"missed-{number}" for number in range(count))))
    pulled: list[Message] = []
    gaps: list[Gap] = []
    assert count_calls(lambda: pulled.extend(queue.pull("worker", 2 * count, gaps.append))) < 20 * count
    assert (len(pulled), len(gaps)) == (count, count)
