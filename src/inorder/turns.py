"""A broker's turns: the lock, the clock, the journal, and whoever waits.

Every call is one turn: what time has brought about comes first, then the call itself is decided and applied, then its
messages become visible and whoever waits for them is woken. While the lock is held nobody is woken, and nothing is
logged: who is told may call the broker. What a turn changes is written down by whoever comes next to write, for all who
wait; a message is visible once it is written.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, TypeVar

from inorder.clock import SYSTEM_CLOCK, Clock, Timer
from inorder.commits import Commits, Group, Sync
from inorder.core.events import PUBLISHED, Decision, Event, Published
from inorder.core.producers import Attempt
from inorder.core.state import NoRoom, State
from inorder.core.subscription import Subscription
from inorder.errors import Closed, InorderError
from inorder.forks import stays_here
from inorder.journal import Location
from inorder.journal.journal import Journal
from inorder.message import POSITION, Batch, Record, new_epoch, numbered
from inorder.options import SubscriptionOptions
from inorder.pending import Pending

T = TypeVar("T")
Wake = Callable[[], None]
Report = Callable[[str], None]
# Of so many messages: what their ids begin with, the first position, and how many they are.
WriteIds = Callable[[str, int, int], Sequence[str]]

SYNC_SECONDS = 0.1  # with sync="interval": what a crash of the machine may cost

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Watch:
    """What somebody who waits for a subscription knows of it, whatever others do to it meanwhile."""

    wake: Wake
    report: Report
    id_prefix: str
    ack_id_prefix: str
    options: SubscriptionOptions | None  # those in force; None once the subscription is deleted


class Turns:
    """A state machine that takes one call after the other, from any thread."""

    def __init__(
        self,
        clock: Clock = SYSTEM_CLOCK,
        journal: Journal | None = None,
        *,
        sync: Sync = "commit",
        sync_seconds: float = SYNC_SECONDS,
    ) -> None:
        self.clock = clock
        self._lock = threading.Lock()
        epoch = new_epoch(clock.now_us())
        self._journal = journal
        self.journaled = journal is not None  # answers wait until they are written
        self._commits: Commits | None = None  # None: nothing is written down
        self._watchers: dict[str, list[Watch]] = {}
        self._to_wake: set[str] = set()  # watched subscriptions that may have more to give
        self._to_call: list[Wake] = []  # once the lock is free
        self._blocked: dict[str, deque[tuple[Batch, Attempt | None, WriteIds, Pending[Any]]]] = {}
        self._full: set[str] = set()  # subscriptions whose being full was logged
        self._timer: Timer | None = None
        self._timer_us = inf
        self._closed = ""  # why it takes no more calls
        self._failure: InorderError | None = None  # of the journal
        self._due: Pending[None] | None = None  # until what time has brought about is written
        if journal is None:
            self._state = State(epoch)
        else:
            self._state = self._recovered(journal, epoch)
            self._commits = Commits(journal, self._lock, sync, sync_seconds, self._committed, self._save, self._stop)
            self._on_timer()  # somebody may be due
        stays_here(self)

    def _recovered(self, journal: Journal, epoch: str) -> State:
        try:
            book = journal.recover()
            for ledger in book.subscriptions.values():
                ledger.calm(self.clock.now_us())
            return State(epoch, book, journal.history)
        except BaseException:
            journal.close()  # so that somebody can look at it
            raise
        finally:
            for sentence in journal.store.report:
                _log.warning("%s", sentence)

    # -- whoever waits -----------------------------------------------------------------------------

    def watch(self, subscription: str, wake: Wake, report: Report) -> Watch:
        """Call `wake` when a pull may find something or options have changed, `report` with what a person should know.

        Both are called on any thread and must return at once.
        """
        with self._lock:
            subscribed = self._state.subscription(subscription)
            watch = Watch(wake, report, subscribed.id_prefix, subscribed.ack_id_prefix, subscribed.options)
            self._watchers.setdefault(subscription, []).append(watch)
        return watch

    def unwatch(self, subscription: str, watch: Watch) -> None:
        """End what `watch` began."""
        with self._lock:
            watchers = self._watchers.get(subscription, [])
            if watch in watchers:
                watchers.remove(watch)
                if not watchers:
                    del self._watchers[subscription]

    def _tell(self, watchers: Iterable[Watch], options: SubscriptionOptions | None) -> None:
        for watch in watchers:
            watch.options = options
            self._to_call.append(watch.wake)

    # -- messages in -------------------------------------------------------------------------------

    def _submit(
        self, topic: str, batch: Batch, attempt: Attempt | None = None, ids: WriteIds = numbered
    ) -> Pending[Any]:
        calls: Sequence[Wake] = ()
        try:
            with self._lock:
                now_us = self._begin_turn()
                try:
                    if self._blocked and topic in self._blocked:
                        raise NoRoom(f"others wait to publish to {topic!r}")
                    published = self._publish(topic, batch, attempt, ids, now_us)
                    if self._commits is None:
                        return Pending.of(published)
                    answer: Pending[Sequence[str]] = Pending()
                    self._commits.answer(answer, published)
                    return answer
                except NoRoom:
                    answer = Pending()
                    self._blocked.setdefault(topic, deque()).append((batch, attempt, ids, answer))
                    return answer
                finally:
                    calls = self._end_turn()
        finally:
            for call in calls:
                call()

    def _publish(self, topic: str, batch: Batch, attempt: Attempt | None, ids: WriteIds, now_us: int) -> Sequence[str]:
        if attempt is None:
            first, events, _ = self._state.publish(topic, batch, now_us)
        else:
            first, events, _ = self._state.publish_once(topic, batch, attempt, now_us)
        self._commit(events)
        return ids(self._state.topics[topic].id_prefix, first, len(batch[0]))

    def _publish_blocked(self) -> None:
        """Publish what waited for room, in the order in which it came."""
        now_us = self.clock.now_us()
        for topic in list(self._blocked):
            waiting = self._blocked[topic]
            while waiting:
                batch, attempt, ids, answer = waiting[0]
                try:
                    published = self._publish(topic, batch, attempt, ids, now_us)
                    if self._commits is None:
                        self._to_call.append(partial(answer.set_result, published))
                    else:
                        self._commits.answer(answer, published)
                        self._to_call.append(self._commits.soon)
                except NoRoom:
                    break
                except InorderError as error:
                    self._to_call.append(partial(answer.set_exception, error))
                waiting.popleft()
            if not waiting:
                del self._blocked[topic]

    def withdraw(self, answers: Collection[Pending[list[str]]]) -> None:
        """Give up those of these publishes that still wait for room: nothing of them is stored."""
        with self._lock:
            self._withdraw(set(answers))
            calls = self._end_turn()
        for call in calls:
            call()

    def _withdraw(self, answers: Collection[Pending[list[str]]]) -> None:
        # An answer that is not among the waiting is on its way already: its messages are stored.
        for topic, waiting in self._blocked.items():
            error = Closed("there was no room for the message before the publisher was closed")
            self._to_call += [partial(answer.set_exception, error) for *_, answer in waiting if answer in answers]
            self._blocked[topic] = deque(one for one in waiting if one[-1] not in answers)

    def _log_full(self, event: Published) -> None:
        """Say once that a subscription is full, and again only after it had room meanwhile."""
        _, topic, records, _, missed, _ = event
        for subscription in self._state.subscriptions_of(topic):
            name, refused = subscription.name, missed.get(subscription.name, frozenset())
            if name in self._full and _takes_any(subscription, records, refused):
                self._full.remove(name)
            if refused and name not in self._full:
                self._full.add(name)
                limits = subscription.limits
                self._to_call.append(partial(
                    _log.warning,
                    "subscription %r reached its queue capacity (%s messages, %s bytes): it misses %d message(s)",
                    name, limits.max_messages, limits.max_bytes, len(refused),
                ))  # fmt: skip

    # -- a turn ------------------------------------------------------------------------------------

    def _turn(self, decide: Callable[[State, int], Decision[T]], subscription: str | None = None) -> T:
        """Decide and apply one command; `subscription` is the one that may have more to give after it.

        A turn that has begun is ended, refused or not: time may have brought something about, and
        whoever waits for that is woken now. The calls of every message have this frame written out,
        as going through here would cost them a tenth.
        """
        calls: Sequence[Wake] = ()
        durable: Pending[None] | None = None
        try:
            with self._lock:
                now_us = self._begin_turn()
                try:
                    decision = decide(self._state, now_us)
                    reply = self._decided(decision, subscription)
                    if self._commits is not None and decision[1]:
                        durable = self._commits.durable()
                finally:
                    calls = self._end_turn()
        finally:
            for call in calls:
                call()
        if durable is not None:
            self._lead(durable)
            durable.result()
        return reply

    def _lead(self, answer: Pending[Any]) -> None:
        """Bring about an answer that waits for the disk, unless it waits for room: then others will."""
        if self._commits is not None:
            self._commits.lead(answer)

    def _begin_turn(self) -> int:
        if self._closed:
            raise self._failure or Closed(self._closed)
        now_us = self.clock.now_us()
        if self._state.due_us <= now_us:
            while due := self._state.due(now_us):
                subscription, decision = due
                self._decided(decision, subscription.name)
            if self._commits is not None:
                self._due = self._commits.written()
        return now_us

    def _known(self) -> State:
        """The state, for a look at it with the lock held. Once the journal has failed, it may be ahead of the disk."""
        if self._failure is not None:
            raise self._failure
        return self._state

    def _decided(self, decision: Decision[T], subscription: str | None) -> T:
        reply, events, problems = decision
        self._commit(events)
        if subscription in self._watchers:
            self._to_wake.add(subscription)
        for problem in problems:
            self._to_call.append(partial(_log.error, "%s", problem))
            for watch in self._watchers.get(subscription or "", ()):
                self._to_call.append(partial(watch.report, problem))
        return reply

    def _commit(self, events: Sequence[Event]) -> None:
        try:
            self._state.apply(events)
            for event in events:
                if event[0] == PUBLISHED:
                    _, topic, _, _, refused, _ = event
                    if refused or self._full:
                        self._log_full(event)
                    if self._commits is None:  # it is visible already
                        self._wake(self._state.topics[topic].subscriptions)
            if self._commits is not None and events:
                self._commits.add(events, self._serial_of)
        except BaseException as error:
            # Ctrl-C, no memory, or a mistake of ours. This may be true here and will not be written: what is written
            # behind it would leave a hole.
            if self._commits is not None:
                self._to_call += self._stopped(self._commits.interrupted(error))
            raise

    def _reveal(self, count: int) -> None:
        self._wake(self._state.reveal(count))

    def _wake(self, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            if subscription.name in self._watchers:
                self._to_wake.add(subscription.name)

    def _serial_of(self, topic: str) -> int:
        return self._state.topics[topic].serial

    def _end_turn(self) -> Sequence[Wake]:
        """Let waiting publishers in, set the timer, and say what is to be called once the lock is free."""
        if self._blocked:
            self._publish_blocked()
        if self._state.due_us < self._timer_us:
            self._set_timer(int(self._state.due_us))
        if not self._to_wake and not self._to_call:
            return ()
        calls, self._to_call = self._to_call, []
        for name in self._to_wake:
            subscription = self._state.subscriptions.get(name)
            if subscription is not None and subscription.any_ready():
                calls += [watch.wake for watch in self._watchers.get(name, ())]
        self._to_wake.clear()
        return calls

    # -- time --------------------------------------------------------------------------------------

    def _set_timer(self, due_us: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The clock must not keep a broker alive that everybody else has forgotten.
        on_timer = weakref.WeakMethod(self._on_timer)
        self._timer_us = due_us
        self._timer = self.clock.call_at(due_us, lambda: (call := on_timer()) and call())

    def _on_timer(self) -> None:
        with self._lock:
            self._timer, self._timer_us = None, inf
        with suppress(InorderError):  # it was closed meanwhile, or has failed
            self._turn(lambda *_: (None, (), ()))
        if self._commits is not None and self._commits.waiting():
            self._commits.soon()

    # -- what is written down ----------------------------------------------------------------------

    def durable(self) -> Pending[None]:
        """Done when all is written down that has happened until now. At once where nothing is written."""
        if self._commits is None:
            return Pending.of(None)
        with self._lock:
            durable = self._commits.durable()
        self._commits.soon()
        return durable

    def written(self) -> Pending[None]:
        """As `durable`, but done when the end of this process cannot undo it, whatever that of the machine may."""
        if self._commits is None:
            return Pending.of(None)
        with self._lock:
            written = self._commits.written()
        self._commits.soon()
        return written

    def sync(self) -> None:
        """Return when all that has happened until now is on disk, also where answers do not wait for that.

        For whoever then removes what it came from.
        """
        if self._commits is not None:
            self._commits.sync()

    def _wait_until_written(self) -> None:
        """An ack is written before it is answered, and synced with whatever is synced next.

        So the end of this process undoes none. If the machine loses power, the latest may come again.
        """
        if self._commits is not None:
            with self._lock:
                written = self._commits.written()
            self._commits.lead(written)
            written.result()

    def _write_what_is_due(self) -> None:
        """What time has brought about may be what somebody is about to pull: dead letters, for instance."""
        assert self._commits is not None
        with self._lock:
            self._begin_turn()
            calls = self._end_turn()
            due = self._due
        for call in calls:
            call()
        if due is not None:
            self._commits.lead(due)
            due.result()
            with self._lock:
                if self._due is due:
                    self._due = None

    def _committed(self, group: Group, location: Location) -> None:
        """A group of turns is on disk: what was published by them becomes visible."""
        assert self._journal is not None
        if group.stored:
            with self._lock:
                self._journal.written(location, group.stored)
                self._reveal(len(group.stored))
                calls = self._end_turn()
            for call in calls:
                call()

    def _save(self) -> None:
        """Spare the next start from reading all that is written, and drop what nobody needs any more."""
        assert self._journal is not None
        assert self._commits is not None
        with self._lock:
            if written := self._commits.write_rest():  # or the books would be ahead of the journal
                rest, location = written
                self._journal.written(location, rest.stored)
                self._reveal(len(rest.stored))
            now_us = self.clock.now_us()
            finish = self._journal.snapshot(
                self._state.book, lambda ends: self._wake(self._state.lose(ends, now_us)), now_us
            )
            calls = self._end_turn()
        for call in calls:
            call()
        finish()
        with self._lock:
            self._journal.compact()

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more calls. Publishers that wait for room get `Closed`.

        Raises `JournalFailed` if what was answered could not be synced now.
        """
        with self._lock:
            failed_before = self._failure is not None
            self._closed = self._closed or "the broker is closed"
            if self._timer is not None:
                self._timer.cancel()
            self._withdraw({answer for waiting in self._blocked.values() for *_, answer in waiting})
            calls = self._end_turn()
        for call in calls:
            call()
        if self._commits is not None and self._journal is not None:
            self._commits.close()
            if self._journal.unsaved and self._failure is None:
                with suppress(InorderError):
                    self._save()
            try:
                self._journal.close()
            except InorderError as error:
                _log.critical("the broker is closed, and what it answered may be lost: %s", error)
                raise
            if self._failure is not None and not failed_before:
                raise self._failure

    def _stop(self, failure: InorderError) -> None:
        """The journal has failed: nobody is told anything any more that may not be true."""
        with self._lock:
            calls = self._stopped(failure)
        for call in calls:
            call()

    def _stopped(self, failure: InorderError) -> list[Wake]:
        """The same with the lock held: what is to be called once it is free."""
        self._failure = failure
        self._closed = str(failure)
        if self._timer is not None:
            self._timer.cancel()
        self._to_wake.clear()
        calls: list[Wake] = [partial(_log.critical, "the broker stops: %s", failure)]
        calls += [watch.wake for watchers in self._watchers.values() for watch in watchers]
        calls += [
            partial(answer.set_exception, failure) for waiting in self._blocked.values() for *_, answer in waiting
        ]
        self._blocked.clear()
        return calls

    def _leave_to_parent(self) -> None:
        # Both processes would deliver the same messages, and each of them believe that it alone does.
        self._lock = threading.Lock()  # a thread that is not here may hold the other one, in mid-turn
        self._commits = self._journal = None  # the parent goes on writing
        self._closed = "the broker did not survive a fork: it is the parent's; make another one in this process"


def _takes_any(subscription: Subscription, records: Iterable[Record], refused: Collection[int]) -> bool:
    return any(record[POSITION] not in refused and subscription.wants(record) for record in records)
