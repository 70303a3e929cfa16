"""What handlers and loops leave behind: no thread, no task, no memory. What they need: no more than they use."""

import asyncio
import gc
import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from inorder import Batching, FlowControl, Message, Pending, PubSub, QueueLimits, Subscription
from inorder.broker import MessageQueue
from inorder.client import listeners, stream
from inorder.errors import Closed, InvalidArgument
from inorder.pool import task_crew
from inorder.testing.clock import ManualClock

PATIENCE_SECONDS = 30


def wait_until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, [one.name for one in threading.enumerate()]
        time.sleep(0.001)


strangers: set[threading.Thread] = set()  # what other tests have left


@pytest.fixture(autouse=True)
def before() -> None:
    strangers.clear()
    strangers.update(threads())


def threads(name: str = "inorder-") -> set[threading.Thread]:
    """Those of this library, but for the timers' thread, which stays."""
    named = {one for one in threading.enumerate() if one.name.startswith(name) and one.name != "inorder-timers"}
    return named - strangers


@pytest.fixture
def subscription() -> Iterator[Subscription]:
    pubsub = PubSub("memory:")
    topic = pubsub.topic("orders").create().result()
    yield topic.subscription("worker").create().result()
    pubsub.close().result(PATIENCE_SECONDS)
    wait_until(lambda: not threads())


def publish(subscription: Subscription, count: int = 1) -> None:
    topic = subscription._connection.publisher("orders")
    topic.publish_many(Message(b"%d" % number) for number in range(count)).result()


def ack(message: Message) -> None:
    message.ack()


async def ack_async(message: Message) -> None:
    await message.ack()


# -- threads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handler", [ack, ack_async], ids=["def", "async def"])
def test_no_thread_is_left_after_closing(subscription: Subscription, handler: Callable[[Message], Any]) -> None:
    subscription.on("message", handler)
    for _ in range(3):
        subscription.open()
        publish(subscription, 50)
        wait_until(lambda: not subscription.metrics().result().backlog_messages)
        assert threads()
        subscription.close().result(PATIENCE_SECONDS)
        wait_until(lambda: not threads())


def test_no_thread_is_left_when_opening_fails() -> None:
    with PubSub("memory:") as pubsub:
        pubsub.topic("orders").create().result()
        subscription = pubsub.topic("orders").subscription("worker").create().result()
        pubsub.close().result()
        before = threads()
        for handler in (ack, ack_async):
            again = pubsub.subscription(subscription.name).on("message", handler)
            with pytest.raises(Exception, match="closed"):
                again.open()
    wait_until(lambda: threads() <= before)


def test_a_connection_that_was_closed_meanwhile_opens_nothing() -> None:
    """The broker is somebody else's and still open; our connection to it is not."""
    queue = MessageQueue()
    pubsub = PubSub(queue)
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    subscription = pubsub.subscription("worker").on("message", ack)
    pubsub.close().result()
    with pytest.raises(Exception, match="this PubSub is closed"):
        subscription.open()
    with pytest.raises(Exception, match="this PubSub is closed"):
        next(iter(subscription))
    wait_until(lambda: not threads())
    assert queue._watchers == {}


def test_a_handler_may_close_all_before_open_has_returned(caplog: pytest.LogCaptureFixture) -> None:
    """On a loop of its own it runs while `open` is on its way back: often enough in so many tries."""
    for _ in range(50):
        pubsub = PubSub("memory:")
        topic = pubsub.topic("orders").create().result()
        answered: Pending[None] = Pending()

        async def close(message: Message, pubsub: PubSub = pubsub, answered: Pending[None] = answered) -> None:
            await pubsub.close()
            message.ack().hand_to(answered)

        worker = topic.subscription("worker").create().result().on("message", close)
        topic.publish_message(b"1").result()
        worker.open()
        answered.result(PATIENCE_SECONDS)
        pubsub.close().result(PATIENCE_SECONDS)
    assert not caplog.records


