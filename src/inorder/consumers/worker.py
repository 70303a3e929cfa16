"""Hands the messages of a subscription, list by list, to work that is done in transactions, and answers for them.

Three things can go wrong, and are told apart. Somebody else was faster: then it is done again. The database is not
there, or the broker does not answer: then it is waited for, and no message is blamed. The work itself fails: then it
is done in halves, until what fails is alone and is nacked, and all the others are done.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from inorder.client.subscription import Batches, Subscription
from inorder.clock import MICROSECONDS, Timer
from inorder.consumers.functions import check_function
from inorder.consumers.store import Conflict, Store, check_consumer_name, check_store
from inorder.errors import DeadlineExceeded, FailedPrecondition, InorderError, InvalidArgument, Unavailable
from inorder.message import Message
from inorder.options import check_whole
from inorder.pending import Pending

TRIES = 10  # at once, of what others were faster with
WAIT_US = MICROSECONDS  # before it is tried again after that, or when the database is not there
NEVER_US = 2**62

OnError = Callable[[BaseException, Sequence[Message]], object]
OnAcks = Callable[[Sequence[Pending[None]]], object]  # told the answers to the acks, in their order

_log = logging.getLogger(__name__)


class Unanswered(Unavailable):
    """The broker does not say whether messages are still ours: nothing was written."""

    def __init__(self, consumer: str) -> None:
        super().__init__(f"consumer {consumer!r}: the broker does not answer; its messages are given back")


class Answers(NamedTuple):
    """What to say of messages; of those that are in neither, nothing, as they are not ours any more."""

    done: Sequence[Message]
    failed: Sequence[Message] = ()
    on_acks: OnAcks | None = None


class Worker(ABC):
    """`open` starts a thread, `close` ends it; or use it as `with worker:`."""

    def __init__(
        self, subscription: Subscription, store: Store, *, name: str | None, batch: int, on_error: OnError | None
    ) -> None:
        if not isinstance(subscription, Subscription):
            raise InvalidArgument(f"subscription: a Subscription, as topic.subscription(name) is, not {subscription!r}")
        check_whole("batch", batch)
        check_store(store)
        if on_error is not None:
            check_function("on_error", on_error)
        self.name = subscription.name if name is None else check_consumer_name(name)
        self._subscription = subscription
        self._store = store
        self._batch = batch
        self._on_error = on_error
        self._clock = subscription.clock
        self._run: Run | None = None

    @abstractmethod
    def take(self, messages: Sequence[Message], run: Run) -> Answers:
        """Do the work of these messages in a transaction; if it raises, nothing was done."""

    def look(self, run: Run) -> int:
        """Do what is due without a message, and say when more is."""
        return NEVER_US

    def open(self) -> Self:
        if self._is_open():
            raise FailedPrecondition(f"consumer {self.name!r} is open already")
        self.close()  # by a handler it was; now its end is waited for
        self._run = Run(self, self._subscription.batches(self._batch))
        self._run.start()
        return self

    def close(self) -> None:
        """Finish the transaction at hand, give back what is not begun, and wait for that.

        For a handler that closes it returns at once, or the handler would wait for itself.
        """
        run = self._run
        if run is not None:
            run.close()
            if not run.is_running():  # else the next who closes waits for it
                self._run = None

    def _is_open(self) -> bool:
        return self._run is not None and not self._run.closed

    def __enter__(self) -> Self:
        return self if self._is_open() else self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, error: BaseException, messages: Sequence[Message] = ()) -> None:
        if self._on_error is None:
            _log.error("consumer %r: %s", self.name, error, exc_info=error)
            return
        try:
            self._on_error(error, messages)
        except Exception:
            _log.exception("the error handler of consumer %r failed", self.name)

    def tell_end(self, error: BaseException) -> None:
        """Of what ends the work for good: this is logged whoever else is told."""
        _log.critical("consumer %r has ended: %r", self.name, error, exc_info=error)
        if self._on_error is not None:
            self.tell(error)


class Run:
    """The work from `open` to `close`."""

    def __init__(self, worker: Worker, batches: Batches) -> None:
        self._worker = worker
        self._store = worker._store
        self._clock = worker._clock
        self._batches = batches
        self._go_on = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="inorder-consumer", daemon=True)
        self._look_us = 0  # at once: what was left by others may be due
        self._alarm: Timer | None = None
        self._alarm_us = NEVER_US

    def start(self) -> None:
        self._batches.poke()
        self._thread.start()

    def close(self) -> None:
        self._batches.close()
        self._go_on.set()
        if self.is_running() and self._thread is not threading.current_thread():
            self._thread.join()

    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def closed(self) -> bool:
        return self._batches.closed

    def keep(self, messages: Sequence[Message]) -> bool:
        """Whether the broker says, now, that all these messages are ours, and will be for a whole deadline."""
        try:
            return self._batches.keep(messages)
        except DeadlineExceeded:
            raise Unanswered(self._worker.name) from None

    def look_by(self, when_us: int) -> None:
        self._look_us = min(self._look_us, when_us)

    def _loop(self) -> None:
        try:
            for messages in self._batches:
                self._take(messages)
                self._keep_time()
        except InorderError as error:  # the broker does not know us any more
            self._worker.tell(error)
        except BaseException as error:  # SystemExit and the like, of a handler; a thread would end without a word
            self._worker.tell_end(error)
            raise
        finally:
            if self._alarm is not None:
                self._alarm.cancel()

    # -- messages ----------------------------------------------------------------------------------

    def _take(self, messages: Sequence[Message]) -> None:
        tries = TRIES
        while ours := self._batches.held(messages):
            if self.closed:
                self._batches.give_back(ours)
                return
            try:
                answers = self._worker.take(ours, self)
            except Exception as error:
                trouble = trouble_of(self._store, error)
                if trouble is None:
                    self._take_apart(ours, error)
                    return
                tries -= 1
                if trouble == "wait" or not tries:
                    tries = TRIES
                    self._worker.tell(error, ours)
                    self._wait()
            else:
                self._answer(*answers)
                return

    def _answer(self, done: Sequence[Message], failed: Sequence[Message], on_acks: OnAcks | None) -> None:
        if on_acks is not None:
            on_acks(self._batches.answer(done, failed))
        elif failed:
            self._batches.answer(done, failed)
        else:
            self._batches.ack(done)  # and nobody makes an answer to each of them

    def _take_apart(self, messages: Sequence[Message], error: Exception) -> None:
        """What fails alone is nacked."""
        if len(messages) == 1:
            self._batches.answer(failed=messages)
            self._worker.tell(error, messages)
            return
        half = len(messages) // 2
        self._take(messages[:half])
        self._take(messages[half:])

    def _wait(self) -> None:
        """Until some time has passed, or it is closed."""
        timer = self._clock.call_at(self._clock.now_us() + WAIT_US, self._go_on.set)
        self._go_on.wait()
        timer.cancel()
        if not self.closed:
            self._go_on.clear()

    # -- time --------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """Do what is due, and come back when more is."""
        if self._look_us <= self._clock.now_us():
            try:
                self._look_us = self._worker.look(self)
            except Exception as error:
                self._worker.tell(error)
                self._look_us = self._clock.now_us() + WAIT_US
        if self._alarm_us != self._look_us:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm_us = self._look_us
            self._alarm = self._clock.call_at(self._look_us, self._ring) if self._look_us < NEVER_US else None
            if self._look_us <= self._clock.now_us():  # the time has come before the alarm was set
                self._ring()

    def _ring(self) -> None:
        self._alarm_us = NEVER_US  # it rings once
        self._batches.poke()


def trouble_of(store: Store, error: BaseException) -> str | None:
    """What to do about an error that is nobody's fault; None if it is that of the work."""
    if isinstance(error, Unanswered):
        return "wait"  # at once, the next transaction would keep the database from others while it waits in vain
    return "again" if isinstance(error, Conflict) else store.trouble(error)
