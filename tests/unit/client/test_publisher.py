"""What a publisher asks of its transport, and when. The transport answers when the test says so."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inorder.client import publisher as publisher_module
from inorder.client import requests as requests_module
from inorder.client.publisher import FEW, Publisher
from inorder.client.requests import MAX_REQUEST_BYTES, MAX_REQUEST_MESSAGES, WIDTH
from inorder.errors import Closed, InvalidOrderingKey, KeyPaused, ResourceExhausted, Unavailable
from inorder.message import Batch, Entry, Message
from inorder.options import Batching, FlowControl
from inorder.pending import Pending

from .slow_transport import SlowTransport, make

PATIENCE_SECONDS = 30


def on_a_loop(call: Callable[[], Any]) -> Any:
    """Make a call as a task would, so that it does not wait for room."""

    async def run() -> Any:
        return call()

    return asyncio.run(run())


# -- tasks of one turn of a loop -------------------------------------------------------------------------


@pytest.mark.usefixtures("loops_in_time")
def test_what_tasks_publish_in_one_turn_of_their_loop_goes_together() -> None:
    publisher, transport = make()

    async def publish(number: int) -> str:
        return await publisher.publish(b"%d" % number, None, f"k{number}")

    async def run() -> None:
        tasks = [asyncio.create_task(publish(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert transport.sent() == []
        await asyncio.sleep(0)
        assert transport.sent() == [[b"0", b"1", b"2", b"3", b"4"]]
        transport.answer()
        assert await asyncio.gather(*tasks) == ["0", "1", "2", "3", "4"]

    asyncio.run(run())


def test_what_is_answered_at_once_is_not_gathered() -> None:
    transport: Any = SlowTransport()
    transport.answers_at_once = True
    publisher = Publisher(transport, "orders")
    on_a_loop(lambda: (publisher.publish(b"1", None, "k"), publisher.publish(b"2", None, "j")))
    assert transport.sent()[0] == [b"1"]


def test_a_loop_whose_thread_waits_for_an_answer_has_sent_the_message() -> None:
    publisher, transport = make()

    def answer_at_once(topic: str, batch: Batch) -> Pending[list[str]]:
        return Pending.of(["1"])

    transport.publish = answer_at_once  # type: ignore[method-assign]
    assert on_a_loop(lambda: publisher.publish(b"1", None, "k").result(PATIENCE_SECONDS)) == "1"


@pytest.mark.usefixtures("loops_in_time")
def test_a_message_that_nobody_awaits_is_sent_though_its_loop_ends() -> None:
    publisher, transport = make()
    on_a_loop(lambda: publisher.publish(b"1", None, "k"))
    assert transport.sent() == [[b"1"]]


def publish_on_a_loop_that_is_stopped(publisher: Publisher) -> None:
    loop = asyncio.new_event_loop()
    loop.call_soon(loop.stop)
    loop.call_soon(publisher.publish, b"1", None, "k")
    loop.run_forever()
    loop.close()


def test_what_was_published_on_a_loop_that_was_stopped_in_the_middle_of_its_turn_is_sent() -> None:
    publisher, transport = make()
    publish_on_a_loop_that_is_stopped(publisher)
    give_up = time.monotonic() + PATIENCE_SECONDS
    while transport.sent() != [[b"1"]]:
        assert time.monotonic() < give_up
        time.sleep(0.001)


@pytest.mark.usefixtures("loops_in_time")
def test_a_loop_that_was_stopped_in_the_middle_of_its_turn_holds_up_no_other_one() -> None:
    publisher, transport = make()
    publish_on_a_loop_that_is_stopped(publisher)
    on_a_loop(lambda: publisher.publish(b"2", None, "k"))
    assert transport.sent() == [[b"1", b"2"]]


@pytest.mark.usefixtures("loops_in_time")
def test_a_thread_does_not_wait_for_the_turn_of_a_loop() -> None:
    publisher, transport = make()

    def publish_here_and_in_a_thread() -> None:
        publisher.publish(b"1", None, "k")
        thread = threading.Thread(target=publisher.publish, args=(b"2", None, "k"))
        thread.start()
        thread.join()
        assert transport.sent() == [[b"1", b"2"]]

    on_a_loop(publish_here_and_in_a_thread)
    assert transport.sent() == [[b"1", b"2"]]


# -- one request of a key at a time ----------------------------------------------------------------------


def test_the_next_request_of_a_key_waits_for_the_answer_to_the_one_before() -> None:
    publisher, transport = make()
    pendings = [publisher.publish(data, None, "k") for data in (b"1", b"2", b"3")]
    assert transport.sent() == [[b"1"]]
    transport.answer()
    assert transport.sent() == [[b"1"], [b"2", b"3"]]
    transport.answer()
    assert [pending.result(0) for pending in pendings] == ["1", "2", "3"]


def test_what_comes_while_a_request_is_under_way_goes_together_when_it_is_answered() -> None:
    publisher, transport = make()
    for data, key in ((b"1", "a"), (b"2", "b"), (b"3", None), (b"4", "a")):
        publisher.publish(data, None, key)
    assert transport.sent() == [[b"1"]]
    transport.answer()
    assert transport.sent() == [[b"1"], [b"2", b"3", b"4"]]


def test_a_request_that_fails_lets_the_others_go() -> None:
    publisher, transport = make()
    first = publisher.publish(b"1", None, "a")
    second, third = publisher.publish(b"2", None, "a"), publisher.publish(b"3", None, "b")
    transport.answer(Unavailable("no broker"))
    assert transport.sent() == [[b"1"], [b"3"]]
    transport.answer()
    assert isinstance(first.exception(0), Unavailable)
    assert isinstance(second.exception(0), KeyPaused)
    assert third.result(0) == "3"


def test_many_messages_wait_behind_a_key_that_is_under_way() -> None:
    publisher, transport = make()
    publisher.publish(b"1", None, "k")
    many = publisher.publish_many([Message(b"2", ordering_key="k"), Message(b"free"), Message(b"3", ordering_key="k")])
    assert transport.sent() == [[b"1"], [b"free"]]
    transport.answer_all()
    assert transport.sent() == [[b"1"], [b"free"], [b"2", b"3"]]
    assert many.result(0) == ["2", "free", "3"]


def test_a_key_waits_behind_many_messages_that_are_under_way() -> None:
    publisher, transport = make()
    many = publisher.publish_many([Message(b"1", ordering_key="k"), Message(b"2", ordering_key="j")])
    after = publisher.publish(b"3", None, "k")
    assert transport.sent() == [[b"1", b"2"]]
    transport.answer()
    assert transport.sent() == [[b"1", b"2"], [b"3"]]
    assert many.result(0) == ["1", "2"]
    assert not after.done()


def test_a_thousand_answers_in_a_row_call_nobody_recursively() -> None:
    publisher, transport = make(flow_control=FlowControl(max_messages=5_000))
    pendings = [publisher.publish(b"%d" % number, None, "k") for number in range(5_000)]

    class FastTransport(SlowTransport):
        def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
            super().publish(topic, batch)
            return Pending.of([data.decode() for data in batch[1]])

    publisher._transport = FastTransport()  # type: ignore[assignment]
    transport.answer()
    assert [pending.result(0) for pending in pendings] == [f"{number}" for number in range(5_000)]


def test_who_waits_for_room_while_a_message_goes_alone_is_let_in() -> None:
    publisher, transport = make(flow_control=FlowControl(max_messages=1))
    slow = transport.publish
    waiting: list[threading.Thread] = []

    def publish(topic: str, batch: Batch) -> Pending[list[str]]:
        answer = slow(topic, batch)
        if not waiting:
            waiting.append(threading.Thread(target=lambda: publisher.publish(b"b", None, "k"), daemon=True))
            waiting[0].start()
            give_up = time.monotonic() + PATIENCE_SECONDS
            while not publisher._waiting:
                assert time.monotonic() < give_up
                time.sleep(0.001)
        transport.answer_all()
        return answer

    transport.publish = publish  # type: ignore[method-assign]
    publisher.publish(b"a", None, "k")
    waiting[0].join(PATIENCE_SECONDS)
    assert not waiting[0].is_alive()
    publisher.publish(b"c", None, "k")
    assert transport.sent() == [[b"a"], [b"b"], [b"c"]]


# -- batches ---------------------------------------------------------------------------------------------


def test_keys_that_are_due_together_share_a_request() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=10))
    for key, data in (("a", b"a1"), ("b", b"b1"), ("a", b"a2"), (None, b"free")):
        publisher.publish(data, None, key)
    transport.clock.advance(0.009)
    assert transport.sent() == []
    transport.clock.advance(0.001)
    assert transport.sent() == [[b"a1", b"b1", b"a2", b"free"]]


def test_no_message_waits_longer_than_it_may() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=10))
    publisher.publish(b"a", None, "a")
    transport.clock.advance(0.004)
    publisher.publish(b"b", None, "b")
    publisher.publish(b"a", None, "a")
    transport.clock.advance(0.006)
    assert transport.sent() == [[b"a", b"b", b"a"]]


def test_a_batch_that_was_full_is_not_sent_again_when_it_would_have_been_due() -> None:
    publisher, transport = make(batching=Batching(max_messages=2, max_milliseconds=10))
    publisher.publish(b"1", None, "k")
    publisher.publish(b"2", None, "k")
    assert transport.sent() == [[b"1", b"2"]]
    transport.answer()
    transport.clock.advance(0.008)
    publisher.publish(b"3", None, "k")
    transport.clock.advance(0.010)
    assert transport.sent() == [[b"1", b"2"], [b"3"]]
    transport.clock.advance(1)
    assert transport.sent() == [[b"1", b"2"], [b"3"]]


def test_keys_that_fill_a_request_together_wait_no_longer() -> None:
    publisher, transport = make(
        batching=Batching(max_messages=400, max_milliseconds=10), flow_control=FlowControl(max_messages=10_000)
    )
    for number in range(MAX_REQUEST_MESSAGES - 1):
        publisher.publish(b"", None, f"key-{number % 3}")
    assert transport.sent() == []
    publisher.publish(b"", None, "key-3")
    assert [len(request) for request in transport.sent()] == [MAX_REQUEST_MESSAGES]


def test_a_flush_splits_what_is_too_much_for_one_request() -> None:
    publisher, transport = make(
        batching=Batching(max_bytes=20_000_000, max_milliseconds=10), flow_control=FlowControl(max_messages=10_000)
    )
    for key in "xyz":
        publisher.publish(bytes(MAX_REQUEST_BYTES // 2 - 10), None, key)
    publisher.flush()
    assert [len(request) for request in transport.sent()] == [2, 1]


def test_a_flush_waits_for_what_is_under_way_and_for_what_waits_behind_it() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=10))
    for data in (b"1", b"2"):
        publisher.publish(data, None, "k")
        flushed = publisher.flush()
    transport.answer()
    assert transport.sent() == [[b"1"], [b"2"]]
    assert not flushed.done()
    transport.answer()
    assert flushed.done()


def test_many_messages_are_one_request_only_if_they_fit_into_one() -> None:
    publisher, transport = make(
        batching=Batching(max_messages=MAX_REQUEST_MESSAGES),
        flow_control=FlowControl(max_messages=10_000),
    )
    publisher.publish_many([Message(b"")] * MAX_REQUEST_MESSAGES)
    assert [len(request) for request in transport.sent()] == [1_000]
    transport.answer()
    publisher.publish_many([Message(b"")] * (MAX_REQUEST_MESSAGES + 1))
    assert sum(len(request) for request in transport.sent()[1:]) == 1_001
    assert max(len(request) for request in transport.sent()) == 1_000


def test_new_options_send_what_was_collected_by_the_old_ones() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=60_000))
    publisher.publish(b"1", None, "k")
    publisher.set_options({"batching": Batching(max_milliseconds=10)})
    assert transport.sent() == [[b"1"]]
    publisher.publish(b"2", None, "j")
    transport.clock.advance(0.01)
    assert transport.sent() == [[b"1"], [b"2"]]


def test_closing_sends_what_is_collected_and_leaves_no_timer() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=10))
    publisher.publish(b"1", None, "k")
    closed = publisher.close()
    assert transport.sent() == [[b"1"]]
    assert not closed.done()
    transport.answer()
    assert closed.done()
    transport.clock.advance(1)
    assert transport.sent() == [[b"1"]]
    with pytest.raises(Unavailable):
        publisher.publish(b"2", None, "k").result(0)


# -- flow control ----------------------------------------------------------------------------------------


def test_what_is_collected_counts_and_is_sent_when_others_need_the_room() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=60_000), flow_control=FlowControl(max_messages=2))
    publisher.publish(b"1", None, "a")
    publisher.publish(b"2", None, "b")
    assert transport.sent() == []
    third = on_a_loop(lambda: publisher.publish(b"3", None, "c"))
    assert transport.sent() == [[b"1", b"2"]]
    transport.answer()
    assert transport.sent() == [[b"1", b"2"], [b"3"]]
    transport.answer()
    assert third.result(0) == "3"


def test_who_waits_for_room_is_let_in_in_turn() -> None:
    publisher, transport = make(flow_control=FlowControl(max_bytes=100))
    publisher.publish(bytes(90), None, "a")
    waiting = on_a_loop(lambda: [publisher.publish(bytes(size), None, "b") for size in (50, 1, 50)])
    transport.answer()
    assert [len(data) for [data] in transport.sent()] == [90, 50]  # the others are of the same key
    transport.answer()
    transport.answer()
    assert [len(data) for [data] in transport.sent()] == [90, 50, 1, 50]
    transport.answer_all()
    assert all(pending.done() for pending in waiting)


def test_a_flush_also_sends_what_waits_for_room() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=60_000), flow_control=FlowControl(max_messages=1))
    on_a_loop(lambda: [publisher.publish(b"%d" % number, None, "k") for number in range(3)])
    flushed = publisher.flush()
    for _ in range(3):
        assert not flushed.done()
        transport.answer()
    assert flushed.done()
    assert transport.sent() == [[b"0"], [b"1"], [b"2"]]


# -- failures --------------------------------------------------------------------------------------------


def test_a_failure_fails_what_is_behind_collected_or_waiting_for_room() -> None:
    publisher, transport = make(
        batching=Batching(max_messages=1, max_milliseconds=60_000), flow_control=FlowControl(max_messages=3)
    )
    failing = publisher.publish(b"1", None, "k")
    behind = publisher.publish(b"2", None, "k")
    publisher.set_options({"batching": Batching(max_milliseconds=60_000)})
    collected = publisher.publish(b"3", None, "k")
    waiting, other = on_a_loop(lambda: [publisher.publish(b"4", None, "k"), publisher.publish(b"5", None, "j")])
    flushed = publisher.flush()
    transport.answer(ResourceExhausted("full"))
    assert isinstance(failing.exception(0), ResourceExhausted)
    for pending in (behind, collected, waiting):
        assert isinstance(pending.exception(0), KeyPaused)
    assert transport.sent() == [[b"1"], [b"5"]]
    assert not flushed.done()
    transport.answer()
    assert other.result(0) == "5"
    assert flushed.done()
    assert publisher.paused_keys() == ["k"]


def test_a_failed_request_pauses_its_keys_and_no_other() -> None:
    publisher, transport = make(batching=Batching(max_milliseconds=10))
    pendings = [publisher.publish(b"x", None, key) for key in ("b", "a", None)]
    transport.clock.advance(0.01)
    other = publisher.publish(b"y", None, "c")
    transport.answer(ResourceExhausted("full"))
    assert [type(pending.exception(0)) for pending in pendings] == [ResourceExhausted] * 3
    assert publisher.paused_keys() == ["a", "b"]
    publisher.flush()
    transport.answer()
    assert other.result(0) == "y"


def test_a_key_that_was_resumed_is_not_paused_again_by_what_failed_with_the_first() -> None:
    transport = SlowTransport()
    transport.in_order = True  # type: ignore[misc]
    publisher = Publisher(transport, "orders")  # type: ignore[arg-type]
    first, behind = (publisher.publish_many([Message(data, ordering_key="k")]) for data in (b"1", b"2"))
    first.add_done_callback(lambda _: publisher.resume("k"))
    transport.answer(Unavailable("gone"))
    transport.answer(KeyPaused("k"))
    assert isinstance(behind.exception(0), KeyPaused)
    assert publisher.paused_keys() == []
    again = publisher.publish_many([Message(b"1", ordering_key="k")])
    transport.answer()
    assert again.result(0) == ["1"]


def test_a_resumed_key_goes_on() -> None:
    publisher, transport = make()
    publisher.publish(b"1", None, "k")
    transport.answer(ResourceExhausted("full"))
    assert isinstance(publisher.publish(b"2", None, "k").exception(0), KeyPaused)
    publisher.resume("k")
    third = publisher.publish(b"3", None, "k")
    transport.answer()
    assert third.result(0) == "3"
    assert transport.sent() == [[b"1"], [b"3"]]


# -- other people's code ---------------------------------------------------------------------------------


def test_no_lock_is_held_while_answers_are_given() -> None:
    """A callback may need a lock that somebody holds who wants to publish."""
    publisher, transport = make(batching=Batching(max_messages=2, max_milliseconds=60_000))
    lock, called, published = threading.Lock(), threading.Event(), threading.Event()

    def callback(_: Pending[str]) -> None:
        called.set()
        with lock:
            pass

    def publish_under_lock() -> None:
        with lock:
            assert called.wait(PATIENCE_SECONDS)
            publisher.publish(b"3", None, "j")
            published.set()

    thread = threading.Thread(target=publish_under_lock, daemon=True)
    publisher.publish(b"1", None, "k").add_done_callback(callback)
    publisher.publish(b"2", None, "k")
    lock.acquire()  # so that the thread waits for it before the callback does
    thread.start()
    lock.release()
    while not lock.locked():
        pass
    transport.answer()
    assert published.wait(PATIENCE_SECONDS)
    thread.join(PATIENCE_SECONDS)


def test_no_lock_is_held_while_a_request_is_sent() -> None:
    """A transport may answer others before it takes the request, and they may publish."""
    publisher, transport = make()
    nested: list[Pending[str]] = []
    publish = transport.publish

    def publish_and_call(topic: str, batch: Batch) -> Pending[list[str]]:
        if len(nested) < 3:
            nested.append(Pending())  # a place for it, so that this ends
            nested[-1] = publisher.publish(b"nested", None, "k")
        return publish(topic, batch)

    transport.publish = publish_and_call  # type: ignore[method-assign]
    publisher.publish(b"1", None, "k")
    publisher.publish_many([Message(b"2", ordering_key="j")])
    transport.answer_all()
    assert sorted(data for request in transport.sent() for data in request) == [b"1", b"2"] + [b"nested"] * 3


def test_threads_that_publish_to_one_key_keep_the_order_of_their_calls() -> None:
    publisher, transport = make(flow_control=FlowControl(max_messages=10_000))
    lock = threading.Lock()
    expected: list[bytes] = []
    over = threading.Event()

    def publish(name: int) -> None:
        for number in range(100):
            with lock:
                data = b"%d-%d" % (name, number)
                expected.append(data)
                publisher.publish(data, None, "k")

    def answer() -> None:
        while not over.is_set():
            if transport.answered < len(transport.requests):
                transport.answer()

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    threads = [threading.Thread(target=publish, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    publisher.flush().result(PATIENCE_SECONDS)
    over.set()
    answering.join(PATIENCE_SECONDS)
    assert [data for request in transport.sent() for data in request] == expected


def test_what_waits_behind_keeps_its_order_where_a_request_has_no_room_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (publisher_module, requests_module):
        monkeypatch.setattr(module, "MAX_REQUEST_MESSAGES", 4)
    publisher, transport = make(batching=Batching(max_messages=3))
    publisher.publish_many([Message(b"0", ordering_key=key) for key in "abc"])
    for key in "abc" * 3:
        for _ in range(3):
            publisher.publish(b"", None, key)
    sent: dict[str, list[bytes]] = {}
    pendings = [publisher.publish(b"%d" % number, None, key) for number in range(9) for key in "abc"]
    transport.answer_all()
    for batch, _ in transport.requests:
        for key, data in zip(batch[0], batch[1], strict=True):
            sent.setdefault(key, []).append(data)
    assert sent == {key: [b"0", *[b""] * 9, *[b"%d" % number for number in range(9)]] for key in "abc"}
    assert [pending.result(0) for pending in pendings] == [str(number) for number in range(9) for _ in "abc"]


def test_a_batch_that_waits_behind_keeps_its_order_where_it_takes_many_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (publisher_module, requests_module):
        monkeypatch.setattr(module, "MAX_REQUEST_BYTES", 20)
    publisher, transport = make(batching=Batching(max_messages=8))
    numbers = [b"%08d" % number for number in range(1 + 3 * 8)]
    for number in numbers:
        publisher.publish(number, None, "k")
    assert len(transport.sent()) == 1
    transport.answer_all()
    assert [len(request) for request in transport.sent()] == [1] + 12 * [2]
    assert [data for request in transport.sent() for data in request] == numbers


# -- messages that are collected without a look at the limits --------------------------------------------


def test_a_message_that_is_answered_makes_no_batch_longer_than_it_may_be() -> None:
    publisher, transport = make(batching=Batching(max_messages=4))
    publish = transport.publish

    def publish_others_meanwhile(topic: str, batch: Batch) -> Pending[list[str]]:
        if batch[0] == ("a",):
            for number in range(4):
                publisher.publish(b"%d" % number, None, "b")
            publisher.publish(b"0", None, "c")
            return Pending.of(["a"])
        return publish(topic, batch)

    transport.publish = publish_others_meanwhile  # type: ignore[method-assign]
    assert publisher.publish(b"a", None, "a").result(0) == "a"
    for number in range(1, 5):
        publisher.publish(b"%d" % number, None, "c")
    assert transport.sent() == [[b"0", b"1", b"2", b"3"]] * 2


def test_what_came_of_a_key_while_one_of_it_was_published_alone_goes_behind_it() -> None:
    publisher, transport = make(batching=Batching(max_messages=1))
    publish = transport.publish

    def publish_another_meanwhile(topic: str, batch: Batch) -> Pending[list[str]]:
        if list(batch[1]) == [b"1"]:
            publisher.publish(b"2", None, "a")
            assert transport.sent() == []
            return Pending.of(["1"])
        return publish(topic, batch)

    transport.publish = publish_another_meanwhile  # type: ignore[method-assign]
    assert publisher.publish(b"1", None, "a").result(0) == "1"
    assert transport.sent() == [[b"2"]]


# -- what comes without the lock ---------------------------------------------------------------------------


class Arrivals(list[Any]):
    """Has something happen right before the next message is in it, or right after."""

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def __iadd__(self, row: Any) -> "Arrivals":
        before, after = self.before, self.after
        self.before = self.after = None
        if before is not None:
            before()
        super().extend(row)
        if after is not None:
            after()
        return self


def collecting() -> tuple[Publisher, SlowTransport, Arrivals]:
    """A publisher that has collected a message, and takes two more without a look."""
    publisher, transport = make(batching=Batching(max_messages=4, max_milliseconds=10))
    publisher._arrived = arrivals = Arrivals()
    publisher.publish(b"0", None, "k")
    assert publisher._free_length == 2 * WIDTH
    return publisher, transport, arrivals


def test_what_comes_when_all_was_just_sent_is_sent_when_it_is_due() -> None:
    publisher, transport, arrivals = collecting()
    arrivals.before = publisher.flush
    answer = publisher.publish(b"1", None, "k")
    assert transport.sent() == [[b"0"]]
    transport.answer()
    transport.clock.advance(0.01)
    assert transport.sent() == [[b"0"], [b"1"]]
    transport.answer()
    assert answer.result(0) == "1"


def test_what_comes_when_others_may_come_anew_is_sent_with_them() -> None:
    publisher, transport, arrivals = collecting()
    arrivals.before = lambda: (publisher.flush(), publisher.publish(b"1", None, "j"))
    publisher.publish(b"2", None, "i")
    publisher.publish(b"3", None, "i")
    transport.clock.advance(0.01)
    assert transport.sent() == [[b"0"], [b"1", b"2", b"3"]]


def test_what_came_too_late_and_was_taken_in_with_others_is_sent_once() -> None:
    publisher, transport, arrivals = collecting()
    too_late = "h", b"of a thread that has yet to take it back", None, 1, Pending[str]()
    arrivals.before = publisher.flush
    arrivals.after = lambda: (publisher.publish(b"2", None, "i"), publisher.flush(), list.append(arrivals, too_late))
    answer = publisher.publish(b"1", None, "j")
    publisher.flush()
    assert transport.sent() == [[b"0"], [b"2", b"1"]]
    transport.answer_all()
    assert answer.result(0) == "1"


@pytest.mark.parametrize("late", [False, True])
def test_no_more_may_come_without_a_look_behind_one_that_came_too_late(late: bool) -> None:
    """It may be taken back after it was counted."""
    publisher, _, arrivals = collecting()
    publisher.publish(b"1", None, "i")
    publisher.publish(b"2", None, "j")
    if late:
        arrivals.extend(("h", b"of a thread that has yet to take it back", None, 1, Pending[str]()))
    with patch("inorder.client.publisher.FEW", 0):
        assert publisher._free_more() == (not late)


def test_what_comes_when_its_key_was_just_paused_is_refused() -> None:
    publisher, transport, arrivals = collecting()
    arrivals.before = lambda: (publisher.flush(), transport.answer(Unavailable("gone")))
    assert isinstance(publisher.publish(b"1", None, "k").exception(0), KeyPaused)
    publisher.flush()
    assert transport.sent() == [[b"0"]]


def test_what_comes_when_the_publisher_was_just_closed_is_refused() -> None:
    publisher, transport, arrivals = collecting()
    arrivals.before = publisher.close
    assert isinstance(publisher.publish(b"1", None, "k").exception(0), Closed)
    assert transport.sent() == [[b"0"]]


@pytest.mark.parametrize(
    ("data", "attributes", "key"),
    [
        (b"", None, "key-{}"),
        (b"", {"name": "value"}, "key-{}"),
        (b"", None, "ключ-{}"),
        (bytes(2_000), None, "key-{}"),
        (bytearray(10), None, "key-{}"),
    ],
    ids=["plain", "attributes", "not ASCII", "long", "bytearray"],
)
def test_messages_of_many_keys_come_without_a_look_until_they_fill_a_request(
    data: Any, attributes: dict[str, str] | None, key: str
) -> None:
    publisher, transport = make(batching=Batching(max_messages=100, max_bytes=10_000_000, max_milliseconds=10))
    for number in range(999):
        publisher.publish(data, attributes, key.format(number))
    assert len(publisher._collected.keys) == 1  # the others were not even taken in
    publisher.publish(data, attributes, key.format(999))
    assert [len(sent) for sent in transport.sent()] == [1_000]


def test_a_message_is_marked_once_also_when_more_may_come_without_a_look() -> None:
    publisher, _ = make(batching=Batching(max_messages=100, max_milliseconds=10))
    marked: list[str] = []

    def mark(entry: Entry) -> Entry:
        marked.append(entry[0])
        return entry

    keys = [f"key-{number}" for number in range(300)]
    for key in keys:
        publisher.publish(b"", None, key, mark)
    assert marked == keys


def test_flow_control_counts_what_came_without_a_look() -> None:
    def publish() -> None:
        publisher, transport = make(
            batching=Batching(max_messages=100, max_milliseconds=10), flow_control=FlowControl(max_messages=150)
        )
        for number in range(150):
            publisher.publish(b"", None, f"key-{number}")
        assert transport.sent() == []
        publisher.publish(b"", None, "another")
        assert [len(sent) for sent in transport.sent()] == [150]

    on_a_loop(publish)


def test_a_key_among_many_is_sent_when_it_has_as_many_bytes_as_may_go_together() -> None:
    publisher, transport = make(batching=Batching(max_messages=100, max_bytes=20_000, max_milliseconds=10))
    for number in range(19):
        for key in ("busy", f"key-{number}", f"other-{number}", f"third-{number}"):
            publisher.publish(bytes(996 if key == "busy" else 1), None, key)
    assert transport.sent() == []
    publisher.publish(bytes(996), None, "busy")
    assert transport.sent() == [[bytes(996)] * 20]


@pytest.mark.parametrize("key", ["", "k" * 1_025, "é" * 513, 7])
def test_a_bad_key_is_refused_also_where_messages_come_without_a_look(key: Any) -> None:
    publisher, transport = make(batching=Batching(max_messages=100, max_milliseconds=10))
    publisher.publish(b"0", None, "k")
    assert isinstance(publisher.publish(b"1", None, key).exception(0), InvalidOrderingKey)
    publisher.publish(b"2", None, "k")
    transport.clock.advance(0.01)
    assert transport.sent() == [[b"0", b"2"]]


def test_a_key_among_many_is_sent_when_it_has_as_many_as_may_go_together() -> None:
    publisher, transport = make(batching=Batching(max_messages=100, max_milliseconds=10))
    for number in range(99):
        for key in ("busy", f"key-{number}", f"other-{number}"):
            publisher.publish(b"%d" % number, None, key)
    assert transport.sent() == []
    publisher.publish(b"99", None, "busy")
    assert transport.sent() == [[b"%d" % number for number in range(100)]]


def test_more_that_come_at_the_same_moment_than_may_are_looked_at() -> None:
    publisher, transport, arrivals = collecting()
    arrivals.before = lambda: (publisher.publish(b"1", None, "k"), publisher.publish(b"2", None, "k"))
    publisher.publish(b"3", None, "k")  # the fourth of its key, which makes the batch full
    assert transport.sent() == [[b"0", b"1", b"2", b"3"]]


def test_a_message_that_came_too_late_and_was_interrupted_is_not_sent_behind_others() -> None:
    publisher, transport, arrivals = collecting()

    def interrupt() -> None:
        raise KeyboardInterrupt

    arrivals.before, arrivals.after = publisher.flush, interrupt
    with pytest.raises(KeyboardInterrupt):
        publisher.publish(b"1", None, "k")
    publisher.publish(b"2", None, "k")
    publisher.publish(b"3", None, "k")
    publisher.flush()
    transport.answer_all()
    assert transport.sent() == [[b"0"], [b"2", b"3"]]


def test_a_call_that_is_interrupted_before_anything_is_done_sends_what_came_before_it() -> None:
    publisher, transport, arrivals = collecting()
    publisher.publish(b"1", None, "k")

    def interrupt(_: object) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publisher.publish(b"2", None, "k", interrupt)
    assert not arrivals
    assert transport.sent() == [[b"0", b"1"]]


def test_what_comes_while_a_message_goes_alone_goes_after_it() -> None:
    publisher, transport = make()
    slow = transport.publish

    def publish(topic: str, batch: Batch) -> Pending[list[str]]:
        answer = slow(topic, batch)
        if batch[1] == (b"0",):
            for data in (b"1", b"2", b"3"):
                publisher.publish(data, None, "k")
            assert publisher._arrived
        transport.answer_all()
        return answer

    transport.publish = publish  # type: ignore[method-assign]
    publisher.publish(b"0", None, "k")
    assert transport.sent() == [[b"0"], [b"1", b"2", b"3"]]


def test_threads_that_publish_without_the_lock_lose_nothing_and_keep_to_the_limits() -> None:
    batching, flow = Batching(max_messages=20, max_milliseconds=10), FlowControl(max_messages=50)
    publisher, transport = make(batching=batching, flow_control=flow)
    counts, over, most = dict.fromkeys("abcd", 0), threading.Event(), 0

    def publish(key: str) -> None:
        for number in range(2_000):
            publisher.publish(b"%d" % number, None, key)
            counts[key] += 1

    def answer_and_send() -> None:
        nonlocal most
        while not over.is_set():
            if transport.answered < len(transport.requests):
                waiting = transport.requests[transport.answered :]
                most = max(most, sum(len(batch[0]) for batch, _ in waiting))
                transport.answer()
            else:
                transport.clock.advance(0.01)

    answering = threading.Thread(target=answer_and_send, daemon=True)
    threads = [threading.Thread(target=publish, args=(key,), daemon=True) for key in counts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        answering.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        publisher.flush().result(PATIENCE_SECONDS)
    finally:
        over.set()
        answering.join(PATIENCE_SECONDS)
        sys.setswitchinterval(interval)
    sent: dict[str, list[int]] = {key: [] for key in counts}
    for batch, _ in transport.requests:
        assert max(batch[0].count(key) for key in batch[0]) <= batching.max_messages
        for key, data in zip(batch[0], batch[1], strict=True):
            sent[key].append(int(data))
    assert sent == {key: [*range(2_000)] for key in counts}
    assert most <= flow.max_messages
    assert (publisher._messages, publisher._bytes, publisher._arrived) == (0, 0, [])


PUBLISH = st.tuples(st.just("publish"), st.sampled_from(["", *"abcdef"]), st.sampled_from([0, 7, 20]))
OTHERS = st.sampled_from([("answer",), ("answer",), ("fail",), ("flush",), ("wait",), ("resume",), ("many", "a", "b")])
STEPS = st.lists(st.one_of(PUBLISH, PUBLISH, PUBLISH, OTHERS), min_size=10, max_size=60)
OF_MANY_KEYS = st.tuples(st.just("publish"), st.integers(0, 99).map("key-{}".format), st.sampled_from([0, 7, 20]))
MANY = st.lists(st.one_of(*[OF_MANY_KEYS] * 20, PUBLISH, OTHERS), min_size=40, max_size=100)


class LooksAtEach(Publisher):
    """Looks at every limit for every message."""

    def _free_some(self) -> None:
        pass


@given(
    steps=st.one_of(STEPS, MANY),
    batching=st.builds(
        Batching,
        max_messages=st.sampled_from([2, 4, 15, 1_000]),
        max_bytes=st.sampled_from([20, 60, 10_000]),
        max_milliseconds=st.sampled_from([0, 10]),
    ),
    flow=st.builds(
        FlowControl, max_messages=st.sampled_from([5, 30, 100]), max_bytes=st.sampled_from([90, 800, 10_000])
    ),
    in_order=st.booleans(),
    few=st.sampled_from([0, 2, FEW]),
)
@settings(max_examples=200)
def test_what_is_collected_without_a_look_is_sent_as_if_each_had_been_looked_at(
    steps: list[tuple[Any, ...]], batching: Batching, flow: FlowControl, in_order: bool, few: int
) -> None:
    def run(kind: type[Publisher]) -> object:
        transport: Any = SlowTransport()
        transport.answers_at_once = True  # so that nothing is put off to the end of a turn
        transport.in_order = in_order
        publisher = kind(transport, "orders")
        publisher.set_options({"batching": batching, "flow_control": flow})
        answers: list[Pending[Any]] = []
        sent: list[int] = []
        for number, (step, *arguments) in enumerate(steps):
            if step == "publish":
                key, size = arguments
                answers.append(publisher.publish(b"%d" % number + b"." * size, None, key or None))
            elif step == "many":
                answers.append(publisher.publish_many([Message(b"%d" % number, None, key) for key in arguments]))
            elif step in ("answer", "fail") and transport.answered < len(transport.requests):
                transport.answer(Unavailable("gone") if step == "fail" else None)
            elif step == "wait":
                transport.clock.advance(0.01)
            elif step == "resume":
                publisher.resume("a")
            elif step == "flush":
                publisher.flush()
            sent.append(len(transport.requests))
        publisher.flush()
        transport.answer_all()
        outcomes = [str(answer.exception(0)) or answer.result() for answer in answers]
        return sent, [batch[1] for batch, _ in transport.requests], outcomes, publisher.paused_keys()

    with patch("inorder.client.publisher.FEW", few):
        assert on_a_loop(lambda: _as_lists(run(Publisher))) == on_a_loop(lambda: _as_lists(run(LooksAtEach)))


def _as_lists(value: Any) -> Any:
    return [_as_lists(one) for one in value] if isinstance(value, list | tuple) else value
