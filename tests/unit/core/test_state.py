"""What was published and is not durable yet: nobody sees it, and it needs its room all the same."""

import pytest

from inorder.core.events import Decision
from inorder.core.log import MemoryHistory
from inorder.core.state import State
from inorder.errors import QueueFull
from inorder.message import Message, batch_of
from inorder.options import QueueLimits, SubscriptionOptions, TopicOptions


class Desk:
    """A state whose messages become visible when the test says so."""

    def __init__(self) -> None:
        self.state = State("epoch-", None, lambda _: MemoryHistory())
        for topic in ("orders", "others"):
            self.do(self.state.create_topic(topic, TopicOptions(), 0))
        limits = QueueLimits(max_messages=2, when_full="error")
        self.do(self.state.create_subscription("worker", "orders", SubscriptionOptions(queue_limits=limits), 0))

    def do(self, decision: Decision[object]) -> None:
        self.state.apply(decision[1])

    def publish(self, topic: str = "orders", count: int = 1) -> None:
        self.do(self.state.publish(topic, batch_of([Message(b"x")] * count), 0))

    def leased(self) -> list[int]:
        return [record[0] for record in self.state.lease("worker", 100, 0)[2]]


def test_what_is_on_its_way_to_disk_fills_a_subscription() -> None:
    desk = Desk()
    desk.publish(count=2)
    with pytest.raises(QueueFull):
        desk.publish()
    assert desk.leased() == []
    desk.state.reveal()
    assert desk.leased() == [0, 1]


def test_what_is_on_its_way_to_another_topic_fills_nobody() -> None:
    desk = Desk()
    desk.publish("others", count=5)
    desk.publish(count=2)
    desk.state.reveal()
    assert desk.leased() == [0, 1]


def test_who_has_sought_beyond_what_is_on_its_way_does_not_get_it_and_has_room() -> None:
    desk = Desk()
    desk.publish(count=2)
    desk.do(desk.state.seek("worker", 0, position=2))
    desk.publish(count=2)
    desk.state.reveal(1)
    assert desk.leased() == []
    desk.state.reveal()
    assert desk.leased() == [2, 3]
