"""`OrderPaid` comes before `OrderPlaced`. Is it enough to fail, and to try again?

Yes, if the event that is missing can come in the meantime. No, if it waits behind the one that fails: that is what a
subscription with ordering does when the two were published in the wrong order. Then keys keep a wrong order for ever.
"""

import threading

from inorder import DeadLetterPolicy, PubSub, RetryPolicy

ORDER = "order-7"


def run(*, ordered):
    """Handle both events with retries, and say what became of the invoice."""
    orders, invoices, failures, over = {}, {}, [], threading.Event()

    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("orders").create().result()
        pubsub.topic("dead").create().result()
        dead = pubsub.topic("dead").subscription("undertaker").create().result()
        subscription = topic.subscription("billing")
        subscription.create(
            enable_message_ordering=ordered,
            retry_policy=RetryPolicy(minimum_backoff=0.01, maximum_backoff=0.05),
            dead_letter_policy=DeadLetterPolicy("dead", max_delivery_attempts=5),
        ).result()

        @subscription.on("message")
        def handle(message):
            event = message.data.decode()
            if event == "OrderPlaced":
                orders[message.ordering_key] = "placed"
            elif message.ordering_key not in orders:
                failures.append(event)
                message.nack()  # the order is not known yet: come again
                return
            else:
                invoices[message.ordering_key] = "paid"
                over.set()
            message.ack()

        @dead.on("message")
        def bury(message):
            invoices[message.ordering_key] = f"{message.data.decode()} was given up"
            message.ack()
            over.set()

        dead.open()
        topic.publish_message(b"OrderPaid", ordering_key=ORDER).result()
        topic.publish_message(b"OrderPlaced", ordering_key=ORDER).result()
        subscription.open()
        over.wait(10)
    return invoices, len(failures)


def without_pattern():
    """In the order in which they were published: `OrderPlaced` never has its turn before `OrderPaid`."""
    return run(ordered=True)[0]


def with_pattern():
    """In any order: while `OrderPaid` waits for its retry, `OrderPlaced` goes ahead."""
    return run(ordered=False)[0]


def expected():
    return {ORDER: "paid"}


if __name__ == "__main__":
    for text, ordered in (("retries, key in order:", True), ("retries, in any order:", False)):
        invoices, failures = run(ordered=ordered)
        print(text, invoices, f"after {failures} failed tries")