def test_one_thread_is_enough_while_there_is_nothing_to_do(subscription: Subscription) -> None:
    crew: Any = subscription.on("message", ack).open()._stream._crew  # type: ignore[union-attr]
    for _ in range(20):
        publish(subscription)
        wait_until(lambda: not subscription.metrics().result().backlog_messages and not crew.busy)
    assert len(threads("inorder-handler")) <= 2  # the second, if the first was not at rest yet


def test_there_are_as_many_threads_as_handlers_that_wait_up_to_a_limit(subscription: Subscription) -> None:
    go_on = threading.Event()
    running: list[Message] = []

    def handle(message: Message) -> None:
        running.append(message)
        assert go_on.wait(PATIENCE_SECONDS)
        message.ack()

    subscription.on("message", handle).open()
    publish(subscription, 5)
    wait_until(lambda: len(running) == 5)
    assert len(threads("inorder-handler")) <= 6
    publish(subscription, 100)
    wait_until(lambda: len(running) == stream.MAX_THREADS)
    assert len(threads("inorder-handler")) == stream.MAX_THREADS
    go_on.set()
    wait_until(lambda: len(running) == 105)


@pytest.mark.parametrize("handler", [ack, ack_async], ids=["def", "async def"])
def test_messages_and_answers_of_handlers_that_do_not_wait_travel_together(handler: Callable[[Message], Any]) -> None:
    class Counting(MessageQueue):
        calls = 0

        def take(self, *arguments: Any, **options: Any) -> list[Message]:
            self.calls += 1
            return super().take(*arguments, **options)

        def settle(self, *arguments: Any) -> list[int]:
            self.calls += 1
            return super().settle(*arguments)

    queue = Counting()
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    with PubSub(queue) as pubsub:
        subscription = pubsub.subscription("worker").on("message", handler)
        publish(subscription, 2_000)
        subscription.open()
        wait_until(lambda: not subscription.metrics().result().backlog_messages)
    assert queue.calls < 400


def test_a_handler_that_waits_for_its_ack_is_answered_at_once(subscription: Subscription) -> None:
    """Answers are sent together, but by whom, if every thread waits for one?"""
    subscription.set_options(flow_control=FlowControl(max_messages=1)).result()
    handled: list[Message] = []

    def handle(message: Message) -> None:
        message.ack().result(PATIENCE_SECONDS)
        handled.append(message)

    subscription.on("message", handle).open()
    publish(subscription, 200)
    wait_until(lambda: len(handled) == 200)
    subscription.set_options(flow_control=FlowControl(max_messages=100)).result()
    publish(subscription, 1_000)
    wait_until(lambda: len(handled) == 1_200)


def test_an_ack_is_sent_although_its_handler_goes_on(subscription: Subscription) -> None:
    go_on = threading.Event()
    begun: list[Message] = []

    def handle(message: Message) -> None:
        begun.append(message)
        message.ack()
        assert go_on.wait(PATIENCE_SECONDS)

    publish(subscription, 100)
    subscription.on("message", handle).open()
    wait_until(lambda: len(begun) == stream.MAX_THREADS)
    wait_until(lambda: subscription.metrics().result().backlog_messages == 100 - stream.MAX_THREADS)
    go_on.set()
    wait_until(lambda: len(begun) == 100)


def test_a_handler_that_waits_among_many_that_do_not_delays_nobody(subscription: Subscription) -> None:
    go_on = threading.Event()
    ended: list[Message] = []

    def handle(message: Message) -> None:
        if int(message.data) % 20 == 7:
            assert go_on.wait(PATIENCE_SECONDS)
        message.ack()
        ended.append(message)

    subscription.on("message", handle).open()
    publish(subscription, 1_000)  # fifty of them wait
    wait_until(lambda: len(ended) == 950)
    go_on.set()
    wait_until(lambda: len(ended) == 1_000)


def test_flow_control_limits_threads_too(subscription: Subscription) -> None:
    subscription.set_options(flow_control=FlowControl(max_messages=3)).result()
    subscription.on("message", ack).open()
    publish(subscription, 50)
    wait_until(lambda: not subscription.metrics().result().backlog_messages)
    assert len(threads("inorder-handler")) <= 3


