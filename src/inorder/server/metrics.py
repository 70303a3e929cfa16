"""What a server tells of itself to Prometheus, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from time import monotonic
from typing import Literal, NamedTuple, TypeAlias

from inorder.broker import MessageQueue
from inorder.errors import NotFound
from inorder.metadata import Metrics
from inorder.server.admin import LOOKING_SHARE, Admin
from inorder.server.calls import Calls
from inorder.server.desks import Desks
from inorder.server.extensions.delivery import OwnStream
from inorder.server.names import Names
from inorder.server.streaming import Stream

Labels: TypeAlias = tuple[str, ...]
Samples: TypeAlias = Iterable[tuple[Labels, float]]


class Family(NamedTuple):
    """One metric, for every value of its labels."""

    kind: Literal["counter", "gauge"]
    labels: Labels
    help: str


_OF_SUBSCRIPTION = ("subscription",)
_OF_STREAM = ("subscription", "stream")

FAMILIES: Mapping[str, Family] = {
    "inorder_serving": Family("gauge", (), "1 while the server serves, 0 once it stops or its journal has failed."),
    "inorder_published_total": Family("counter", ("topic",), "Messages of a topic so far."),
    "inorder_backlog_messages": Family("gauge", _OF_SUBSCRIPTION, "Messages not acked, those that are out included."),
    "inorder_backlog_bytes": Family("gauge", _OF_SUBSCRIPTION, "Bytes of these."),
    "inorder_outstanding_messages": Family("gauge", _OF_SUBSCRIPTION, "Messages that consumers have."),
    "inorder_outstanding_bytes": Family("gauge", _OF_SUBSCRIPTION, "Bytes of these."),
    "inorder_oldest_unacked_seconds": Family("gauge", _OF_SUBSCRIPTION, "Age of the oldest message that waits."),
    "inorder_blocked_keys": Family("gauge", _OF_SUBSCRIPTION, "Keys that wait for their first message."),
    "inorder_parked_keys": Family("gauge", _OF_SUBSCRIPTION, "Those of them that wait for somebody to resume them."),
    "inorder_head_of_line_seconds": Family("gauge", _OF_SUBSCRIPTION, "Since the key that waits longest does so."),
    "inorder_delivered_total": Family("counter", _OF_SUBSCRIPTION, "Messages given out, redeliveries included."),
    "inorder_redelivered_total": Family("counter", _OF_SUBSCRIPTION, "Messages given out once more."),
    "inorder_acked_total": Family("counter", _OF_SUBSCRIPTION, "Messages acked."),
    "inorder_nacked_total": Family("counter", _OF_SUBSCRIPTION, "Messages given back as failed."),
    "inorder_expired_total": Family("counter", _OF_SUBSCRIPTION, "Messages not answered in time."),
    "inorder_dead_lettered_total": Family("counter", _OF_SUBSCRIPTION, "Messages moved to the dead-letter topic."),
    "inorder_dropped_total": Family("counter", _OF_SUBSCRIPTION, "Messages refused because the queue was full."),
    "inorder_outdated_total": Family("counter", _OF_SUBSCRIPTION, "Messages removed because of their age."),
    "inorder_skipped_total": Family("counter", _OF_SUBSCRIPTION, "Messages given up by skip."),
    "inorder_dead_letter_failures_total": Family(
        "counter", _OF_SUBSCRIPTION, "Dead letters that their topic did not take; they are not lost."
    ),
    "inorder_stream_outstanding_messages": Family("gauge", _OF_STREAM, "Messages that the client of a stream has."),
    "inorder_stream_max_outstanding_messages": Family("gauge", _OF_STREAM, "How many it may have."),
    "inorder_stream_outstanding_bytes": Family(
        "gauge", _OF_STREAM, "Bytes that the client of a stream has; of one of ours only it knows."
    ),
    "inorder_stream_max_outstanding_bytes": Family("gauge", _OF_STREAM, "How many it may have."),
    "inorder_stream_unsent_messages": Family("gauge", _OF_STREAM, "Messages for it that it has not read yet."),
    "inorder_commits_total": Family("counter", (), "Groups of changes written to the journal."),
    "inorder_written_bytes_total": Family("counter", (), "Bytes of these."),
    "inorder_syncs_total": Family("counter", (), "Times the journal was synced to disk."),
    "inorder_sync_seconds_total": Family("counter", (), "How long that took."),
    "inorder_slowest_sync_seconds": Family("gauge", (), "How long the slowest of them took."),
    "inorder_calls_total": Family("counter", ("call", "code"), "Calls and streams that have ended."),
    "inorder_call_seconds_total": Family("counter", ("call",), "How long calls took that are no streams."),
    "inorder_open_streams": Family("gauge", ("call",), "Streams that are open."),
}


class Exporter:
    """Looks at everything when it is asked to."""

    def __init__(self, broker: MessageQueue, names: Names, admin: Admin, desks: Desks, calls: Calls) -> None:
        self._broker = broker
        self._names = names
        self._admin = admin
        self._desks = desks
        self._calls = calls
        self._seen: dict[str, Metrics] = {}  # by subscription
        self._look_at = 0.0
        self.serving = True

    async def text(self) -> str:
        if self._broker.failure is not None:  # of what it held nobody can say what is on disk
            self._seen = {}
        elif monotonic() >= self._look_at:
            began = monotonic()
            self._seen = await self._admin.run(self._look)
            self._look_at = monotonic() + (monotonic() - began) / LOOKING_SHARE
        return "".join(_lines(self._samples()))

    def _look(self) -> dict[str, Metrics]:
        seen = {}
        for subscription in self._broker.get_all_subscriptions():
            try:
                seen[self._names.subscription_resource(subscription.name)] = self._broker.metrics(subscription.name)
            except NotFound:  # it was deleted meanwhile
                continue
        return seen

    def _samples(self) -> Iterator[tuple[str, Samples]]:
        well = self._broker.failure is None
        yield "inorder_serving", [((), self.serving and well)]
        topics = self._broker.get_all_topics() if well else ()
        yield (
            "inorder_published_total",
            [((self._names.topic_resource(topic.name),), topic.published) for topic in topics],
        )
        yield from self._of_subscriptions()
        yield from self._of_streams()
        yield from self._of_journal()
        yield "inorder_calls_total", self._calls.ended.items()
        yield "inorder_call_seconds_total", [((call,), seconds) for call, seconds in self._calls.seconds.items()]
        yield "inorder_open_streams", [((call,), count) for call, count in self._calls.streams.items()]

    def _of_subscriptions(self) -> Iterator[tuple[str, Samples]]:
        values: dict[str, list[tuple[Labels, float]]] = {}
        for subscription, metrics in self._seen.items():
            plain = asdict(metrics)
            counters = {f"{name}_total": value for name, value in plain.pop("counters").items()}
            for name, value in {**plain, **counters}.items():
                values.setdefault(f"inorder_{name}", []).append(((subscription,), value))
        yield from values.items()

    def _of_streams(self) -> Iterator[tuple[str, Samples]]:
        seen = [
            ((subscription, str(flow.number)), flow)
            for subscription, flow in (
                (subscription, taker.flow_control())
                for subscription, taker in self._desks.takers()
                if isinstance(taker, Stream | OwnStream)
            )
        ]
        yield "inorder_stream_outstanding_messages", [(labels, flow.messages) for labels, flow in seen]
        yield "inorder_stream_max_outstanding_messages", [(labels, flow.max_messages) for labels, flow in seen]
        yield (
            "inorder_stream_outstanding_bytes",
            [(labels, flow.size) for labels, flow in seen if flow.size is not None],
        )
        yield (
            "inorder_stream_max_outstanding_bytes",
            [(labels, flow.max_bytes) for labels, flow in seen if flow.max_bytes is not None],
        )
        yield "inorder_stream_unsent_messages", [(labels, flow.unsent) for labels, flow in seen]

    def _of_journal(self) -> Iterator[tuple[str, Samples]]:
        counters = self._broker.commit_counters()
        yield "inorder_commits_total", [((), counters.commits)]
        yield "inorder_written_bytes_total", [((), counters.written_bytes)]
        yield "inorder_syncs_total", [((), counters.syncs)]
        yield "inorder_sync_seconds_total", [((), counters.sync_seconds)]
        yield "inorder_slowest_sync_seconds", [((), counters.slowest_sync_seconds)]


def _lines(samples: Iterable[tuple[str, Samples]]) -> Iterator[str]:
    for name, values in samples:
        family = FAMILIES[name]
        yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
        for labels, value in values:
            pairs = map("{}={}".format, family.labels, map(_quoted, labels))
            yield f"{name}{{{','.join(pairs)}}} {float(value):.17g}\n" if labels else f"{name} {float(value):.17g}\n"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
