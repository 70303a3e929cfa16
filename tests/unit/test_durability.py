"""What a broker on disk promises beyond one in memory, on a disk that fails, forgets and takes its time."""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from inorder import commits
from inorder.broker import MessageQueue
from inorder.core import subscription as core
from inorder.errors import Closed, DataLoss, JournalFailed, JournalInUse
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.message import Batch, Message, batch_of
from inorder.testing import ManualClock
from inorder.testing.faults import Faults, FaultyDisk
from inorder.transport.embedded import EmbeddedDeliveries

PATIENCE_SECONDS = 30
ORDERED = {"enable_message_ordering": True}


def on(disk: FaultyDisk, clock: ManualClock | None = None, **options: Any) -> MessageQueue:
    return MessageQueue(clock or ManualClock(), Journal(SegmentStore(disk)), sync_seconds=3600, **options)


def with_a_topic(disk: FaultyDisk, clock: ManualClock | None = None, **options: Any) -> MessageQueue:
    queue = on(disk, clock, **options)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders", ORDERED)
    return queue


def data(queue: MessageQueue) -> list[bytes]:
    return [message.data for message in queue.pull("billing", 100)]


def test_an_answered_publish_survives_a_power_cut() -> None:
    disk = FaultyDisk(0)
    with_a_topic(disk).publish("orders", [Message(b"1"), Message(b"2")])
    disk.restart_without_the_unsynced()
    assert data(on(disk)) == [b"1", b"2"]


def test_the_answered_ack_of_a_message_survives_a_power_cut() -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    queue.publish("orders", [Message(b"1"), Message(b"2")])
    [message] = queue.pull("billing", 1)
    message.ack().result()
    disk.restart_without_the_unsynced()
    assert data(on(disk)) == [b"2"]


def test_an_answered_ack_survives_the_end_of_the_process() -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    queue.publish("orders", [Message(b"1"), Message(b"2")])
    queue.ack([message.ack_id for message in queue.pull("billing", 1)])
    disk.kill()
    assert data(on(disk)) == [b"2"]


def test_an_answered_ack_is_synced_with_the_next_publish() -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    queue.publish("orders", [Message(b"1")])
    queue.ack([message.ack_id for message in queue.pull("billing", 1)])
    queue.publish("orders", [Message(b"2")])
    disk.restart_without_the_unsynced()
    assert data(on(disk)) == [b"2"]


def test_the_latest_acks_may_be_undone_by_a_power_cut_and_nothing_else_is() -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    queue.publish("orders", [Message(b"1"), Message(b"2")])
    queue.ack([message.ack_id for message in queue.pull("billing", 1)])
    disk.restart_without_the_unsynced()
    assert data(on(disk)) == [b"1", b"2"]


@pytest.mark.parametrize("sync", ["interval", "none"])
def test_without_a_sync_a_publish_survives_the_process_but_not_the_machine(sync: str) -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk, sync=sync)
    queue.publish("orders", [Message(b"1")])
    disk.kill()
    queue = on(disk, sync=sync)  # opening syncs what it finds
    queue.publish("orders", [Message(b"2")])
    disk.restart_without_the_unsynced()
    assert data(on(disk)) == [b"1"]


class SlowDisk(FaultyDisk):
    """A disk whose segments are synced when a test allows it."""

    def __init__(self) -> None:
        super().__init__(0)
        self.syncing, self.allowed = threading.Event(), threading.Event()

    def open(self, name: str, *, write: bool = False) -> Any:
        return _Slow(super().open(name, write=write), self)