def test_the_timers_of_all_brokers_share_one_thread() -> None:
    def timer_threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "inorder-timers"}

    before = timer_threads()  # of clocks of other tests
    pubsubs = [PubSub("memory:") for _ in range(5)]
    for pubsub in pubsubs:
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("worker").create(ack_deadline=0.01).result()
        topic.publish_message(b"x").result()
        assert len(subscription.pull().result()) == 1
    assert len(timer_threads() - before) <= 1
    for pubsub in pubsubs:
        pubsub.close().result()


# -- tasks -----------------------------------------------------------------------------------------------


def test_no_task_is_left_after_closing(subscription: Subscription) -> None:
    async def main() -> None:
        done = asyncio.Event()
        before = asyncio.all_tasks()

        async def handle(message: Message) -> None:
            await asyncio.sleep(0)
            await message.ack()
            done.set()

        async def listen() -> None:
            await asyncio.sleep(0.001)

        subscription.on("message", handle).on("close", listen).open()
        publish(subscription, 500)
        await done.wait()
        await subscription.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before

    asyncio.run(main())
    assert not listeners._running


def test_a_subscription_that_waits_needs_no_task(subscription: Subscription) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        subscription.on("message", ack_async).open()
        await asyncio.sleep(0.002)
        assert asyncio.all_tasks() == before
        await subscription.close()

    asyncio.run(main())


def turns_of(
    subscription: Subscription, bursts: Iterable[int], others: Callable[[], None] = lambda: None
) -> list[list[int]]:
    """Of each burst, how many messages were handled before others on the loop had their turn, and before the next."""
    handled = 0

    async def handle(message: Message) -> None:
        nonlocal handled
        handled += 1
        message.ack()

    async def one(burst: int) -> list[int]:
        begin = handled
        turns: list[int] = []
        publish(subscription, burst)
        while handled < begin + burst:
            await asyncio.sleep(0)
            turns.append(handled - begin - sum(turns))
            others()
        for _ in range(3):
            await asyncio.sleep(0)  # until it finds that there is no more
        return turns

    async def main() -> list[list[int]]:
        subscription.on("message", handle).open()
        turns = [await one(burst) for burst in bursts]
        await subscription.close()
        return turns

    return asyncio.run(main())


