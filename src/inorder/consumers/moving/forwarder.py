"""Moves a topic to another broker: each key in order, nothing lost, and nothing twice where the target remembers.

    source topic ─▶ source subscription ─▶ forwarder ─▶ target topic
                          ▲                  │   ▲            │
                          └─────── ack ──────┘   └─ receipts ─┘

**Order.** The source subscription keeps keys in order, and a list of messages is published at the target in the order
of the list, before the next list is asked for. A message is acked at the source when the target has answered for it,
not sooner. So whatever happens, the target's log has each key in the order of the source.

**A crash** leaves messages that the target has and the source has not acked. They are delivered again, here. Each
forwarded message carries its topic, id and position at the source, and the forwarder has a subscription of its own
at the target, its receipts, which lets go of a message only after the source has confirmed the ack. On resume the
forwarder reads its receipts first, and what it finds there it does not send again. The same after an error that does
not tell whether the messages were stored. Without receipts (`deduplicate=False`), or if two forwarders run at once, or
if a request that was given up is still on its way to a remote target when the receipts are read, the target has
repetitions: never in front of the first copy, so a consumer with `read_forwarded` drops them.

**A target that is away** (`Unavailable`, `ResourceExhausted`, a timeout) is tried again with backoff. Meanwhile the
list at hand stays leased, nothing else is taken, and the source keeps the rest: no key overtakes itself. A target that
blocks its publishers is waited for. An error that is neither this nor a refusal stops the forwarder.

**A message that the target refuses for good** (`InvalidArgument`) is found by halving the list it was in. Then
`on_refused` decides: `"stop"`, with all before it forwarded and it unacked; `"skip"`, reported; or a topic, to which an
exact copy goes before the ack. Both others leave a gap in its key at the target.

**The cut-over** is a barrier. As long as publishers publish at the source, they go on doing so (*copying*). Then they
are held (*draining*) until every message that the source had answered is acked by this subscription, hence answered by
the target; only then they publish at the target (*switched*). So at the target all of a key's forwarded messages
precede all that are published there. `drained` is the barrier for all keys; for a single key it is a message that its
publisher sends to the source behind its last one, `passed` when this forwarder meets it. `MovingTopic` does both.

This module does not know who publishes, nor what kind of broker either side is.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

from inorder.client.subscription import Batches, Subscription
from inorder.client.topic import Topic
from inorder.clock import MICROSECONDS
from inorder.consumers.moving.barriers import Barriers
from inorder.consumers.moving.forwarding import (
    BARRIER,
    ForwarderState,
    Progress,
    Refused,
    Tally,
    check_source,
    with_origin,
)
from inorder.consumers.moving.outlet import OnRefused, Outlet
from inorder.consumers.moving.receipts import Receipts
from inorder.errors import Aborted, FailedPrecondition, InorderError, InvalidArgument, TopicNotFound
from inorder.message import ATTRIBUTES, Gap, Message, batch_of
from inorder.options import RetryPolicy, check_flag, check_number, check_whole
from inorder.pending import Pending

MAX_BATCH = 1_000  # messages of one publish request
MAX_LOOK = 1_000_000  # messages of a dry run, which holds them all
LOOK_US = 2 * MICROSECONDS  # how long it waits for messages that are there

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Forwarder:
    """Forwards what a subscription gets to a topic of another broker. `open` starts a thread, `close` ends it.

    One forwarder at a time for a subscription; `name`, the subscription's unless told, names its receipts at the
    target. A program with a loop of its own calls `step` instead of `open`.

    A dry run publishes and acks nothing: it looks at what it can get without acking, which is
    `max_outstanding_per_key` of each key and what flow control allows, reports what the target would refuse, and
    gives everything back when it is closed.
    """

    def __init__(
        self,
        source: Subscription,
        target: Topic,
        *,
        name: str | None = None,
        batch: int = MAX_BATCH,
        retry: RetryPolicy = RetryPolicy(minimum_backoff=0.1, maximum_backoff=30),  # noqa: B008 (it is frozen)
        on_refused: OnRefused = "stop",
        deduplicate: bool = True,
        dry_run: bool = False,
        report: Callable[[Refused], object] | None = None,
        on_progress: Callable[[Progress], object] | None = None,
        progress_seconds: float = 1,
    ) -> None:
        check_whole("batch", batch)
        if batch > MAX_BATCH:
            raise InvalidArgument(f"batch: at most {MAX_BATCH}, as many as one publish request has, not {batch}")
        if not isinstance(on_refused, Topic) and on_refused not in ("stop", "skip"):
            raise InvalidArgument(f"on_refused: 'stop', 'skip' or the Topic for dead letters, not {on_refused!r}")
        check_flag("deduplicate", deduplicate)
        check_flag("dry_run", dry_run)
        check_number("progress_seconds", progress_seconds, up_to=3_600)
        self._source_topic = check_source(source)
        if not target.exists().result():
            raise TopicNotFound(target.name)
        self.name = source.name if name is None else name
        self._source = source
        self._clock = source.clock
        self._batch = batch
        self._dry_run = dry_run
        self._report = report
        self._on_progress = on_progress
        self._progress_us = round(progress_seconds * MICROSECONDS)
        self._told_us = 0
        self._tally = Tally(self._clock.now_us())
        self._wake = threading.Event()
        self._outlet = Outlet(
            target,
            self._source_topic,
            batch=batch,
            retry=retry,
            on_refused=on_refused,
            receipts=Receipts(target, self.name, self._source_topic) if deduplicate and not dry_run else None,
            clock=self._clock,
            tally=self._tally,
            report=self._tell_refused,
            wake=self._wake.set,
        )
        self._batches: Batches | None = None
        self._lists: Iterator[list[Message]] = iter(())
        self._at_hand: deque[Message] = deque()  # not answered by the target
        self._unseen = 0  # by a dry run
        self._acking: deque[tuple[list[str], Pending[list[None]]]] = deque()  # not confirmed by the source
        self._barriers = Barriers()
        self._is_drained = False
        self._ended: Literal["", "stopped", "closed"] = ""
        self._error: BaseException | None = None  # why it is stopped
        self._closing = False
        self._thread: threading.Thread | None = None

    # -- life --------------------------------------------------------------------------------------

    def open(self) -> Forwarder:
        """Start forwarding in a thread of its own."""
        if self._thread is not None:
            raise FailedPrecondition(f"forwarder {self.name!r} is open already")
        self._start()
        self._thread = threading.Thread(target=self._run, name="inorder-forwarder", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """End, and give back what the target has not answered for. Whoever waits for a drain is told."""
        self._closing = True
        if self._batches is not None:
            self._batches.close()
        self._wake.set()
        if self._thread is None:
            self._leave()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Forwarder:
        return self if self._thread is not None else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._ended:
            raise FailedPrecondition(f"forwarder {self.name!r} is {self._ended}; make another one to go on")
        if self._batches is not None:
            return
        self._outlet.open()
        self._source.on("gap", self._on_gap)
        self._batches = self._source.batches(MAX_LOOK if self._dry_run else self._batch, one_per_key=False)
        self._unseen = self._lag() if self._dry_run else 0
        if not self._unseen:
            self._batches.poke()
        self._lists = iter(self._batches)
        self._tally.opened_us = self._clock.now_us()

    def _run(self) -> None:
        try:
            while not self._closing:
                if self._unseen:  # a server sends them by and by, and some may be out elsewhere
                    self._clock.call_at(self._clock.now_us() + LOOK_US, self._poke)
                if not self._at_hand and not self._fetch():
                    break
                if self._dry_run:
                    seen = self._look()
                    self._unseen -= min(seen, self._unseen)
                    if seen and self._unseen:
                        continue
                    break  # another list would be the same messages, whose leases had run out
                if self._at_hand and not self._advance() and self._at_hand:
                    self._wake.wait()
                    self._wake.clear()
        except Exception as error:
            self._stop(error)
        finally:
            self._leave()

    def _stop(self, error: BaseException) -> None:
        self._error, self._ended = error, "stopped"
        _log.error("forwarder %r stopped: %s", self.name, error)

    def _leave(self) -> None:
        if self._batches is not None:
            self._batches.close()
            next(self._lists, None)  # the loop ends, and what is unanswered goes back
        self._ended = self._ended or "closed"
        self._barriers.end(
            self._error or Aborted(f"forwarder {self.name!r} was closed before it was drained"),
            lambda: self._error or FailedPrecondition(f"forwarder {self.name!r} is {self._ended}"),
        )
        self._tell_progress(at_once=True)

    # -- steps -------------------------------------------------------------------------------------

    def step(self) -> int:
        """Do what can be done now, and wait for nothing: how many messages were done with.

        What stops the forwarder is raised.
        """
        self._start()
        try:
            if not self._at_hand:
                assert self._batches is not None
                self._batches.poke()
                self._fetch()
            if self._dry_run:
                return self._look()
            return self._advance() if self._at_hand else 0
        except Exception as error:
            self._stop(error)
            self._leave()
            raise

    def _fetch(self) -> bool:
        """The next list, when there is one, or an empty one when poked; False at the end."""
        messages = next(self._lists, None)
        if messages is None:
            return False
        self._at_hand.extend(messages)
        if messages:
            self._is_drained = False
        else:
            self._confirm()
            self._check_drained()
        return True

    def _advance(self) -> int:
        """Get on with the list at hand; 0 if something has to be waited for."""
        self._confirm()
        if self._outlet.is_free():
            self._drop_what_is_lost()
        done = self._outlet.advance(self._at_hand)
        self._settle(done)
        return len(done)

    def _drop_what_is_lost(self) -> None:
        """A message whose lease is lost comes again, and so does what was out behind it."""
        assert self._batches is not None
        holds = self._batches.holds
        if all(map(holds, self._at_hand)):
            return
        lost: set[str | None] = set()
        kept: deque[Message] = deque()
        for message in self._at_hand:
            if not holds(message) or (message.ordering_key and message.ordering_key in lost):
                lost.add(message.ordering_key)
            else:
                kept.append(message)
        self._at_hand = kept

    def _settle(self, messages: list[Message]) -> None:
        """The target has answered for these: now, and not before, the source is told."""
        assert self._batches is not None
        if messages:
            for _ in messages:
                self._at_hand.popleft()
            acks = self._batches.ack(messages)
            self._acking.append(([message.id for message in messages], acks))
            if not acks.done():
                acks.add_done_callback(lambda _: self._poke())
            for message in messages:
                if token := (message._record[ATTRIBUTES] or {}).get(BARRIER):
                    self._barriers.tell_passed(token)
        if not self._at_hand:
            self._confirm()
            self._check_drained()
        self._tell_progress()

    def _confirm(self) -> None:
        """Learn which acks the source has; what it has not comes again, and is not sent again."""
        confirmed: list[str] = []
        while self._acking and self._acking[0][1].done():
            ids, acks = self._acking.popleft()
            if acks.exception() is None:
                confirmed += ids
        if confirmed:
            self._outlet.confirm(confirmed)

    def _look(self) -> int:
        """The dry run: would the target take what is at hand?"""
        looked_at = len(self._at_hand)
        while self._at_hand:
            message = self._at_hand.popleft()
            self._tally.note_keys([message])
            try:
                batch_of([with_origin(message, self._source_topic)])
            except InvalidArgument as error:
                self._tally.refused += 1
                self._tell_refused(Refused(message, error, "found"))
            else:
                self._tally.forwarded += 1
        return looked_at

    # -- barriers ----------------------------------------------------------------------------------

    def drained(self) -> Pending[None]:
        """Done when the target has answered for all that the source subscription had, and nothing is left there.

        With publishers that go on publishing at the source there may never be such a moment: hold them first.
        """
        drained = self._barriers.drained()
        self._poke()
        return drained

    def passed(self, token: str) -> Pending[None]:
        """Done when the target has answered for all messages of a key in front of the barrier with this token.

        Call it before the barrier is published: a message to the source with the key, and the token as the attribute
        `inorder_barrier`.
        """
        return self._barriers.passed(token)

    def forget(self, token: str) -> None:
        """The barrier with this token could not be published: what `passed` answered is never done."""
        self._barriers.forget(token)

    def _check_drained(self) -> None:
        """With nothing at hand: whether the source has nothing left either."""
        if self._acking or not (self._barriers.drain_wanted or self._outlet.unconfirmed) or self._lag():
            return
        self._outlet.confirm_all()
        self._is_drained = self._barriers.drain_wanted  # before those are told, who may ask
        self._barriers.tell_drained()

    def _poke(self) -> None:
        self._wake.set()
        if self._batches is not None:
            self._batches.poke()

    # -- what it tells -----------------------------------------------------------------------------

    @property
    def state(self) -> ForwarderState:
        """What it is at; `retrying` goes before `draining`, as nothing drains meanwhile."""
        if self._ended:
            return self._ended
        if self._outlet.error is not None:
            return "retrying"
        if self._barriers:
            return "draining"
        return "drained" if self._is_drained else "copying"

    def progress(self) -> Progress:
        """How far it is; asks the source for its backlog."""
        return self._tally.progress(self.state, self._lag(), self._clock.now_us(), self._error or self._outlet.error)

    def _lag(self) -> int:
        return self._source.metrics().result().backlog_messages

    def _tell_progress(self, *, at_once: bool = False) -> None:
        if self._on_progress is None or not (at_once or self._clock.now_us() >= self._told_us + self._progress_us):
            return
        self._told_us = self._clock.now_us()
        try:
            progress = self.progress()
        except InorderError as error:  # the source is closed, for example: then nobody can tell its lag
            _log.debug("forwarder %r: no progress to tell: %s", self.name, error)
        else:
            _call(self._on_progress, progress)

    def _tell_refused(self, refused: Refused) -> None:
        if self._report is not None:
            _call(self._report, refused)

    def _on_gap(self, gap: Gap) -> None:
        self._tally.missing += gap.count
        key, reason = gap.ordering_key, gap.reason
        _log.warning("forwarder %r: the source misses %d messages of key %r: %s", self.name, gap.count, key, reason)


def _call(listener: Callable[[T], object], value: T) -> None:
    """Tell somebody whose errors are his own."""
    try:
        listener(value)
    except Exception:
        _log.exception("a listener of a forwarder failed")
