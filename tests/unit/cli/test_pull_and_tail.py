"""`inorder pull`, `tail` and `seek`: who gets a message, and who only sees it."""

from pathlib import Path
from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.cli.showing import Messages
from inorder.cli.tail import of_topic
from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.message import Message
from inorder.pending import Pending
from inorder.testing import ManualClock

from .conftest import Program


@pytest.fixture
def orders(inorder: Program) -> Program:
    inorder.ok("topic", "create", "orders", "--message-retention-duration", 3600)
    inorder.ok("subscription", "create", "billing", "orders", "--enable-message-ordering")
    inorder.ok("publish", "orders", "a", "b", "--ordering-key", "k")
    inorder.ok("publish", "orders", "c", "--ordering-key", "l", "--attribute", "n=1")
    return inorder


def data(found: list[dict[str, object]]) -> str:
    return "".join(str(one["data"]) for one in found)


def test_a_pull_leaves_messages_where_they_are(orders: Program) -> None:
    for _ in range(2):
        assert data(orders.json("pull", "billing", "--max", 10)) == "ac"  # of a key one at a time
    [first] = orders.json("pull", "billing")
    assert (first["ordering_key"], first["delivery_attempt"]) == ("k", 1)
    assert orders.ok("pull", "billing")[0].endswith("  k  a")


def test_what_is_acked_is_gone_also_behind_the_first_of_a_key(orders: Program) -> None:
    assert data(orders.json("pull", "billing", "--max", 2, "--ack")) == "ac"
    assert data(orders.json("pull", "billing", "--max", 10, "--ack")) == "b"
    assert orders.ok("pull", "billing", "--ack") == []


def test_what_is_nacked_has_failed(orders: Program) -> None:
    orders.ok("topic", "create", "dead")
    orders.ok("subscription", "update", "billing", "--dead-letter-topic", "dead")
    orders.ok("pull", "billing", "--nack")
    assert orders.json("pull", "billing")[0]["delivery_attempt"] == 2
    assert orders("pull", "billing", "--max", 0).err == "inorder: --max: at least 1, not 0\n"


def test_a_gap_is_told_in_its_place(orders: Program) -> None:
    orders.ok("topic", "create", "dead")
    orders.ok("subscription", "create", "morgue", "dead")
    orders.ok("subscription", "update", "billing", "--dead-letter-topic", "dead")
    orders.ok("subscription", "update", "billing", "--dead-letter-max-delivery-attempts", 1)
    orders.ok("pull", "billing", "--nack")
    [gap, *_] = orders.json("pull", "billing")
    assert gap == {"gap": "dead_lettered", "ordering_key": "k", "first_position": 0, "last_position": 0, "count": 1}
    orders.ok("pull", "billing", "--nack")
    assert "1–1  k  1 missing: dead_lettered" in orders.ok("pull", "billing")


def test_the_tail_is_of_a_topic_and_takes_nothing(orders: Program) -> None:
    assert data(orders.json("tail", "orders")) == "abc"
    assert data(orders.json("tail", "orders", "-n", 2)) == "bc"
    assert data(orders.json("tail", "orders", "--from", 2)) == "c"
    assert orders.json("tail", "orders", "--from", 99) == orders.json("tail", "orders", "-n", 0) == []
    assert orders.ok("tail", "orders")[2].endswith('  l  c  {"n": "1"}')
    assert data(orders.json("pull", "billing", "--max", 10, "--ack")) == "acb"
    assert data(orders.json("tail", "orders")) == "abc"
    assert orders("tail", "orders", "-n", -1).err == "inorder: --last: at least 0, not -1\n"


