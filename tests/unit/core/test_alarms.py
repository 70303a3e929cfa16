"""What time is to bring is remembered once for each subscription, however often it changes."""

from inorder.broker import MessageQueue
from inorder.message import Message
from inorder.testing import ManualClock


def test_alarms_of_a_subscription_that_is_used_now_and_then_do_not_pile_up() -> None:
    clock = ManualClock()
    queue = MessageQueue(clock=clock)
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"ack_deadline_seconds": 10})
    for _ in range(1000):
        queue.publish("orders", [Message(b"a")])
        [message] = queue.pull("worker", 10)
        queue.ack(message.ack_id)
        clock.advance(11)
    assert len(queue._state._alarms) < 100
    queue.publish("orders", [Message(b"a")])
    queue.pull("worker", 10)
    clock.advance(11)
    assert len(queue.pull("worker", 10)) == 1  # and none that matters is forgotten
    queue.close()


def test_alarms_of_deleted_subscriptions_do_not_pile_up() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    for number in range(1000):
        queue.register_subscription(f"worker-{number}", "orders")
        queue.publish("orders", [Message(b"a")])
        queue.unregister_subscription(f"worker-{number}")
    assert len(queue._state._alarms) < 100
    queue.close()