def test_a_burst_does_not_keep_others_on_the_loop_waiting(
    subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a turn is over after 1,000 messages, and whoever has the next one begins at once."""
    looks = itertools.count()
    monkeypatch.setattr(task_crew, "perf_counter", lambda: next(looks) * task_crew.TURN_SECONDS / 100)
    [turns] = turns_of(subscription, [10_000])
    least = 10_000 // (100 * task_crew.BETWEEN_LOOKS)
    assert least <= len(turns) <= least + 3


def test_a_burst_has_twice_as_long_as_others_on_the_loop_had(
    subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or it would fall behind whoever publishes there. Here each look at the time finds it a millisecond later."""
    looks, passed = itertools.count(), 0.0
    monkeypatch.setattr(task_crew, "perf_counter", lambda: next(looks) / 1000 + passed)
    others_take = itertools.chain([0, 0.010, 0.100], itertools.repeat(0))

    def others() -> None:
        nonlocal passed
        passed += next(others_take)

    def bursts() -> Iterator[int]:
        nonlocal passed
        yield 2_000
        passed += 10  # in which there was nothing to do: that is not the others' time
        yield 2_000

    for turns, milliseconds in zip(turns_of(subscription, bursts(), others), ([0, 20, 50], [0, 0]), strict=True):
        found = [round(turn / task_crew.BETWEEN_LOOKS, -1) for turn in turns if turn]
        assert found[: len(milliseconds)] == milliseconds


def test_messages_for_tasks_are_taken_in_bursts(subscription: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    take = MessageQueue.take

    def counted(*arguments: Any, **more: Any) -> list[Message]:
        taken = take(*arguments, **more)
        found.append(len(taken))
        return taken

    monkeypatch.setattr(MessageQueue, "take", counted)
    turns_of(subscription, [3 * task_crew.BURST])
    assert [*filter(None, found)] == [task_crew.BURST] * 3


def test_answers_of_handlers_that_end_together_travel_together(
    subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[int] = []
    settle = MessageQueue.settle

    def counted(queue: MessageQueue, name: str, acks: Sequence[int], nacks: Sequence[int]) -> list[int]:
        settled.append(len(acks))
        return settle(queue, name, acks, nacks)

    monkeypatch.setattr(MessageQueue, "settle", counted)

    async def main() -> None:
        together, all_answered = asyncio.Barrier(50), asyncio.Event()
        answers: list[Pending[None]] = []

        async def handle(message: Message) -> None:
            await together.wait()
            answers.append(message.ack())
            if len(answers) == 50:
                all_answered.set()

        publish(subscription, 50)
        subscription.on("message", handle).open()
        await all_answered.wait()
        for answer in answers:
            await answer
        await subscription.close()

    asyncio.run(main())
    assert settled == [50]


def test_handlers_that_do_not_wait_keep_up_with_a_producer_on_their_loop(
    subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_crew, "perf_counter", lambda: 0.0)  # they are as fast as can be
    handled: list[Message] = []

    async def handle(message: Message) -> None:
        handled.append(message)
        message.ack()

    async def main() -> None:
        subscription.on("message", handle).open()
        for turn in range(1, 6):
            publish(subscription, 1_000)
            for _ in range(3):  # until the loop comes to them, and to what it is asked for then
                await asyncio.sleep(0)
            assert len(handled) == 1_000 * turn
        await subscription.close()

    asyncio.run(main())


# -- memory ----------------------------------------------------------------------------------------------


def test_a_broker_that_everybody_forgot_is_collected_although_it_has_timers() -> None:
    queue = MessageQueue()
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"ack_deadline": 600})
    queue.publish("orders", [Message(b"x")])
    messages = queue.pull("worker", 1)
    assert queue._timer is not None
    forgotten = weakref.ref(queue)
    del queue, messages
    gc.collect()
    assert forgotten() is None


def test_a_pubsub_that_everybody_forgot_is_collected() -> None:
    def use() -> weakref.ref[PubSub]:
        pubsub = PubSub("memory:")
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("worker").create().result()
        topic.publish_many([Message(b"x"), Message(b"y")]).result()
        for message in subscription:
            message.ack()
            break
        wait_until(lambda: not subscription._iterations)
        return weakref.ref(pubsub)

    forgotten = use()
    gc.collect()
    assert forgotten() is None


def test_what_is_closed_is_forgotten_by_its_connection(subscription: Subscription) -> None:
    connection = subscription._connection
    subscription.on("message", ack).open()
    assert connection._open
    subscription.close().result(PATIENCE_SECONDS)
    wait_until(lambda: not connection._open)
    publish(subscription, 3)
    for _ in range(3):
        for message in subscription:
            message.ack()
            break
    wait_until(lambda: not connection._open)
    assert subscription._iterations == set()


def test_a_loop_may_be_collected_while_any_lock_is_held() -> None:
    """The garbage collector runs when it likes, for instance in the middle of a publish."""
    queue = MessageQueue()
    pubsub = PubSub(queue)
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create().result()
    topic.publish_many([Message(b"1"), Message(b"2")]).result()

    def leave_in_a_cycle() -> None:
        cycle: list[Any] = [iter(subscription)]
        cycle.append(cycle)
        next(cycle[0]).ack()

    gc.collect()
    gc.disable()
    try:
        leave_in_a_cycle()
        with queue._lock, subscription._connection._lock:
            gc.collect()
    finally:
        gc.enable()
    wait_until(lambda: not subscription._iterations)
    [message] = subscription.pull(10).result()
    assert message.data == b"2"
    pubsub.close().result()


def test_a_handler_may_be_collected_while_any_lock_is_held(caplog: pytest.LogCaptureFixture) -> None:
    """As one that waits on a loop that was closed: what it holds cannot go back from inside the garbage collector."""
    queue = MessageQueue()
    subscription = PubSub(queue).topic("orders").create().result().subscription("worker").create().result()

    async def begin() -> None:
        async def handle(message: Message) -> None:
            waits.set()
            await asyncio.Event().wait()

        waits = asyncio.Event()
        subscription.on("message", handle).on("error", lambda error: errors.append(error)).open()
        publish(subscription)
        await waits.wait()

    errors: list[BaseException] = []
    gc.collect()
    gc.disable()
    try:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.close()
        subscription._stream._crew._workers.clear()  # type: ignore[union-attr]  # as a crew that is garbage, too
        del loop
        with queue._lock:
            gc.collect()
    finally:
        gc.enable()
    assert not errors
    queue.close()


def test_a_loop_that_was_closed_keeps_no_message_although_it_was_woken_before() -> None:
    clock = ManualClock()
    queue = MessageQueue(clock=clock)
    subscription = PubSub(queue).topic("orders").create().result().subscription("worker").create().result()

    async def begin() -> None:
        async def handle(message: Message) -> None:
            waits.set()
            await asyncio.Event().wait()

        waits = asyncio.Event()
        subscription.on("message", handle).open()
        publish(subscription)
        await waits.wait()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    publish(subscription)  # which asks the loop for another worker
    loop.close()
    clock.advance(60)
    assert len(subscription.pull(10).result()) == 2
    queue.close()


def test_whoever_finds_a_loop_closed_may_be_on_another_one() -> None:
    """The end of a consumer is none of a publisher's business."""
    pubsub = PubSub("memory:")
    topic = pubsub.topic("orders").create().result()
    subscription = topic.subscription("worker").create().result()
    told = threading.Event()

    async def handle(message: Message) -> None:
        message.ack()

    async def closed() -> None:
        told.set()

    async def begin() -> None:
        subscription.on("message", handle).on("close", closed).open()
        await asyncio.sleep(0)

    async def go_on() -> None:
        assert await topic.publish_message(b"1", ordering_key="k")

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    asyncio.run(go_on())
    assert topic.paused_keys() == []
    pubsub.close().result(PATIENCE_SECONDS)
    assert told.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("handler", [ack, None], ids=["def", "async def"])
def test_a_handler_that_waits_for_room_does_not_keep_it_from_closing(handler: object) -> None:
    pubsub = PubSub("memory:")
    first, second = (pubsub.topic(name).create().result() for name in ("first", "second"))
    limits = QueueLimits(max_messages=1, when_full="block")
    second.subscription("full").create(queue_limits=limits).result()
    second.publish_message(b"fills it").result()
    worker = first.subscription("worker").create().result()
    begun = threading.Event()
    seen: list[BaseException] = []

    def forward(message: Message) -> None:
        begun.set()
        second.publish_message(message.data).result()

    async def forward_later(message: Message) -> None:
        begun.set()
        await second.publish_message(message.data)

    worker.on("error", seen.append).on("message", forward_later if handler is None else forward).open()
    first.publish_message(b"1").result()
    assert begun.wait(PATIENCE_SECONDS)
    pubsub.close().result(PATIENCE_SECONDS)
    assert [type(error) for error in seen] == [Closed]


def test_a_handler_that_waits_for_what_is_collected_does_not_keep_it_from_closing() -> None:
    pubsub = PubSub("memory:")
    first, second = (pubsub.topic(name).create().result() for name in ("first", "second"))
    second.set_publish_options(batching=Batching(max_messages=1_000, max_milliseconds=60_000))
    begun = threading.Event()
    forwarded: list[str] = []

    def forward(message: Message) -> None:
        answer = second.publish_message(message.data)
        begun.set()
        forwarded.append(answer.result())
        message.ack()

    first.subscription("worker").create().result().on("message", forward).open()
    first.publish_message(b"1").result()
    assert begun.wait(PATIENCE_SECONDS)
    pubsub.close().result(PATIENCE_SECONDS)
    assert len(forwarded) == 1


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("waits", [False, True], ids=["def", "async def"])
def test_listeners_that_fail_stop_nothing(
    subscription: Subscription, waits: bool, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []

    def fail(*_: object) -> None:
        raise error

    async def fail_later(*_: object) -> None:
        raise error

    def handle(message: Message) -> None:
        seen.append(message.data)
        if len(seen) == 1:
            raise ValueError
        message.ack()

    async def handle_later(message: Message) -> None:
        handle(message)

    listener = fail_later if waits else fail
    subscription.on("error", listener).on("close", listener)
    subscription.on("message", handle_later if waits else handle).open()
    publish(subscription, 2)
    wait_until(lambda: not subscription.metrics().result().backlog_messages)
    subscription.close().result(PATIENCE_SECONDS)
    assert (len(seen), {*seen}) == (3, {b"0", b"1"})
    assert error.__name__ in caplog.text


def test_a_loop_that_never_began_leaves_nothing() -> None:
    queue = MessageQueue()
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    iter(PubSub(queue).subscription("worker"))
    assert queue._watchers == {}


# -- leases ----------------------------------------------------------------------------------------------


def test_a_handler_that_runs_for_an_hour_keeps_its_message() -> None:
    clock = ManualClock()
    queue = MessageQueue(clock=clock)
    with PubSub(queue) as pubsub:
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("worker").create(enable_message_ordering=True, ack_deadline=10).result()
        go_on = threading.Event()
        attempts: list[int] = []

        def handle(message: Message) -> None:
            attempts.append(message.delivery_attempt)
            assert go_on.wait(PATIENCE_SECONDS)
            message.ack()

        subscription.on("message", handle).open()
        topic.publish_message(b"x", ordering_key="k").result()
        wait_until(lambda: attempts)
        clock.advance(3600)
        go_on.set()
        wait_until(lambda: not subscription.metrics().result().backlog_messages)
        counters = subscription.metrics().result().counters
        assert (attempts, counters.expired, counters.acked) == ([1], 0, 1)


def test_a_message_without_an_answer_comes_again_exactly_one_deadline_later() -> None:
    clock = ManualClock()
    with PubSub(MessageQueue(clock=clock)) as pubsub:
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("worker").create(enable_message_ordering=True, ack_deadline=10).result()
        attempts: list[int] = []
        subscription.on("message", lambda message: attempts.append(message.delivery_attempt)).open()
        topic.publish_message(b"x", ordering_key="k").result()
        wait_until(lambda: attempts == [1])
        wait_until(lambda: len(subscription._stream._intake._left) == 1)  # type: ignore[union-attr]
        clock.advance(9.99)
        assert subscription.metrics().result().counters.expired == 0
        clock.advance(0.02)
        wait_until(lambda: attempts == [1, 2])


def test_no_timer_is_left_when_nothing_is_held() -> None:
    clock = ManualClock()
    with PubSub(MessageQueue(clock=clock)) as pubsub:
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("worker").create().result()
        subscription.on("message", ack).open()
        topic.publish_message(b"x").result()
        wait_until(lambda: not subscription.metrics().result().backlog_messages)
        clock.advance(20)
        assert subscription._stream._intake._timer is None  # type: ignore[union-attr]


def test_handlers_that_wait_for_each_other_all_run() -> None:
    """Threads that take, answer and end at the same moments leave no message behind until another one is done."""
    keys = 4
    together = threading.Barrier(keys, timeout=PATIENCE_SECONDS)
    done = threading.Semaphore(0)

    def handle(message: Message) -> None:
        together.wait()
        message.ack()
        done.release()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    try:
        with PubSub("memory:") as pubsub:
            topic = pubsub.topic("orders").create().result()
            subscription = topic.subscription("worker").create(enable_message_ordering=True).result()
            subscription.on("message", handle).open()
            for _ in range(2_000):
                for key in range(keys):
                    topic.publish_message(b"x", ordering_key=f"{key}").result()
                for _ in range(keys):
                    assert done.acquire(timeout=PATIENCE_SECONDS)
    finally:
        sys.setswitchinterval(interval)


def test_a_generator_is_no_handler() -> None:
    def handle(message: Message) -> Iterator[None]:
        yield

    class Handle:
        async def __call__(self, message: Message) -> Any:
            yield

    with PubSub(MessageQueue(clock=ManualClock())) as pubsub:
        subscription = pubsub.topic("orders").subscription("worker")
        for handler in (handle, Handle()):
            with pytest.raises(InvalidArgument, match="message handler: a def or an async def, not a generator"):
                subscription.on("message", handler)
