"""Order events that arrive in any order: a status that the last one overwrites, and facts that nobody overwrites.

`OrderPlaced`, `OrderPaid`, `OrderShipped` and `OrderRefunded` come from four services, each by its own way.
"""

import random

from inorder.patterns import IndependentFields, fold, latest_of

STATUS = {"OrderPlaced": "placed", "OrderPaid": "paid", "OrderShipped": "shipped", "OrderRefunded": "refunded"}

# What happened: (order, event type, time, what the event says)
HAPPENED = [
    ("order-1", "OrderPlaced", 10, {"placed_at": 10}),
    ("order-1", "OrderPaid", 20, {"paid_at": 20}),
    ("order-1", "OrderShipped", 30, {"shipped_at": 30}),
    ("order-2", "OrderPlaced", 11, {"placed_at": 11}),
    ("order-2", "OrderPaid", 21, {"paid_at": 21}),
    ("order-2", "OrderRefunded", 31, {"refunded_at": 31}),
]


def arrivals():
    """The same events as they reach the consumer, one of them twice."""
    events = [*HAPPENED, HAPPENED[1]]
    random.Random(7).shuffle(events)
    return events


def without_pattern():
    """One status per order, and every event overwrites it."""
    status = {}
    for order, event_type, _, _ in arrivals():
        status[order] = STATUS[event_type]
    return dict(sorted(status.items()))


def with_pattern():
    """Each event type has a field of its own; the status is derived when somebody asks."""
    orders = IndependentFields(
        {event_type: [f"{status}_at"] for event_type, status in STATUS.items()},
        derived={"status": latest_of({f"{status}_at": status for status in STATUS.values()})},
    )
    states = fold(orders, arrivals()).states
    return {order: orders.read(state)["status"] for order, state in sorted(states.items())}


def expected():
    """What a consumer would say that had seen everything in order."""
    return {order: STATUS[event_type] for order, event_type, _, _ in HAPPENED}


if __name__ == "__main__":
    print("arrived:        ", ", ".join(f"{order} {STATUS[event_type]}" for order, event_type, _, _ in arrivals()))
    print("without pattern:", without_pattern())
    print("with pattern:   ", with_pattern())
