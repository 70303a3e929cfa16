"""`inorder keys` and `inorder dead-letters`: what is stuck, and the ways on."""

import argparse
import time
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.cli.dead_letters import lent
from inorder.cli.working_off import WorkingOff
from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.clock import MICROSECONDS, SYSTEM_CLOCK
from inorder.consumers import PartitionedTopic, SqliteStore
from inorder.message import Message
from inorder.metadata import BlockedKey
from inorder.pending import Pending
from inorder.testing import ManualClock

from .conftest import Program

ORDERED = "--enable-message-ordering"


def data(found: list[dict[str, object]]) -> str:
    return "".join(str(one["data"]) for one in found)


# -- keys ------------------------------------------------------------------------------------------


@pytest.fixture
def parked(inorder: Program) -> Program:
    """Two parked keys, one that waits for its retry."""
    inorder.ok("topic", "create", "orders")
    inorder.ok("subscription", "create", "billing", "orders", ORDERED, "--on-poison", "park_key")
    inorder.ok("subscription", "create", "slow", "orders", ORDERED, "--retry-minimum-backoff", 600)
    for key in "kl":
        inorder.ok("publish", "orders", f"{key}1", f"{key}2", "--ordering-key", key)
    for _ in range(5):
        inorder.ok("pull", "billing", "--max", 2, "--nack")
    inorder.ok("pull", "slow", "--nack")
    return inorder


def test_keys_that_wait_are_listed(parked: Program) -> None:
    found = parked.json("keys", "parked", "billing")
    assert [(key["ordering_key"], key["reason"], key["failures"]) for key in found] == [
        ("k", "parked", 5),
        ("l", "parked", 5),
    ]
    assert parked.json("keys", "parked", "slow") == []
    [waiting] = parked.json("keys", "blocked", "slow")
    assert (waiting["ordering_key"], waiting["reason"], waiting["waiting"]) == ("k", "backoff", 2)
    header, row = parked.ok("keys", "blocked", "slow")
    assert header.split()[:2] == ["key", "why"]
    assert row.split()[:4] == ["k", "backoff", "2", "0"]


