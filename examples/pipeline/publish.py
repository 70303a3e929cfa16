"""Fills a topic for pipeline.toml: events of orders that come out of order, some of them twice, and one never."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path

from inorder import AlreadyExists, PubSub

STEPS = ("placed", "paid", "packed", "shipped", "delivered")
ORDERS = 200


def main() -> None:
    chance = random.Random(7)
    events = [(f"order-{order:03d}", number) for number in range(1, len(STEPS) + 1) for order in range(ORDERS)]
    events.remove(("order-007", 3))  # lost on the way
    late = [(place + chance.uniform(0, 300), event) for place, event in enumerate(events)]
    late += [(place + chance.uniform(50, 900), event) for place, event in enumerate(events) if chance.random() < 0.05]
    with PubSub(Path(__file__).parent / "data") as pubsub:
        topic = pubsub.topic("orders")
        with suppress(AlreadyExists):  # then all of it is sent once more
            topic.create(message_retention_duration=7 * 86_400).result()
        for _, (order, number) in sorted(late):
            data = {"step": STEPS[number - 1], "cents": 100 * int(order[-3:]) + number}
            topic.publish_message(json.dumps(data).encode(), {"sequence": str(number)}, order)
        topic.flush().result()
    print(f"{len(late):,} messages of {ORDERS} orders")


if __name__ == "__main__":
    main()
