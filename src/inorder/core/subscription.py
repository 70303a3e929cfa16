"""One subscription: what waits, what is out, what failed, and what each of that costs its key.

Works on record tuples and whole batches. Verbs that begin with `decide_` change nothing; the others
make true what has been decided and cannot fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, groupby, pairwise, repeat
from math import inf
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from inorder.clock import MICROSECONDS
from inorder.core.events import Failed, Failure, HeadSkipped, KeyResumed, Return
from inorder.core.failures import Failures, gap_for, judge, wider_gap
from inorder.core.filters import compile_filter
from inorder.core.holds import Hold, Holds, longest
from inorder.core.lanes import FreeLanes, Lanes, WindowedLanes
from inorder.core.leases import Leases
from inorder.core.ledger import Ledger, Lost, Wait, positions_of
from inorder.core.log import Log, MemoryHistory
from inorder.core.ranges import Ranges, runs
from inorder.core.snapshot import Snapshot
from inorder.core.unread import Unread
from inorder.errors import InorderError, KeyNotBlocked
from inorder.message import ATTRIBUTES, DATA, KEY, POSITION, PUBLISH_US, SIZE, STORED_US, Gap, Record
from inorder.metadata import BlockedKey, Counters, Metrics, Unacked, UnackedKey
from inorder.options import FlowControl, QueueLimits, SubscriptionOptions

SWEEP_US = 60 * MICROSECONDS  # how often messages that nobody pulls are looked at for their age
READ_AHEAD = 10_000  # messages that wait in memory where all of them can be read again
HOT_BYTES = 64_000_000  # and their bytes, beyond which data is put aside: to read it again costs a block each
COLD: Any = type("Cold", (), {"__repr__": lambda _: "COLD"})()  # stands for data that was put aside
PASS_OVER = 100  # how far a pull looks past messages that do not fit the bytes that are free

_data = itemgetter(DATA)
_size = itemgetter(SIZE)
_stored_us = itemgetter(STORED_US)
_position = itemgetter(POSITION)


class Subscription:
    """The messages of one subscription that are not acked yet. Not thread-safe."""

    # Python finds an attribute of so many much faster if it has a slot (measured: a twentieth of all the time).
    __slots__ = (
        "_cold",
        "_first_lease",
        "_flow",
        "_gaps",
        "_gaps_delivered",
        "_holds",
        "_lanes",
        "_log",
        "_not_acked",
        "_oldest_us",
        "_out_of_key",
        "_plain",
        "_read_ahead",
        "_starved",
        "_staying",
        "_swept_us",
        "_unread",
        "ack_deadline_us",
        "ack_id_prefix",
        "backlog_bytes",
        "backlog_messages",
        "counters",
        "created_us",
        "detached",
        "failures",
        "id_prefix",
        "leases",
        "limited",
        "limits",
        "matches",
        "max_bytes",
        "max_messages",
        "name",
        "on_request",
        "options",
        "ordered",
        "out_bytes",
        "retention_us",
        "serial",
        "topic",
        "wake_us",
        "windowed",
    )

    def __init__(
        self,
        name: str,
        serial: int,
        topic: str,
        ack_id_prefix: str,
        id_prefix: str,
        log: Log,
        options: SubscriptionOptions,
        created_us: int,
        first_lease: int = 1,
    ) -> None:
        self.name = name
        self.serial = serial
        self.topic = topic
        self._log = log
        self._unread = Unread(log)
        self._cold = False  # some wait without their data
        self.ack_id_prefix = ack_id_prefix
        self.id_prefix = id_prefix
        self.created_us = created_us
        self.detached = False
        self.on_request = False  # whether it was detached so, or because its topic was deleted
        self.counters = Counters()
        self._first_lease = first_lease
        self._not_acked = 0  # leases that ended otherwise than by the ack of a message
        self.leases = Leases(first_lease)
        self.wake_us: float = inf  # the alarm that the state has set for us
        self.backlog_messages = 0
        self.backlog_bytes = 0
        self.out_bytes = 0  # known only where flow control asks for it
        self._gaps = 0  # gap records that are not acked yet; they are no backlog
        self._gaps_delivered = 0
        self.failures = Failures()
        self._holds = Holds()
        # Leases in order, where a key may have several; None while nothing has failed, and nobody asks for them.
        self._out_of_key: dict[str, list[int]] | None = None
        self._oldest_us: float = inf  # nothing that waits was stored earlier; `inf` itself, never an equal of it
        self._swept_us = 0
        self._starved: tuple[int, int] | None = None  # (position, since) of the first that did not fit
        self._staying: set[object] = set()  # consumers that go on until `forsake`
        self._set_options(options)
        self._lanes = self._new_lanes()

    def _set_options(self, options: SubscriptionOptions) -> None:
        self.options = options
        self._flow = options.flow_control
        if self._flow is not None:
            self.out_bytes = self._size_out()
        self.matches: Callable[..., bool] | None = compile_filter(options.filter) if options.filter else None
        unlimited = QueueLimits(max_messages=None, max_bytes=None)
        self.limits = limits = options.queue_limits or (unlimited if self._log.history.complete else QueueLimits())
        self.max_messages = inf if limits.max_messages is None else limits.max_messages
        self.max_bytes = inf if limits.max_bytes is None else limits.max_bytes
        self.limited = self.max_messages != inf or self.max_bytes != inf
        self._read_ahead = READ_AHEAD if self._log.history.complete and not self.limited else None
        self.ordered = options.enable_message_ordering
        self.windowed = self.ordered and options.max_outstanding_per_key > 1
        self._plain = self._is_plain()
        self._unread.matches = self.wants if self.matches else None
        self._unread.look()
        self.ack_deadline_us = round(options.ack_deadline_seconds * MICROSECONDS)
        self.leases.last(self.ack_deadline_us)
        self.retention_us = round(options.message_retention_duration * MICROSECONDS)

    def _is_plain(self) -> bool:
        """Whether leases and acks have nothing to look after: no failure, gap or limit, nothing unread.

        That is how it is nearly always, and `_plain` says so in one look. Whoever brings trouble
        takes it away; an ack after which there is none left gives it back.
        """
        if self._flow is not None or self._starved is not None or self._out_of_key is not None:
            return False
        return not (self._gaps or self.failures.known or self._unread.any or self._cold)

    @property
    def cursor(self) -> int:
        """What lies before it was taken in from the log."""
        return self._unread.cursor

    def _add_gaps(self, count: int) -> None:
        self._gaps += count
        self._plain = False

    def _note_failures(self, failures: Mapping[int, Failure]) -> None:
        self.failures.known.update(failures)
        self._plain = False

    def _new_lanes(self) -> Lanes[Record]:
        if not self.ordered:
            return FreeLanes()
        window = self.options.max_outstanding_per_key
        return Lanes() if window == 1 else WindowedLanes(window, self._staying)

    # -- what comes in -----------------------------------------------------------------------------

    def decide_room(self, records: Sequence[Record], coming: Sequence[Record] = ()) -> frozenset[int]:
        """The positions that do not fit, as if they came one by one.

        `coming` was published before and is not visible yet: it needs its room all the same.
        """
        ahead = [record for record in coming if record[POSITION] >= self.cursor and self.wants(record)]
        messages_left = self.max_messages - self.backlog_messages - len(ahead)
        bytes_left = self.max_bytes - self.backlog_bytes - sum(map(_size, ahead))
        refused: set[int] = set()
        for record in records:
            if self.matches is not None and not self.wants(record):
                continue
            if messages_left < 1 or bytes_left < record[SIZE]:
                refused.add(record[POSITION])
            else:
                messages_left -= 1
                bytes_left -= record[SIZE]
        return frozenset(refused)

    def absorb(self, records: Sequence[Record], size: int) -> bool:
        """New messages of the topic become visible here. Says whether time matters now that did not before."""
        if not self._unread.straight or (self._read_ahead and self._enough_waits()):
            records = self._sift(records)
            if not records:
                return False
            size = sum(map(_size, records))
        count = len(records)
        if count == 1:
            self._lanes.put_one(records[0])
        else:
            self._lanes.put(records)
        self.backlog_messages += count
        self.backlog_bytes += size
        if self._oldest_us is inf:
            self._oldest_us = records[0][STORED_US]
            return True
        return False

    def _sift(self, records: Sequence[Record]) -> Sequence[Record]:
        """Those to be taken in at once: others lie before the cursor, do not match, or wait in the log."""
        unread = self._unread
        if unread.any:
            return ()
        records = unread.ahead(records)
        if not records:
            return ()
        if self._enough_waits():
            unread.leave()
            self._plain = False
            return ()
        unread.pass_by(records[-1][POSITION])
        return [record for record in records if self.wants(record)]

    def _enough_waits(self) -> bool:
        """Whether what comes is left in the log: there are as many here, or as many bytes, as memory is for."""
        return self._is_enough(self.backlog_messages, self.backlog_bytes)

    def _is_enough(self, count: int, size: int) -> bool:
        return self._read_ahead is not None and (count >= self._read_ahead or size >= HOT_BYTES)

    def wants(self, record: Record) -> bool:
        """Whether it matches the filter, if there is one."""
        return self.matches is None or self.matches(record[ATTRIBUTES] or {})

    def absorb_some(self, records: Sequence[Record], refused: frozenset[int], *, told: bool) -> bool:
        """The same without those that did not fit; whether holes in keys are told was settled when they came."""
        time_matters = False
        for record in records:
            if record[POSITION] not in refused:
                time_matters |= self.absorb([record], record[SIZE])
                continue
            if record[POSITION] < self.cursor:
                continue  # somebody sought meanwhile, or this is another subscription of the same name
            self.counters.dropped += 1
            is_hole = told and record[KEY]
            if self._unread.any:  # the limit was taken away meanwhile, and what lies before it was not read
                self._unread.miss(record[POSITION], "dropped" if is_hole else None)
                continue
            self._unread.pass_by(record[POSITION])
            if is_hole:
                self._put_gap(record)
        return time_matters

    def _put_gap(self, record: Record) -> None:
        """Tell that a message is missing, in its place; holes side by side become one."""
        key, gap = record[KEY], gap_for(record, "dropped")
        waiting = self._lanes.waiting(key)
        wider = wider_gap(waiting[-1], gap) if waiting else None
        if wider is not None:
            self._lanes.replace(key, -1, wider)
        else:
            self._add_gaps(1)
            self._lanes.put([gap])

    # -- what goes out -----------------------------------------------------------------------------

    def any_ready(self) -> bool:
        """Whether a pull may find something."""
        if self.detached or not (self._unread.any or self._lanes.any_ready()):
            return False
        flow = self._flow
        return flow is None or (self.leases.count < flow.max_messages and self.out_bytes < flow.max_bytes)

    def any_gaps(self) -> bool:
        """Whether a gap record is out or waits."""
        return self._gaps > 0

    def lease(
        self, count: int, now_us: int, consumer: object = None, max_bytes: float = inf, alone: bool = True
    ) -> tuple[Subscription, Sequence[int], list[Record]]:
        """Up to `count` messages, out from now on: their lease numbers and the records, both in order.

        A consumer may limit their bytes; if it holds nothing else, one larger message may go `alone`.
        """
        if not self._plain:
            return self._lease_with_care(count, now_us, consumer, max_bytes, alone)
        taken = self._lanes.take(count, consumer)
        if not taken:
            return self, (), taken
        if self._oldest_us < now_us - self.retention_us or (max_bytes != inf and sum(map(_size, taken)) > max_bytes):
            return self._grant(self._choose(taken, count, now_us, consumer, max_bytes, alone), now_us)
        return self, self.leases.grant(taken, now_us), taken

    def _lease_with_care(
        self, count: int, now_us: int, consumer: object, max_bytes: float, alone: bool
    ) -> tuple[Subscription, Sequence[int], list[Record]]:
        if self._flow is not None:
            count = self._allowed(count, self._flow)
            max_bytes = min(max_bytes, self._flow.max_bytes - self.out_bytes)
            alone = alone and not self.leases.count
        taken = self._take_and_read(count, consumer)
        if not taken:
            return self, (), taken
        if self._starved is not None:
            taken = self._starving_first(*self._starved, taken, count, now_us, consumer)
        if self._oldest_us < now_us - self.retention_us or (max_bytes != inf and sum(map(_size, taken)) > max_bytes):
            taken = self._choose(taken, count, now_us, consumer, max_bytes, alone)
        else:
            self._no_longer_starved(taken)
        try:
            return self._grant(self._warm(taken) if self._cold else taken, now_us)
        except InorderError:
            self._lanes.untake(taken)
            raise

    def _grant(self, taken: list[Record], now_us: int) -> tuple[Subscription, Sequence[int], list[Record]]:
        if not taken:
            return self, (), taken
        leases = self.leases.grant(taken, now_us)
        if not self._plain:
            self._note_out(taken, leases)
        return self, leases, taken

    def _allowed(self, count: int, flow: FlowControl) -> int:
        out = self.leases.count
        if out and self.out_bytes >= flow.max_bytes:
            return 0
        return max(0, min(count, flow.max_messages - out))

    def _note_out(self, taken: list[Record], leases: Sequence[int]) -> None:
        if self._flow is not None:
            self.out_bytes += sum(map(_size, taken))
        if self._gaps:
            self._gaps_delivered += _count_gaps(taken)
        if self.failures.known:
            self.counters.redelivered += self.failures.were_out(taken)
        if self._out_of_key is not None:
            self._note_keys(self._out_of_key, zip(leases, taken, strict=True))

    def _choose(
        self, taken: list[Record], count: int, now_us: int, consumer: object, left: float, alone: bool
    ) -> list[Record]:
        """Leave out what is too old, and put back what does not fit into the bytes `left`.

        What does not fit is passed over, so that others are not kept waiting. If it was passed over
        for as long as a lease may last, nothing goes out before it: so it is not starved either.
        """
        if self.backlog_messages == len(taken) and not self._gaps:  # these are all that there is
            self._oldest_us = min(record[STORED_US] for record in taken)
        starving: int | None = None  # the position of the one that has waited so long
        if self._starved is not None and now_us - self._starved[1] >= self.ack_deadline_us:
            starving = self._starved[0]
        waiting_for_it = False
        chosen: list[Record] = []
        passed: list[Record] = []
        passed_keys: set[str] = set()
        while taken:
            for record in filter(None, (self._unless_outdated(record, now_us) for record in taken)):
                fits = record[SIZE] <= left or (alone and not chosen)
                if fits and record[KEY] not in passed_keys and not waiting_for_it:
                    chosen.append(record)
                    left -= record[SIZE]
                else:
                    passed.append(record)
                    waiting_for_it |= record[POSITION] == starving  # another one has not waited long
                    if self.ordered and record[KEY]:
                        passed_keys.add(record[KEY])
            enough = len(chosen) >= count or len(passed) >= PASS_OVER or waiting_for_it
            taken = [] if enough else self._take_and_read(count - len(chosen), consumer, holding=True)
        self._lanes.untake(passed)
        self._no_longer_starved(chosen)
        if passed and self._starved is None:
            self._starved = (passed[0][POSITION], now_us)
            self._plain = False
        return chosen

    def _starving_first(
        self, position: int, since_us: int, taken: list[Record], count: int, now_us: int, consumer: object
    ) -> list[Record]:
        """Up to `count` of what is ready: one that was passed over for too long goes before all that came back."""
        if now_us - since_us < self.ack_deadline_us:
            return taken
        if position not in map(_position, taken):  # it went to the front, but others came back since
            taken += self._take_and_read(PASS_OVER, consumer, holding=True)
        starving = next((record for record in taken if record[POSITION] == position), None)
        if starving is None:
            self._starved = None  # it is gone, or another consumer has its key
        else:  # with what came back before it in its key
            key = starving[KEY] if self.ordered else ""
            taken.sort(key=lambda r: r[POSITION] != position and (not key or r[KEY] != key or r[POSITION] > position))
        self._lanes.untake(taken[count:])
        return taken[:count]

    def _no_longer_starved(self, taken: list[Record]) -> None:
        if self._starved is not None and self._starved[0] in map(_position, taken):
            self._starved = None

    # -- how it ends -------------------------------------------------------------------------------

    def acked(self, leases: Sequence[int], records: Sequence[Record]) -> None:
        """These are done; what waited for them may go."""
        if not self._plain:
            self._acked_with_care(leases, records)
            return
        count = len(records)
        if count == 1:
            record = records[0]
            self._lanes.done_one(record)
            self.backlog_bytes -= record[5]
        else:
            if count == self.leases.count and not self._holds.keys:
                self._lanes.done_all(records)
            else:
                self._lanes.done(records)
            self.backlog_bytes -= sum(map(_size, records))
        self.backlog_messages -= count
        self.leases.end(leases)

    def _acked_with_care(self, leases: Sequence[int], records: Sequence[Record]) -> None:
        self._lanes.done(records)
        self._end(leases, records)
        self._not_acked += len(records) - self._forget(records)
        if not self.failures.known:
            self._out_of_key = None
        self._plain = self._is_plain()

    def decide_failure(
        self, leases: Iterable[int], now_us: int, *, dead_letters: bool = True
    ) -> tuple[list[Return], list[Record]]:
        """What becomes of deliveries that failed: what comes back, key by key, and what is poison.

        A key takes back all that is out after its first one that failed.
        """
        out = self.leases
        groups: list[tuple[str, list[int], list[int]]] = []  # key, leases that come back, those that failed
        failed_by_key: dict[str, list[int]] = {}
        for lease in leases:
            if self.ordered and (key := out.of(lease)[KEY]):
                failed_by_key.setdefault(key, []).append(lease)
            else:
                groups.append(("", [lease], [lease]))
        for key, failed in failed_by_key.items():
            groups.append((key, self._out_from(key, failed), failed))
        returns: list[Return] = []
        poison: list[Record] = []
        for key, taken_back, failed in groups:
            back = [(out.of(lease), lease in failed) for lease in taken_back]
            verdict = judge(self.options, self.failures, back, now_us, dead_letters)
            poison += verdict.poison
            lease_of = {out.of(lease)[POSITION]: lease for lease in taken_back}
            failures = {
                position: Failure(count, self.failures.first_out_us(position, out.granted_us(lease_of[position])))
                for position, count in verdict.failures
            }
            returns.append(Return(key, taken_back, verdict.records, failures, verdict.until_us, verdict.waits_for))
        return returns, poison

    def _out_from(self, key: str, leases: list[int]) -> list[int]:
        """All that is out of a key from the first of these on: no later one may stay out and pass them."""
        if not self.windowed:
            return leases
        if self._out_of_key is None:
            # To know this all the time would cost every message; so it is found out at the first failure, and kept
            # up to date until an ack leaves nothing that has failed.
            self._out_of_key = {}
            self._note_keys(self._out_of_key, self.leases.out())
            self._plain = False
        of_key = self._out_of_key[key]  # ascending, as positions are
        return of_key[of_key.index(min(leases)) :]

    def _note_keys(self, out_of_key: dict[str, list[int]], leased: Iterable[tuple[int, Record]]) -> None:
        for lease, record in leased:
            if key := record[KEY]:
                out_of_key.setdefault(key, []).append(lease)

    def failed(self, event: Failed) -> None:
        """Failed deliveries come back to their place, and wait there as decided."""
        self.counters.dead_letter_failures += event.spared
        if event.expired:
            self.counters.expired += event.failed
        else:
            self.counters.nacked += event.failed
        for back in event.returns:
            out = [self.leases.of(lease) for lease in back.leases]
            self._note_failures(back.failures)
            self._end(back.leases, out)
            self._not_acked += len(out)
            if back.key:
                self._hold(back, nacked=not event.expired)
            else:
                self._give_back(back.records, back.until_us or 0)

    def _hold(self, back: Return, *, nacked: bool) -> None:
        self._lanes.hold(back.key, back.records, nacked=nacked)
        held = self._holds.keys.get(back.key)
        if held is None and back.until_us == 0:
            self._lanes.release(back.key)
        elif back.until_us != 0:
            self._holds.hold(back.key, Hold(back.waits_for, back.until_us))

    def _give_back(self, records: Sequence[Record], until_us: int) -> None:
        for record in records:
            if until_us:
                self._holds.delay(record, until_us)
            else:
                self._lanes.give_back(record)

    def release(self, leases: Sequence[int]) -> None:
        """Take back what was out, and what is out behind it, without blaming it: it goes first again."""
        out = self.leases
        by_key: dict[str, list[int]] = {}
        for lease in sorted(leases):
            if (record := out.get(lease)) is not None:
                by_key.setdefault(record[KEY] if self.ordered else "", []).append(lease)
        for key, released in by_key.items():
            of_key = self._out_from(key, released) if key else released
            records = [out.of(lease) for lease in of_key]
            for lease, record in zip(of_key, records, strict=True):
                position = record[POSITION]
                if not isinstance(record[DATA], Gap) and position not in self.failures.known:
                    self._note_failures({position: Failure(0, out.granted_us(lease))})
            self._end(of_key, records)
            self._not_acked += len(records)
            if key:
                self._lanes.hold(key, records)
                if key not in self._holds.keys:
                    self._lanes.release(key)
            else:
                self._give_back(records, 0)

    def dead_lettered(self, records: Sequence[Record]) -> None:
        self.counters.dead_lettered += self._forget(records)
        if self.ordered:
            self._add_gaps(sum(record[KEY] != "" for record in records))

    def _end(self, leases: Sequence[int], records: Sequence[Record]) -> None:
        """These are no longer out, whatever becomes of them."""
        self.leases.end(leases)
        if self._flow is not None:
            self.out_bytes -= sum(map(_size, records))
        if out_of_key := self._out_of_key:
            for lease, record in zip(leases, records, strict=True):
                if key := record[KEY]:
                    of_key = out_of_key[key]
                    of_key.remove(lease)
                    if not of_key:
                        del out_of_key[key]

    def _forget(self, records: Sequence[Record]) -> int:
        """These are no longer part of the backlog; returns how many messages that were."""
        messages = len(records)
        if self._gaps:
            gaps = _count_gaps(records)
            self._gaps -= gaps
            messages -= gaps
        self.backlog_messages -= messages
        self.backlog_bytes -= records[0][5] if len(records) == 1 else sum(map(_size, records))
        if self.failures.known:
            self.failures.forget(map(_position, records))
        return messages

    # -- keys in trouble ---------------------------------------------------------------------------

    def decide_resume(self, key: str) -> KeyResumed:
        if key not in self._holds.keys:
            raise KeyNotBlocked(key)
        return KeyResumed(self.name, key)

    def resume(self, key: str) -> None:
        """The message that the key waits for is tried again, as if it had never failed."""
        self.failures.forget([self._holds.keys.pop(key).position])
        self._lanes.release(key)

    def decide_skip(self, key: str) -> tuple[HeadSkipped, int]:
        if key not in self._holds.keys:
            raise KeyNotBlocked(key)
        return HeadSkipped(self.name, key), self._holds.keys[key].position

    def skip(self, key: str) -> None:
        """The message that the key waits for is given up, a gap takes its place, the key goes on."""
        index, record = self._culprit(key, self._holds.keys.pop(key))
        self._lanes.replace(key, index, gap_for(record, "skipped"))
        if not isinstance(record[DATA], Gap):  # it may have become too old meanwhile
            self.counters.skipped += self._forget([record])
            self._add_gaps(1)
        self._lanes.release(key)

    def _culprit(self, key: str, hold: Hold) -> tuple[int, Record]:
        """The message that a key waits for, and its place: only what came back with it stands before."""
        waiting = self._lanes.waiting(key)
        return next((index, r) for index, r in enumerate(waiting) if r[POSITION] == hold.position)

    def blocked_keys(self, now_us: int) -> list[BlockedKey]:
        """The keys that are held, and those of which something waits while the first is out."""
        out: dict[str, list[int]] = {}
        if self.ordered:
            for lease, record in self.leases.out():
                out.setdefault(record[KEY], []).append(lease)
        window = self.options.max_outstanding_per_key
        full = (key for key in self._lanes.crowded() if key not in self._holds.keys and len(out.get(key, ())) >= window)
        return [
            self._blocked(key, min(out.get(key, ()), default=None), now_us) for key in chain(self._holds.keys, full)
        ]

    def _blocked(self, key: str, lease: int | None, now_us: int) -> BlockedKey:
        hold, waiting = self._holds.keys.get(key), self._lanes.waiting(key)
        if hold is not None:
            head, reason = self._culprit(key, hold)[1], "parked" if hold.until_us is None else "backoff"
        else:
            assert lease is not None
            head, reason = self.leases.of(lease), "out"
        granted_us = now_us if lease is None else self.leases.granted_us(lease)
        first_out_us = self.failures.first_out_us(head[POSITION], granted_us)
        return BlockedKey(
            ordering_key=key,
            reason=reason,
            waiting=len(waiting) - (_count_gaps(waiting) if self._gaps else 0),
            position=head[POSITION],
            failures=self.failures.count(head[POSITION]),
            age_seconds=_seconds_since(head[PUBLISH_US], now_us),
            head_of_line_seconds=_seconds_since(first_out_us, now_us),
        )

    def unacked(self) -> Unacked:
        """What is still to be acked, by key, of all that was taken in from the log."""
        positions: dict[str, list[int]] = {}
        for record in self._unacked():
            positions.setdefault(record[KEY], []).append(record[POSITION])
        keys = (UnackedKey(key, len(of_key), min(of_key)) for key, of_key in sorted(positions.items()))
        return Unacked(tuple(keys), self.cursor)

    def metrics(self, now_us: int) -> Metrics:
        blocked = self.blocked_keys(now_us)
        leased = self.leases.next - self._first_lease
        publish_times = [record[PUBLISH_US] for record in self._unacked() if not isinstance(record[DATA], Gap)]
        return Metrics(
            counters=replace(
                self.counters,
                delivered=leased - self._gaps_delivered,
                acked=leased - self.leases.count - self._not_acked,
            ),
            backlog_messages=self.backlog_messages + self._unread.count(),
            backlog_bytes=self.backlog_bytes + self._unread.size(),
            outstanding_messages=self.leases.count,
            outstanding_bytes=self._size_out(),
            oldest_unacked_seconds=_seconds_since(min(publish_times, default=now_us), now_us),
            blocked_keys=len(blocked),
            parked_keys=sum(key.reason == "parked" for key in blocked),
            head_of_line_seconds=max((key.head_of_line_seconds for key in blocked), default=0.0),
        )

    # -- time, replay and change -------------------------------------------------------------------

    def due_us(self) -> int | None:
        """When time alone will change something here."""
        candidates = (self._holds.next_us(), self.leases.next_deadline_us(), self._sweep_us())
        return min((due_us for due_us in candidates if due_us is not None), default=None)

    def _sweep_us(self) -> int | None:
        """When to look for messages that are too old; a pull does not depend on it."""
        if self._oldest_us is inf:
            return None
        return max(int(self._oldest_us) + self.retention_us + 1, self._swept_us + SWEEP_US)

    def elapse(self, now_us: int) -> None:
        """Backoffs that are over end; from time to time, what is older than the retention goes."""
        for key, record in self._holds.due(now_us):
            if record is None:
                self._lanes.release(key)
            else:
                self._lanes.give_back(record)
        if (sweep_us := self._sweep_us()) is not None and sweep_us <= now_us:
            self._sweep(now_us)

    def _sweep(self, now_us: int) -> None:
        """Remove what waits and is too old. What is out is looked at when it is back."""
        self._swept_us = now_us
        times: list[int] = []

        def change(record: Record) -> Record | None:
            kept = self._unless_outdated(record, now_us)
            if kept is not None:
                times.append(kept[STORED_US])
            return kept

        self._lanes.rewrite(change)
        self._holds.rewrite(change)
        for key in [key for key in self._lanes.crowded() if key not in self._holds.keys] if self._gaps else ():
            self._join_gaps(key)
        times += [record[STORED_US] for _, record in self.leases.out()]
        self._oldest_us = min(times, default=inf)

    def _join_gaps(self, key: str) -> None:
        """Holes side by side become one: where nobody reads, they are all that is left, and would be more and more."""
        joined: list[Record] = []
        waiting = self._lanes.waiting(key)
        for record in waiting:
            wider = wider_gap(joined[-1], record) if joined else None
            if wider is None:
                joined.append(record)
            else:
                joined[-1] = wider
        if len(joined) < len(waiting):
            self._gaps -= len(waiting) - len(joined)
            self._lanes.replace_all(key, joined)

    def _unless_outdated(self, record: Record, now_us: int) -> Record | None:
        """The record, or what is left of one that is too old: a gap in its key, or nothing."""
        if record[STORED_US] >= now_us - self.retention_us or isinstance(record[DATA], Gap):
            return record
        return self._outdated(record)

    def _outdated(self, record: Record) -> Record | None:
        self.counters.outdated += 1
        self._forget([record])
        if not self.ordered or not record[KEY]:
            return None
        self._add_gaps(1)
        return gap_for(record, "expired")

    def oldest_unacked(self) -> int | None:
        """The smallest position that is still to be acked."""
        unread = self._unread.first()
        return min([*map(_position, self._unacked()), *([] if unread is None else [unread])], default=None)

    def first_unacked_since(self, time_us: int) -> int | None:
        """The smallest of them that was stored at that time or later."""
        return min((record[POSITION] for record in self._unacked() if record[STORED_US] >= time_us), default=None)

    def seek(self, position: int, replay_from: int) -> None:
        """Start over with all from `replay_from` on, and with what is unacked from `position` on."""
        if self._log.history.complete:
            ledger = self.ledger()
            ledger.sought(position, replay_from, self._log.visible)
            self._start_over([])
            self._go_on_from(ledger)
            return
        kept = self._log.history.read(replay_from, self._log.visible)
        records = {record[POSITION]: record for record in kept if self.matches is None or self.wants(record)}
        records.update((r[POSITION], r) for r in self._unacked() if not isinstance(r[DATA], Gap))
        self._start_over([record for place, record in sorted(records.items()) if place >= position])
        self._unread.move_to(max(position, self._log.visible))

    def seek_snapshot(self, snapshot: Snapshot) -> None:
        """Start over with what a snapshot has not done."""
        if self._log.history.complete:
            ledger = self.ledger()
            ledger.sought_snapshot(snapshot.ledger.done, self._log.visible)
            self._start_over([])
            self._go_on_from(ledger)
            return
        self._start_over([record for record in snapshot.records if self.wants(record)])
        self._unread.move_to(self._log.visible)

    def done(self) -> Ranges:
        """What is acked or given up, and what the filter leaves out, which is as good as acked."""
        # What has expired is no part of the books, and is as gone as what else has left a gap.
        gaps = positions_of(record for record in self._unacked() if isinstance(record[DATA], Gap))
        done = self.ledger().given_up().union(runs(sorted(gaps)))
        if self.matches is None or not self._log.history.complete:
            return done
        position, end = done.end_at(0), self._log.visible
        unwanted: list[int] = []
        while records := self._log.history.read(position, end):
            unwanted += [record[POSITION] for record in records if not self.wants(record)]
            position = records[-1][POSITION] + 1
        return done.union(runs(unwanted))

    def unacked_messages(self) -> list[Record]:
        """What was taken in from the log and is still to be acked, in order and without gap records."""
        return sorted((r for r in self._unacked() if not isinstance(r[DATA], Gap)), key=_position)

    def oldest_stored_us(self, now_us: int) -> int:
        """When the oldest message was stored that is still to be acked, of those that are young enough; or now."""
        times = [record[STORED_US] for record in (*self.unacked_messages(), *self._unread.peek()[:1])]
        return min([now_us, *(time_us for time_us in times if time_us >= now_us - self.retention_us)])

    def update(self, options: SubscriptionOptions) -> None:
        """Deliver by other rules from now on. If those of order change, what is out comes again."""
        change = options.window != self.options.window
        if change:
            self.release([lease for lease, _ in self.leases.out()])  # by the rules by which they went
        self._set_options(options)
        if change:
            self._change_lanes()
        with suppress(InorderError):  # as in `restore`: what counts against a limit is here
            while self.limited and self._unread.any:
                self._take_in(self._unread.read_on())

    def _change_lanes(self) -> None:
        """Line everything up anew. A key that waits goes on waiting."""
        records = sorted(self._unacked(), key=_position)
        until_us = self._holds.until_us()
        self._holds.clear()
        self._lanes = self._new_lanes()
        self._line_up(records, until_us)

    def _line_up(self, records: Iterable[Record], until_us: Mapping[int, int | None]) -> None:
        """Put records into their lanes; those of `until_us`, and their keys, wait so long."""
        if not until_us:
            self._lanes.put(records)
            return
        free: list[Record] = []
        last = max(until_us)
        for record in records:
            position, key = record[POSITION], record[KEY]
            if self.ordered and key:
                if position in until_us:  # a message that has become too old meanwhile, too: the key is still parked
                    self._lanes.hold(key, ())
                    self._holds.hold(key, longest(self._holds.keys.get(key), Hold(position, until_us[position])))
                free.append(record)
            elif not isinstance(record[DATA], Gap) and (due_us := until_us.get(position)) is not None:
                self._holds.delay(record, due_us)
            elif position < last:
                self._lanes.give_back(record)  # or what waits would come back before it, which is older
            else:
                free.append(record)
        self._lanes.put(free)

    # -- what waits in the log, and what survives ---------------------------------------------------

    def _take_and_read(self, count: int, consumer: object, *, holding: bool = False) -> list[Record]:
        """What is ready for a consumer, here and in the log: of what is ready here, some may be ready for others.

        Raises what the log raises, unless something was taken, or the caller is `holding` some: that would be lost.
        """
        taken = self._lanes.take(count, consumer)
        while self._unread.any and len(taken) < count:
            try:
                records = self._unread.read_on()
            except InorderError:
                if taken or holding:
                    break  # whoever asks again is told
                raise
            self._take_in(records)
            taken += self._lanes.take(count - len(taken), consumer)
        return taken

    def _take_in(self, records: list[Record]) -> None:
        """Line up what was read of the log, and the holes in their places among it."""
        if self._log.history.complete and self.backlog_bytes >= HOT_BYTES:  # they wait for long
            records = [_chilled(record) for record in records]
            self._cold, self._plain = True, False
        if holes := self._unread.passed_holes():
            records = sorted([*holes, *records], key=_position)
        self._put(records, self._unread.until_us)

    def _warm(self, taken: list[Record]) -> list[Record]:
        """Read again what was put aside without its data."""
        cold = sorted(record[POSITION] for record in taken if record[DATA] is COLD)
        read: dict[int, Record] = {}
        for first, end in runs(cold):
            while first < end and (records := self._log.history.read(first, end)):
                read.update((record[POSITION], record) for record in records)
                first = records[-1][POSITION] + 1
        # One that is not there was too old when its part of the journal was dropped, and the clock was set back since.
        warm = (read.get(r[POSITION]) or self._outdated(r) if r[DATA] is COLD else r for r in taken)
        return [record for record in warm if record is not None]

    def ledger(self) -> Ledger:
        """What must survive of all this."""
        ledger = Ledger(
            self.name, self.topic, self.serial, self.options, self.created_us, self.detached, self.on_request
        )
        if self.detached:
            return ledger
        unacked: list[int] = []
        missing = self._log.history.missing(self.cursor)
        for record in self._unacked():
            gap = record[DATA]
            positions = positions_of([record])
            told = record[KEY] and (self.ordered or isinstance(gap, Gap))
            if told and missing:
                for is_lost, run in groupby(positions, missing.__contains__):  # what is left in between is told there
                    if is_lost:
                        lost = list(run)
                        ledger.lost[lost[0]] = Lost.part_of(record, lost, all_of_it=len(lost) == len(positions))
                        unacked.append(lost[0])
                positions = [position for position in positions if position not in missing]
            if isinstance(gap, Gap) and gap.reason != "expired":  # that one can be found again
                ledger.gaps.update(dict.fromkeys(positions, gap.reason))
            unacked += positions
        ends = [-1, *sorted(position for position in unacked if position < self.cursor), self.cursor]
        done = Ranges((before + 1, after) for before, after in pairwise(ends))
        ledger.done = Ranges([*done, *self._unread.done.within(self.cursor, 1 << 62)])
        ledger.failures = {position: known for position, known in self.failures.known.items() if known.times}
        ledger.holds = dict(self._holds.keys)
        ledger.waits = {record[POSITION]: Wait(record[KEY], due_us) for due_us, record in self._holds.delayed()}
        ledger.gaps.update(self._unread.gaps())
        ledger.lost.update(self._unread.lost)
        return ledger

    def restore(self, ledger: Ledger) -> None:
        """Go on from what is known; the messages are read from the log when they are wanted.

        Raises what keeps the first of them from being read: at the start somebody is there to be told.
        """
        self.detached, self.on_request = ledger.detached, ledger.on_request
        if not self.detached:
            unreadable = self._go_on_from(ledger)
            if unreadable is not None:
                raise unreadable

    def _go_on_from(self, ledger: Ledger) -> InorderError | None:
        """The same in the middle of the work; the reply is what cannot be read, which whoever comes to it is told."""
        self._unread.restore(ledger, self._vanished(ledger))
        self._note_failures(ledger.failures)
        # Who waits must be known at once, and so must be what lies before it; and where limits are to be
        # kept, all that there is.
        last = inf if self.limited else max(ledger.until_us(), default=-1)
        records: list[Record] = []
        size = 0
        unreadable: InorderError | None = None
        try:
            while self._unread.any and (self.cursor <= last or not self._is_enough(len(records), size)):
                read = self._unread.read_on()
                records += read
                size += sum(map(_size, read))
        except InorderError as error:
            unreadable = error
        self._take_in(records)
        self._plain = self._is_plain()
        return unreadable

    def _vanished(self, ledger: Ledger) -> dict[int, Lost]:
        """What keys wait for although the log has it no more, if the books do not say so: older ones did not."""
        missing, done = self._log.history.missing(self._log.visible), ledger.sorted_done()
        waits_for = {
            hold.position: key
            for key, hold in ledger.holds.items()  # also of waits that are over
            if hold.position in missing and (hold.until_us is None or hold.position not in done)
        }
        return {position: Lost(key, position, 1, "expired", self.created_us) for position, key in waits_for.items()}

    def lose(self, end: int, now_us: int) -> None:
        """The log is about to forget what is too old before `end`: who has not looked at that does so now."""
        with suppress(InorderError):  # what cannot be read is too old anyhow
            while self._unread.any and self.cursor < end:
                self._take_in(self._unread.read_on())
                self._sweep(now_us)
        self._sweep(now_us)

    def detach(self) -> None:
        """The topic is gone, and so is everything that came from it."""
        self.detached = True
        self._start_over([])
        self._log = Log(MemoryHistory())  # or a deleted topic would keep its messages for as long as this is here
        self._unread = Unread(self._log)

    def expect(self, consumer: object) -> None:
        """This one stays until `forsake`: what it nacks comes to it again."""
        self._staying.add(consumer)

    def forsake(self, consumer: object) -> None:
        """It takes nothing any more."""
        self._staying.discard(consumer)
        self._lanes.forsake(consumer)

    def _start_over(self, records: list[Record]) -> None:
        self._not_acked += self.leases.count
        self.leases.clear()
        self._out_of_key = None
        self.failures.clear()
        self._holds.clear()
        self._starved = None
        self._unread.clear()
        self._cold = False
        self._lanes = self._new_lanes()
        self.out_bytes = self._gaps = self.backlog_messages = self.backlog_bytes = 0
        self._oldest_us = inf
        self._put(records)

    def _put(self, records: Sequence[Record], until_us: Mapping[int, int | None] = MappingProxyType({})) -> None:
        """Line up messages that were visible before."""
        gaps = _count_gaps(records)
        self._add_gaps(gaps)
        self.backlog_messages += len(records) - gaps
        self.backlog_bytes += sum(map(_size, records))  # that of a gap is 0
        self._oldest_us = min(self._oldest_us, min(map(_stored_us, records), default=inf))
        self._line_up(records, until_us)

    def _size_out(self) -> int:
        return sum(record[SIZE] for _, record in self.leases.out())

    def _unacked(self) -> Iterator[Record]:
        yield from (record for _, record in self.leases.out())
        yield from self._lanes.records()
        yield from (record for _, record in self._holds.delayed())


def _chilled(record: Record) -> Record:
    position, key, data, _, publish_us, size, stored_us = record
    return record if isinstance(data, Gap) else (position, key, COLD, None, publish_us, size, stored_us)


def _seconds_since(time_us: int, now_us: int) -> float:
    """At least 0: the clock may have been set back while the broker was away."""
    return max(now_us - time_us, 0) / MICROSECONDS


def _count_gaps(records: Iterable[Record]) -> int:
    return sum(map(isinstance, map(_data, records), repeat(Gap)))
