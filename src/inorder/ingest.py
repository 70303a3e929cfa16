"""The owner of a folder publishes what others have left there for it: see `inorder.journal.incoming`."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Protocol

from inorder.errors import Closed, InorderError
from inorder.journal.incoming import Commit, Incoming
from inorder.message import Batch
from inorder.options import LAST_PART

NOTHING: Batch = ((), (), (), ())
LOOK_SECONDS = 0.2  # how long a commit may lie there before somebody looks

_log = logging.getLogger(__name__)


class Publisher(Protocol):
    """A broker, as far as this is concerned."""

    def write(self, topic: str, batch: Batch, *, writer: str, epoch: int, part: int) -> bool: ...

    def has_written(self, topic: str, writer: str, epoch: int) -> bool: ...

    def sync(self) -> None: ...


class Ingest:
    """Looks for committed epochs, in a thread, until it is stopped or its broker is forgotten."""

    def __init__(self, incoming: Incoming, broker: Publisher) -> None:
        self._incoming = incoming
        self._broker = weakref.ref(broker)
        self._stop = threading.Event()
        self._taking = threading.Lock()
        self._told: set[Commit] = set()  # which of them cannot be published, and why
        self._thread = threading.Thread(target=self._run, name="inorder-ingest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more. What is being published is finished."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._broker() is not None:
            try:
                self.take_in()
            except Closed:
                return
            except Exception:
                _log.exception("what others want to publish could not be looked at; it is tried again")
            if self._stop.wait(LOOK_SECONDS):
                return

    def take_in(self) -> int:
        """Publish what is committed, each writer's epochs in order; returns how many epochs that were."""
        done = 0
        stuck: set[str] = set()
        with self._taking:
            for commit in self._incoming.commits():
                broker = self._broker()
                if broker is None or self._stop.is_set():
                    break
                if commit.writer in stuck:
                    continue
                try:
                    self._publish(broker, commit)
                    done += 1
                except Closed:
                    raise
                # Damage, a topic that is missing or full, files that cannot be removed: what is behind has to wait.
                except (InorderError, OSError) as error:
                    stuck.add(commit.writer)
                    self._tell(commit, error)
        return done

    def _publish(self, broker: Publisher, commit: Commit) -> None:
        epoch = self._incoming.open(commit)
        if not broker.has_written(epoch.topic, commit.writer, commit.epoch):  # else some of its files may be gone
            for part, batch in enumerate(self._incoming.read(epoch)):
                broker.write(epoch.topic, batch, writer=commit.writer, epoch=commit.epoch, part=part)
            # The epoch may be committed again, cut into other parts: none of them is new.
            broker.write(epoch.topic, NOTHING, writer=commit.writer, epoch=commit.epoch, part=LAST_PART)
        broker.sync()  # its files are, so it must not be less durable without them
        self._incoming.forget(epoch)

    def _tell(self, commit: Commit, error: Exception) -> None:
        if commit not in self._told:
            self._told.add(commit)
            _log.error("epoch %d of writer %r cannot be published yet: %s", commit.epoch, commit.writer, error)
