"""What is remembered of a broker is enough: whenever it stops, it comes back as it was, without its leases."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from inorder.clock import MICROSECONDS
from inorder.core.events import PUBLISHED, Event
from inorder.core.ledger import Book, Ledger
from inorder.core.state import State
from inorder.message import POSITION, SIZE, STORED_US, Record

from .broker_machine import BrokerMachine


class Everything:
    """All messages of a topic that ever were, as a disk would have them."""

    complete = True

    def __init__(self) -> None:
        self.records: list[Record] = []

    def keep(self, records: Sequence[Record]) -> None: ...

    def forget_before(self, time_us: int) -> None: ...

    def read(self, first: int, end: int) -> list[Record]:
        return self.records[first : min(end, first + 3)]  # in small pieces

    def first_since(self, time_us: int) -> int | None:
        return next((record[POSITION] for record in self.records if record[STORED_US] >= time_us), None)

    def size(self, first: int, end: int) -> int:
        return sum(record[SIZE] for record in self.records[first:end])


def book_of(state: State, now_us: int) -> Book:
    """The books of a broker that has read all that it may and forgotten all that is too old."""
    while due := state.due(now_us):
        State.apply(state, due[1][1])
    for subscription in state.subscriptions.values():
        while subscription._lagging:
            subscription._take_in(subscription._read_on())
        subscription._sweep(now_us)
    return state.book().at(now_us)


class RememberingMachine(BrokerMachine):
    """Keeps books of all that happens, and after every step brings the broker back from them."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.histories: dict[int, Everything] = {}
        state = self.broker._state
        apply = state.apply

        def remember(events: Iterable[Event]) -> None:
            self.book.apply(events)
            for event in events:
                if event[0] == PUBLISHED:
                    _, topic, records, *_ = event
                    self.histories.setdefault(state.topics[topic].serial, Everything()).records += records
            apply(events)

        state.apply = remember  # type: ignore[method-assign]

    def forget_outdated(self, ledger: Ledger, now_us: int) -> None:
        """What is too old is nothing or a gap, by the rules of order of the moment in which that was noticed."""
        if not ledger.detached:
            oldest_us = now_us - ledger.options.message_retention_duration * MICROSECONDS
            serial = self.broker._state.topics[ledger.topic].serial
            records = self.histories[serial].records if serial in self.histories else []
            old = [record[POSITION] for record in records if record[STORED_US] < oldest_us]
            ledger.done = ledger.done.union((position, position + 1) for position in old)
            for position in old:
                ledger.gaps.pop(position, None)
                ledger.failures.pop(position, None)

    @invariant()
    def it_comes_back_as_it_was(self) -> None:
        now_us = self.clock.now_us()
        shared = {id(one): one for consumers in self.consumers.values() for one in consumers}
        before = book_of(copy.deepcopy(self.broker._state, shared), now_us)
        book = copy.deepcopy(self.book)
        again = book_of(State("again-", book, lambda serial: self.histories.get(serial, Everything())), now_us)
        assert again.topics == before.topics
        for name, ledger in before.subscriptions.items():
            self.forget_outdated(ledger, now_us)
            self.forget_outdated(again.subscriptions[name], now_us)
            for field in ("options", "detached", "done", "gaps", "failures", "holds", "waits"):
                assert getattr(again.subscriptions[name], field) == getattr(ledger, field), (name, field)
        assert again == before


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="inorder")


def test_the_books_bring_a_broker_back_as_it_was() -> None:
    search = settings(max_examples=2 * settings().max_examples, stateful_step_count=30, report_multiple_bugs=False)
    run_state_machine_as_test(RememberingMachine, settings=search)
