"""Writes what a broker decides to its journal, many turns at once, and says when it is durable.

What comes while one group is being written waits for the next, so the busier it is, the more turns
share a sync. Whoever waits for an answer writes the group itself if nobody else does: to hand it to
another thread and to be woken by it would cost as much as the disk. A loop does so at the end of its turn,
for all its tasks, unless it would have to wait for a sync that takes longer than that way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Literal

from inorder.core.events import Event
from inorder.errors import InorderError, JournalFailed
from inorder.journal import Location
from inorder.journal.codec import Stored, encode
from inorder.journal.journal import Journal
from inorder.metadata import CommitCounters
from inorder.pending import Pending
from inorder.put_off import at_the_end_of_the_turn, running_loop

Sync = Literal["commit", "interval", "none"]
QUICK_SECONDS = 0.000_25  # about what it takes to hand a group to another thread and to be woken by it
IDLE_SECONDS = 1.0  # after which a thread ends, so that a broker that nobody uses has none


class Group:
    """What is written and answered together."""

    __slots__ = ("answers", "body", "durable", "stored", "sync")

    def __init__(self) -> None:
        self.body: list[bytes] = []
        self.stored: list[Stored] = []  # batches that subscribers may see once this is durable
        self.sync = False  # somebody wants to know that it is
        self.durable: Pending[None] | None = None  # made for the first who asks for it
        self.answers: dict[Pending[Any], Any] = {}  # and what each is; one step adds both, whatever interrupts


class Commits:
    """The groups of one broker. Who writes holds `_writing`, and then, for moments, the broker's lock."""

    def __init__(
        self,
        journal: Journal,
        lock: threading.Lock,
        sync: Sync,
        interval_seconds: float,
        committed: Callable[[Group, Location], None],
        save: Callable[[], None],
        failed: Callable[[InorderError], None],
    ) -> None:
        self._journal = journal
        self._lock = lock
        self._sync = sync
        self._acks_need_sync = not journal.store.outlives_its_process  # to survive the end of this one
        self._interval_seconds = interval_seconds
        self._committed = committed
        self._save = save
        self._failed = failed
        self._group = Group()
        self._writing = threading.Lock()
        # Taken by itself: what a condition does around it is Python, where an interrupt could leave it taken for ever.
        self._asking = threading.RLock()
        self._changed = threading.Condition(self._asking)
        self._asked = self._stopping = self._ended = False
        self._coming = False  # a thread that was asked waits for its turn: what is added until then goes with it
        self._idle = 0
        self._unsynced = False
        self._syncs_quickly = False  # the last time
        self._sync_at: float | None = None  # when what was written must be synced
        self._failure: InorderError | None = None
        self._rest: list[Group] = []  # written before their turn, and not answered yet
        self.counters = CommitCounters()

    # -- with the broker's lock held ---------------------------------------------------------------

    def add(self, events: Iterable[Event], serial_of: Callable[[str], int]) -> None:
        """These have happened: they will be written with the next group."""
        body, stored = encode(events, serial_of)
        group = self._group
        group.body += body
        group.stored += stored

    def answer(self, answer: Pending[Any], value: object) -> None:
        """Give this answer when all is durable that was added until now."""
        group = self._group
        group.sync = True
        group.answers[answer] = value

    def waiting(self) -> bool:
        """Whether something was added that is not written yet."""
        return bool(self._group.body)

    def durable(self) -> Pending[None]:
        """Done when all is durable that was added until now."""
        self._group.sync = True
        return self.written()

    def written(self) -> Pending[None]:
        """Done when all is written that was added until now, which the end of this process cannot undo."""
        if self._ended:
            return Pending.of(None) if self._failure is None else Pending.failed(self._failure)
        group = self._group
        if group.durable is None:
            group.durable = Pending()
        return group.durable

    def interrupted(self, error: BaseException) -> InorderError:
        """Nobody knows what would be written: nothing is from now on, and everybody is told so."""
        self._failure = JournalFailed("write", "all of it", RuntimeError(f"interrupted by {error!r}"))
        return self._failure

    def write_rest(self) -> tuple[Group, Location] | None:
        """Write all that was added until now, if there is any: then the journal knows what the broker knows.

        Call it from `committed`, or when nobody writes any more.
        """
        if not self._group.body:
            return None
        group, self._group = self._group, Group()
        self._rest.append(group)
        location = self._write_body(group)
        if self._sync == "commit":
            self._sync_now()
        return group, location

    # -- without it --------------------------------------------------------------------------------

    def soon(self) -> None:
        """Somebody will ask for an answer: have the group written."""
        slow = self._sync == "commit" and not self._syncs_quickly
        if slow or not at_the_end_of_the_turn(self._write_for_tasks):
            self._ask()

    def _write_for_tasks(self) -> None:
        """Write what the tasks of a loop have added in this turn, unless it may take long."""
        if running_loop() is None or self._journal.wants_snapshot() or self._writing.locked():
            self._ask()
        else:
            self._write(may_save=False)

    def _ask(self) -> None:
        """Have another thread write the group, and sync what is to be synced in time."""
        if self._asked or self._coming:
            return
        with self._asking:
            if self._idle:
                self._changed.notify()
            elif not self._stopping:  # the others write, or an answer that they gave makes them wait for this one
                threading.Thread(target=self._run, name="inorder-journal", daemon=True).start()
            self._asked = True  # last: if the system has no more threads, the next who asks tries again

    def lead(self, answer: Pending[Any]) -> None:
        """Write the group that this answer waits for, unless somebody else does so meanwhile."""
        if not answer.done():
            self._write()

    def sync(self) -> None:
        """Write what was added until now, and have all of it on disk, also where no answer waits for that."""
        self._write()
        with self._writing:
            self._sync_written()
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Write what is left, sync what was only written, and stop."""
        with self._asking:
            self._stopping = True
            self._changed.notify_all()
        self._write()
        with self._writing:
            if self._sync != "none":
                self._sync_written()
        with self._lock:
            self._ended = True  # nobody writes any more, so whoever asks now is told at once
        self._write()  # and who has asked meanwhile, here

    def _write(self, *, may_save: bool = True, was_asked: bool = False) -> None:
        interruption: BaseException | None = None
        group = Group()
        written: list[Group] = []
        failure: InorderError | None = None
        try:
            with self._writing:
                if was_asked:
                    self._coming = False  # first: whoever asks from now on may have added to the next group
                try:
                    with self._lock:
                        group, self._group = self._group, group
                    if self._failure is None and (group.body or (group.sync and self._unsynced)):
                        self._write_down(group, may_save=may_save)
                except BaseException as error:
                    # Ctrl-C, or a mistake of ours. To go on might leave a hole.
                    interruption = error
                    self._fail(self.interrupted(error))
                failure, written = self._failure, [group, *self._rest]
                self._rest = []
            # Answers may run other people's code, which may publish again: so nothing is held here.
            _answer(written, failure)
        except BaseException:
            _answer(written, failure)  # Ctrl-C, and nobody else knows of those who wait for these
            raise
        if interruption is not None:
            raise interruption

    def _write_down(self, group: Group, *, may_save: bool) -> None:
        try:
            location = self._write_body(group) if group.body else None
            self._unsynced = True
            if self._sync == "commit" and (group.sync or group.stored or self._acks_need_sync):
                self._sync_now()
                self._unsynced = False
            if location is not None:
                self._committed(group, location)
                if may_save and self._journal.wants_snapshot():
                    self._save()
        except InorderError as error:
            self._fail(error)
        if self._unsynced and self._sync_at is None and self._sync != "none" and self._failure is None:
            self._sync_at = monotonic() + self._interval_seconds
            self._ask()  # somebody must see to it

    def _write_body(self, group: Group) -> Location:
        body = b"".join(group.body)
        location = self._journal.write(body)
        counters = self.counters
        counters.commits += 1
        counters.written_bytes += len(body)
        return location

    def _sync_now(self) -> None:
        began = monotonic()
        self._journal.sync()
        seconds = monotonic() - began
        counters = self.counters
        counters.syncs += 1
        counters.sync_seconds += seconds
        self._syncs_quickly = seconds < QUICK_SECONDS
        if seconds > counters.slowest_sync_seconds:
            counters.slowest_sync_seconds = seconds

    def _run(self) -> None:
        while not self._stopping:
            with self._asking:
                woken = True
                if not self._asked and not self._stopping:
                    self._idle += 1
                    wait = IDLE_SECONDS if self._sync_at is None else max(self._sync_at - monotonic(), 0)
                    woken = self._changed.wait(wait)
                    self._idle -= 1
                if not self._asked and woken:
                    continue  # another one was faster, and may have to be helped again
                if not self._asked and (self._idle or self._sync_at is None):
                    return  # one that waits is enough, and none while there is nothing to do
                asked, self._asked = self._asked, False
                self._coming |= asked
            if asked:
                self._write(was_asked=True)
            if self._sync_at is not None:  # or to wait for another thread that writes would be for nothing
                self._sync_in_time()

    def _sync_in_time(self) -> None:
        """What was written is synced within the interval after the first of it was."""
        with self._writing:
            if self._sync_at is None or self._sync_at > monotonic() or self._failure is not None or self._stopping:
                return
            self._sync_at = None
            self._sync_written()

    def _sync_written(self) -> None:
        """Call it with `_writing` held."""
        if self._unsynced and self._failure is None:
            try:
                self._sync_now()
                self._unsynced = False  # and not before: Ctrl-C may end the waiting
            except InorderError as error:
                self._fail(error)

    def _fail(self, error: InorderError) -> None:
        self._failure = error
        self._sync_at = None  # there is nothing to see to any more
        self._failed(error)


def _answer(groups: Iterable[Group], failure: InorderError | None) -> None:
    """Tell whoever waits for these groups how it went. Those who were told already are not called again."""
    for group in groups:
        if failure is None:
            Pending.set_results(group.answers, group.answers.values())
            if group.durable is not None:
                group.durable.set_result(None)
        else:
            for answer in group.answers:
                answer.set_exception(failure)
            if group.durable is not None:
                group.durable.set_exception(failure)
