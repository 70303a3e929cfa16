"""Ordering keys: each key in turn, no key in another's way, and nothing that breaks the order."""

from __future__ import annotations

import pytest

from inorder.message import Message
from inorder.testing.conformance.case import QueueCase, texts


class Ordering(QueueCase):
    # -- one key -----------------------------------------------------------------------------------

    def test_the_second_message_of_a_key_waits_for_the_ack_of_the_first(self) -> None:
        """message-queue AC-009"""
        self.subscribe("test-sub", "test-topic", message_ordering=True)
        self.publish("first", "second", key="user-123", topic="test-topic")
        [first] = self.queue.pull("test-sub", 10)
        assert first.data == b"first"
        assert self.queue.pull("test-sub", 10) == []
        self.queue.ack(first.ack_id)
        [second] = self.queue.pull("test-sub", 10)
        assert second.data == b"second"

    @pytest.mark.parametrize("option", ["enable_message_ordering", "message_ordering"])
    def test_a_subscription_with_ordering_delivers_a_key_one_by_one(self, option: str) -> None:
        """message-ordering BR-002: by either of the names that the specifications use."""
        self.queue.register_topic("orders")
        self.queue.register_subscription("worker", "orders", {option: True})
        self.publish("1", "2", "3", key="k")
        for expected in ("1", "2", "3"):
            messages = self.pull()
            assert texts(messages) == [expected]
            self.ack(*messages)

    def test_without_ordering_a_key_is_only_metadata(self) -> None:
        """message-ordering BR-002"""
        self.subscribe()
        self.publish("1", "2", "3", key="k")
        messages = self.pull()
        assert texts(messages) == ["1", "2", "3"]
        assert [message.ordering_key for message in messages] == ["k"] * 3

    def test_a_key_keeps_its_order_over_batches(self) -> None:
        """message-ordering BR-004"""
        self.subscribe(enable_message_ordering=True)
        expected = {letter: [f"{letter}{number}" for number in range(20)] for letter in "abc"}
        for number in range(20):
            self.publish_by_letter(*(f"{letter}{number}" for letter in "abc"))
        received: dict[str, list[str]] = {letter: [] for letter in "abc"}
        while messages := self.pull(2):
            self.ack(*messages)
            for text in texts(messages):
                received[text[0]].append(text)
        assert received == expected

    def test_what_is_published_while_a_key_is_out_waits_behind_it(self) -> None:
        """message-ordering BR-004"""
        self.subscribe(enable_message_ordering=True)
        self.publish("1", key="k")
        [first] = self.pull()
        self.publish("2", key="k")
        assert self.pull() == []
        self.ack(first)
        assert self.consume() == ["2"]
        self.publish("3", key="k")
        assert self.consume() == ["3"]

    def test_a_key_is_delivered_sequentially_and_others_beside_it(self) -> None:
        """message-ordering BR-005"""
        self.subscribe(enable_message_ordering=True)
        self.publish_by_letter("a1", "a2", "b1", "c1", "c2")
        messages = self.pull()
        assert texts(messages) == ["a1", "b1", "c1"]
        self.ack(messages[2])
        assert self.pull_texts() == ["c2"]

    def test_keys_are_independent_sequences(self) -> None:
        """message-ordering BR-007"""
        self.subscribe(enable_message_ordering=True)
        self.publish_by_letter("a1", "b1", "a2", "b2", "b3")
        a1, b1 = self.pull()
        self.ack(b1)
        [b2] = self.pull()
        self.nack(a1)
        self.ack(b2)
        assert sorted(self.pull_texts()) == ["a1", "b3"]

    def test_messages_of_different_keys_are_out_together(self) -> None:
        """message-queue BR-010"""
        self.subscribe(enable_message_ordering=True)
        self.queue.publish("orders", [Message(b"x", ordering_key=f"key-{number}") for number in range(100)])
        assert len(self.pull(100)) == 100

    def test_messages_without_a_key_are_not_blocked(self) -> None:
        """message-queue BR-010"""
        self.subscribe(enable_message_ordering=True)
        self.publish("blocking", "blocked", key="k")
        self.pull()
        self.publish("free-1", "free-2")
        assert self.pull_texts() == ["free-1", "free-2"]

    def test_messages_without_a_key_neither_wait_nor_block(self) -> None:
        """message-ordering BR-008"""
        self.subscribe(enable_message_ordering=True)
        self.publish("free-1", "free-2")
        self.publish("1", "2", key="k")
        assert self.pull_texts() == ["free-1", "free-2", "1"]

    def test_messages_without_a_key_keep_publish_order_beside_keys(self) -> None:
        """message-queue BR-019"""
        self.subscribe(enable_message_ordering=True)
        for number in range(10):
            self.publish(f"free-{number}")
            self.publish(f"keyed-{number}", key="k")
        free = [text for text in self.consume() if text.startswith("free")]
        assert free == [f"free-{number}" for number in range(10)]

    def test_every_subscription_has_its_own_order(self) -> None:
        """message-ordering BR-004: each gets an ordered copy."""
        self.subscribe("first", enable_message_ordering=True)
        self.subscribe("second", enable_message_ordering=True)
        self.publish("1", "2", key="k")
        self.pull(subscription="first")
        assert self.consume("second") == ["1", "2"]
        assert self.pull(subscription="first") == []

    def test_the_same_key_in_two_topics_is_two_keys(self) -> None:
        self.subscribe("one", "topic-one", enable_message_ordering=True)
        self.subscribe("two", "topic-two", enable_message_ordering=True)
        self.publish("1", key="k", topic="topic-one")
        self.publish("2", key="k", topic="topic-two")
        assert self.pull_texts(subscription="one") == ["1"]
        assert self.pull_texts(subscription="two") == ["2"]

    @pytest.mark.parametrize(
        "key",
        ["k", " ", "\n", "\x00", "0", "user/123", "ключ", "鍵", "🔑", "e\u0301", "x" * 1024, "é" * 512, "🔑" * 256],
        ids=ascii,
    )
    def test_a_key_is_any_text_of_up_to_1024_bytes(self, key: str) -> None:
        """message-ordering BR-010"""
        self.subscribe(enable_message_ordering=True)
        self.publish("1", "2", key=key)
        [first] = self.pull()
        assert first.ordering_key == key
        self.ack(first)
        assert self.pull_texts() == ["2"]

    def test_keys_that_only_look_alike_are_different(self) -> None:
        """message-ordering BR-010"""
        self.subscribe(enable_message_ordering=True)
        keys = ["k", "K", "k ", "é", "e\u0301", "1", "01"]
        self.queue.publish("orders", [Message(b"x", ordering_key=key) for key in keys])
        assert [message.ordering_key for message in self.pull()] == keys

    # -- redelivery --------------------------------------------------------------------------------

    def test_a_nacked_message_comes_back_before_those_behind_it(self) -> None:
        """message-ordering BR-006"""
        self.subscribe(enable_message_ordering=True)
        self.publish("1", "2", "3", key="k")
        for _ in range(5):
            messages = self.pull()
            assert texts(messages) == ["1"]
            self.nack(*messages)
        assert self.consume() == ["1", "2", "3"]

    def test_an_expired_message_comes_back_before_those_behind_it(self) -> None:
        """message-ordering BR-006"""
        self.subscribe(enable_message_ordering=True)
        self.publish("1", "2", "3", key="k")
        for _ in range(5):
            assert self.pull_texts() == ["1"]
            self.clock.advance(10)
        assert self.consume() == ["1", "2", "3"]

    def test_a_redelivered_message_blocks_its_key_until_it_is_acked(self) -> None:
        """message-ordering BR-006"""
        self.subscribe(enable_message_ordering=True)
        self.publish("1", "2", key="k")
        self.nack(*self.pull())
        [again] = self.pull()
        assert (texts([again]), again.delivery_attempt) == (["1"], 2)
        self.publish("3", key="k")
        assert self.pull() == []
        self.ack(again)
        assert self.consume() == ["2", "3"]

    def test_a_message_that_came_back_is_not_overtaken_by_one_published_meanwhile(self) -> None:
        """message-ordering BR-006"""
        self.subscribe(enable_message_ordering=True)
        self.publish("1", key="k")
        [first] = self.pull()
        self.publish("2", key="k")
        self.nack(first)
        self.publish("3", key="k")
        assert self.consume() == ["1", "2", "3"]

    def test_the_late_ack_of_a_lost_lease_does_not_let_the_next_one_go(self) -> None:
        """message-ordering BR-006"""
        self.subscribe(enable_message_ordering=True)
        self.publish("1", "2", key="k")
        [lost] = self.pull()
        self.clock.advance(10)
        self.assert_over(lost)
        [again] = self.pull()
        assert texts([again]) == ["1"]
        self.assert_over(lost)
        assert self.pull() == []
        self.ack(again)
        assert self.pull_texts() == ["2"]

    def test_a_key_stays_blocked_and_keeps_its_place_during_backoff(self) -> None:
        """message-queue BR-015: a retry policy must not let 2 overtake 1."""
        self.subscribe(enable_message_ordering=True, retry_policy={"minimum_backoff": 30, "maximum_backoff": 600})
        self.publish("1", "2", key="k")
        self.nack(*self.pull())
        self.publish("3", key="k")
        self.publish("free")
        assert self.consume() == ["free"]
        self.clock.advance(29.9)
        assert self.pull() == []
        self.clock.advance(0.1)
        assert self.consume() == ["1", "2", "3"]

    def test_a_key_stays_blocked_during_the_backoff_after_a_lost_lease(self) -> None:
        """message-queue BR-015"""
        self.subscribe(enable_message_ordering=True, retry_policy={"minimum_backoff": 30, "maximum_backoff": 600})
        self.publish("1", "2", key="k")
        self.pull()
        self.clock.advance(10)
        assert self.pull() == []
        self.clock.advance(29.9)
        assert self.pull() == []
        self.clock.advance(0.1)
        assert self.consume() == ["1", "2"]

    # -- turns -------------------------------------------------------------------------------------

    def test_ready_keys_take_turns(self) -> None:
        self.subscribe(enable_message_ordering=True)
        self.publish_by_letter(*(f"{letter}{number}" for letter in "abc" for number in range(4)))
        taken = [text[0] for text in self.consume()]
        assert [sorted(taken[turn : turn + 3]) for turn in range(0, 12, 3)] == [["a", "b", "c"]] * 4

    def test_a_busy_key_does_not_delay_one_that_came_later(self) -> None:
        self.subscribe(enable_message_ordering=True)
        self.publish(*(f"busy-{number}" for number in range(1000)), key="busy")
        self.publish("calm", key="calm")
        assert self.pull_texts(2) == ["busy-0", "calm"]

    def test_a_key_that_fails_again_and_again_leaves_the_others_their_turns(self) -> None:
        self.subscribe(enable_message_ordering=True)
        self.publish_by_letter("a1", "a2", "b1", "b2")
        acked: list[str] = []
        for _ in range(12):
            [message] = self.pull(1)
            if message.ordering_key == "a":
                self.nack(message)
            else:
                self.ack(message)
                acked += texts([message])
            if acked == ["b1", "b2"]:
                break
        assert acked == ["b1", "b2"]
        assert self.consume() == ["a1", "a2"]

    def test_ordering_can_be_turned_on_and_off(self) -> None:
        """message-ordering BR-002: what is out when the rules change comes again, in order."""
        self.subscribe()
        self.publish("1", "2", "3", key="k")
        out = self.pull(2)
        self.queue.update_subscription("worker", {"enable_message_ordering": True})
        self.assert_over(*out)
        assert self.pull_texts() == ["1"]
        self.queue.update_subscription("worker", {"enable_message_ordering": False})
        assert self.pull_texts() == ["1", "2", "3"]
