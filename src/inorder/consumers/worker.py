"""Hands the messages of a subscription, list by list, to work that is done in transactions, and answers for them.

Three things can go wrong, and are told apart. Somebody else was faster: then it is done again. The database is not
there, or the broker does not answer: then it is waited for, and no message is blamed. The work itself fails: then it
is done in halves, until what fails is alone and is nacked, and all the others are done.

To commit is to wait for a disk or a server. If more messages are likely to wait, these are fetched and read meanwhile:
a full list is committed beside that. No other transaction is begun before it is known how that went.
"""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Self, TypeVar

from inorder.client.subscription import Batches, Subscription
from inorder.clock import MICROSECONDS, Timer
from inorder.consumers.beside import Beside
from inorder.consumers.functions import check_function
from inorder.consumers.store import Conflict, Connection, Store, at_once, check_consumer_name, check_store
from inorder.errors import DeadlineExceeded, FailedPrecondition, InorderError, InvalidArgument, Unavailable
from inorder.message import Message
from inorder.options import check_whole
from inorder.pending import Pending

TRIES = 10  # at once, of what others were faster with
WAIT_US = MICROSECONDS  # before it is tried again after that, or when the database is not there
NEVER_US = 2**62

OnError = Callable[[BaseException, Sequence[Message]], object]
OnAcks = Callable[[Sequence[Pending[None]]], object]  # told the answers to the acks, in their order

P = TypeVar("P")  # messages, made ready for work

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


Done = Callable[[], Answers]  # to be called when the work is committed


class Worker(ABC, Generic[P]):
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
    def prepare(self, messages: Sequence[Message]) -> P:
        """What can be done for messages without a transaction, and without knowing what others have come to."""

    @abstractmethod
    def work(self, prepared: P, connection: Connection, run: Run) -> Done:
        """Do the work of some messages in a transaction; if it raises, nothing was done."""

    def take(self, messages: Sequence[Message], run: Run) -> Answers:
        """Prepare, do and commit the work of some messages."""
        prepared = self.prepare(messages)
        with self._store.transaction() as connection:
            done = self.work(prepared, connection, run)
        return done()

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

    def __init__(self, worker: Worker[Any], batches: Batches) -> None:
        self._worker = worker
        self._store = worker._store
        self._clock = worker._clock
        self._batches = batches
        self._beside = Beside("inorder-commit")
        self._may_commit_beside = _leaves_commits(worker._store)
        self._unfinished: tuple[Sequence[Message], Done] | None = None  # what is being committed beside
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
                self._go_through(messages)
                self._keep_time()
        except InorderError as error:  # the broker does not know us any more
            self._worker.tell(error)
        except BaseException as error:  # SystemExit and the like, of a handler; a thread would end without a word
            self._worker.tell_end(error)
            raise
        finally:
            try:
                self._finish()
            finally:
                self._beside.close()
                if self._alarm is not None:
                    self._alarm.cancel()

    # -- messages ----------------------------------------------------------------------------------

    def _go_through(self, messages: Sequence[Message]) -> None:
        """A list of the loop; or none, if there was nothing to go on with."""
        in_time = not self.closed
        error, prepared = None, None
        if in_time:
            try:
                prepared = self._worker.prepare(messages)
            except Exception as raised:
                error = raised
        self._finish()
        if error is None and in_time and messages and len(self._batches.held(messages)) == len(messages):
            error = self._begin(messages, prepared)
            if error is None:
                return
        self._take(messages, error)

    def _begin(self, messages: Sequence[Message], prepared: Any) -> Exception | None:
        """The first try. Behind a full list there is likely to be another one: its commit is left unfinished."""
        beside = self._may_commit_beside and len(messages) == self._worker._batch
        commit = {"commit": self._beside.start} if beside else {}
        try:
            with self._store.transaction(**commit) as connection:
                done = self._worker.work(prepared, connection, self)
            if self._beside.is_started:
                self._unfinished = messages, done
                self._batches.set_aside()
                self._batches.poke()  # the loop comes back at once, whether there is another list or not
                return None
            answers = done()
        except Exception as error:
            if self._beside.is_started:  # a store of somebody else has raised behind ours
                with suppress(Exception):
                    self._beside.finish()
            return error
        self._answer(*answers)
        return None

    def _finish(self) -> None:
        """Wait for the commit that was left unfinished, and answer for its messages."""
        if self._unfinished is None:
            return
        (messages, done), self._unfinished = self._unfinished, None
        try:
            self._beside.finish()
            answers = done()
        except Exception as error:
            self._take(messages, error)
        else:
            self._answer(*answers)
        self._batches.let_go()

    def _take(self, messages: Sequence[Message], error: Exception | None = None) -> None:
        """Try until it is done, or was done in parts. The first try may be over, with this error."""
        ours, tries = messages, TRIES
        while error is not None or (ours := self._batches.held(messages)):
            if error is None:
                if self.closed:
                    self._batches.give_back(ours)
                    return
                try:
                    answers = self._worker.take(ours, self)
                except Exception as raised:
                    error = raised
                else:
                    self._answer(*answers)
                    return
            trouble = trouble_of(self._store, error)
            if trouble is None:
                self._take_apart(ours, error)
                return
            tries -= 1
            if trouble == "wait" or not tries:
                tries = TRIES
                self._worker.tell(error, ours)
                self._wait()
            error = None

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
            self._finish()
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


def _leaves_commits(store: Store) -> bool:
    """Whether it leaves commits to others, as ours do. A store like them may know only what is committed at once."""
    try:
        inspect.signature(store.transaction).bind(commit=at_once)
    except (TypeError, ValueError):
        return False
    return True


def trouble_of(store: Store, error: BaseException) -> str | None:
    """What to do about an error that is nobody's fault; None if it is that of the work."""
    if isinstance(error, Unanswered):
        return "wait"  # at once, the next transaction would keep the database from others while it waits in vain
    return "again" if isinstance(error, Conflict) else store.trouble(error)
