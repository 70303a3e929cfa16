"""Orders on their way through a shop, handled twice: by a plain worker pool, and by inorder.

Three publishers send the events of eight orders. Handlers take different times, and some fail at
first. The pool does what most consumers do: it works in parallel and puts a failed event back at the
end of its queue. Run it with `make tour`.
"""

import queue
import random
import threading
import time
from collections import defaultdict

from inorder import DeadLetterPolicy, Message, PubSub, RetryPolicy
from inorder.testing.history import History, anomalies

STEPS = ("placed", "paid", "packed", "shipped", "delivered")
ORDERS = [f"order-{number}" for number in range(1, 9)]
POISON = ("order-5", "packed")  # this one never works; inorder sends it to the dead letters
WORKERS = 8


class Shop:
    """The work itself: how long each event takes and how often it fails is drawn once, for both runs."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        events = [(order, step) for order in ORDERS for step in STEPS]
        self._seconds = {event: chance.choice((0.001, 0.002, 0.004, 0.03)) for event in events}
        self._failures = {event: chance.choice((0, 0, 0, 1, 2)) for event in events}
        self._failures[POISON] = 99
        self._tries: dict[tuple[str, str], int] = defaultdict(int)
        self.handled: dict[str, list[str]] = defaultdict(list)

    def handle(self, order: str, step: str) -> None:
        time.sleep(self._seconds[order, step])
        self._tries[order, step] += 1
        if self._tries[order, step] <= self._failures[order, step]:
            raise RuntimeError(f"{order}: {step!r} failed, try {self._tries[order, step]}")
        self.handled[order].append(step)

    def give_up(self, order: str, step: str) -> bool:
        return self._tries[order, step] >= 3


def publish_from_three_places(publish) -> None:
    """Each publisher owns some orders and sends their events step by step."""

    def publisher(orders: list[str]) -> None:
        for step in STEPS:
            for order in orders:
                publish(order, step)

    threads = [threading.Thread(target=publisher, args=(ORDERS[start::3],)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def naive(shop: Shop) -> History:
    """A queue and eight threads; what fails goes back to the end of the queue."""
    history, work = History(), queue.Queue()

    def publish(order: str, step: str) -> None:
        history.published(order, step)
        work.put((order, step))

    def worker() -> None:
        while (event := work.get()) is not None:
            order, step = event
            history.started(order, step)
            try:
                shop.handle(order, step)
                history.finished(order, step)
            except RuntimeError:
                history.failed(order, step)
                if shop.give_up(order, step):
                    history.gap(order, step)
                else:
                    work.put(event)
            work.task_done()

    threads = [threading.Thread(target=worker) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    publish_from_three_places(publish)
    work.join()
    for _ in threads:
        work.put(None)
    return history


def in_order(shop: Shop) -> tuple[History, list[str]]:
    """The same events, with the order as ordering key."""
    history = History()
    dead: list[str] = []
    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("orders")
        topic.create().result()
        pubsub.topic("orders-dead").create().result()
        dead_letters = pubsub.topic("orders-dead").subscription("dead-orders")
        dead_letters.create().result()
        subscription = topic.subscription("shop")
        subscription.create(
            enable_message_ordering=True,
            retry_policy=RetryPolicy(minimum_backoff=0.01, maximum_backoff=0.05),
            dead_letter_policy=DeadLetterPolicy("orders-dead", max_delivery_attempts=3),
        ).result()

        @subscription.on("message")
        @history.handler
        def handle(message: Message) -> None:
            shop.handle(message.ordering_key, message.data.decode())
            message.ack()

        subscription.on("gap", lambda gap: history.missing(gap.ordering_key, gap.count))
        subscription.on("error", lambda error: None)  # failures are part of the tour
        subscription.open()

        def publish(order: str, step: str) -> None:
            data = step.encode()
            history.publishing(order, data)
            topic.publish_message(data, ordering_key=order).result()
            history.published(order, data)

        publish_from_three_places(publish)
        while subscription.metrics().result().backlog_messages:
            time.sleep(0.005)
        dead += [f"{letter.ordering_key}: {letter.data.decode()}" for letter in dead_letters.pull(10).result()]
    return history, dead


def show(plain: Shop, ordered: Shop) -> None:
    width = len(" ".join(STEPS))
    print(f"{'':9} {'a plain worker pool':{width}}  inorder")
    for order in ORDERS:
        seen, right = plain.handled[order], ordered.handled[order]
        mark = " " if seen == [step for step in STEPS if step in seen] else "!"
        print(f"{order:8}{mark} {' '.join(seen):{width}}  {' '.join(right)}")


def main() -> None:
    plain, ordered = Shop(seed=11), Shop(seed=11)
    print(f"{len(ORDERS)} orders, {len(STEPS)} events each, 3 publishers, handlers that are slow or fail\n")
    naive_found = anomalies(naive(plain))
    history, dead = in_order(ordered)
    found = anomalies(history)
    show(plain, ordered)
    print("\n! = handled out of order. order-5's 'packed' never works: after three tries it is a dead letter.")
    print(f"\nchecker on the plain pool:\n{naive_found}")
    print(f"\nchecker on inorder:\n{found}")
    print(f"dead letters: {', '.join(dead)}")
    if found:
        raise SystemExit("inorder broke its promise: please report this run")


if __name__ == "__main__":
    main()
