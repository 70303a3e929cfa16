"""Collects messages into a batch per ordering key and keeps each key in order, also when it fails.

Of each key one request is under way at a time, unless the transport keeps their order. When one fails, the key is
paused: what waits behind it fails too, and so does all that comes, until somebody resumes the key.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from inorder.client.requests import (
    MAX_REQUEST_BYTES,
    MAX_REQUEST_MESSAGES,
    SIZE,
    WIDTH,
    Collected,
    Request,
    Tally,
    Waiting,
    fits,
)
from inorder.clock import Timer
from inorder.errors import Aborted, Closed, InorderError, KeyPaused, OrderingNotEnabled
from inorder.forks import stays_here
from inorder.message import Batch, Columns, Entry, Message, batch_of, make_entry, to_columns
from inorder.options import PublishOptions, merge
from inorder.pending import Pending
from inorder.put_off import at_the_end_of_the_turn, running_loop
from inorder.transport import Transport

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_log = logging.getLogger(__name__)

FEW = 8  # if no more are free behind what has arrived, that is taken in and counted key by key, which may find more

_NO_KEYS: frozenset[str] = frozenset()
_NOW = "now"


class Publisher:
    """Publishes to one topic. Thread-safe; all handles of a topic share one, so that order holds.

    A request and an answer may run other people's code, which may publish again, or wait for somebody
    who does. So while the lock is held both are only noted; they are done once it is free.
    """

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._at_once = transport.answers_at_once
        self._topic = topic
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], object]] = deque()  # once the lock is free
        self._to_tell: deque[Callable[[], object]] = deque()  # behind all that: who is told may publish more
        self._outgoing: deque[Request] = deque()  # requests whose order counts, each until it has been asked
        self._handing_over: dict[str, object] = {}  # who does: a lock that tells who has it, whenever he is interrupted
        self._set_options(PublishOptions())
        # Those of all keys together: of most there is one, and a batch of its own for each would cost more than that.
        self._collected = Collected.nothing()
        self._tally = Tally(self._collected.keys, self._collected.sizes)
        # What came without the lock. While there are no more than are free, and none is larger, no limit is reached,
        # and there is a timer, a request or the end of a turn that sends them: so there is nothing to look at.
        # One after the other in one list: an object for each would be one more for the garbage collector to look at.
        self._arrived: list[Any] = []
        self._free_length = self._free_size = 0
        self._free_for: AbstractEventLoop | None = None  # only what it publishes waits for the end of its turn
        self._timer: Timer | None = None
        self._requests = 0  # that are not answered
        self._alone: tuple[Pending[str], str, int] | None = None  # under way without a request, with its key and size
        self._under_way: set[str] = set()  # their keys, but for those of requests of which nobody has asked
        self._unasked: set[Request] = set()
        self._behind: dict[str, deque[Collected]] = {}  # what waits for its key, each no more than a request takes
        # What is being sent, and keys whose next may be. Empty when the lock is free, unless an interrupt came between:
        # then whoever takes it next goes on with them.
        self._leaving: list[Collected] = []
        self._freed: set[str] = set()
        self._paused: set[str] = set()
        self._waiting: deque[Waiting] = deque()  # beyond flow control
        self._messages = 0  # collected or under way
        self._bytes = 0
        # Those of what was sent, or has failed, by the identity of each list; shrinks without the lock.
        self._unanswered: dict[int, Sequence[Pending[Any]]] = {}
        self._closed = ""  # or why it is
        stays_here(self)

    def _set_options(self, options: PublishOptions) -> None:
        self._options = options
        self._batching = options.batching  # these are looked at for every message
        self._flow = options.flow_control

    # -- what users call ---------------------------------------------------------------------------

    def set_options(self, changes: Mapping[str, Any]) -> None:
        """Change options for what is published from now on."""
        with self._lock:
            self._take_in()
            self._set_options(merge(self._options, changes))
            self._send_collected()  # it was collected by other rules, and could be due after what comes now
            self._let_in()
        self._do()

    def publish(
        self,
        data: bytes,
        attributes: Mapping[str, str] | None,
        ordering_key: str | None,
        mark: Callable[[Entry], Entry] | None = None,
    ) -> Pending[str]:
        """Check a message and send it as the batching options say, with what `mark` adds to it."""
        answer: Pending[str] = Pending()
        try:
            entry = make_entry(data, attributes, ordering_key)
            if mark is not None:
                entry = mark(entry)
            key, data, attributes, size = entry
            arrived, came_too_late = self._arrived, False
            if (
                (len(arrived) < self._free_length or (self._free_length and self._free_more()))
                and size <= self._free_size
                and (self._free_for is None or self._free_for is running_loop())
            ):
                arrived += (key, data, attributes, size, answer)
                if len(arrived) <= self._free_length:
                    return answer
                came_too_late = True
            admitted = None
            with self._lock:
                if came_too_late and not self._take_back(answer):
                    return answer
                self._take_in()
                if self._closed or self._paused or self._options.message_ordering is False:
                    self._check_allowed((key,))
                alone = (
                    not self._messages
                    and not self._batching.max_milliseconds
                    and (self._at_once or running_loop() is None)
                )
                if alone:
                    self._begin(entry, answer)
                elif self._waiting or not self._has_room(size):
                    admitted = self._wait_for_room(entry, answer)
                else:
                    self._collect(entry, answer)
                    self._free_some()
            if alone:
                self._publish_alone(entry, answer)
        except InorderError as error:
            return Pending.failed(error)
        except BaseException:  # as Ctrl-C: this message is published or is not, but nobody may wait for it
            self._mend(answer)
            raise
        if self._todo or self._to_tell:
            self._do()
        if admitted is not None:
            _wait_unless_on_a_loop(admitted)
        return answer

    def publish_many(
        self, messages: Iterable[Message] | Columns, mark: Callable[[Entry], Entry] | None = None
    ) -> Pending[list[str]]:
        """Check all, then send all; one bad message refuses them all."""
        admitted = None
        try:
            batch = batch_of(messages)
            if mark is not None and batch[0]:
                batch = to_columns([mark(entry) for entry in zip(*batch, strict=True)])
            with self._lock:
                self._take_in()
                self._check_allowed(batch[0])
                if self._is_one_request(batch):
                    ids: Pending[list[str]] = Pending()
                    self._note(Request(batch, [ids], for_all=True), new=len(batch[0]))
                else:
                    answers: list[Pending[str]] = [Pending() for _ in batch[0]]
                    for entry, answer in zip(zip(*batch, strict=True), answers, strict=True):
                        if self._waiting or not self._has_room(entry[3]):
                            admitted = self._wait_for_room(entry, answer)
                        else:
                            self._collect(entry, answer)
                    self._send_collected()
                    ids = Pending.all(answers)
        except InorderError as error:
            return Pending.failed(error)
        except BaseException:
            self._mend()
            raise
        self._do()
        if admitted is not None:
            _wait_unless_on_a_loop(admitted)
        return ids

    def flush(self) -> Pending[None]:
        """Send everything collected so far; done when all of it is answered."""
        flushed: Pending[None] = Pending()
        with self._lock:
            self._take_in()
            self._send_collected()
            unanswered = [*chain.from_iterable(list(self._unanswered.values()))]
            for collected in chain.from_iterable(self._behind.values()):
                unanswered += collected.answers
            unanswered += [waiting.answer for waiting in self._waiting]
        Pending.all(unanswered).add_done_callback(lambda _: flushed.set_result(None))
        self._do()
        return flushed

    def resume(self, ordering_key: str) -> None:
        """Publish on a key again of which a publish failed."""
        with self._lock:
            self._paused.discard(ordering_key)

    def paused_keys(self) -> list[str]:
        """The keys that wait for `resume`."""
        with self._lock:
            return sorted(self._paused)

    def hurry(self) -> None:
        """Send what was collected, and let nothing wait for others any more."""
        self.set_options({"batching": replace(self._batching, max_milliseconds=0)})

    def close(self) -> Pending[None]:
        """Send what was collected and take no more."""
        with self._lock:
            self._closed = f"the publisher of topic {self._topic!r} is closed"
        return self.flush()

    def _leave_to_parent(self) -> None:
        self._lock = threading.Lock()  # a thread that is not here may hold the other one, in the middle of a change
        self._closed = f"the publisher of topic {self._topic!r} did not survive a fork: make another PubSub here"
        # What is on its way is the parent's.
        self._arrived, self._free_length = [], 0
        self._collected = Collected.nothing()
        self._tally = Tally(self._collected.keys, self._collected.sizes)
        self._messages = self._bytes = self._requests = 0
        self._waiting.clear()
        self._behind.clear()
        self._leaving.clear()
        self._freed.clear()
        self._unanswered.clear()
        self._todo.clear()
        self._to_tell.clear()
        self._outgoing.clear()
        self._handing_over.clear()

    def _check_allowed(self, keys: Iterable[str]) -> None:
        if self._closed:
            raise Closed(self._closed)
        if self._options.message_ordering is False and any(keys):
            raise OrderingNotEnabled
        if self._paused:
            for key in self._paused.intersection(keys):
                raise KeyPaused(key)

    # -- nothing else is collected or under way: no order to keep, no batch to make ----------------

    def _begin(self, entry: Entry, answer: Pending[str]) -> None:
        key, _, _, size = entry
        place = id(answer)
        # These in one go: an interrupt comes where something is called.
        if key:
            self._under_way |= {key}
        self._unanswered[place] = (answer,)
        self._alone = answer, key, size
        self._requests += 1
        self._messages += 1
        self._bytes += size

    def _publish_alone(self, entry: Entry, answer: Pending[str]) -> None:
        key, data, attributes, size = entry
        batch = (key,), (data,), (attributes,), (size,)
        answered = self._transport.publish(self._topic, batch)
        if not answered.done() or answered.exception() is not None:
            request = Request(batch, [answer])
            place, place_alone = id(request.answers), id(answer)
            try:
                # These in one go: an interrupt comes where something is called.
                self._unanswered[place] = request.answers
                del self._unanswered[place_alone]
                self._alone = None
                self._await(request, answered)
            except BaseException:
                self._answered(request, Pending.failed(_interrupted()))
                raise
            return
        with self._lock:
            self._end_alone(key, size)
        answer.set_result(answered.result()[0])
        del self._unanswered[id(answer)]

    def _end_alone(self, key: str, size: int) -> None:
        self._take_in()
        self._under_way.discard(key)
        self._alone = None
        self._requests -= 1
        self._messages -= 1
        self._bytes -= size
        if self._messages or self._waiting:  # others came meanwhile
            self._freed |= {key}
            self._go_on()
            self._let_in()
            self._send_unless_busy()

    def _is_one_request(self, batch: Batch) -> bool:
        flow = self._flow
        if self._messages and (not self._transport.in_order or self._collected.keys or self._waiting):
            return False
        most, most_bytes = flow.max_messages - self._messages, flow.max_bytes - self._bytes
        return len(batch[0]) <= min(MAX_REQUEST_MESSAGES, most) and sum(batch[3]) <= min(MAX_REQUEST_BYTES, most_bytes)

    # -- what is collected -------------------------------------------------------------------------

    def _take_in(self) -> None:
        """Collect what has arrived. From now on each comes by the lock, until `_free_some` finds that some need not."""
        free, self._free_length = self._free_length, 0  # first: who comes now sees it, or is seen here
        if self._arrived:
            try:
                # Others came when it was too late, and take themselves back.
                more_keys, more_data, more_attributes, more_sizes, more_answers = Collected.of(self._arrived, free)
                count, size = len(more_keys), sum(more_sizes)
            except BaseException:  # as Ctrl-C: somebody else takes them in
                self._free_length = free
                raise
            # These in one go: an interrupt comes where something is called.
            keys, data, attributes, sizes, answers = self._collected
            keys += more_keys
            data += more_data
            attributes += more_attributes
            sizes += more_sizes
            answers += more_answers
            self._messages += count
            self._bytes += size
            del self._arrived[: WIDTH * count]
        if self._leaving or self._freed:  # as it is only if somebody was interrupted
            self._go_on()

    def _take_back(self, answer: Pending[str]) -> bool:
        """Whether the message with this answer arrived too late, and has been left to who published it."""
        try:
            end = self._arrived.index(answer) + 1
        except ValueError:
            return False
        del self._arrived[end - WIDTH : end]
        return True

    def _mend(self, answer: Pending[str] | None = None) -> None:
        """A call was interrupted, perhaps before it had seen to it that what is collected goes: so it goes now."""
        with self._lock:
            self._take_in()
            if answer is not None:
                self._take_back(answer)  # it was interrupted before it could do so
            if self._alone is not None and self._alone[0] is answer:
                self._end_alone(*self._alone[1:])
            self._let_in()
            self._send_collected()
        if answer is not None and id(answer) in self._unanswered:
            if not answer.done():
                answer.set_exception(_interrupted())
            del self._unanswered[id(answer)]
        self._do()

    def _has_room(self, size: int) -> bool:
        flow = self._flow
        return (self._messages < flow.max_messages and self._bytes + size <= flow.max_bytes) or not self._messages

    def _wait_for_room(self, entry: Entry, answer: Pending[str]) -> Pending[None]:
        """Beyond flow control a message waits; the reply tells when it waits no longer."""
        waiting = Waiting(entry, answer, Pending())
        self._waiting.append(waiting)
        self._send_collected()
        return waiting.admitted

    def _let_in(self) -> None:
        """Collect what waited beyond flow control, as far as there is room; it has waited enough to be sent."""
        if not self._waiting:
            return
        while self._waiting and self._has_room(self._waiting[0].entry[3]):
            waiting = self._waiting[0]
            self._collect(waiting.entry, waiting.answer, partial(_tell, waiting.admitted))
        self._send_collected()

    def _collect(self, entry: Entry, answer: Pending[str], tell: Callable[[], None] | None = None) -> None:
        """Put a message to the others; if somebody is to be told, it is the first of those that wait for room."""
        key, data, attributes, size = entry
        batching = self._batching
        if self._tally.exceeds(key, batching.max_bytes - size):
            self._send_key(key)
        # These in one go: an interrupt comes where something is called.
        keys, datas, all_attributes, sizes, answers = self._collected
        keys += (key,)
        datas += (data,)
        all_attributes += (attributes,)
        sizes += (size,)
        answers += (answer,)
        self._messages += 1
        self._bytes += size
        if tell is not None:
            self._to_tell += (tell,)
            del self._waiting[0]
        if self._tally.reaches(key, batching.max_messages) or self._tally.exceeds(key, batching.max_bytes - 1):
            self._send_key(key)
        elif len(self._collected.keys) >= MAX_REQUEST_MESSAGES:
            self._send_collected()  # all keys together fill a request: there is nothing to wait for
        elif batching.max_milliseconds:
            if self._timer is None:
                self._set_timer()
        elif not self._requests:
            self._send_soon()

    def _free_some(self) -> None:
        """What is collected is sent in time: find out how many more may come before a limit can be reached.

        The last thing that is done while the lock is held, as from now on others come.
        """
        if not self._collected.keys or self._closed or self._paused or self._options.message_ordering is False:
            return  # each is looked at
        batching = self._batching
        self._free_for = None if batching.max_milliseconds or self._requests else running_loop()
        self._free(*self._tally.most(batching.max_messages, batching.max_bytes))

    def _free_more(self) -> bool:
        """The same when as many have arrived, before they are taken in: mostly no key has got much of them."""
        with self._lock:
            rows, length, start = self._arrived, self._free_length, WIDTH * self._tally.ahead
            if len(rows) != length or not length:
                return False  # somebody was faster, or some came too late
            most, size = self._tally.foresee(rows[start:length:WIDTH], rows[start + SIZE : length : WIDTH])
            return self._free(most, size, length, size)

    def _free(self, most: int, most_bytes: int, length: int = 0, size: int = 0) -> bool:
        """Let come what may, as no key has more messages or bytes; so much has arrived, of no more than that size."""
        batching, flow = self._batching, self._flow
        arrived = length // WIDTH
        left = min(batching.max_messages - most, MAX_REQUEST_MESSAGES - len(self._collected.keys) - arrived) - 1
        left = min(left, flow.max_messages - self._messages - arrived)
        left_bytes = min(batching.max_bytes - most_bytes - 1, flow.max_bytes - self._bytes - size)
        like_the_last = 2 * self._collected.sizes[-1] + 1
        free = min(left, left_bytes // like_the_last)
        if free <= (FEW if length else 0):
            return False
        self._free_size = left_bytes // free
        self._free_length = length + WIDTH * free
        return True

    def _send_soon(self) -> None:
        """Send what is collected: now, or if it is to be waited for on a loop, with what its other tasks publish."""
        if self._at_once or not at_the_end_of_the_turn(self._send_gathered):
            self._send_collected()

    def _send_gathered(self) -> None:
        with self._lock:
            self._take_in()
            self._send_unless_busy()
        self._do()

    def _parts(self, keys: set[str]) -> tuple[Collected, Collected]:
        """What is collected of these keys, and the others."""
        all_of_it = keys.issuperset(self._collected.keys)  # as of a key that is busy
        return (self._collected, Collected.nothing()) if all_of_it else self._collected.split(keys)

    def _set_timer(self) -> None:
        """When its time comes, all that is collected goes, so that no message waits longer than it may."""
        due_us = self._transport.clock.now_us() + round(self._batching.max_milliseconds * 1000)
        self._timer = self._transport.clock.call_at(due_us, self._on_timer)

    def _on_timer(self) -> None:
        with self._lock:
            self._take_in()
            self._timer = None
            self._send_collected()
        self._do()

    # -- what is under way -------------------------------------------------------------------------

    def _send_unless_busy(self) -> None:
        """Without a time to wait for others, messages wait only for the request before, and go together then."""
        if not self._requests and not self._batching.max_milliseconds:
            self._send_collected()

    def _send_collected(self) -> None:
        if self._collected.keys:
            self._send(self._collected, Collected.nothing())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_key(self, key: str) -> None:
        of_it, others = self._parts({key})
        if of_it.keys:
            self._send(of_it, others)

    def _send(self, collected: Collected, others: Collected) -> None:
        """Send a part of what is collected; the others stay."""
        tally = Tally(others.keys, others.sizes)
        # These in one go: an interrupt comes where something is called.
        self._leaving += (collected,)
        self._collected, self._tally = others, tally
        self._go_on()

    def _go_on(self) -> None:
        """Send what is leaving, and of keys that were freed the first batch that waits behind them."""
        while self._freed:
            key = next(iter(self._freed))
            behind = self._behind.get(key)
            if behind:  # from here in one go
                self._leaving += (behind[0],)
                del behind[0]
            if not behind and behind is not None:
                del self._behind[key]
            self._freed -= {key}
        while self._leaving:
            self._send_first()

    def _send_first(self) -> None:
        """Send the first that is leaving, with what fits beside it; of keys that are under way it waits behind them."""
        first = self._leaving[0]
        if not first.fits():
            half = (len(first.answers) + 1) // 2
            self._leaving[:1] = first.part(slice(half)), first.part(slice(half, None))
            return
        under_way = self._keys_under_way() if self._requests and not self._transport.in_order else _NO_KEYS
        if under_way and not under_way.isdisjoint(first.keys):
            self._wait_behind(first, under_way)
            return
        count, messages, size = 0, 0, 0
        for one in self._leaving:
            messages, size = messages + len(one.keys), size + sum(one.sizes)
            if count and not (fits(messages, size) and under_way.isdisjoint(one.keys)):
                break
            count += 1
        keys, data, attributes, sizes, answers = first if count == 1 else Collected.together(self._leaving[:count])
        self._note(Request((keys, data, attributes, sizes), answers), leaving=count)

    def _wait_behind(self, first: Collected, under_way: Set[str]) -> None:
        [key, *more_keys] = {*first.keys}
        if not more_keys:
            behind = self._behind.setdefault(key, deque())
            behind += (first,)  # these in one go
            del self._leaving[0]
            return
        busy, others = first.split(under_way)
        one_by_one = busy.by_key().values()
        self._leaving[:1] = (others, *one_by_one) if others.keys else one_by_one

    def _keys_under_way(self) -> Set[str]:
        for request in self._unasked:
            self._under_way |= request.keys()
        self._unasked.clear()
        return self._under_way

    def _note(self, request: Request, new: int = 0, leaving: int = 0) -> None:
        """Have it sent when the lock is free. So many of its messages are not counted yet; it is so many that leave."""
        place, ask = id(request.answers), partial(self._ask, request)
        # These in one go: an interrupt comes where something is called.
        self._messages += new
        self._bytes += request.size if new else 0
        self._requests += 1
        self._unanswered[place] = request.answers
        self._unasked |= {request}
        if self._transport.in_order:
            self._outgoing += (request,)
            self._todo += (self._hand_over,)
        else:
            self._todo += (ask,)
        del self._leaving[:leaving]

    def _ask(self, request: Request) -> None:
        if request.asked:  # before it was interrupted
            return
        request.asked = True
        try:
            self._await(request, self._transport.publish(self._topic, request.batch))
        except BaseException:  # as Ctrl-C, perhaps in the middle of a request of somebody else
            self._answered(request, Pending.failed(_interrupted()))
            raise

    def _hand_over(self) -> None:
        """Give requests to the transport in their order: one thread at a time, which also does what others note."""
        mine = object()
        try:
            while self._outgoing and self._handing_over.setdefault(_NOW, mine) is mine:
                while self._outgoing:
                    self._ask(self._outgoing[0])
                    del self._outgoing[0]
                del self._handing_over[_NOW]
        except BaseException:  # as Ctrl-C: somebody else goes on
            if self._handing_over.get(_NOW) is mine:
                del self._handing_over[_NOW]
            raise

    def _do(self) -> None:
        """Send requests, then give answers, with the lock free."""
        while todo := self._todo or self._to_tell:
            claimed: list[Callable[[], object]] = []
            try:
                claimed += map(deque.popleft, (todo,))  # in C: an interrupt finds it in one of the two
            except IndexError:  # another thread was faster
                continue
            try:
                claimed[0]()
            except BaseException:  # as Ctrl-C, perhaps before it began; what it has done it does not do twice
                try:
                    claimed[0]()
                finally:
                    self._do()
                raise

    def _await(self, request: Request, answer: Pending[list[str]]) -> None:
        def later(answered: Pending[list[str]]) -> None:
            try:
                self._answered(request, answered)
            except BaseException:  # as Ctrl-C, of a call of somebody else
                self._answered(request, answered)
                raise
            finally:
                self._do()

        if answer.done():
            self._answered(request, answer)  # on the way out of `_do`, which goes on by itself
        else:
            answer.add_done_callback(later)

    def _answered(self, request: Request, answered: Pending[list[str]]) -> None:
        error = answered.exception()
        count = len(request.batch[0])
        with self._lock:
            self._take_in()
            if error is None:
                keys = request.keys() if self._under_way or self._behind else set()
                tell = partial(self._succeed, request.answers, request.results(answered.result()))
            else:
                keys = request.keys()
                tell = partial(self._fail, request.answers, error)
            # These in one go, and once: an interrupt comes where something is called.
            if request.counts:
                request.counts = False
                self._requests -= 1
                self._messages -= count
                self._bytes -= request.size
            self._to_tell += (tell,)
            self._unasked -= {request}
            self._under_way -= keys
            if error is None:
                self._freed |= keys
            elif not isinstance(error, KeyPaused):  # or the one before it did, and somebody may have resumed it since
                self._pause(keys, error)
            self._go_on()
            self._let_in()
            if self._collected.keys:
                self._send_unless_busy()

    def _pause(self, keys: set[str], error: BaseException) -> None:
        """Publishing on would leave a hole in these keys, so what waits behind fails as well."""
        _log.error("publishing to topic %r failed: %s; paused keys: %s", self._topic, error, sorted(keys) or "none")
        self._paused |= keys
        collected, others = self._parts(keys)
        self._collected, self._tally = others, Tally(others.keys, others.sizes)
        by_key = collected.by_key()
        for key in keys:
            for batch in (*self._behind.pop(key, ()), by_key.get(key, Collected.nothing())):
                self._messages -= len(batch.keys)
                self._bytes -= sum(batch.sizes)
                self._fail_later(batch.answers, KeyPaused(key))
        for waiting in self._waiting:
            if (key := waiting.entry[0]) in keys:
                self._fail_later([waiting.answer], KeyPaused(key))
                self._to_tell.append(partial(_tell, waiting.admitted))
        self._waiting = deque(waiting for waiting in self._waiting if waiting.entry[0] not in keys)

    def _fail_later(self, answers: Sequence[Pending[Any]], error: BaseException) -> None:
        self._unanswered[id(answers)] = answers
        self._to_tell.append(partial(self._fail, answers, error))

    def _succeed(self, answers: Sequence[Pending[Any]], results: Sequence[Any]) -> None:
        try:
            Pending.set_results(answers, results)
        except BaseException:  # as Ctrl-C: the others wait, too
            Pending.set_results(answers, results)
            raise
        finally:
            self._unanswered.pop(id(answers), None)

    def _fail(self, answers: Sequence[Pending[Any]], error: BaseException) -> None:
        for answer in answers:
            if not answer.done():  # before it was interrupted
                answer.set_exception(error)
        self._unanswered.pop(id(answers), None)


def _interrupted() -> Aborted:
    return Aborted("the publish was interrupted: nobody knows whether it was stored")


def _tell(admitted: Pending[None]) -> None:
    if not admitted.done():  # before it was interrupted
        admitted.set_result(None)


def _wait_unless_on_a_loop(admitted: Pending[None]) -> None:
    """A thread waits for room here; a task must not, it waits where it awaits the answer."""
    if running_loop() is None:
        admitted.result()
