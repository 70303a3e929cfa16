"""`max_outstanding_per_key`: several messages of a key out at once, and still in order."""

from __future__ import annotations

from typing import Any

from inorder.errors import InvalidArgument
from inorder.message import Gap, Message
from inorder.testing.conformance.case import QueueCase, texts


class Window(QueueCase):
    def subscribe_windowed(self, window: int, **options: Any) -> None:
        self.subscribe(enable_message_ordering=True, max_outstanding_per_key=window, **options)

    def test_so_many_messages_of_a_key_go_out_in_order(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", "4", "5", key="k")
        assert self.pull_texts() == ["1", "2", "3"]
        assert self.pull() == []

    def test_each_ack_makes_room_for_one_more(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", "4", "5", key="k")
        one, two, three = self.pull()
        self.ack(one)
        assert self.pull_texts() == ["4"]
        self.ack(three)
        assert self.pull_texts() == ["5"]
        self.ack(two)
        assert self.pull() == []

    def test_the_window_is_per_key(self) -> None:
        self.subscribe_windowed(2)
        self.publish_by_letter("a1", "a2", "a3", "b1", "b2", "b3")
        self.publish("free-1", "free-2", "free-3")
        assert sorted(self.pull_texts()) == ["a1", "a2", "b1", "b2", "free-1", "free-2", "free-3"]

    def test_a_nack_takes_back_all_that_is_out_behind_it_in_order(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", "4", key="k")
        one, two, three = self.pull()
        self.nack(one)
        self.assert_over(one, two, three)
        again = self.pull()
        assert texts(again) == ["1", "2", "3"]
        assert [message.delivery_attempt for message in again] == [2, 1, 1]  # only the first has failed
        self.ack(*again)
        assert self.pull_texts() == ["4"]

    def test_a_nack_takes_back_nothing_before_it(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", "4", key="k")
        one, two, three = self.pull()
        self.nack(two)
        self.assert_over(two, three)
        again = self.pull()
        assert texts(again) == ["2", "3"]
        self.ack(one)
        assert self.pull_texts() == ["4"]

    def test_what_is_acked_does_not_come_again_when_an_earlier_one_fails(self) -> None:
        self.subscribe_windowed(4)
        self.publish("1", "2", "3", "4", key="k")
        one, two, _three, _four = self.pull()
        self.ack(two)
        self.nack(one)
        assert self.pull_texts() == ["1", "3", "4"]

    def test_the_first_that_fails_twice_takes_everything_back_again(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", key="k")
        one, two, _three = self.pull()
        self.nack(two)
        self.pull()
        self.nack(one)
        assert self.pull_texts() == ["1", "2", "3"]

    def test_an_expired_lease_takes_back_all_that_is_out_behind_it_in_order(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", "4", key="k")
        one, two, three = self.pull()
        self.queue.modify_ack_deadline([one.ack_id, three.ack_id], 60)
        self.clock.advance(10)
        self.assert_over(two, three)
        assert self.pull_texts() == ["2", "3"]
        self.ack(one)
        assert self.pull_texts() == ["4"]

    def test_leases_that_expire_together_come_back_in_order(self) -> None:
        self.subscribe_windowed(3)
        self.publish_by_letter("a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4")
        self.pull()
        self.clock.advance(10)
        again = texts(self.pull())
        assert [text for text in again if text[0] == "a"] == ["a1", "a2", "a3"]
        assert [text for text in again if text[0] == "b"] == ["b1", "b2", "b3"]

    def test_all_that_came_back_waits_for_the_backoff(self) -> None:
        self.subscribe_windowed(3, retry_policy={"minimum_backoff": 30, "maximum_backoff": 30})
        self.publish_by_letter("a1", "a2", "a3", "a4", "b1")
        messages = self.pull()
        self.nack(next(message for message in messages if message.data == b"a1"))
        self.clock.advance(5)
        assert self.pull() == []
        self.clock.advance(25)
        again = [text for text in texts(self.pull()) if text[0] == "a"]
        assert again == ["a1", "a2", "a3"]

    def test_a_message_that_comes_back_to_a_key_in_backoff_goes_before_those_that_wait(self) -> None:
        self.subscribe_windowed(3, ack_deadline_seconds=600, retry_policy={"minimum_backoff": 30})
        self.publish("1", "2", "3", key="k")
        one, two, _three = self.pull()
        self.nack(two)
        self.clock.advance(10)
        self.nack(one)
        self.clock.advance(29)
        assert self.pull() == []
        self.clock.advance(1)
        assert self.pull_texts() == ["1", "2", "3"]

    def test_a_dead_letter_leaves_a_gap_and_the_rest_goes_on_in_order(self) -> None:
        self.queue.register_topic("dead")
        self.subscribe_windowed(3, dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 5})
        self.subscribe("undertaker", "dead")
        self.publish("1", "2", "3", "4", key="k")
        for _ in range(5):
            self.nack(self.pull(3)[0])
        assert self.pull_texts(subscription="undertaker") == ["1"]
        gap, *rest = self.consume_with_gaps()
        assert isinstance(gap, Gap)
        assert (gap.ordering_key, gap.first_position, gap.count, gap.reason) == ("k", 0, 1, "dead_lettered")
        assert rest == ["2", "3", "4"]

    def test_a_death_before_it_does_not_cut_a_backoff_short(self) -> None:
        self.queue.register_topic("dead")
        self.subscribe("undertaker", "dead")
        self.subscribe_windowed(
            2,
            ack_deadline_seconds=600,
            retry_policy={"minimum_backoff": 60, "maximum_backoff": 60},
            dead_letter_policy={"dead_letter_topic": "dead", "max_delivery_attempts": 5},
        )
        self.publish("1", "2", key="k")
        for _ in range(4):
            self.nack(self.pull()[0])
            self.clock.advance(60)
        one, two = self.pull()
        self.nack(two)
        self.nack(one)
        assert self.pull_texts(subscription="undertaker") == ["1"]
        self.clock.advance(59)
        assert self.pull() == []
        self.clock.advance(1)
        assert self.pull_texts() == ["2"]

    def test_keys_take_turns_within_their_windows(self) -> None:
        self.subscribe_windowed(10)
        self.publish_by_letter(*(f"{letter}{number}" for letter in "abc" for number in range(10)))
        assert sorted(self.pull_texts(6)) == ["a0", "a1", "b0", "b1", "c0", "c1"]

    def test_a_busy_key_with_room_in_its_window_does_not_starve_another(self) -> None:
        self.subscribe_windowed(100)
        self.publish(*(f"{number}" for number in range(50)), key="busy")
        self.publish("calm", key="calm")
        out = self.pull(1)
        for _ in range(10):  # one more goes out before the last is acked, so the key is never idle
            out += self.pull(1)
            self.ack(out.pop(0))
            if texts(out) == ["calm"]:
                return
        raise AssertionError("the other key got no turn in ten")

    def test_keys_are_not_starved_by_messages_without_one(self) -> None:
        self.subscribe_windowed(2)
        self.publish("keyed", key="k")
        self.publish(*(f"free-{number}" for number in range(50)))
        assert "keyed" in [self.pull_texts(1)[0] for _ in range(10)]

    def test_a_key_is_not_starved_by_a_message_without_one_that_fails_again_and_again(self) -> None:
        """message-ordering BR-008"""
        for window in (1, 2):
            name = f"window-{window}"
            self.subscribe(name, enable_message_ordering=True, max_outstanding_per_key=window)
            self.publish("bad")
            self.publish("good", key="k")
            seen = []
            for _ in range(4):
                [message] = self.queue.pull(name, 1)
                seen.append(message.data)
                (self.nack if message.data == b"bad" else self.ack)(message)
            assert b"good" in seen

    def test_what_came_back_without_a_key_stays_the_oldest_of_its_kind_beside_a_key(self) -> None:
        """message-queue BR-019"""
        self.subscribe(enable_message_ordering=True)
        self.publish("a", "b")
        a, b = self.pull(2)
        self.publish("c", "d")
        self.publish("keyed", key="k")
        self.nack(b)
        self.nack(a)
        got = [self.pull_texts(1)[0] for _ in range(5)]
        assert [text for text in got if text != "keyed"] == ["a", "b", "c", "d"]
        assert "keyed" in got[:3]

    def test_what_is_released_takes_back_all_that_is_out_behind_it(self) -> None:
        self.subscribe_windowed(3)
        self.publish("0", "1", "2", "3", key="k")
        zero, one, two = self.pull(3)
        self.queue.release("worker", [one._lease])
        self.assert_over(one, two)
        self.nack(zero)
        assert self.consume() == ["0", "1", "2", "3"]

    def test_messages_without_a_key_are_not_starved_by_keys(self) -> None:
        self.subscribe_windowed(100)
        self.publish(*(f"{number}" for number in range(50)), key="k")
        self.publish("free")
        assert "free" in [self.pull_texts(1)[0] for _ in range(10)]

    def test_what_is_out_comes_again_in_order_when_the_window_changes(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", "4", key="k")
        out = self.pull()
        self.queue.update_subscription("worker", {"max_outstanding_per_key": 1})
        self.assert_over(*out)
        assert self.consume() == ["1", "2", "3", "4"]

    def test_a_failed_message_is_still_known_to_have_failed_when_the_window_changes(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", key="k")
        self.nack(self.pull()[0])
        self.queue.update_subscription("worker", {"max_outstanding_per_key": 2})
        assert [(message.data, message.delivery_attempt) for message in self.pull()] == [(b"1", 2), (b"2", 1)]

    def test_a_window_goes_with_the_ordering(self) -> None:
        """Without ordering nothing would keep to it, and a key would not be in order either."""
        self.subscribe_windowed(2)
        self.publish("1", "2", "3", key="k")
        with self.refused(InvalidArgument, "max_outstanding_per_key", "enable_message_ordering"):
            self.queue.update_subscription("worker", {"enable_message_ordering": False})
        self.queue.update_subscription("worker", {"enable_message_ordering": False, "max_outstanding_per_key": 1})
        assert self.pull_texts() == ["1", "2", "3"]
        self.queue.update_subscription("worker", {"enable_message_ordering": True, "max_outstanding_per_key": 2})
        assert self.pull_texts() == ["1", "2"]

    def test_every_delivery_after_the_first_counts_as_a_redelivery(self) -> None:
        self.subscribe_windowed(3)
        self.publish("1", "2", "3", key="k")
        self.nack(self.pull()[0])
        self.pull()
        counters = self.queue.metrics("worker").counters
        assert (counters.delivered, counters.redelivered, counters.nacked) == (6, 3, 1)

    def test_a_key_is_in_order_whatever_happens_to_it(self) -> None:
        """Ack, nack and expiry in turn: no message starts before all earlier ones were delivered."""
        self.subscribe_windowed(4, ack_deadline_seconds=60)
        self.queue.publish("orders", [Message(b"%d" % number, ordering_key="k") for number in range(60)])
        held: dict[int, Message] = {}
        expected = 0
        for step in range(1000):
            for message in self.pull(2):
                number = int(message.data)
                assert number == expected, f"step {step}"
                expected = number + 1
                held[number] = message
            if not held:
                break
            first, last = min(held), max(held)
            if step % 7 == 3:
                self.nack(held[last])
                expected = last
                del held[last]
            elif step % 11 == 5:
                self.clock.advance(60)
                expected, held = first, {}
            else:
                self.ack(held.pop(first))
        assert expected == 60
        assert self.queue.metrics("worker").backlog_messages == 0
