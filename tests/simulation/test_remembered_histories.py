"""What is remembered of a broker is enough: whenever it stops, it comes back as it was, without its leases."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from inorder.core.events import Event, Published
from inorder.core.ledger import Book
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


def caught_up(state: State) -> State:
    for subscription in state.subscriptions.values():
        subscription._catch_up(1 << 30)
    return state


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
                if isinstance(event, Published):
                    self.histories.setdefault(state.topics[event.topic].serial, Everything()).records += event.records
            apply(events)

        state.apply = remember  # type: ignore[method-assign]

    @invariant()
    def it_comes_back_as_it_was(self) -> None:
        now_us = self.clock.now_us()
        live = self.broker._state
        while due := live.due(now_us):  # what time has brought about, the next call would notice
            live.apply(due[1][1])
        restored = State("again-", copy.deepcopy(self.book), lambda serial: self.histories.get(serial, Everything()))
        while due := restored.due(now_us):
            restored.apply(due[1][1])
        assert caught_up(restored).book().at(now_us) == live.book().at(now_us)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="inorder")


def test_the_books_bring_a_broker_back_as_it_was() -> None:
    search = settings(max_examples=2 * settings().max_examples, stateful_step_count=30, report_multiple_bugs=False)
    run_state_machine_as_test(RememberingMachine, settings=search)
