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
if a request of the dead one is still on its way to a remote target when the next one reads, the target has repetitions:
never in front of the first copy, so a consumer with `read_forwarded` drops them.

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
from dataclasses import dataclass
from typing import Literal, TypeVar

from inorder.client.subscription import Batches, Subscription
from inorder.client.topic import Topic
from inorder.clock import MICROSECONDS, Timer
from inorder.consumers.forwarding import (
    BARRIER,
    SOURCE_ID,
    ForwarderState,
    Progress,
    Refused,
    origin_of,
    with_origin,
)
from inorder.consumers.receipts import Receipts
from inorder.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InorderError,
    InvalidArgument,
    KeyPaused,
    OrderingNotEnabled,
    ResourceExhausted,
    TopicNotFound,
    Unavailable,
)
from inorder.message import ATTRIBUTES, SIZE, Gap, Message, batch_of
from inorder.options import RetryPolicy, check_flag, check_number, check_whole
from inorder.pending import Pending

MAX_BATCH = 1_000  # messages of one publish request
MAX_BATCH_BYTES = 8_000_000  # of it, with room for what is added
MAX_LOOK = 1_000_000  # messages of a dry run, which holds them all

PASSING = (Unavailable, ResourceExhausted, Aborted, DeadlineExceeded, KeyPaused)  # trying again may help

