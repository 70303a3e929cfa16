"""A test of the tests: whoever breaks a promise of the broker is caught by the generated histories.

Each bug is planted in the real code for the length of one test, where such a bug would be made.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from inorder import broker
from inorder.broker import MessageQueue
from inorder.core.events import DeadLettered, Event, Failed
from inorder.core.failures import Failures
from inorder.core.holds import Holds
from inorder.core.lanes import Lanes
from inorder.core.leases import Leases
from inorder.core.state import State
from inorder.core.subscription import Subscription
from inorder.errors import InvalidArgument
from inorder.message import Message
from inorder.metadata import BlockedKey, Unacked
from inorder.options import RetryPolicy, SubscriptionOptions

from .broker_machine import BrokerMachine

# Found or not is all that matters: no shrinking, and the same histories each time.
SEARCH = settings(
    max_examples=1_000,
    stateful_step_count=40,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: list[Plant] = []


def bug(plant: Plant) -> Plant:
    BUGS.append(plant)
    return plant


@bug
def a_nacked_message_is_overtaken_by_the_next(patch: pytest.MonkeyPatch) -> None:
    def to_second_place(self: Lanes[Any], key: str, records: Sequence[Any]) -> None:
        waiting = deque(self._behind.get(key) or ())
        first = [waiting.popleft()] if waiting else []
        self._behind[key] = deque([*first, *records, *waiting])

    patch.setattr(Lanes, "_to_front", to_second_place)


@bug
def a_nacked_message_goes_to_the_end_of_its_key(patch: pytest.MonkeyPatch) -> None:
    def to_end(self: Lanes[Any], key: str, records: Sequence[Any]) -> None:
        self._behind[key] = deque([*(self._behind.get(key) or ()), *records])

    patch.setattr(Lanes, "_to_front", to_end)


@bug
def attempts_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Failures, "attempts", lambda self, records: [1] * len(records))


@bug
def a_lease_that_is_over_can_be_acked(patch: pytest.MonkeyPatch) -> None:
    def settle(self: MessageQueue, subscription: str, acks: Sequence[int], nacks: Sequence[int]) -> list[int]:
        original(self, subscription, acks, nacks)
        return []

    original = MessageQueue.settle
    patch.setattr(MessageQueue, "settle", settle)


@bug
def bytes_of_expired_leases_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    def failed(self: Subscription, event: Failed) -> None:
        before = self.out_bytes
        original(self, event)
        if event.expired:
            self.out_bytes = before

    original = Subscription.failed
    patch.setattr(Subscription, "failed", failed)


@bug
def one_lease_of_several_never_expires(patch: pytest.MonkeyPatch) -> None:
    def expired(self: Leases, now_us: int) -> list[int]:
        leases = original(self, now_us)
        return leases[:-1] if len(leases) > 1 else leases

    original = Leases.expired
    patch.setattr(Leases, "expired", expired)


@bug
def a_message_is_poison_one_failure_late(patch: pytest.MonkeyPatch) -> None:
    def max_failures(self: SubscriptionOptions) -> int | None:
        failures: int | None = original.__get__(self)
        return None if failures is None else failures + 1

    original: Any = SubscriptionOptions.max_failures
    patch.setattr(SubscriptionOptions, "max_failures", property(max_failures))


@bug
def a_dead_letter_without_a_topic_is_lost(patch: pytest.MonkeyPatch) -> None:
    def decide_failed(
        self: State, subscription: Subscription, leases: Sequence[int], now_us: int, *, expired: bool
    ) -> tuple[list[Event], list[str]]:
        policy = subscription.options.dead_letter_policy
        returns, poison = subscription.decide_failure(leases, now_us)
        if not poison or policy is None or policy.dead_letter_topic in self.topics:
            return original(self, subscription, leases, now_us, expired=expired)
        failed = Failed(subscription.name, returns, len(leases), 0, expired, now_us)
        return [failed, DeadLettered(subscription.name, poison, subscription.ordered)], []

    original = State._decide_failed
    patch.setattr(State, "_decide_failed", decide_failed)


@bug
def what_is_out_behind_a_failed_message_stays_out(patch: pytest.MonkeyPatch) -> None:
    def decide_failure(self: Subscription, *args: Any, **options: Any) -> Any:
        windowed, self.windowed = self.windowed, False
        try:
            return original(self, *args, **options)
        finally:
            self.windowed = windowed

    original = Subscription.decide_failure
    patch.setattr(Subscription, "decide_failure", decide_failure)


@bug
def a_seek_forgets_what_is_not_acked(patch: pytest.MonkeyPatch) -> None:
    def seek(self: Subscription, *args: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Subscription, "_unacked", lambda self: iter(()))
            original(self, *args)

    original = Subscription.seek
    patch.setattr(Subscription, "seek", seek)


@bug
def a_queue_takes_one_message_too_many(patch: pytest.MonkeyPatch) -> None:
    def set_options(self: Subscription, options: SubscriptionOptions) -> None:
        original(self, options)
        self.max_messages += 1

    original = Subscription._set_options
    patch.setattr(Subscription, "_set_options", set_options)


@bug
def a_dropped_message_leaves_no_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscription, "_put_gap", lambda self, record: None)


@bug
def a_backoff_is_twice_as_long(patch: pytest.MonkeyPatch) -> None:
    original = RetryPolicy.backoff
    patch.setattr(RetryPolicy, "backoff", lambda self, failed_attempts: original(self, failed_attempts + 1))


@bug
def a_parked_key_goes_on_by_itself(patch: pytest.MonkeyPatch) -> None:
    def hold(self: Holds, key: str, hold: Any) -> None:
        original(self, key, hold if hold.until_us is not None else hold._replace(until_us=0))

    original = Holds.hold
    patch.setattr(Holds, "hold", hold)


@bug
def a_deadline_of_zero_is_no_nack(patch: pytest.MonkeyPatch) -> None:
    def extend(self: MessageQueue, subscription: str, leases: Sequence[int], seconds: float) -> list[int]:
        return original(self, subscription, leases, seconds or 1)

    original = MessageQueue.extend
    patch.setattr(MessageQueue, "extend", extend)


@bug
def an_invalid_message_is_left_out_of_its_batch(patch: pytest.MonkeyPatch) -> None:
    def batch_of(messages: Iterable[Message]) -> Any:
        return original(list(valid(messages)))

    def valid(messages: Iterable[Message]) -> Iterator[Message]:
        for message in messages:
            try:
                original([message])
            except InvalidArgument:
                continue
            yield message

    original = broker.batch_of  # type: ignore[attr-defined]
    patch.setattr(broker, "batch_of", batch_of)


@bug
def a_detached_subscription_keeps_its_messages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscription, "detach", lambda self: setattr(self, "detached", True))


@bug
def nobody_is_told_that_a_key_goes_on(patch: pytest.MonkeyPatch) -> None:
    def settle(self: MessageQueue, subscription: str, acks: Sequence[int], nacks: Sequence[int]) -> list[int]:
        watchers, self._watchers = self._watchers, {}
        try:
            return original(self, subscription, acks, nacks)
        finally:
            self._watchers = watchers

    original = MessageQueue.settle
    patch.setattr(MessageQueue, "settle", settle)


@bug
def a_key_that_waits_for_what_is_out_is_not_told(patch: pytest.MonkeyPatch) -> None:
    def blocked_keys(self: Subscription, now_us: int) -> list[BlockedKey]:
        return [key for key in original(self, now_us) if key.reason != "out"]

    original = Subscription.blocked_keys
    patch.setattr(Subscription, "blocked_keys", blocked_keys)


@bug
def what_waits_in_a_key_is_counted_with_what_is_out(patch: pytest.MonkeyPatch) -> None:
    def blocked(self: Subscription, key: str, lease: int | None, now_us: int) -> BlockedKey:
        found = original(self, key, lease, now_us)
        return found if lease is None else replace(found, waiting=found.waiting + 1)

    original = Subscription._blocked
    patch.setattr(Subscription, "_blocked", blocked)


@bug
def what_waits_for_a_retry_is_not_among_what_is_to_be_acked(patch: pytest.MonkeyPatch) -> None:
    def unacked(self: Subscription) -> Unacked:
        found = original(self)
        return replace(found, keys=tuple(key for key in found.keys if key.ordering_key not in self._holds.keys))

    original = Subscription.unacked
    patch.setattr(Subscription, "unacked", unacked)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Full queues and dead letters are what the machine is about; a failure is easier to read without them."""
    caplog.set_level(logging.CRITICAL, logger="inorder")


@pytest.mark.parametrize("plant", BUGS, ids=[plant.__name__ for plant in BUGS])
def test_the_machine_finds_that(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError) as found:
        run_state_machine_as_test(BrokerMachine, settings=SEARCH)
    # The model has to say so: a bug that breaks the broker's own assertions would be found by any test.
    assert str(found.traceback[-1].path).endswith(("model.py", "broker_machine.py"))
