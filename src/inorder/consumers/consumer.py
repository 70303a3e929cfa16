"""Runs a pattern behind a subscription, its state beside the effect: both are in the database, or neither is.

A list of messages is one transaction: read the states of their keys, take the step, let the handler write what the
step lets through, write the states, ask the broker whether the messages are still ours, commit; then they are acked.
A crash in between has changed nothing, and the messages come again. What is parked is in the state, so its message is
acked too.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Generic, Self, TypeVar

from inorder.client.subscription import Subscription
from inorder.clock import MICROSECONDS
from inorder.consumers.events import Applied, Effect, Read, effects, message_id_of
from inorder.consumers.functions import call, check_done, check_function
from inorder.consumers.planning import Listed, Plan, Planner, quarantined
from inorder.consumers.recent import Recent, StoredPattern
from inorder.consumers.store import Conflict, Connection, Row, States, Store, Stored
from inorder.consumers.worker import TRIES, WAIT_US, Answers, Done, OnError, Run, Worker, trouble_of
from inorder.errors import InorderError, InvalidArgument
from inorder.message import Message
from inorder.options import SubscriptionOptions
from inorder.patterns.step import (
    APPLIED,
    DUPLICATE,
    GAP,
    PARKED,
    RETRY,
    STALE,
    Event,
    Missing,
    Outcome,
)

S = TypeVar("S")

_fate = itemgetter(0)  # of an outcome

LOOK_US = 10 * MICROSECONDS  # at least so often: another process may have parked something and died

# How loudly the log tells what did not go through as it came. What comes early or late is why there is a pattern.
LOUDNESS = {
    DUPLICATE: logging.WARNING,
    GAP: logging.WARNING,
    PARKED: logging.INFO,
    RETRY: logging.INFO,
    STALE: logging.INFO,
}

STORED_PATTERN = ("on_messages", "dump", "load")  # what it must be able to do

Apply = Callable[[Applied, Any], object]
ApplyAll = Callable[[Sequence[Applied], Any], object]
OnGap = Callable[[Missing, Any], object]

_log = logging.getLogger(__name__)


class Consumer(Worker[tuple[Listed, Plan[S] | None]], Generic[S]):
    """A pattern at work. `open` starts it in a thread of its own, `close` ends it; or use it as `with consumer:`.

    `read` makes an event of a message: a tuple, the key first, then what the pattern reads. `apply(event, connection)`
    is called, in order, for what the pattern lets through, within the transaction: what it writes there is
    committed together with the state, once, whatever is delivered twice. `apply_all(events, connection)` instead of it
    gets all that goes through together, which a database can write by one statement. A message that `read` refuses, or
    that the pattern quarantines, goes to the table `inorder_quarantine`. If `apply` raises, the messages it failed
    for come again by the subscription's rules, and the others of the list are not held up.

    `on_gap(missing, connection)` is called in the transaction that gives numbers up, `on_error(error, messages)` for
    everything that goes wrong. Several consumers of one `name` may run at once, in any number of processes.
    """

    def __init__(
        self,
        subscription: Subscription,
        pattern: StoredPattern[S],
        *,
        store: Store,
        read: Read,
        apply: Apply | None = None,
        apply_all: ApplyAll | None = None,
        name: str | None = None,
        batch: int = 100,
        on_gap: OnGap | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(subscription, store, name=name, batch=batch, on_error=on_error)
        if (apply is None) == (apply_all is None):
            raise InvalidArgument("apply, or apply_all: one of the two")
        functions = {"read": read, "apply": apply, "apply_all": apply_all, "on_gap": on_gap}
        for what, function in functions.items():
            if function is not None or what == "read":
                check_function(what, function)
        _check_pattern(pattern)
        options = subscription.metadata().result().options
        refuse_livelock(subscription.name, options, pattern)
        self._pattern = pattern
        self._recent = Recent(pattern)
        ordered = options.enable_message_ordering
        self._planner = Planner(self.name, pattern, self._recent, read, ordered=ordered, tells_gaps=on_gap is not None)
        timeout: float | None = getattr(pattern, "gap_timeout_seconds", None)
        self._gap_timeout_us = None if timeout is None else round(timeout * MICROSECONDS)
        self._checked_to: str | None = None  # the key up to which it was checked when to wake up; None: all of them
        self._apply = apply
        self._apply_all = apply_all
        self._on_gap = on_gap

    # -- messages ----------------------------------------------------------------------------------

    def prepare(self, messages: Sequence[Message]) -> tuple[Listed, Plan[S] | None]:
        """Read them, and plan what is to become of them if nothing is known to others that we do not know."""
        listed = self._planner.listed(messages, self._clock.now_us())
        self._recent.catch_up()
        try:
            return listed, self._planner.plan(listed)
        except Exception:  # it is raised once more where the messages are answered for
            return listed, None

    def work(self, prepared: tuple[Listed, Plan[S] | None], connection: Connection, run: Run) -> Done:
        """One transaction for all of them."""
        listed, plan = prepared
        states = States(connection, self.name)
        self._recent.read(listed.keys, states, connection)
        if plan is None or plan.stamp is not self._recent.stamp:  # they were known otherwise
            plan = self._planner.plan(listed)
        self._take_effect(plan.effects, plan.refused, connection, states)
        states.write(plan.writes)
        if not run.keep(listed.messages):  # a lease was lost on the way: whoever has got it now is to do it
            raise Conflict(self.name, listed.keys)
        self._recent.wrote(plan.changes, plan.states, connection.until())
        run.look_by(listed.now_us + LOOK_US if plan.wake_at_us is None else plan.wake_at_us)
        return partial(self._done, listed, plan, states)

    def _done(self, listed: Listed, plan: Plan[S], states: States) -> Answers:
        """It was committed."""
        self._recent.committed()
        self._log_what_is_odd(plan.emitted, states)
        again: set[str] = set()
        if RETRY in map(_fate, plan.emitted):
            again = {message_id_of(event) for fate, event in plan.emitted if fate == RETRY}
        return _answers(listed.messages, again, plan.not_ours)

    def _take_effect(
        self, effects: Iterable[Effect], refused: Iterable[Row], connection: Connection, states: States
    ) -> None:
        for row in refused:
            states.quarantine(row)
        for effect in effects:
            if not isinstance(effect, Missing):
                self._let_through(effect, connection)
            elif self._on_gap is not None:
                call("on_gap", self._on_gap, effect, connection.raw)

    def _let_through(self, events: Sequence[Applied], connection: Connection) -> None:
        if self._apply is not None:
            for event in events:
                self._apply_one(self._apply, event, connection)
        elif self._apply_all is not None and events:
            call("apply_all", self._apply_all, events, connection.raw)
            connection.check()

    def _apply_one(self, apply: Apply, event: Applied, connection: Connection) -> None:
        try:
            if (returned := apply(event, connection.raw)) is not None:  # as `call` does, without another call
                check_done("apply", returned)
            connection.check()
        except Exception as error:  # the event may have been parked, and its message be another one
            error.add_note(f"while message {event.message_id} of {event.key!r} was applied")
            raise

    # -- time --------------------------------------------------------------------------------------

    def open(self) -> Self:
        self._checked_to = "" if self._gap_timeout_us is not None else None
        return super().open()

    def look(self, run: Run) -> int:
        """Do what has fallen due without a message, such as giving up a gap."""
        now_us = self._clock.now_us()
        if self._checked_to is not None:
            self._checked_to = self._check_wakes(self._checked_to, now_us)
        next_us = self._do_what_is_due(run, now_us)
        return next_us if self._checked_to is None else now_us  # in between, messages have their turn

    def _check_wakes(self, after: str, now_us: int) -> str | None:
        """Have keys wake up by this gap timeout that were parked under a longer one, or none.

        Looks at some of them, those behind `after`; returns the last one, None if there are no more.
        """
        assert self._gap_timeout_us is not None
        with self._store.transaction() as connection:
            states = States(connection, self.name)
            asleep = states.asleep(now_us + self._gap_timeout_us, after, self._batch)
            rows = {key: self._waking(row) for key, row in states.load(asleep).items()}
            states.save({key: row for key, row in rows.items() if row is not None})
        return asleep[-1] if asleep else None

    def _waking(self, row: Stored) -> Stored | None:
        """The same with the time to wake up that the pattern has for it now; None if it has that already."""
        version, deliverer, fence, state, wake_at_us = row
        try:
            step = self._pattern.on_timer(self._pattern.load(bytes(state)), -1)  # tells its time, and no more
            if step.state is None or step.wake_at_us == wake_at_us:
                return None
            return Stored(version + 1, deliverer, fence, self._pattern.dump(step.state), step.wake_at_us)
        except InorderError as error:  # a state of another pattern, which is in the way of its own key only
            self.tell(error)
            return None

    def _do_what_is_due(self, run: Run, now_us: int) -> int:
        """Returns when to look again."""
        all_well = True
        after = (-1, "")
        while not run.closed:
            with self._store.transaction() as connection:
                states = States(connection, self.name)
                due = states.due(now_us, after, self._batch)
                next_us = states.next_wake_us(now_us)
            if not due:
                soon_us = now_us + (LOOK_US if all_well else WAIT_US)
                return soon_us if next_us is None else min(next_us, soon_us)
            after = due[-1]
            all_well &= self._wake([key for _, key in due], run)
        return now_us

    def _wake(self, keys: Sequence[str], run: Run) -> bool:
        """Wake keys up in one transaction, or, if that fails, in halves: one that fails holds no other up."""
        for left in reversed(range(TRIES)):
            try:
                self._wake_at_once(keys)
            except Exception as error:
                trouble = trouble_of(self._store, error)
                if trouble == "wait":
                    raise
                if trouble == "again" and left:
                    continue
                if len(keys) > 1:
                    half = len(keys) // 2
                    return self._wake(keys[:half], run) & self._wake(keys[half:], run)
                self.tell(error)
                return False
            return True
        return False

    def _wake_at_once(self, keys: Sequence[str]) -> None:
        now_us = self._clock.now_us()
        emitted: list[Outcome] = []
        with self._store.transaction() as connection:
            states = States(connection, self.name)
            changes: dict[str, Stored] = {}
            forgotten: dict[str, int] = {}
            for key, (version, deliverer, fence, state, _) in states.load(keys).items():
                step = self._pattern.on_timer(self._pattern.load(bytes(state)), now_us)
                emitted += step.emit
                through = effects(step.emit, self._on_gap is not None)
                self._take_effect(through, quarantined(step.emit, now_us), connection, states)
                if step.state is None:
                    forgotten[key] = version
                else:
                    after = self._pattern.dump(step.state)
                    changes[key] = Stored(version + 1, deliverer, fence, after, step.wake_at_us)
            states.save(changes, forgotten)
        self._log_what_is_odd(emitted, states)

    def _log_what_is_odd(self, emitted: Sequence[Outcome], states: States) -> None:
        """What did not go through as it came, a line for each fate. Said when it is committed, and so once."""
        if states.quarantined:
            message_id, entity, reason, *_ = states.quarantined[0]
            _log.warning(
                "consumer %r: %d quarantined, the first: message %s of %r, %s",
                *(self.name, len(states.quarantined), message_id, entity, reason),
            )
        fates = {*map(_fate, emitted)}
        if fates <= APPLIED:
            return
        for fate, level in LOUDNESS.items():
            if fate in fates and _log.isEnabledFor(level) and (fate != GAP or self._on_gap is None):
                found = [event for one, event in emitted if one == fate]
                _log.log(level, "consumer %r: %d %s, the first: %s", self.name, len(found), fate, _shown(found[0]))


def _shown(event: Event) -> str:
    """An event, or what is missing, for a line of the log."""
    if isinstance(event, Missing):
        return f"{event.key!r} goes on without {event.first} to {event.last}, {event.reason}"
    return f"message {message_id_of(event)}, {reprlib.repr(event[:-1])}"


def _check_pattern(pattern: object) -> None:
    """Refuse what is no pattern, or is the class of one."""
    missing = [name for name in STORED_PATTERN if not callable(getattr(pattern, name, None))]
    if missing or isinstance(pattern, type):
        raise InvalidArgument(f"pattern: an object with {', '.join(missing or STORED_PATTERN)}, not {pattern!r}")


def _answers(messages: Sequence[Message], again: set[str], not_ours: set[str]) -> Answers:
    if not again and not not_ours:
        return Answers(messages)
    ours = [message for message in messages if message.id not in not_ours]
    return Answers(
        [message for message in ours if message.id not in again],
        [message for message in ours if message.id in again],
    )


def refuse_livelock(subscription: str, options: SubscriptionOptions, pattern: object) -> None:
    """Refuse a pattern that sends messages back, where what they wait for may never get its turn."""
    if not getattr(pattern, "may_retry", False):
        return
    if options.enable_message_ordering:
        problem = "keeps keys in order, so that one may wait behind it for ever"
        remedy = "subscribe without enable_message_ordering"
    elif options.retry_policy is None or not options.retry_policy.minimum_backoff:
        problem = "delivers what came back before all that was never out, so that one may never get its turn"
        remedy = "give the subscription a retry_policy with a backoff, so that others go first"
    else:
        return
    raise InvalidArgument(
        f"{type(pattern).__name__}: it may send a message back until another one has come, but subscription "
        f'{subscription!r} {problem}; park what comes early (future="park", when_full="gap"), or {remedy}'
    )