T = TypeVar("T")
OnRefused = Literal["stop", "skip"] | Topic

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sending:
    """A part of the list at hand, on its way."""

    messages: list[Message]  # to ack when it is answered
    publish: list[Message]  # those of them that go to `topic`
    topic: Topic
    answer: Pending[list[str]]


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
        self._source_topic = _check_source(source)
        if not target.exists().result():
            raise TopicNotFound(target.name)
        self.name = source.name if name is None else name
        self._source = source
        self._target = target
        self._clock = source.clock
        self._batch = batch
        self._retry = retry
        self._on_refused: OnRefused = on_refused
        self._dry_run = dry_run
        self._report = report
        self._on_progress = on_progress
        self._progress_us = round(progress_seconds * MICROSECONDS)
        self._receipts = Receipts(target, self.name) if deduplicate and not dry_run else None

        self._batches: Batches | None = None
        self._lists: Iterator[list[Message]] = iter(())
        self._at_hand: deque[Message] = deque()  # not answered by the target
        self._sending: _Sending | None = None
        self._limit = batch  # of one part; smaller while we look for what is refused
        self._dead: Refused | None = None  # the next part is this message, and goes to the dead letters
        self._stored: set[str] = set()  # ids that the target has, and the source has not confirmed
        self._acking: deque[tuple[list[str], Pending[list[None]]]] = deque()
        self._failures = 0
        self._retry_at_us = 0
        self._timer: Timer | None = None

        self._ended: Literal["", "stopped", "closed"] = ""
        self._is_drained = False
        self._error: BaseException | None = None
        self._forwarded = self._repeated = self._refusals = self._missing = 0
        self._keys: set[str] = set()
        self._opened_us = self._clock.now_us()
        self._told_us = 0

        self._lock = threading.Lock()
        self._drains: list[Pending[None]] = []
        self._barriers: dict[str, Pending[None]] = {}
        self._wake = threading.Event()
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
        if self._receipts is not None:
            self._receipts.open()
            self._stored.update(self._receipts.ids)
        self._source.on("gap", self._on_gap)
        self._batches = self._source.batches(MAX_LOOK if self._dry_run else self._batch, one_per_key=False)
        self._lists = iter(self._batches)
        self._opened_us = self._clock.now_us()
        self._batches.poke()

    def _run(self) -> None:
        try:
            while not self._closing:
                if self._at_hand:
                    if not self._advance() and self._at_hand:
                        self._wake.wait()
                        self._wake.clear()
                elif not self._fetch():
                    break
        except Exception as error:
            self._stop(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._batches is not None:
            self._batches.close()
            next(self._lists, None)  # the loop ends, and what is unanswered goes back
            if self._receipts is not None:
                self._receipts.close()
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._ended = self._ended or "closed"
            waiting = [*self._drains, *self._barriers.values()]
            self._drains, self._barriers = [], {}
        for pending in waiting:
            pending.set_exception(self._error or Aborted(f"forwarder {self.name!r} was closed before it was drained"))
        self._tell_progress(at_once=True)

    # -- steps -------------------------------------------------------------------------------------

    def step(self) -> int:
        """Do what can be done now, and wait for nothing: how many messages were done with.

        What stops the forwarder is raised.
        """
        self._start()
        before = self._forwarded + self._refusals
        try:
            if not self._at_hand:
                assert self._batches is not None
                self._batches.poke()
                self._fetch()
            if self._dry_run:
                return self._forwarded + self._refusals - before
            return self._advance() if self._at_hand else 0
        except Exception as error:
            self._stop(error)
            self._leave()
            raise

    def _fetch(self) -> bool:
        """The next list, when there is one; False at the end."""
        messages = next(self._lists, None)
        if messages is None:
            return False
        if self._dry_run:
            self._look_at(messages)
            return False  # another list would be the same messages, whose leases had run out
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
        if self._sending is None:
            if self._clock.now_us() < self._retry_at_us:
                return 0
            if self._failures and not self._learn_what_is_stored():
                return 0
            self._drop_what_is_lost()
            self._sending = self._send(self._next_part())
        sending = self._sending
        if not sending.answer.done():
            sending.answer.add_done_callback(lambda _: self._wake.set())
            return 0
        self._sending = None
        error = sending.answer.exception()
        return self._done(sending) if error is None else self._failed(sending, error)

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

    def _next_part(self) -> tuple[list[Message], list[Message]]:
        """The first messages at hand, as many as one request takes, and those of them that are to be published."""
        part: list[Message] = []
        publish: list[Message] = []
        size = 0
        for message in self._at_hand:
            attributes = message._record[ATTRIBUTES]
            size += message._record[SIZE]
            if publish and (len(publish) >= self._limit or size > MAX_BATCH_BYTES):
                break
            part.append(message)
            if message.id in self._stored or (attributes and BARRIER in attributes):
                continue
            if attributes and SOURCE_ID in attributes:
                self._refuse_circle(message)
            publish.append(message)
        return part, publish

    def _refuse_circle(self, message: Message) -> None:
        """Ids are unique over topics and restarts: what comes from this very topic went round."""
        origin = origin_of(message)
        if origin and origin.id.removesuffix(str(origin.position)) == message.id.removesuffix(str(message.position)):
            raise FailedPrecondition(
                f"message {message.id!r} was forwarded from topic {origin.topic!r} and has come back to it: "
                "the target of this forwarder is its source, or is forwarded to it"
            )

    def _send(self, part: tuple[list[Message], list[Message]]) -> _Sending:
        messages, publish = part
        if self._dead is not None and publish[:1] == [self._dead.message]:
            assert isinstance(self._on_refused, Topic)
            dead = self._dead.message
            topic, copies = self._on_refused, [Message(dead.data, dead.attributes, dead.ordering_key)]
        else:
            self._dead = None  # its lease was lost: it will be refused again
            topic, copies = self._target, [with_origin(message, self._source_topic) for message in publish]
        answer = topic.publish_many(copies) if copies else Pending.of([])
        return _Sending(messages, publish, topic, answer)

    def _done(self, sending: _Sending) -> int:
        """The target has answered: now, and not before, the source is told."""
        self._error, self._failures = None, 0
        self._limit = min(2 * self._limit, self._batch)
        if self._dead is not None:
            self._refusals += 1
            self._tell_refused(self._dead)
            self._dead = None
        else:
            self._forwarded += len(sending.publish)
        self._repeated += sum(1 for message in sending.messages if message.id in self._stored)
        self._keys.update(message.ordering_key for message in sending.publish if message.ordering_key)
        self._settle(sending.messages)
        return len(sending.messages)

    def _settle(self, messages: list[Message]) -> None:
        """Ack, and go on; once the source confirms, the receipts are let go of."""
        assert self._batches is not None
        for _ in messages:
            self._at_hand.popleft()
        ids = [message.id for message in messages]
        self._stored.update(ids)
        acks = self._batches.ack(messages)
        self._acking.append((ids, acks))
        if not acks.done():
            acks.add_done_callback(lambda _: self._poke())
        for message in messages:
            if token := (message._record[ATTRIBUTES] or {}).get(BARRIER):
                self._pass_barrier(token)
        if not self._at_hand:
            self._confirm()
            self._check_drained()
        self._tell_progress()

    def _confirm(self) -> None:
        """What the source has confirmed need not be remembered; what it has not comes again, and is not sent again."""
        confirmed: list[str] = []
        while self._acking and self._acking[0][1].done():
            ids, acks = self._acking.popleft()
            if acks.exception() is None:
                self._stored.difference_update(ids)
                confirmed += ids
        if confirmed and self._receipts is not None:
            try:
                self._receipts.read()
                self._receipts.let_go(confirmed)
            except PASSING:  # it was only to save room
                _log.debug("forwarder %r: receipts are let go of later", self.name)

    # -- errors ------------------------------------------------------------------------------------

    def _failed(self, sending: _Sending, error: BaseException) -> int:
        keys = {message.ordering_key for message in sending.publish}
        for key in filter(None, keys):
            sending.topic.resume_publishing(key)
        if isinstance(error, InvalidArgument) and not isinstance(error, OrderingNotEnabled):
            return self._refused(sending, error)
        if not isinstance(error, PASSING):
            raise error
        return self._try_again(error)

    def _learn_what_is_stored(self) -> bool:
        """After an error that may not have told the truth; whether the target has an ear for that."""
        if self._receipts is None:
            return True
        try:
            self._receipts.read()
        except PASSING as error:
            self._try_again(error)
            return False
        self._stored.update({message.id for message in self._at_hand}.intersection(self._receipts.ids))
        return True

    def _try_again(self, error: BaseException) -> int:
        self._failures += 1
        if not self._failures & (self._failures - 1):  # 1, 2, 4, 8…
            _log.warning("forwarder %r: try %d failed, trying again: %s", self.name, self._failures, error)
        self._error = error
        self._retry_at_us = self._clock.now_us() + round(self._retry.backoff(self._failures) * MICROSECONDS)
        self._timer = self._clock.call_at(self._retry_at_us, self._wake.set)
        self._tell_progress()
        return 0

    def _refused(self, sending: _Sending, error: InvalidArgument) -> int:
        if len(sending.publish) > 1:
            self._limit = len(sending.publish) // 2
            return self._advance()
        [message] = sending.publish
        if self._on_refused == "stop" or self._dead is not None:
            self._tell_refused(Refused(message, error, "stopped"))
            raise error
        if self._on_refused == "skip":
            self._refusals += 1
            self._tell_refused(Refused(message, error, "skipped"))
            self._settle(sending.messages)
            return len(sending.messages)
        self._dead = Refused(message, error, "dead_lettered")
        self._limit = 1
        return self._advance()

    def _tell_refused(self, refused: Refused) -> None:
        _log.error("forwarder %r: message %r is refused by topic %r and %s: %s", self.name, refused.message.id,
                   self._target.name, refused.fate.replace("_", "-"), refused.error)  # fmt: skip
        if self._report is not None:
            _call(self._report, refused)

    def _stop(self, error: BaseException) -> None:
        self._error, self._ended = error, "stopped"
        _log.error("forwarder %r stopped: %s", self.name, error)

    def _on_gap(self, gap: Gap) -> None:
        self._missing += gap.count
        _log.warning("forwarder %r: the source misses %d messages of key %r: %s", self.name, gap.count,
                     gap.ordering_key, gap.reason)  # fmt: skip

    # -- dry run -----------------------------------------------------------------------------------

    def _look_at(self, messages: list[Message]) -> None:
        for message in messages:
            try:
                batch_of([with_origin(message, self._source_topic)])
            except InvalidArgument as error:
                self._refusals += 1
                self._tell_refused(Refused(message, error, "found"))
            else:
                self._forwarded += 1
            if message.ordering_key:
                self._keys.add(message.ordering_key)

    # -- barriers ----------------------------------------------------------------------------------

    def drained(self) -> Pending[None]:
        """Done when the target has answered for all that the source subscription had, and nothing is left there.

        With publishers that go on publishing at the source there may never be such a moment: hold them first.
        """
        drained: Pending[None] = Pending()
        with self._lock:
            if self._ended:
                return self._over()
            self._drains.append(drained)
        self._poke()
        return drained

    def passed(self, token: str) -> Pending[None]:
        """Done when the target has answered for all messages of a key in front of the barrier with this token.

        Call it before the barrier is published: a message to the source with the key, and the token as the attribute
        `inorder_barrier`.
        """
        with self._lock:
            return self._over() if self._ended else self._barriers.setdefault(token, Pending())

    def _over(self) -> Pending[None]:
        return Pending.failed(self._error or FailedPrecondition(f"forwarder {self.name!r} is {self._ended}"))

    def _pass_barrier(self, token: str) -> None:
        with self._lock:
            passed = self._barriers.pop(token, None)
        if passed is not None:
            passed.set_result(None)

    def _check_drained(self) -> None:
        """With nothing at hand: whether the source has nothing left either."""
        if self._acking or not (self._drains or self._stored) or self._lag():
            return
        self._stored.clear()  # what was acked just before a crash, and nobody will deliver again
        if self._receipts is not None:
            self._receipts.let_go([*self._receipts.ids])
        with self._lock:
            drains, self._drains = self._drains, []
            self._is_drained = bool(drains)
        for drained in drains:
            drained.set_result(None)

    # -- progress ----------------------------------------------------------------------------------

    @property
    def state(self) -> ForwarderState:
        """What it is at; `retrying` goes before `draining`, as nothing drains meanwhile."""
        if self._ended:
            return self._ended
        if self._failures:
            return "retrying"
        if self._drains or self._barriers:
            return "draining"
        return "drained" if self._is_drained else "copying"

    def progress(self) -> Progress:
        """How far it is; asks the source for its backlog."""
        seconds = (self._clock.now_us() - self._opened_us) / MICROSECONDS
        return Progress(
            self.state,
            self._forwarded,
            self._repeated,
            self._refusals,
            self._missing,
            self._lag(),
            len(self._keys),
            self._forwarded / seconds if seconds else 0.0,
            self._error,
        )

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

    def _poke(self) -> None:
        self._wake.set()
        if self._batches is not None:
            self._batches.poke()


def _call(listener: Callable[[T], object], value: T) -> None:
    """Tell somebody whose errors are his own."""
    try:
        listener(value)
    except Exception:
        _log.exception("a listener of a forwarder failed")


def _check_source(source: Subscription) -> str:
    """Refuse a subscription that would lose or reorder; the name of its topic."""
    metadata = source.metadata().result()
    if not metadata.options.enable_message_ordering:
        raise InvalidArgument(
            f"subscription {source.name!r} does not keep keys in order, so the target could not either: "
            "create it with enable_message_ordering=True, or by forwarding_subscription"
        )
    limits = metadata.options.queue_limits
    if limits and limits.when_full == "drop" and (limits.max_messages or limits.max_bytes):
        raise InvalidArgument(
            f"subscription {source.name!r} drops messages when it is full, as it may be while the target is away: "
            "set queue_limits without limits, or with when_full='block', or use forwarding_subscription"
        )
    return metadata.topic
