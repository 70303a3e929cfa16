"""What only a broker on disk can show: what happens while messages are on their way there, and when it fails."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.core import subscription as core
from inorder.errors import InorderError, InvalidAckId, JournalFailed
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.message import Gap, Message, batch_of
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.testing.faults import Faults, FaultyDisk

from .interrupts import is_interrupted

PATIENCE_SECONDS = 30


class Brokers:
    """Opens brokers on one disk."""

    def __init__(self) -> None:
        self.disk = FaultyDisk(0)
        self.clock = ManualClock()
        self.queue = self.open()
        self.queue.register_topic("orders")

    def open(self, **options: Any) -> MessageQueue:
        return MessageQueue(self.clock, Journal(SegmentStore(self.disk, segment_bytes=2000), **options))

    def reopen(self) -> MessageQueue:
        self.queue.close()
        self.queue = self.open()
        return self.queue

    def subscribe(self, name: str, **options: Any) -> None:
        self.queue.register_subscription(name, "orders", {"enable_message_ordering": True, **options})

    def send(self, *keys: str) -> Pending[list[str]]:
        """Publish, and do not write it yet: others may come first."""
        return self.queue._submit("orders", batch_of([Message(b"x", ordering_key=key) for key in keys]))

    def came(self, name: str = "worker") -> list[int | None]:
        """The positions of all that is pulled, acked one by one."""
        positions = []
        while messages := self.queue.pull(name, 10):
            positions += [message.position for message in messages]
            self.queue.ack([message.ack_id for message in messages])
        return positions


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


# -- on the way to disk ----------------------------------------------------------------------------


def test_a_seek_to_a_time_does_not_pass_over_what_is_on_its_way_to_disk(brokers: Brokers) -> None:
    brokers.subscribe("worker")
    answer = brokers.send("a")
    brokers.queue.seek("worker", time=brokers.clock.now_us() / 1e6 - 10)
    assert answer.done()
    assert brokers.came() == [0]


def test_a_seek_to_a_later_time_passes_over_what_is_on_its_way_to_disk(brokers: Brokers) -> None:
    brokers.subscribe("worker")
    brokers.send("a")
    brokers.queue.seek("worker", time=brokers.clock.now_us() / 1e6 + 10)
    assert brokers.came() == []
    brokers.queue.publish("orders", [Message(b"x")])
    assert brokers.came() == [1]


def test_a_seek_to_the_end_is_possible_while_others_publish(brokers: Brokers) -> None:
    brokers.subscribe("worker")
    brokers.queue.publish("orders", [Message(b"x")])
    assert brokers.came() == [0]
    brokers.send("a")
    brokers.queue.seek("worker", position=1)
    assert brokers.came() == [1]


def test_a_new_subscription_does_not_get_what_was_published_before(brokers: Brokers) -> None:
    brokers.send("a", "a")
    brokers.subscribe("worker")
    brokers.send("a")
    brokers.queue.durable().result(timeout=PATIENCE_SECONDS)
    assert brokers.came() == [2]


def test_a_new_subscription_is_not_told_what_an_old_one_of_its_name_missed(brokers: Brokers) -> None:
    brokers.subscribe("worker", queue_limits={"max_messages": 1})
    brokers.send("a", "a", "a")
    brokers.queue.unregister_subscription("worker")
    brokers.send("a", "a", "a")
    brokers.subscribe("worker", queue_limits={"max_messages": 5})
    gaps: list[Gap] = []
    brokers.queue.publish("orders", [Message(b"x", ordering_key="a")])
    assert [message.position for message in brokers.queue.pull("worker", 10, gaps.append)] == [6]
    assert not gaps


@pytest.mark.parametrize("position", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("retained", [False, True])
def test_a_seek_past_messages_on_their_way_means_the_same_after_a_restart(
    brokers: Brokers, position: int, retained: bool
) -> None:
    brokers.subscribe("worker", queue_limits={"max_messages": 2}, retain_acked_messages=retained)
    brokers.send("a", "a", "a", "a")
    brokers.queue.seek("worker", position=position)
    state = brokers.queue._state
    before = state.book()
    brokers.disk.kill()
    brokers.queue = brokers.open()
    assert brokers.queue._state.book() == before


@pytest.mark.parametrize("ordered", [False, True])
def test_rules_of_order_that_change_while_messages_are_on_their_way_mean_the_same_after_a_crash(
    brokers: Brokers, ordered: bool
) -> None:
    brokers.subscribe("worker", enable_message_ordering=ordered, queue_limits={"max_messages": 1})
    brokers.send("a", "a", "a")  # two of them are dropped, and told or not
    brokers.queue.update_subscription("worker", {"enable_message_ordering": not ordered})
    before = brokers.queue._state.book()
    assert bool(before.subscriptions["worker"].gaps) == ordered
    brokers.disk.kill()
    brokers.queue = brokers.open()
    assert brokers.queue._state.book() == before


def test_a_topic_that_is_deleted_and_made_again_does_not_get_what_was_on_its_way(brokers: Brokers) -> None:
    brokers.subscribe("old")
    answer = brokers.send("a", "a")
    brokers.queue.unregister_topic("orders")
    brokers.queue.register_topic("orders")
    brokers.subscribe("worker")
    brokers.queue.publish("orders", [Message(b"x")])
    assert answer.done()
    assert brokers.came() == [0]
    brokers.reopen()
    assert brokers.came("old") == []
    assert brokers.queue.get_topic("orders").published == 1  # type: ignore[union-attr]


def test_a_deadline_of_zero_is_answered_when_it_is_on_disk(brokers: Brokers) -> None:
    brokers.subscribe("worker")
    brokers.queue.publish("orders", [Message(b"x")])
    (message,) = brokers.queue.pull("worker", 1)
    brokers.queue.modify_ack_deadline(message.ack_id, 0)
    brokers.disk.kill()
    brokers.queue = brokers.open()
    assert [message.delivery_attempt for message in brokers.queue.pull("worker", 1)] == [2]


# -- when it fails ---------------------------------------------------------------------------------


def fail(brokers: Brokers) -> None:
    brokers.disk.faults = Faults(write_error=1)


def test_everybody_is_told_that_the_disk_failed(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="inorder")
    brokers.subscribe("worker", queue_limits={"max_messages": 1, "when_full": "block"})
    brokers.queue.publish("orders", [Message(b"x")])
    (message,) = brokers.queue.pull("worker", 1)
    waiting = brokers.send("a")
    assert not waiting.done()  # there is no room
    fail(brokers)
    for call in (
        lambda: brokers.queue.register_topic("others"),
        lambda: brokers.queue.ack(message.ack_id),
        lambda: brokers.queue.pull("worker", 1),
        lambda: brokers.queue.publish("orders", [Message(b"x")]),
        lambda: brokers.queue.seek("worker", position=0),
        lambda: brokers.queue.metrics("worker"),
        message.ack().result,
        waiting.result,
    ):
        with pytest.raises(JournalFailed):
            call()  # type: ignore[operator]
    brokers.clock.advance(1000)  # the timer of the lease finds nothing to do
    brokers.queue.close()
    brokers.disk.kill()
    brokers.queue = brokers.open()
    assert brokers.came() == [0]


def test_the_listeners_of_a_consumer_hear_that_the_disk_failed(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="inorder")
    brokers.queue.close()
    brokers.queue = MessageQueue(journal=Journal(SegmentStore(brokers.disk)))
    heard: list[BaseException] = []
    told = threading.Event()

    def hear(error: BaseException) -> None:
        heard.append(error)
        told.set()

    pubsub = PubSub(brokers.queue)
    brokers.subscribe("worker")
    subscription = pubsub.subscription("worker")
    subscription.on("message", lambda message: message.ack())
    subscription.on("error", hear).open()
    fail(brokers)
    with pytest.raises(JournalFailed):
        brokers.queue.publish("orders", [Message(b"x")])
    assert told.wait(PATIENCE_SECONDS)
    assert isinstance(heard[0], JournalFailed)
    pubsub.close()


class Interrupting(FaultyDisk):
    """Somebody presses Ctrl-C while a write, or a sync, is under way."""

    armed = armed_for_sync = False

    def _write(self, file: Any, position: int, data: bytes) -> int:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return super()._write(file, position, data)

    def _sync(self, file: Any) -> None:
        if self.armed_for_sync:
            self.armed_for_sync = False
            raise KeyboardInterrupt
        super()._sync(file)


def test_a_broker_whose_write_was_interrupted_stops_and_answers_everybody(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="inorder")
    brokers.queue.close()
    disk = brokers.disk = Interrupting(0)
    brokers.queue = brokers.open()
    brokers.queue.register_topic("orders")
    brokers.subscribe("worker")
    waiting = brokers.send("a")
    disk.armed = True
    with pytest.raises(KeyboardInterrupt):
        brokers.queue.publish("orders", [Message(b"x", ordering_key="a")])
    assert waiting.done()
    with pytest.raises(InorderError):
        waiting.result()
    with pytest.raises(InorderError):
        brokers.queue.publish("orders", [Message(b"y", ordering_key="a")])
    brokers.queue.close()
    brokers.queue = brokers.open()
    brokers.queue.publish("orders", [Message(b"z", ordering_key="a")])
    assert brokers.came() == [0]


def test_a_sync_that_was_interrupted_is_made_up_for_by_the_next_one(brokers: Brokers) -> None:
    brokers.queue.close()
    disk = brokers.disk = Interrupting(0)
    brokers.queue = MessageQueue(brokers.clock, Journal(SegmentStore(disk)), sync="none")
    brokers.queue.register_topic("orders")
    brokers.subscribe("worker")
    brokers.queue.publish("orders", [Message(b"x")])
    disk.armed_for_sync = True
    with pytest.raises(KeyboardInterrupt):
        brokers.queue.sync()
    brokers.queue.sync()
    disk.restart_without_the_unsynced()
    brokers.queue = brokers.open()
    assert brokers.came() == [0]


CALLS: dict[str, Callable[[MessageQueue, Message], object]] = {
    "publish": lambda queue, _: queue.publish("orders", [Message(b"x", ordering_key="a")]),
    "ack": lambda queue, message: queue.ack(message.ack_id),
    "nack": lambda queue, message: queue.nack(message.ack_id),
    "register": lambda queue, _: queue.register_subscription("other", "orders"),
    "delete": lambda queue, _: queue.unregister_topic("dead"),
}


@pytest.mark.parametrize("call", CALLS)
def test_ctrl_c_at_any_step_of_a_call_leaves_a_journal_that_opens_and_has_what_was_answered(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="inorder")
    step, went_through = 0, False
    while not went_through:
        step += 1
        brokers = Brokers()
        brokers.queue.register_topic("dead")
        brokers.subscribe("worker", dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 1})
        brokers.queue.publish("orders", [Message(b"0", ordering_key="a"), Message(b"1", ordering_key="a")])
        [out] = brokers.queue.pull("worker", 1)
        went_through = not is_interrupted(partial(CALLS[call], brokers.queue, out), step)
        answered = {1}
        for _ in range(2):  # it goes on, or says that it has stopped
            with suppress(InorderError):
                [last] = brokers.queue.publish("orders", [Message(b"y", ordering_key="a")])
                answered.add(int(last.rpartition("-")[2]))
        with suppress(InorderError):
            brokers.queue.close()
        brokers.disk.kill()
        brokers.queue = brokers.open()
        came = brokers.came()
        assert came == sorted(came), f"step {step}"  # type: ignore[type-var]
        assert answered <= {*came}, f"step {step}"
        brokers.queue.close()
    assert step > 50


def test_ctrl_c_at_any_step_of_a_write_leaves_nobody_without_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="inorder")
    step, went_through = 0, False
    while not went_through:
        step += 1
        brokers = Brokers()
        others = [brokers.send("a"), brokers.send("b"), brokers.queue.durable()]
        publish = partial(brokers.queue.publish, "orders", [Message(b"x")])
        went_through = not is_interrupted(publish, step, "inorder.commits", "inorder.pending")
        with suppress(InorderError):  # it may say that it has stopped
            brokers.queue.close()
        assert all(answer.done() for answer in others), f"step {step}"
    assert step > 15


def test_ctrl_c_while_a_thread_is_asked_to_sync_later_keeps_nobody_from_closing(tmp_path: Path) -> None:
    step, went_through = 0, False
    while not went_through:
        step += 1
        queue = MessageQueue.open(tmp_path / str(step), sync="interval", sync_seconds=0.001)
        queue.register_topic("orders")
        commits = queue._commits
        assert commits is not None
        while commits._sync_at is not None or not commits._idle:  # until a thread waits to be asked
            if not commits._asked and commits._sync_at is None:
                queue.publish("orders", [Message(b"w")])  # it has waited long enough and ended, or is about to wait
            time.sleep(0.005)
        publish = partial(queue.publish, "orders", [Message(b"x")])
        went_through = not is_interrupted(publish, step, "inorder.commits", "threading")
        closed = threading.Event()

        def close(queue: MessageQueue = queue, closed: threading.Event = closed) -> None:
            with suppress(InorderError):  # it may say that it has stopped
                queue.close()
            closed.set()

        threading.Thread(target=close, daemon=True).start()
        assert closed.wait(PATIENCE_SECONDS), f"step {step}"
    assert step > 15


# -- snapshots -------------------------------------------------------------------------------------


def test_snapshots_are_saved_however_busy_the_publishers_are(brokers: Brokers) -> None:
    brokers.queue.close()
    brokers.queue = brokers.open(snapshot_bytes=2000)
    brokers.subscribe("worker")
    journal = brokers.queue._journal
    assert journal is not None
    done = threading.Event()
    append = journal.store.append

    def busy(body: Sequence[bytes]) -> int:
        """While one group is written, somebody always adds to the next."""
        if not done.is_set() and not brokers.queue._lock.locked():
            brokers.send("a")
        return append(body)

    journal.store.append = busy  # type: ignore[method-assign]
    for _ in range(300):
        brokers.queue.publish("orders", [Message(b"x" * 50, ordering_key="a")])
    assert any(name.endswith(".snapshot") for name in brokers.disk.names())
    assert journal.unsaved < 4000
    done.set()
    brokers.reopen()
    assert len(brokers.came()) > 500


@pytest.mark.parametrize("waits", [0, 1])
def test_of_messages_that_waited_and_are_of_one_key_now_the_same_one_is_skipped_before_and_after_a_crash(
    brokers: Brokers, waits: int
) -> None:
    brokers.subscribe("worker", enable_message_ordering=False, retry_policy={"minimum_backoff": 1})
    brokers.queue.publish("orders", [Message(b"first", ordering_key="a"), Message(b"second", ordering_key="a")])
    out = brokers.queue.pull("worker", 2)
    waiting, other = out[waits], out[1 - waits]
    brokers.queue.nack(other)
    brokers.clock.advance(1)  # it waits no longer
    brokers.queue.nack(waiting)
    brokers.queue.update_subscription("worker", {"enable_message_ordering": True})
    skipped = brokers.queue.skip("worker", "a")

    brokers.disk.kill()  # and no snapshot was saved
    brokers.queue = brokers.open()

    assert brokers.came() == [one.position for one in out if one.id != skipped]
    assert skipped == waiting.id


def test_fencing_tokens_grow_with_each_delivery_and_over_restarts() -> None:
    brokers = Brokers()
    brokers.subscribe("s", ack_deadline_seconds=1)
    brokers.queue.publish("orders", [Message(b"x", ordering_key="a")])
    tokens = []
    for _ in range(3):
        tokens += [message.fencing_token for message in brokers.queue.pull("s", 1)]
        brokers.clock.advance(2)
        tokens += [message.fencing_token for message in brokers.queue.pull("s", 1)]
        brokers.clock.advance(2)
        brokers.reopen()
    assert len(tokens) == 6
    assert tokens == sorted(set(tokens))


def test_closing_tells_that_what_was_answered_could_not_be_synced() -> None:
    brokers = Brokers()
    brokers.subscribe("s")
    brokers.queue.publish("orders", [Message(b"x", ordering_key="a")])
    [message] = brokers.queue.pull("s", 1)
    brokers.disk.faults = Faults(sync_error=1)
    brokers.queue.nack(message.ack_id)  # answered when it is written
    with pytest.raises(JournalFailed, match="sync"):
        brokers.queue.close()
    brokers.queue.close()  # which is told once


def consumed(queue: MessageQueue, subscription: str = "billing") -> list[object]:
    found: list[object] = []
    while messages := queue.take(subscription, 1):
        for message in messages:
            data: object = message.data
            found.append((data.reason, data.count) if isinstance(data, Gap) else message.data.strip())
        queue.ack(messages)
    return found


@pytest.mark.parametrize("key", ["k", None])
def test_what_fits_is_not_lost_when_the_limit_goes_before_it_is_visible(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "READ_AHEAD", 3)
    queue = MessageQueue(ManualClock(), Journal(SegmentStore(FaultyDisk(0))))
    assert queue._commits is not None
    queue._commits._ask = lambda: None  # type: ignore[method-assign]  # who writes is busy
    queue.register_topic("orders")
    limits = {"max_messages": 4, "max_bytes": None, "when_full": "drop"}
    queue.register_subscription("billing", "orders", {"message_ordering": True, "queue_limits": limits})
    queue.publish("orders", [Message(text, ordering_key=key) for text in (b"1", b"2", b"3")])
    answer = queue.submit("orders", batch_of([Message(text, ordering_key=key) for text in (b"fits", b"dropped")]))
    queue.update_subscription("billing", {"queue_limits": None})  # and what was published becomes visible with it
    assert len(answer.result()) == 2
    queue.publish("orders", [Message(b"last", ordering_key=key)])
    assert consumed(queue) == [b"1", b"2", b"3", b"fits", *([("dropped", 1)] if key else []), b"last"]


def test_acks_beside_an_invalid_one_are_written() -> None:
    queue = MessageQueue(ManualClock(), Journal(SegmentStore(FaultyDisk(0))))
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    queue.publish("orders", [Message(b"1")])
    [message] = queue.pull("billing", 1)
    assert queue._commits is not None
    with pytest.raises(InvalidAckId):
        queue.ack([message.ack_id, "unknown"])
    assert not queue._commits.waiting()  # a kill would undo it
    queue.close()


def test_dead_letters_of_a_nack_beside_an_invalid_one_come() -> None:
    queue = MessageQueue(ManualClock(), Journal(SegmentStore(FaultyDisk(0))))
    queue.register_topic("orders")
    queue.register_topic("dead")
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    queue.register_subscription("billing", "orders", {"dead_letter_policy": policy})
    queue.register_subscription("letters", "dead")
    queue.publish("orders", [Message(b"1")])
    [message] = queue.pull("billing", 1)
    with pytest.raises(InvalidAckId):
        queue.nack([message.ack_id, "unknown"])
    assert consumed(queue, "letters") == [b"1"]


@pytest.mark.parametrize("journal", ["segments", "sqlite"])
def test_a_closed_broker_has_no_file_open(tmp_path: Path, journal: Any) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("no /proc here to see open files in")
    broker = MessageQueue.open(tmp_path, journal=journal)
    broker.register_topic("orders")
    broker.publish("orders", [Message(b"x")])
    broker.close()
    found: list[str] = []
    for one in descriptors.iterdir():
        with suppress(FileNotFoundError):  # that of the folder that is looked at
            found.append(os.readlink(one))
    assert [name for name in found if name.startswith(str(tmp_path))] == []
    assert broker.failure is None  # it is still there