def test_what_is_no_text_cannot_disturb_a_terminal(orders: Program, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\x1b[31m\xff\n\xc3\xa9")
    orders.ok("publish", "orders", "--format", "whole", "--file", tmp_path / "bytes")
    assert orders.ok("tail", "orders", "-n", 1)[0].endswith(r"  -  \x1b[31m\xff\né")


def test_a_seek_goes_back_and_forward(orders: Program) -> None:
    orders.ok("pull", "billing", "--max", 10, "--ack")
    assert orders.json("seek", "billing", "--position", 1) == [
        {"subscription": "billing", "position": 1, "time": None},
    ]
    assert data(orders.json("pull", "billing", "--max", 10)) == "bc"
    [said] = orders.json("seek", "billing", "--time", "2100-01-01T00:00:00+01:00")
    assert said["time"] == "2099-12-31T23:00:00.000000Z"
    assert orders.json("pull", "billing") == []
    assert orders.ok("seek", "billing", "--time", 1_000.5) == [
        "subscription billing delivers from 1970-01-01T00:16:40.500000Z on"
    ]
    assert data(orders.json("pull", "billing", "--max", 10)) == "ac"
    assert orders.ok("seek", "billing", "--time", "2020-01-01") == [
        "subscription billing delivers from 2020-01-01T00:00:00.000000Z on"
    ]
    for time in ("9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.500000Z"):
        [said] = orders.json("seek", "billing", "--time", time)
        assert said["time"] == time
    [said] = orders.json("seek", "billing", "--time", "21000101")  # a day, and not seconds since 1970
    assert said["time"] == "2100-01-01T00:00:00.000000Z"
    for no_time in ("yesterday", "2026"):  # the second is a year, and says too little
        ran = orders("seek", "billing", "--time", no_time)
        assert (ran.code, "as in 2026-11-15T16:00:00Z" in ran.err) == (2, True)
    for outside in ("9" * 40, "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        ran = orders("seek", "billing", "--time", outside)
        assert (ran.code, "seconds since 1970, not" in ran.err) == (2, True)


# -- of a broker that is asked ---------------------------------------------------------------------


@pytest.fixture
def queue() -> MessageQueue:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders", {"message_retention_duration": 60})
    queue.publish("orders", [Message(b"%d" % number, None, f"k{number % 2}") for number in range(5)])
    return queue


def test_another_broker_is_asked_by_a_subscription_that_is_removed(
    queue: MessageQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    with PubSub(queue) as pubsub:
        of_topic(pubsub.topic("orders"), 2, 4, Messages(as_json=False))
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["2", "3"]
    assert queue.get_all_subscriptions() == []


def test_all_that_a_topic_retains_is_shown_however_old_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    queue = MessageQueue(clock=clock)
    queue.register_topic("orders", {"message_retention_duration": 86_400})
    for data in (b"yesterday", b"today"):
        queue.publish("orders", [Message(data)])
        clock.advance(40_000)
    with PubSub(queue) as pubsub:
        of_topic(pubsub.topic("orders"), 0, 2, Messages(as_json=False))
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()] == ["yesterday", "today"]


@pytest.mark.parametrize(("retained", "shown"), [(None, []), (60, ["2", "3"])])
def test_what_is_not_retained_is_told_and_the_rest_is_shown(
    retained: float | None, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    queue = MessageQueue(clock=clock)
    queue.register_topic("orders", {"message_retention_duration": retained})
    queue.publish("orders", [Message(b"0"), Message(b"1")])
    clock.advance(100)
    queue.publish("orders", [Message(b"2"), Message(b"3")])
    with PubSub(queue) as pubsub:
        of_topic(pubsub.topic("orders"), 0, 4, Messages(as_json=False))
    out, err = capsys.readouterr()
    assert [line.split()[-1] for line in out.splitlines()] == shown
    assert "note: not all can be had: position 0 is no longer retained" in err


def test_who_is_interrupted_while_it_begins_leaves_no_subscription_behind(
    queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Subscription.create

    def interrupted(self: Subscription, **options: Any) -> Pending[Subscription]:
        create(self, **options).result()
        raise KeyboardInterrupt

    monkeypatch.setattr(Subscription, "create", interrupted)
    with PubSub(queue) as pubsub, pytest.raises(KeyboardInterrupt):
        of_topic(pubsub.topic("orders"), 2, 4, Messages(as_json=False))
    assert queue.get_all_subscriptions() == []


class EndsAt(Messages):
    """Somebody who has seen enough."""

    def __init__(self, position: int) -> None:
        super().__init__(as_json=False)
        self._last = position
        self.seen: list[int] = []

    def message(self, message: Message, more: object = None) -> None:
        self.seen.append(message.position)
        if message.position == self._last:
            raise KeyboardInterrupt


class Pager(Messages):
    """Somebody who reads one page, and takes a break that is longer than a lease lasts."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(as_json=False)
        self._clock = clock
        self.seen: list[int] = []

    def message(self, message: Message, more: object = None) -> None:
        self.seen.append(message.position)
        self._clock.advance(20)


def test_who_reads_slowly_sees_each_message_once() -> None:
    clock = ManualClock()
    queue = MessageQueue(clock=clock)
    queue.register_topic("orders", {"message_retention_duration": 600})
    queue.publish("orders", [Message(b"%d" % number) for number in range(3)])
    messages = Pager(clock)
    with PubSub(queue) as pubsub:
        of_topic(pubsub.topic("orders"), 0, 3, messages)
    assert messages.seen == [0, 1, 2]


def test_who_follows_removes_its_subscription_when_interrupted(queue: MessageQueue) -> None:
    messages = EndsAt(4)
    with PubSub(queue) as pubsub, pytest.raises(KeyboardInterrupt):
        of_topic(pubsub.topic("orders"), 1, None, messages)
    assert messages.seen == [1, 2, 3, 4]
    assert queue.get_all_subscriptions() == []
