"""What only the broker in memory can show: what a call costs, and when those who wait are woken."""

import contextlib
import sys
from collections.abc import Callable

import pytest

from inorder.broker import MessageQueue
from inorder.clock import Timer
from inorder.errors import InorderError
from inorder.message import Gap, Message, batch_of
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


class TimersNeverRun(ManualClock):
    """So that it is a call that finds out what time has brought about."""

    def call_at(self, when_us: int, callback: Callable[[], None]) -> Timer:
        return super().call_at(when_us + 10**18, callback)


REFUSED: dict[str, Callable[[MessageQueue], object]] = {
    "submit": lambda queue: queue.submit("nowhere", batch_of([Message(b"x")])),
    "take": lambda queue: queue.take("nobody", 1),
    "settle": lambda queue: queue.settle("nobody", [1], []),
    "extend": lambda queue: queue.extend("nobody", [1], 10),
    "resume_key": lambda queue: queue.resume_key("worker", "nothing waits"),
    "update": lambda queue: queue.update_subscription("worker", {"ack_deadline_seconds": -1}),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_a_call_that_is_refused_wakes_those_whom_time_has_something_for(call: Callable[[MessageQueue], object]) -> None:
    queue = MessageQueue(clock=(clock := TimersNeverRun()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"ack_deadline_seconds": 10})
    queue.publish("orders", keyed("k"))
    queue.pull("worker", 1)
    woken: list[bool] = []
    queue.watch("worker", lambda: woken.append(queue._lock.locked()), print)
    clock.advance(10)
    with contextlib.suppress(InorderError):
        call(queue)
    assert woken == [False]