class _Slow:
    def __init__(self, file: Any, disk: SlowDisk) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def sync(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._disk.syncing.set()
            assert self._disk.allowed.wait(10)
        self._file.sync()


def batch(*messages: bytes) -> Batch:
    return batch_of([Message(message) for message in messages])


# -- who writes ------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, loops_in_time: None) -> None:
    """The disk syncs quickly, and the loop has its turn, however busy the machine is."""
    monkeypatch.setattr(commits, "QUICK_SECONDS", PATIENCE_SECONDS)


class NotingDisk(FaultyDisk):
    """Remembers the threads that have written segments, or synced them."""

    def __init__(self) -> None:
        super().__init__(0)
        self.threads: set[str] = set()

    def _write(self, *args: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        return super()._write(*args)

    def _sync(self, *args: Any) -> Any:
        self.threads.add(threading.current_thread().name)
        return super()._sync(*args)


def on_a_loop(call: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return await call()

    return asyncio.run(run())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("sync", ["commit", "interval", "none"])
def test_a_loop_writes_what_its_tasks_publish_at_the_end_of_its_turn(sync: str) -> None:
    disk = NotingDisk()
    queue = with_a_topic(disk, sync=sync)
    give_up = time.monotonic() + PATIENCE_SECONDS
    while sync == "interval" and not queue._commits._idle:  # type: ignore[union-attr]
        assert time.monotonic() < give_up  # the thread that will sync has nothing to do before
        time.sleep(0.001)
    commits_before, disk.threads = queue.commit_counters().commits, set()

    async def publish_three() -> list[Any]:
        answers = [queue.submit("orders", batch(b"%d" % number)) for number in range(3)]
        assert not any(answer.done() for answer in answers)
        return [await answer for answer in answers]

    asyncio.run(publish_three())
    assert queue.commit_counters().commits == commits_before + 1
    assert disk.threads == {"MainThread"}
    disk.kill()
    assert data(on(disk)) == [b"0", b"1", b"2"]


def test_a_loop_does_not_wait_for_a_disk_that_syncs_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "QUICK_SECONDS", 0)
    disk = NotingDisk()
    queue = with_a_topic(disk)
    disk.threads = set()
    on_a_loop(lambda: queue.submit("orders", batch(b"1")))
    assert disk.threads == {"inorder-journal"}


@pytest.mark.usefixtures("quick")
def test_a_loop_whose_thread_waits_for_an_answer_has_written_what_it_waits_for() -> None:
    queue = with_a_topic(FaultyDisk(0))

    async def publish() -> None:
        assert queue.submit("orders", batch(b"1")).result(PATIENCE_SECONDS)

    asyncio.run(publish())


@pytest.mark.parametrize("sync", ["commit", "interval", "none"])
def test_what_a_loop_that_was_stopped_has_left_is_written_by_another_thread(
    sync: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "QUICK_SECONDS", PATIENCE_SECONDS)
    queue = with_a_topic(FaultyDisk(0), sync=sync)
    answers: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.call_soon(loop.stop)
    loop.call_soon(lambda: answers.append(queue.submit("orders", batch(b"1"))))
    loop.run_forever()
    loop.close()
    assert answers[0].result(PATIENCE_SECONDS)


def test_what_comes_while_another_thread_syncs_is_written_afterwards() -> None:
    disk = SlowDisk()
    with_a_topic(disk).close()
    queue = MessageQueue(ManualClock(), Journal(SegmentStore(disk)), sync="interval", sync_seconds=0.001)
    queue.submit("orders", batch(b"1")).result(PATIENCE_SECONDS)
    assert disk.syncing.wait(PATIENCE_SECONDS)

    async def publish() -> None:
        answer = queue.submit("orders", batch(b"2"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not answer.done()
        disk.allowed.set()
        await asyncio.wait_for(asyncio.to_thread(answer.result), PATIENCE_SECONDS)

    asyncio.run(publish())


def test_one_thread_waits_to_write_what_comes_while_another_syncs() -> None:
    disk = SlowDisk()
    with_a_topic(disk).close()
    queue = on(disk)

    def writers() -> int:
        return sum(thread.name == "inorder-journal" for thread in threading.enumerate())

    before = writers()  # of other tests
    answers = [queue.submit("orders", batch(b"0"))]
    assert disk.syncing.wait(PATIENCE_SECONDS)
    for number in range(1, 100):
        answers.append(queue.submit("orders", batch(b"%d" % number)))
        give_up = time.monotonic() + PATIENCE_SECONDS
        while queue._commits._asked:  # type: ignore[union-attr]
            assert time.monotonic() < give_up  # it is on its way, and waits for the first
            time.sleep(0.0001)
    assert writers() <= before + 2
    disk.allowed.set()
    assert len({answer.result(PATIENCE_SECONDS)[0] for answer in answers}) == 100


@pytest.mark.parametrize("sync", ["commit", "interval", "none"])
def test_who_asks_whether_all_is_written_when_the_broker_was_closed_is_told(sync: str) -> None:
    queue = with_a_topic(FaultyDisk(0), sync=sync)
    queue.publish("orders", [Message(b"1")])
    queue.settle("billing", queue.lease("billing", 1).leases, ())  # and before it asks for more, somebody closes
    queue.close()
    for asked in (queue.durable(), queue.written()):
        assert asked.result(PATIENCE_SECONDS) is None


def test_who_asks_whether_all_is_written_when_it_was_not_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    consumer = EmbeddedDeliveries(queue, "billing", lambda: None, lambda _: None)
    queue.publish("orders", [Message(b"1")])
    [lease] = queue.lease("billing", 1).leases
    settle = queue.settle

    def settle_before_it_is_closed(*args: Any) -> list[int]:
        over = settle(*args)
        disk.faults = Faults(sync_error=1)
        with pytest.raises(JournalFailed):
            queue.close()
        return over

    monkeypatch.setattr(queue, "settle", settle_before_it_is_closed)
    assert isinstance(consumer.settle([lease], ()).exception(PATIENCE_SECONDS), JournalFailed)


@pytest.mark.usefixtures("quick")
def test_answers_that_make_room_for_the_next_publish_come_to_no_end_of_the_stack() -> None:
    queue = on(FaultyDisk(0))
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders", {"queue_limits": {"max_messages": 1, "when_full": "block"}})
    handled: list[int] = []

    def handle(_: object) -> None:
        [lease] = queue.lease("billing", 1).leases
        queue.settle("billing", [lease], ())
        handled.append(lease)

    async def publish() -> None:
        answers = [queue.submit("orders", batch(b"")) for _ in range(1_000)]
        for answer in answers:
            answer.add_done_callback(handle)
        for answer in answers:
            await answer

    asyncio.run(publish())
    assert len(handled) == 1_000


@pytest.mark.usefixtures("quick")
def test_a_loop_does_not_save_the_books() -> None:
    savers: list[str] = []
    saved = threading.Event()

    class Noting(Journal):
        def snapshot(self, *arguments: Any) -> Any:
            savers.append(threading.current_thread().name)
            saved.set()
            return super().snapshot(*arguments)

    queue = MessageQueue(ManualClock(), Noting(SegmentStore(FaultyDisk(0)), snapshot_bytes=10_000))
    queue.register_topic("orders")

    async def publish() -> None:
        for _ in range(20):
            await queue.submit("orders", batch(bytes(1_000)))

    asyncio.run(publish())
    assert saved.wait(PATIENCE_SECONDS)
    assert set(savers) == {"inorder-journal"}


def test_a_message_is_seen_by_nobody_before_it_is_durable() -> None:
    disk = SlowDisk()
    with_a_topic(disk).close()
    queue = on(disk)  # which opens its segment again
    publisher = threading.Thread(target=queue.publish, args=("orders", [Message(b"1")]))
    publisher.start()
    assert disk.syncing.wait(10)
    assert data(queue) == []
    disk.allowed.set()
    publisher.join()
    assert data(queue) == [b"1"]
    queue.close()


@pytest.mark.parametrize("faults", [Faults(write_error=1), Faults(sync_error=1), Faults(capacity=0)])
def test_a_disk_that_fails_stops_the_broker_and_nothing_untrue_is_answered(faults: Faults) -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    queue.publish("orders", [Message(b"1")])
    disk.faults = faults
    for _ in range(2):
        with pytest.raises((JournalFailed, Closed), match="could not"):
            queue.publish("orders", [Message(b"2" * 100_000)])  # more than there is room for ahead of it
        with pytest.raises((JournalFailed, Closed), match="could not"):
            queue.pull("billing", 1)
    disk.restart_without_the_unsynced(Faults())
    assert data(on(disk)) in ([b"1"], [b"1", b"2" * 100_000])  # what was not answered may be there or not


def test_after_the_disk_has_failed_nobody_is_told_what_may_not_be_on_it() -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    disk.faults = Faults(sync_error=1)
    with pytest.raises(JournalFailed):
        queue.register_topic("invoices")
    looks: list[Callable[[], object]] = [
        lambda: queue.topic_exists("invoices"),
        lambda: queue.get_topic("orders"),
        queue.get_all_topics,
        lambda: queue.subscription_exists("billing"),
        lambda: queue.get_subscription("billing"),
        lambda: queue.get_subscriptions_for_topic("orders"),
        queue.get_all_subscriptions,
        lambda: queue.get_snapshot("now"),
        queue.get_all_snapshots,
        lambda: queue.has_written("orders", "writer", 1),
        lambda: queue.consumer("billing"),
        lambda: queue.prefixes("billing"),
    ]
    for look in looks:
        with pytest.raises(JournalFailed, match="could not sync"):
            look()


def test_nobody_waits_to_sync_what_a_disk_that_failed_has_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "IDLE_SECONDS", 0.001)
    before = set(threading.enumerate())
    disk = FaultyDisk(0)
    queue = MessageQueue(ManualClock(), Journal(SegmentStore(disk)), sync="interval", sync_seconds=0.001)
    queue.register_topic("orders")
    disk.faults = Faults(write_error=1, sync_error=1)
    with pytest.raises(JournalFailed):
        queue.publish("orders", [Message(b"1")])
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def test_damage_is_said_and_nothing_is_delivered_around_it() -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    for text in (b"one", b"two", b"three"):
        queue.publish("orders", [Message(text)])
    disk.kill()
    disk.flip_bit("00000001.log", disk.read("00000001.log").index(b"two"))
    with pytest.raises(DataLoss, match=r"00000001\.log, byte"):
        on(disk)


def publish_nine(queue: MessageQueue) -> None:
    for number in range(9):
        queue.publish("orders", [Message(b"message %d" % number + bytes(40_000))])


def reopened_with_damage(disk: FaultyDisk, queue: MessageQueue) -> MessageQueue:
    """After which the seventh message cannot be read again."""
    queue.close()
    queue = on(disk)
    disk.flip_bit("00000001.log", disk.read("00000001.log").index(b"message 6"))
    return queue


def test_what_is_ready_comes_before_damage_is_told_and_a_seek_goes_past_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "READ_AHEAD", 2)
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    publish_nine(queue)
    queue = reopened_with_damage(disk, queue)
    got = [message.data[:9] for message in queue.pull("billing", 100)]
    assert got == [b"message %d" % number for number in range(6)]
    with pytest.raises(DataLoss, match=r"00000001\.log, byte"):
        queue.pull("billing", 100)
    queue.seek("billing", position=8)
    assert [message.data[:9] for message in queue.pull("billing", 100)] == [b"message 8"]


@pytest.mark.parametrize("passed", [True, False])
@pytest.mark.parametrize("limits", [None, {"max_messages": 100}])
def test_a_seek_to_before_damage_stops_nobody_and_damage_is_told_when_its_turn_comes(limits: Any, passed: bool) -> None:
    disk = FaultyDisk(0)
    queue = on(disk)
    for name in ("orders", "others"):
        queue.register_topic(name, {"message_retention_duration": 3600})
    queue.register_subscription("billing", "orders", {**ORDERED, "queue_limits": limits})
    publish_nine(queue)
    queue.ack(queue.pull("billing", 100))
    queue = reopened_with_damage(disk, queue)
    queue.seek("billing", position=0)
    assert data(queue) == [b"message %d" % number + bytes(40_000) for number in range(6)]
    for _ in range(2):
        with pytest.raises(DataLoss, match=r"00000001\.log, byte"):
            queue.pull("billing", 100)
    assert queue.publish("others", [Message(b"1")])
    if passed:
        queue.seek("billing", position=8)
        queue.publish("orders", [Message(b"message 9")])
        assert [message.data[:9] for message in queue.pull("billing", 100)] == [b"message 8", b"message 9"]
    disk.kill()
    with nullcontext() if passed else pytest.raises(DataLoss, match=r"00000001\.log, byte"):
        on(disk)  # at the start somebody is there to be told


def test_a_limit_that_is_set_before_damage_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "READ_AHEAD", 2)
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    publish_nine(queue)
    queue = reopened_with_damage(disk, queue)
    queue.update_subscription("billing", {"queue_limits": {"max_messages": 100}})
    queue.publish("orders", [Message(b"message 9")])
    assert [message.data[:9] for message in queue.pull("billing", 100)] == [b"message %d" % n for n in range(6)]
    with pytest.raises(DataLoss, match=r"00000001\.log, byte"):
        queue.pull("billing", 100)


def test_leases_are_forgotten_and_what_was_out_comes_again_in_its_place() -> None:
    disk = FaultyDisk(0)
    queue = with_a_topic(disk)
    queue.publish("orders", [Message(b"%d" % number, ordering_key="k") for number in range(3)])
    [first] = queue.pull("billing", 10)
    disk.kill()
    queue = on(disk)
    [again] = queue.pull("billing", 10)
    assert (again.data, again.id, again.delivery_attempt) == (b"0", first.id, 1)
    with pytest.raises(Exception, match="Invalid ack ID"):
        queue.ack(first.ack_id)
    queue.ack(again.ack_id)
    assert data(queue) == [b"1"]


def test_attempts_backoffs_parked_keys_and_gaps_survive() -> None:
    disk, clock = FaultyDisk(0), ManualClock()
    queue = on(disk, clock)
    for name in ("orders", "dead"):
        queue.register_topic(name)
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 2}
    queue.register_subscription("parks", "orders", {**ORDERED, "dead_letter_policy": policy, "on_poison": "park_key"})
    queue.register_subscription("waits", "orders", {**ORDERED, "retry_policy": {"minimum_backoff": 60}})
    queue.register_subscription("forgets", "orders", {**ORDERED, "dead_letter_policy": policy})
    queue.publish("orders", [Message(b"bad", ordering_key="k"), Message(b"next", ordering_key="k")])
    for name, times in (("parks", 2), ("waits", 1), ("forgets", 1)):
        for _ in range(times):
            queue.nack([message.ack_id for message in queue.pull(name, 1)])
    disk.kill()
    queue = on(disk, clock)
    assert [key.ordering_key for key in queue.blocked_keys("parks")] == ["k"]
    assert queue.pull("parks", 1) == queue.pull("waits", 1) == []
    clock.advance(61)
    for name in ("waits", "forgets"):
        [message] = queue.pull(name, 1)
        assert (message.data, message.delivery_attempt) == (b"bad", 2)
    queue.nack([message.ack_id])
    disk.kill()
    assert on(disk, clock)._state.book().subscriptions["forgets"].gaps == {0: "dead_lettered"}


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    queue = MessageQueue.open(tmp_path)
    with pytest.raises(JournalInUse, match="is in use by process"):
        MessageQueue.open(tmp_path)
    queue.close()
    MessageQueue(journal=Journal(SegmentStore(Folder(tmp_path)))).close()


def test_a_backlog_stays_on_disk(tmp_path: Path) -> None:
    queue = MessageQueue.open(tmp_path, sync="none")
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    batch = [Message(b"x" * 1000)] * 100
    for _ in range(150):
        queue.publish("orders", batch)
    metrics = queue.metrics("billing")
    assert (metrics.backlog_messages, metrics.counters.dropped) == (15_000, 0)  # beyond what is held in memory
    queue.close()