def test_all_keys_are_resumed_also_if_somebody_else_resumes_some(
    parked: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked_keys = Subscription.blocked_keys

    def looked_at(subscription: Subscription) -> Pending[list[BlockedKey]]:
        found = blocked_keys(subscription)
        subscription.resume_key("k").result()  # between the look and the deed
        return found

    with monkeypatch.context() as patched:
        patched.setattr(Subscription, "blocked_keys", looked_at)
        assert parked.ok("keys", "resume", "billing", "--all") == ["resumed l"]
    assert parked.json("keys", "parked", "billing") == []


def test_parked_keys_are_resumed_or_skipped(parked: Program) -> None:
    assert parked.json("keys", "resume", "billing", "k") == [{"ordering_key": "k", "resumed": True}]
    [skipped] = parked.json("keys", "skip", "billing", "l")
    assert skipped["skipped"].endswith("-2")
    gap, *messages = parked.json("pull", "billing", "--max", 10, "--ack")
    assert (gap["gap"], gap["ordering_key"]) == ("skipped", "l")
    assert data(messages) == "k1l2k2"


def test_a_key_cannot_disturb_a_terminal(inorder: Program) -> None:
    inorder.ok("topic", "create", "orders")
    retry = ("--retry-minimum-backoff", 600)
    inorder.ok("subscription", "create", "slow", "orders", ORDERED, *retry)
    inorder.ok("publish", "orders", "x", "--ordering-key", "\x1b[2J")
    inorder.ok("pull", "slow", "--nack")
    assert inorder.ok("keys", "blocked", "slow")[1].startswith(r"\x1b[2J  backoff")


def test_all_parked_keys_are_resumed_at_once(parked: Program) -> None:
    assert parked.ok("keys", "resume", "billing", "--all") == ["resumed k", "resumed l"]
    assert parked.ok("keys", "resume", "billing", "--all") == []
    assert parked("keys", "resume", "billing").err == "inorder: resume: name keys, or give --all\n"
    ran = parked("keys", "skip", "billing", "k")
    assert ran.code == 2
    assert "to see which are: inorder keys blocked billing" in ran.err


# -- dead letters ----------------------------------------------------------------------------------


@pytest.fixture
def dead(inorder: Program) -> Program:
    """Five messages of two keys, of which two of each key are dead letters."""
    inorder.ok("topic", "create", "orders")
    inorder.ok("topic", "create", "dead")
    inorder.ok("subscription", "create", "morgue", "dead", ORDERED)
    policy = ("--dead-letter-topic", "dead", "--dead-letter-max-delivery-attempts", 1)
    inorder.ok("subscription", "create", "billing", "orders", ORDERED, *policy)
    for number, key in enumerate("kllkk"):
        inorder.ok("publish", "orders", f"{key}{number}", "--ordering-key", key, "--attribute", f"n={number}")
    for _ in range(2):
        inorder("pull", "billing", "--max", 2, "--nack")
    return inorder


def test_dead_letters_tell_where_they_came_from_beside_an_owner(dead: Program, folder: Path) -> None:
    queue = MessageQueue.open(folder)
    try:
        found = dead.json("dead-letters", "list", "billing")
    finally:
        queue.close()
    assert data(found) == "k0l1k3l2"
    assert {one["source_subscription"] for one in found} == {"billing"}
    assert {one["source_delivery_count"] for one in found} == {"1"}
    assert data(dead.json("dead-letters", "list", "billing", "--max", 1)) == "k0"
    header, first, *_ = dead.ok("dead-letters", "list", "billing")
    assert header.split()[:3] == ["position", "key", "from"]
    assert first.split()[:3] == ["0", "k", "billing"]
    assert first.endswith("k0")


def test_what_nobody_will_get_any_more_is_not_listed_though_a_journal_has_it(inorder: Program, folder: Path) -> None:
    clock = ManualClock(SYSTEM_CLOCK.now_us() / MICROSECONDS - 100)
    queue = MessageQueue.open(folder, clock=clock)
    queue.register_topic("orders")
    queue.register_topic("dead")
    queue.register_subscription("billing", "orders", {"dead_letter_policy": {"dead_letter_topic": "dead"}})
    queue.register_subscription("morgue", "dead", {"message_retention_duration": 50, "filter": "NOT attributes:test"})
    queue.publish("dead", [Message(b"too old")])
    clock.advance(90)
    queue.publish("dead", [Message(b"a"), Message(b"left out", {"test": ""}), Message(b"b")])
    assert data(inorder.json("dead-letters", "list", "billing")) == "ab"
    queue.close()


def test_dead_letters_are_published_again_in_order_as_they_were(dead: Program) -> None:
    assert dead.json("dead-letters", "replay", "billing", "--max", 1) == [
        {"subscription": "billing", "topic": "orders", "replayed": 1, "left": 0}
    ]
    assert dead.ok("dead-letters", "replay", "billing") == ["published 3 dead letters to orders"]
    assert dead.ok("dead-letters", "replay", "billing") == ["published 0 dead letters to orders"]
    assert dead.json("dead-letters", "list", "billing") == []
    found = [one for one in dead.json("pull", "billing", "--max", 10, "--ack") if "gap" not in one]
    assert [one["data"] for one in found if one["ordering_key"] == "k"] == ["k4", "k0", "k3"]
    assert [one["data"] for one in found if one["ordering_key"] == "l"] == ["l1", "l2"]
    assert {frozenset(one["attributes"]) for one in found} == {frozenset("n")}


def test_dead_letters_of_a_partition_are_handled_also_if_their_keys_have_moved(inorder: Program) -> None:
    store = SqliteStore(":memory:")
    keys = [f"order-{number}" for number in range(8)]
    with PubSub(inorder.target) as pubsub, PartitionedTopic(pubsub, "orders", store=store) as topic:
        pubsub.topic("dead").create().result().subscription("morgue").create(enable_message_ordering=True).result()
        policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
        billing = topic.create(1).group("billing").create(dead_letter_policy=policy)
        for key in keys:
            topic.publish_message(b"placed", {"n": "1"}, key).result()
        for message in billing.subscription(0).pull(len(keys)).result():
            message.nack().result()
        assert billing.subscription(0).pull(len(keys)).result() == []  # but the gaps that they leave are told
        topic.resize(2).result(10)
        assert {topic.partition_of(key) for key in keys} == {0, 1}
    assert inorder.ok("dead-letters", "replay", "orders-0.billing") == ["published 8 dead letters to orders-0"]
    handled: list[Message] = []

    def handle(message: Message) -> None:
        handled.append(message)
        message.ack()

    give_up = time.monotonic() + 10
    with (
        PubSub(inorder.target) as pubsub,
        PartitionedTopic(pubsub, "orders", store=store) as topic,
        topic.group("billing").join(handle),
    ):
        while topic.group("billing").backlogs()[0]:
            assert time.monotonic() < give_up
            time.sleep(0.001)
    assert {(message.ordering_key, *message.attributes) for message in handled} == {(key, "n") for key in keys}
    store.close()


def test_dead_letters_go_where_they_are_told(dead: Program) -> None:
    dead.ok("topic", "create", "again", "--message-retention-duration", 60)
    ran = dead("dead-letters", "replay", "billing", "--topic", "")  # as of a variable that is not set
    assert (ran.code, "topic name ''" in ran.err) == (2, True)
    dead.ok("dead-letters", "replay", "billing", "--topic", "again")
    assert sorted(one["data"] for one in dead.json("tail", "again")) == ["k0", "k3", "l1", "l2"]
    ran = dead("dead-letters", "replay", "billing", "--topic", "dead")
    assert (ran.code, "--topic: another one than dead" in ran.err) == (2, True)
    ran = dead("dead-letters", "replay", "billing", "--topic", "nowhere")
    assert (ran.code, "Topic not found: nowhere" in ran.err) == (2, True)


def test_dead_letters_are_dropped_when_somebody_agrees(dead: Program) -> None:
    ran = dead("dead-letters", "drop", "billing")
    assert ran.code == 2
    assert "Drop up to 4 dead letters of billing in morgue?" in ran.err
    assert dead.json("dead-letters", "drop", "billing", "--yes", "--max", 1) == [
        {"subscription": "billing", "dropped": 1, "left": 0}
    ]
    assert dead.ok("dead-letters", "drop", "billing", "--yes") == ["dropped 3 dead letters"]
    assert dead.json("dead-letters", "list", "billing") == []


def test_what_came_from_other_subscriptions_is_left(dead: Program) -> None:
    policy = ("--dead-letter-topic", "dead", "--dead-letter-max-delivery-attempts", 1)
    dead.ok("subscription", "create", "audit", "orders", *policy)
    dead.ok("publish", "orders", "x")
    dead.ok("pull", "audit", "--nack")
    assert data(dead.json("dead-letters", "list", "audit")) == "x"
    ran = dead("dead-letters", "replay", "audit")
    assert ran.out == "published 1 dead letter to orders\n"
    assert "left, as they came from other subscriptions: 2 dead letters" in ran.err  # the first of each key
    assert data(dead.json("dead-letters", "list", "billing")) == "k0l1k3l2"


def test_it_is_told_where_dead_letters_could_be(inorder: Program) -> None:
    inorder.ok("topic", "create", "orders")
    inorder.ok("subscription", "create", "billing", "orders")
    assert f"--dead-letter-topic TOPIC --target '{inorder.target}'" in inorder("dead-letters", "list", "billing").err
    inorder.ok("topic", "create", "dead")
    inorder.ok("subscription", "update", "billing", "--dead-letter-topic", "dead")
    wanted = f"inorder subscription create NAME dead --enable-message-ordering --target '{inorder.target}'"
    assert wanted in inorder("dead-letters", "list", "billing").err
    for name in ("one", "two"):
        inorder.ok("subscription", "create", name, "dead")
    assert "give --through, one of one, two" in inorder("dead-letters", "replay", "billing").err
    assert (
        "a subscription of topic dead, not 'three'"
        in inorder("dead-letters", "list", "billing", "--through", "three").err
    )
    inorder.ok("dead-letters", "list", "billing", "--through", "two")
    assert inorder("dead-letters", "list", "billing", "--through", "two", "--max", 0).code == 2


# -- of a broker that is asked ---------------------------------------------------------------------


@pytest.fixture
def queue() -> MessageQueue:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_topic("dead")
    queue.register_subscription("billing", "orders", {"dead_letter_policy": {"dead_letter_topic": "dead"}})
    queue.register_subscription("morgue", "dead")
    queue.publish("dead", [Message(b"%d" % number) for number in range(2_500)])
    return queue


def test_a_broker_that_is_asked_gets_back_what_was_looked_at(
    queue: MessageQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    given = argparse.Namespace(subscription="billing", through=None, max=3)
    with PubSub(queue) as pubsub:
        for _ in range(2):
            assert data(lent(pubsub, given)) == "012"
        assert capsys.readouterr().err == ""
        queue.update_subscription("morgue", {"enable_message_ordering": True})
        queue.publish("dead", [Message(b"x", None, "k"), Message(b"y", None, "k")])
        given.max = 2_502
        assert len(lent(pubsub, given)) == 1_000
        assert "2502 wait in morgue" in capsys.readouterr().err
        found = queue.pull("morgue", 3_000)
        assert len(found) == 2_501
        assert {message.delivery_attempt for message in found} == {1}  # to look is no failure
        queue.ack(found)
        queue.ack(queue.pull("morgue", 1))
        assert lent(pubsub, given) == []


def test_dead_letters_of_other_subscriptions_do_not_hide_those_of_one(
    queue: MessageQueue, capsys: pytest.CaptureFixture[str]
) -> None:
    queue.ack(queue.pull("morgue", 2_500))
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    queue.register_subscription("audit", "orders", {"dead_letter_policy": {**policy, "source": "audit"}})
    queue.update_subscription("billing", {"dead_letter_policy": {**policy, "source": "billing"}})
    queue.publish("orders", [Message(b"%d" % number) for number in range(3)])
    for name in ("audit", "billing"):
        queue.nack(queue.pull(name, 3))
    given = argparse.Namespace(subscription="billing", through=None, max=2)
    with PubSub(queue) as pubsub:
        found = lent(pubsub, given)
        assert (data(found), {one["source_subscription"] for one in found}) == ("01", {"billing"})
        assert capsys.readouterr().err == ""
        held = queue.pull("morgue", 6)
        assert lent(pubsub, given) == []
        assert "6 dead letters of morgue out: somebody works on them" in capsys.readouterr().err
        queue.nack(held)


def test_a_message_is_acked_only_after_the_work_on_it(queue: MessageQueue) -> None:
    """The work ends with the second batch: the first is done, and the rest waits as before."""
    queue.nack(queue.pull("morgue", 1_500))  # so that not all come by their positions
    wanted = [position for position in range(2_500) if position != 5]
    with PubSub(queue) as pubsub:
        morgue = pubsub.subscription("morgue")
        with WorkingOff(morgue, lambda message: message.position != 5, None, before=2_500) as working:
            for batch in working.batches():
                assert queue.metrics("morgue").counters.acked == working.done
                if working.done:
                    break
                assert positions(batch) == wanted[:1_000]
        assert (working.done, working.left) == (1_000, 1)
        with WorkingOff(morgue, lambda message: message.position != 5, 1_100, before=2_500) as working:
            found = [positions(batch) for batch in working.batches()]
    assert found == [wanted[1_000:2_000], wanted[2_000:2_100]]
    assert queue.metrics("morgue").backlog_messages == 400
    assert queue.metrics("morgue").outstanding_messages == 0


def test_work_may_take_longer_than_a_lease_lasts(queue: MessageQueue) -> None:
    with (
        PubSub(queue) as pubsub,
        WorkingOff(pubsub.subscription("morgue"), lambda message: True, None, before=2_503) as working,
    ):
        for _ in working.batches():
            queue.clock.advance(60)  # type: ignore[attr-defined]
    assert working.done == queue.metrics("morgue").counters.acked == 2_500


def test_what_comes_because_of_the_work_is_left_to_the_next_round(queue: MessageQueue) -> None:
    with (
        PubSub(queue) as pubsub,
        WorkingOff(pubsub.subscription("morgue"), lambda message: True, None, before=2_500) as working,
    ):
        for batch in working.batches():  # a consumer that refuses all of it
            queue.publish("dead", [Message(message.data) for message in batch])
    assert (working.done, working.left) == (2_500, 0)
    assert queue.metrics("morgue").backlog_messages == 2_500
    assert queue.metrics("morgue").outstanding_messages == 0


def test_large_messages_are_worked_off_a_few_at_a_time(queue: MessageQueue) -> None:
    queue.ack(queue.pull("morgue", 2_500))
    for _ in range(3):
        queue.publish("dead", [Message(bytes(3_000_000))])
    with (
        PubSub(queue) as pubsub,
        WorkingOff(pubsub.subscription("morgue"), lambda message: True, None, before=2_503) as working,
    ):
        assert [len(batch) for batch in working.batches()] == [1, 1, 1]


def positions(messages: list[Message]) -> list[int]:
    return [message.position for message in messages]
