"""Collects messages into a batch per ordering key and keeps each key in order, also when it fails.

Of each key one request is under way at a time. When it fails, the key is paused: what waits behind
it fails too, and so does all that comes, until somebody resumes the key.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from inorder.clock import Timer
from inorder.errors import Closed, InorderError, KeyPaused, OrderingNotEnabled
from inorder.message import Batch, Entry, Message, batch_of, make_entry, to_columns
from inorder.options import PublishOptions, merge
from inorder.pending import Pending
from inorder.transport import Transport

# Pub/Sub's limits for one publish request; the second leaves room for what is around the messages.
MAX_REQUEST_MESSAGES = 1_000
MAX_REQUEST_BYTES = 9_000_000

_log = logging.getLogger(__name__)


class KeyBatch:
    """Messages of one key that are sent together, and who waits for their ids."""

    __slots__ = ("answers", "due_us", "entries", "key", "size")

    def __init__(self, key: str, due_us: int) -> None:
        self.key = key
        self.due_us = due_us
        self.entries: list[Entry] = []
        self.answers: list[Pending[str]] = []
        self.size = 0

    def add(self, entry: Entry, answer: Pending[str]) -> None:
        self.entries.append(entry)
        self.answers.append(answer)
        self.size += entry[3]

    def fail(self, error: BaseException) -> None:
        for answer in self.answers:
            answer.set_exception(error)


class Publisher:
    """Publishes to one topic. Thread-safe; all handles of a topic share one, so that order holds."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._options = PublishOptions()
        self._collecting: dict[str, KeyBatch] = {}
        self._by_due: deque[KeyBatch] = deque()  # the same in order of time; some are sent already
        self._timer: Timer | None = None
        self._under_way: set[str] = set()  # keys with a request that is not answered
        self._behind: dict[str, deque[KeyBatch]] = {}  # batches that wait for their key
        self._paused: set[str] = set()
        self._waiting: deque[tuple[Entry, Pending[str]]] = deque()  # beyond flow control
        self._messages = 0  # collected or under way
        self._bytes = 0
        self._flushes: list[Pending[None]] = []
        self._closed = False

    # -- what users call ---------------------------------------------------------------------------

    def set_options(self, changes: Mapping[str, Any]) -> None:
        """Change options for what is published from now on."""
        with self._lock:
            self._options = merge(self._options, changes)

    def publish(self, data: bytes, attributes: Mapping[str, str] | None, ordering_key: str | None) -> Pending[str]:
        """Check a message and send it as the batching options say."""
        try:
            entry = make_entry(data, attributes, ordering_key)
            with self._lock:
                self._check_allowed((entry[0],))
                if self._messages or self._options.batching.max_milliseconds:
                    return self._admit(entry)
                # Nothing is collected and nothing under way: no order to keep, so no batch to make.
                answer = self._transport.publish(self._topic, ((entry[0],), (entry[1],), (entry[2],), (entry[3],)))
                if answer.done() and answer.exception() is None:
                    return Pending.of(answer.result()[0])
                batch = KeyBatch(entry[0], 0)
                pending: Pending[str] = Pending()
                self._add(batch, entry, pending)
                self._await([batch], answer)
                return pending
        except InorderError as error:
            return Pending.failed(error)

    def publish_many(self, messages: Iterable[Message]) -> Pending[list[str]]:
        """Check all, then send all; one bad message refuses them all."""
        try:
            batch = batch_of(messages)
            with self._lock:
                self._check_allowed(set(batch[0]))
                self.flush()
                if not self._messages and _is_one_request(batch):
                    answer = self._transport.publish(self._topic, batch)
                    answer.add_done_callback(lambda answered: self._pause_if_failed(batch[0], answered))
                    return answer
                answers = [self._admit(entry) for entry in zip(*batch, strict=True)]
                self.flush()
        except InorderError as error:
            return Pending.failed(error)
        return Pending.all(answers)

    def flush(self) -> Pending[None]:
        """Send everything collected so far; done when all of it is answered."""
        with self._lock:
            self._send([batch for batch in self._by_due if self._seal(batch)])
            self._by_due.clear()
            if not self._messages:
                return Pending.of(None)
            answer: Pending[None] = Pending()
            self._flushes.append(answer)
            return answer

    def resume(self, ordering_key: str) -> None:
        """Publish on a key again of which a publish failed."""
        with self._lock:
            self._paused.discard(ordering_key)

    def paused_keys(self) -> list[str]:
        """The keys that wait for `resume`."""
        with self._lock:
            return sorted(self._paused)

    def close(self) -> Pending[None]:
        """Send what was collected and take no more."""
        with self._lock:
            self._closed = True
            return self.flush()

    def _check_allowed(self, keys: Iterable[str]) -> None:
        if self._closed:
            raise Closed(f"the publisher of topic {self._topic!r} is closed")
        if self._options.message_ordering is False and any(keys):
            raise OrderingNotEnabled
        if self._paused:
            for key in self._paused.intersection(keys):
                raise KeyPaused(key)

    # -- what is collected -------------------------------------------------------------------------

    def _admit(self, entry: Entry) -> Pending[str]:
        """Collect a message, or let it wait its turn beyond flow control."""
        pending: Pending[str] = Pending()
        if not self._waiting and self._has_room(entry):
            self._collect(entry, pending)
            return pending
        self._waiting.append((entry, pending))
        self.flush()
        # A thread waits here; a task must not, it waits where it awaits the answer.
        if not _on_a_loop():
            self._room.wait_for(lambda: all(waiting is not pending for _, waiting in self._waiting))
        return pending

    def _has_room(self, entry: Entry) -> bool:
        flow = self._options.flow_control
        fits = self._messages < flow.max_messages and self._bytes + entry[3] <= flow.max_bytes
        return fits or not self._messages

    def _collect(self, entry: Entry, pending: Pending[str]) -> None:
        key, batching = entry[0], self._options.batching
        batch = self._collecting.get(key)
        if batch is not None and batch.size + entry[3] > batching.max_bytes and self._seal(batch):
            self._send([batch])
            batch = None
        if batch is None:
            due_us = self._transport.clock.now_us() + round(batching.max_milliseconds * 1000)
            batch = self._collecting[key] = KeyBatch(key, due_us)
            self._by_due.append(batch)
        self._add(batch, entry, pending)
        full = len(batch.entries) >= batching.max_messages or batch.size >= batching.max_bytes
        if full or not batching.max_milliseconds:
            self._seal(batch)
            self._send([batch])
        elif self._timer is None:
            self._set_timer()

    def _add(self, batch: KeyBatch, entry: Entry, pending: Pending[str]) -> None:
        batch.add(entry, pending)
        self._messages += 1
        self._bytes += entry[3]

    def _seal(self, batch: KeyBatch) -> bool:
        """The batch collects no more; False if that was so before."""
        if self._collecting.get(batch.key) is not batch:
            return False
        del self._collecting[batch.key]
        return True

    def _set_timer(self) -> None:
        while self._by_due and self._collecting.get(self._by_due[0].key) is not self._by_due[0]:
            self._by_due.popleft()
        if self._by_due:
            self._timer = self._transport.clock.call_at(self._by_due[0].due_us, self._on_timer)

    def _on_timer(self) -> None:
        with self._lock:
            self._timer = None
            now_us = self._transport.clock.now_us()
            due: list[KeyBatch] = []
            while self._by_due and self._by_due[0].due_us <= now_us:
                batch = self._by_due.popleft()
                if self._seal(batch):
                    due.append(batch)
            self._send(due)
            self._set_timer()

    # -- what is under way -------------------------------------------------------------------------

    def _send(self, batches: list[KeyBatch]) -> None:
        """Send batches of several keys together; where a key is under way, its batch waits behind it."""
        request: list[KeyBatch] = []
        messages = size = 0
        for batch in batches:
            if batch.key in self._under_way:
                self._behind.setdefault(batch.key, deque()).append(batch)
                continue
            messages += len(batch.entries)
            size += batch.size
            if request and (messages > MAX_REQUEST_MESSAGES or size > MAX_REQUEST_BYTES):
                self._request(request)
                request, messages, size = [], len(batch.entries), batch.size
            request.append(batch)
        if request:
            self._request(request)

    def _request(self, batches: list[KeyBatch]) -> None:
        entries = batches[0].entries if len(batches) == 1 else list(chain(*(batch.entries for batch in batches)))
        self._await(batches, self._transport.publish(self._topic, to_columns(entries)))

    def _await(self, batches: list[KeyBatch], answer: Pending[list[str]]) -> None:
        self._under_way.update(batch.key for batch in batches if batch.key)
        answer.add_done_callback(lambda answered: self._answered(batches, answered))

    def _answered(self, batches: list[KeyBatch], answered: Pending[list[str]]) -> None:
        error = answered.exception()
        with self._lock:
            for batch in batches:
                self._under_way.discard(batch.key)
                self._uncount(batch)
            failed = self._pause([batch.key for batch in batches], error) if error is not None else []
            if error is None:
                self._send([behind for batch in batches if (behind := self._next_behind(batch.key))])
            self._let_in()
            self._room.notify_all()
            flushed = [] if self._messages else self._flushes
            if flushed:
                self._flushes = []
        # Answers are given when the lock is free: whoever waits for them may publish again.
        if error is None:
            for pending, message_id in zip(chain(*(b.answers for b in batches)), answered.result(), strict=True):
                pending.set_result(message_id)
        else:
            for batch in batches:
                batch.fail(error)
        for batch in failed:
            batch.fail(KeyPaused(batch.key))
        for waiting in flushed:
            waiting.set_result(None)

    def _uncount(self, batch: KeyBatch) -> None:
        self._messages -= len(batch.entries)
        self._bytes -= batch.size

    def _next_behind(self, key: str) -> KeyBatch | None:
        behind = self._behind.get(key)
        if behind is None:
            return None
        batch = behind.popleft()
        if not behind:
            del self._behind[key]
        return batch

    def _let_in(self) -> None:
        """There is room again for what waited beyond flow control."""
        while self._waiting and self._has_room(self._waiting[0][0]):
            entry, pending = self._waiting.popleft()
            if entry[0] in self._paused:
                pending.set_exception(KeyPaused(entry[0]))
            else:
                self._collect(entry, pending)

    def _pause(self, keys: Iterable[str], error: BaseException) -> list[KeyBatch]:
        """Publishing on would leave a hole in these keys. Returns what waited behind and fails as well."""
        paused = {key for key in keys if key}
        _log.error("publishing to topic %r failed: %s; paused keys: %s", self._topic, error, sorted(paused) or "none")
        self._paused |= paused
        failed: list[KeyBatch] = []
        for key in paused:
            failed += self._behind.pop(key, ())
            if (collecting := self._collecting.pop(key, None)) is not None:
                failed.append(collecting)
        for batch in failed:
            self._uncount(batch)
        return failed

    def _pause_if_failed(self, keys: Iterable[str], answered: Pending[list[str]]) -> None:
        if (error := answered.exception()) is None:
            return
        with self._lock:
            failed = self._pause(keys, error)
        for batch in failed:
            batch.fail(KeyPaused(batch.key))


def _is_one_request(batch: Batch) -> bool:
    return len(batch[0]) <= MAX_REQUEST_MESSAGES and sum(batch[3]) <= MAX_REQUEST_BYTES


def _on_a_loop() -> bool:
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
