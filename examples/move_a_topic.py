"""A topic moves to another broker while its publisher goes on publishing.

Without a forwarder the publisher is just pointed at the new broker; what the old one still has comes later, or never.
"""

from inorder import PubSub
from inorder.consumers import Forwarder, MovingTopic, forwarding_subscription

EVENTS = ["placed", "paid", "packed", "shipped", "delivered", "refunded"]


def two_brokers():
    old, new = PubSub("memory:"), PubSub("memory:")
    topics = [pubsub.topic("orders").create().result() for pubsub in (old, new)]
    mover = forwarding_subscription(topics[0], "mover").result()
    reader = topics[1].subscription("reader").create(enable_message_ordering=True).result()
    return old, new, *topics, mover, reader


def read(reader):
    events = []
    while messages := reader.pull().result():
        events.append(messages[0].data.decode())
        messages[0].ack().result()
    return events


def without_pattern():
    """The publisher changes brokers first, and the rest is copied afterwards."""
    old, new, source, target, mover, reader = two_brokers()
    with old, new:
        for number, event in enumerate(EVENTS):
            topic = source if number < 3 else target
            topic.publish_message(event.encode(), ordering_key="order-7").result()
        with Forwarder(mover, target) as forwarder:
            forwarder.drained().result()
        return read(reader)


def with_pattern():
    """The switch holds the publisher until the old broker is drained."""
    old, new, source, target, mover, reader = two_brokers()
    with old, new, Forwarder(mover, target) as forwarder:
        topic = MovingTopic(source, target)
        for number, event in enumerate(EVENTS):
            topic.publish_message(event.encode(), ordering_key="order-7")
            if number == 2:
                switched = topic.switch(forwarder)
        switched.result()
        target.flush().result()
        return read(reader)


def expected():
    return EVENTS


if __name__ == "__main__":
    print("published:      ", EVENTS)
    print("without pattern:", without_pattern())
    print("with pattern:   ", with_pattern())
