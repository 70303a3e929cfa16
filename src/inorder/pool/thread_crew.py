"""Workers that are threads."""

from __future__ import annotations

import threading

from inorder.errors import InorderError
from inorder.pool.crew import Crew, Item

BURST = 100  # items that one thread takes for all


class ThreadCrew(Crew[Item]):
    """Threads: as many as there is work for, up to the limit, until the end.

    To wake a thread for each item costs more than the item may. So items are taken in bursts, which all
    threads share, and while something is left of one, exactly one more thread is on its way. If the calls
    wait for something, it is there at once, and calls in the next; if they only compute, it gets its
    turn when the interpreter passes that on, and whoever is one too many then rests.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._changed = threading.Condition()
        self._begun = 0  # calls; roughly, as threads count at once
        self._coming = False  # a thread was called in, and has not looked for work yet
        self._missed = False  # nobody could be called in: whoever is done first looks again
        self._idle = 0
        self._called = 0  # of the idle ones, who have not noticed yet
        self._threads: set[int] = set()  # by their identity
        self._count = 0

    @property
    def busy(self) -> int:
        return self._count - self._idle

    def wake(self) -> None:
        if not self._coming:  # else that one looks later than now
            self._call_in()

    def coming(self) -> bool:
        """Whether a thread is on its way that will flush, and begin what was taken."""
        return bool(self._coming and self._ready)

    def _call_in(self) -> None:
        """Have one more thread look for work."""
        with self._changed:
            if self._coming or self._closing or not self._started:
                return
            if self._idle > self._called:
                self._called += 1
                self._coming = True
                self._changed.notify()
            elif self._count < self._work.limit() and self._start_thread():
                self._count += 1
                self._coming = True
            else:
                self._missed = True

    def _start_thread(self) -> bool:
        """One that goes on when the lock is free; False if the system has no more, and others are there to do it."""
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError:
            if not self._count:
                raise
            return False
        return True

    def at_work(self) -> bool:
        return threading.get_ident() in self._threads

    def needs_this_thread(self) -> bool:
        return self.at_work()

    def end(self) -> None:
        with self._changed:
            first = not self._closing
            self._closing = True
            self._changed.notify_all()
            nobody = first and not self._count
        self._give_back_unbegun()
        if nobody:
            self._work.ended()

    def interrupt(self) -> None:
        """A thread cannot be stopped: what runs is left to itself."""
        self.end()

    def resize(self) -> None:
        self.wake()
        with self._changed:
            self._changed.notify_all()  # those who rest, and are too many, end

    def _run(self) -> None:
        self._threads.add(threading.get_ident())
        stays = True
        try:
            with self._changed:
                self._coming = False
            self._work.flush()
            while stays and not self._closing:
                item = self._next()
                if item is None:
                    stays = self._rest()
                    continue
                begun = self._begun = self._begun + 1
                self._work_on(item)
                if self._count > self._work.limit() and self._leaves():
                    stays = False
                elif self._coming and self._begun != begun:
                    stays = self._rest()  # others go on, and more of them come
        except InorderError as error:
            self._cut_off(error)
        finally:
            with self._changed:
                self._count -= stays
                last = stays and self._closing and not self._count
            if last:
                self._work.ended()
            elif self._ready or self._work.more():  # which this thread would have done, were it not one too many
                self.wake()
            self._threads.discard(threading.get_ident())

    def _work_on(self, item: Item) -> None:
        work = self._work
        try:
            value = work.call(item)
        # Whatever a function raises is its failure, and must not end a thread that others count on.
        except BaseException as error:
            try:
                work.failed(item, error)
            finally:
                work.after_failure(item)
        else:
            work.done(item, value)

    def _next(self) -> Item | None:
        """An item to begin. If there are more, another thread is on its way to them."""
        while True:
            try:
                item = self._ready.popleft()
            except IndexError:
                self._ready.extend(items := self._work.take(BURST))
                if not items:
                    return None
                continue  # another thread may be faster
            if self._work.doubts and not self._work.begin(item):
                continue
            if not self._coming and (self._ready or self._work.more()):
                self._call_in()
            return item

    def _leaves(self) -> bool:
        """Whether this thread, which has not looked for more work, is one too many; others may have left meanwhile."""
        with self._changed:
            if self._count <= self._work.limit():
                return False
            self._count -= 1  # at once, or others would believe that they are too many as well
            return True

    def _rest(self) -> bool:
        """Wait to be called in; False if this thread is one too many."""
        with self._changed:
            if not self._missed:
                self._idle += 1
                while not self._called and not self._closing:
                    if self._count > self._work.limit():
                        self._idle -= 1
                        self._count -= 1  # at once, or others would believe that they are too many as well
                        return False
                    self._changed.wait()
                self._idle -= 1
                if self._called:
                    self._called -= 1
                self._coming = False
            self._missed = False
        self._work.flush()
        return True

    def _cut_off(self, error: InorderError) -> None:
        """There will be no more work; each thread finds out, one tells it."""
        with self._changed:
            first = not self._closing
            self._closing = True
        if first:
            self._work.lost(error)
        self.end()
