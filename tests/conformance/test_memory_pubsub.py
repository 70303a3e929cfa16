"""A `PubSub` on a broker in memory keeps every promise: in real time, and in time that a test moves."""

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.testing.clock import ManualClock
from inorder.testing.conformance.pubsub import PubSubConformance


class TestMemoryPubSub(PubSubConformance):
    def make_target(self) -> PubSub:
        return PubSub("memory:")


class TestPubSubOfAQueue(PubSubConformance):
    def make_target(self) -> PubSub:
        self.clock = ManualClock()
        return PubSub(MessageQueue(clock=self.clock))


def test_no_part_of_the_suite_hides_another() -> None:
    names = [name for part in PubSubConformance.__mro__[:-1] for name in vars(part) if not name.startswith("__")]
    twice = {name for name in names if names.count(name) > 1}
    assert twice <= {"setup_method"}
    assert len(names) > 100
