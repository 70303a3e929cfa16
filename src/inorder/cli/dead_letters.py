"""`inorder dead-letters`: what failed too often, where it came from, and the way back.

Dead letters wait in a subscription of the dead-letter topic; if that has several, `--through` names it.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic, sleep
from typing import Any, Final

from inorder.cli.asking import add_yes, agreed
from inorder.cli.exits import DONE, NO
from inorder.cli.hints import command
from inorder.cli.looking import BrokerLook, Look, Standing, looking
from inorder.cli.progress import Bar
from inorder.cli.showing import MESSAGE_FIELDS, plain_message, plain_record, print_json, print_note, print_table
from inorder.cli.targets import add_target, connected, folder_of, target_of
from inorder.cli.verbs import Command, Run, Verbs, add_noun, add_verb
from inorder.cli.wording import counted
from inorder.cli.working_off import WorkingOff
from inorder.client.pubsub import PubSub
from inorder.client.subscription import Subscription
from inorder.clock import MICROSECONDS, SYSTEM_CLOCK
from inorder.core.filters import compile_filter
from inorder.core.ranges import Ranges
from inorder.errors import FailedPrecondition, InvalidArgument
from inorder.journal.reading import JournalReader
from inorder.message import ATTRIBUTES, STORED_US, Message
from inorder.metadata import SubscriptionMetadata
from inorder.options import MAX_ACK_DEADLINE_SECONDS

_AT_ONCE: Final = 1_000
_PATIENCE_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.02
_PREFIX: Final = "CloudPubSubDeadLetterSource"  # of the attributes that a dead letter has of its past
_SOURCE: Final = {
    "source_subscription": f"{_PREFIX}Subscription",
    "source_project": f"{_PREFIX}SubscriptionProject",
    "source_publish_time": f"{_PREFIX}TopicPublishTime",
    "source_delivery_count": f"{_PREFIX}DeliveryCount",
}
_FIELDS: Final = {
    **MESSAGE_FIELDS,
    "source_subscription": "in which it failed; missing, as the next three, if its dead-letter policy has no source",
    "source_project": "of that",
    "source_publish_time": "when it was first published",
    "source_delivery_count": "how often it failed",
}

_MORE: Final = """\
All subscriptions of the topic get them. Without --topic they go to where the subscription gets its messages from. Those
that fail there again meanwhile are dead letters for the next time. Who is interrupted between a publish and its acks
finds up to 1,000 of them twice: none is lost. Dead letters that came from other subscriptions are nacked at the end.
Those that somebody else holds come later, which is told; if they wait in a subscription without ordering, nothing is
published before they are back. Of a topic in partitions they go to the partition where they failed; give another one as
--topic if that is not in use any more.

  inorder dead-letters list billing
  inorder dead-letters replay billing --max 1
"""


def add_to(nouns: Verbs) -> None:
    """Let the program know this noun."""
    verbs = add_noun(nouns, "dead-letters", "look at what failed too often, publish it again, or drop it")

    text = "list the dead letters of a subscription; works beside the broker that owns a folder"
    verb = _verb(verbs, "list", _list, text, _FIELDS)
    verb.add_argument("--max", type=int, default=100, metavar="N", help="so many at most (%(default)s)")

    text = "publish dead letters again, in order; each is acked only after it is published"
    fields = {
        "subscription": "whose dead letters they were",
        "topic": "to which they were published",
        "replayed": "how many",
        "left": "how many came from other subscriptions, and wait as before",
    }
    verb = _verb(verbs, "replay", _replay, text, fields, _MORE)
    verb.add_argument("--max", type=int, metavar="N", help="so many at most; by default all")
    verb.add_argument("--topic", help="where they are published; by default the topic of the subscription")

    text = "drop dead letters: nobody will see them again"
    fields = {"subscription": "whose dead letters they were", "dropped": "how many", "left": "as with replay"}
    verb = _verb(verbs, "drop", _drop, text, fields)
    verb.add_argument("--max", type=int, metavar="N", help="so many at most; by default all")
    add_yes(verb)


def _verb(verbs: Verbs, name: str, run: Run, text: str, fields: dict[str, str], more: str = "") -> Command:
    verb = add_verb(verbs, name, run, text, fields=fields, more=more)
    verb.add_argument("subscription", metavar="SUBSCRIPTION", help="whose messages failed")
    verb.add_argument("--through", metavar="NAME", help="the subscription of the dead-letter topic in which they wait")
    add_target(verb)
    return verb


def _morgue(look: Look, given: argparse.Namespace) -> SubscriptionMetadata:
    """The subscription in which the dead letters wait."""
    policy = look.subscription(given.subscription).options.dead_letter_policy
    if policy is None:
        raise FailedPrecondition(
            f"subscription {given.subscription} has no dead-letter topic: "
            + command(given, "subscription", "update", given.subscription, "--dead-letter-topic", "TOPIC")
        )
    topic = policy.dead_letter_topic
    found = {one.name: one for one in look.subscriptions(topic)}
    if given.through is not None:
        if given.through not in found:
            raise InvalidArgument(f"--through: a subscription of topic {topic}, not {given.through!r}")
        return found[given.through]
    if not found:
        raise FailedPrecondition(
            f"topic {topic} has no subscription in which dead letters could wait: "
            + command(given, "subscription", "create", "NAME", topic, "--enable-message-ordering")
        )
    if len(found) > 1:
        raise FailedPrecondition(f"topic {topic} has several subscriptions: give --through, one of {', '.join(found)}")
    return next(iter(found.values()))


def _is_ours(given: argparse.Namespace, attributes: Mapping[str, str]) -> bool:
    """Whether a dead letter came from the subscription, or does not say where it came from."""
    return attributes.get(_SOURCE["source_subscription"], "") in ("", given.subscription.rsplit("/", 1)[-1])


# -- list ------------------------------------------------------------------------------------------


def _list(given: argparse.Namespace) -> int:
    _at_least_one(given.max)
    if (folder := folder_of(target_of(given))) is not None:
        with looking(given) as look:
            found = [*islice(_in_journal(JournalReader(folder), _morgue(look, given), given), given.max)]
    else:
        with connected(given) as pubsub:
            found = lent(pubsub, given)
    if given.json:
        for one in found:
            print_json(one)
    else:
        header = ("position", "key", "from", "published there", "failed", "data")
        print_table(header, [(one["position"], *_row(one)) for one in found])
    return DONE


def _row(one: Mapping[str, Any]) -> Iterator[str]:
    yield one.get("ordering_key", "-")
    yield one.get("source_subscription", "-")
    yield one.get("source_publish_time", "-")
    yield one.get("source_delivery_count", "-")
    data = one["data"] if "data" in one else f"base64 {one['data_base64']}"
    yield data if len(data) <= 60 else f"{data[:60]}..."


def _in_journal(
    reader: JournalReader, morgue: SubscriptionMetadata, given: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    ledger, topic = reader.book.subscriptions[morgue.name], reader.topic(morgue.topic)
    oldest_us = SYSTEM_CLOCK.now_us() - round(morgue.options.message_retention_duration * MICROSECONDS)
    matches = compile_filter(morgue.options.filter) if morgue.options.filter else None
    # Hole by hole: what lies between, and was acked, may be gone from the journal.
    for first, end in _holes(ledger.given_up(), topic.end):
        for stretch in reader.read(morgue.topic, first, end):
            for record in stretch.records():
                if record[STORED_US] < oldest_us or (matches and not matches(record[ATTRIBUTES] or {})):
                    continue  # it is there, but nobody will get it
                plain = plain_record(record, topic.id_prefix)
                if _is_ours(given, plain.get("attributes", {})):
                    yield {**plain, **_source(plain.get("attributes", {}))}


def _holes(done: Ranges, end: int) -> Iterator[tuple[int, int]]:
    start = 0
    for first, last in [*done.within(0, end), (end, end)]:
        if start < first:
            yield start, first
        start = last


def lent(pubsub: PubSub, given: argparse.Namespace) -> list[dict[str, Any]]:
    """A broker that runs shows only what it gives out: so they are taken, and given back as if nobody had."""
    look = BrokerLook(pubsub)
    name = _morgue(look, given).name
    standing = look.standing(name)
    if standing.backlog_messages == standing.outstanding_messages:
        if standing.outstanding_messages:
            print_note(_out(standing.outstanding_messages, name))
        return []
    # More than are wanted: those of other subscriptions may stand before them.
    batches = pubsub.subscription(name).batches(_AT_ONCE, one_per_key=False)
    timer = threading.Timer(_PATIENCE_SECONDS, batches.poke)  # all may wait for a retry
    timer.start()
    found: list[Message] = []
    try:
        for batch in batches:
            found = sorted(batch, key=lambda message: message.position)
            batches.give_back(batch)
            break
    finally:
        timer.cancel()
    _wait_until_back(look, name, standing)
    ours = [message for message in found if _is_ours(given, message.attributes)]
    if len(ours) < given.max and len(found) < standing.backlog_messages:
        print_note(
            f"{standing.backlog_messages} wait in {name}, and {len(found)} of them could be seen: none behind the "
            f"first of an ordered key, none that is out or waits for a retry, at most {_AT_ONCE}, and a few megabytes"
        )
    return [{**plain_message(message), **_source(message.attributes)} for message in ours[: given.max]]


def _wait_until_back(look: Look, name: str, before: Standing) -> None:
    """Whoever replays next must find them; unless others have taken them meanwhile."""
    end = monotonic() + _PATIENCE_SECONDS
    while (look.standing(name).outstanding_messages or 0) > (before.outstanding_messages or 0) and monotonic() < end:
        sleep(_LOOK_SECONDS)


def _source(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: attributes[attribute] for name, attribute in _SOURCE.items() if attribute in attributes}


# -- replay and drop -------------------------------------------------------------------------------


def _replay(given: argparse.Namespace) -> int:
    limit = _at_least_one(given.max)
    with connected(given) as pubsub:
        look = BrokerLook(pubsub)
        morgue = _morgue(look, given)
        # One that is given and empty, as of a variable that is not set, is not the one by default.
        topic = pubsub.topic(look.subscription(given.subscription).topic if given.topic is None else given.topic)
        if topic.metadata().result().name == morgue.topic:  # it must exist, before anything is taken
            raise InvalidArgument(f"--topic: another one than {morgue.topic}, in which dead letters wait")

        from inorder.consumers.partitions.router import TERM  # takes a while, which other commands need not wait for

        def publish(batch: Sequence[Message]) -> None:
            topic.publish_many([_as_it_was(message, TERM) for message in batch]).result()

        before = look.topic(morgue.topic).published
        total = _waiting(look, morgue, in_order=True)
        replayed, left = _work_off(given, pubsub.subscription(morgue.name), publish, limit, total, before)
    if given.json:
        print_json({"subscription": given.subscription, "topic": topic.name, "replayed": replayed, "left": left})
    else:
        print(f"published {counted(replayed, 'dead letter')} to {topic.name}")
        _tell_left(left)
    return DONE


def _drop(given: argparse.Namespace) -> int:
    limit = _at_least_one(given.max)
    with connected(given) as pubsub:
        look = BrokerLook(pubsub)
        morgue = _morgue(look, given)
        before = look.topic(morgue.topic).published
        total = _waiting(look, morgue, in_order=False)
        most = total if limit is None else min(limit, total)
        if not agreed(given, f"Drop up to {counted(most, 'dead letter')} of {given.subscription} in {morgue.name}?"):
            return NO
        dropped, left = _work_off(given, pubsub.subscription(morgue.name), lambda batch: None, limit, total, before)
    if given.json:
        print_json({"subscription": given.subscription, "dropped": dropped, "left": left})
    else:
        print(f"dropped {counted(dropped, 'dead letter')}")
        _tell_left(left)
    return DONE


def _waiting(look: Look, morgue: SubscriptionMetadata, *, in_order: bool) -> int:
    """How many dead letters there are. If some are out, that is told, or refused where it matters for their order."""
    standing = look.standing(morgue.name)
    if standing.outstanding_messages:
        out = _out(standing.outstanding_messages, morgue.name)
        if in_order and not morgue.options.enable_message_ordering:
            raise FailedPrecondition(f"{out}; others may be of the same keys, and are not published before them")
        print_note(out)
    return standing.backlog_messages


def _out(count: int, name: str) -> str:
    return (
        f"{counted(count, 'dead letter')} of {name} out: somebody works on them, or "
        f"was killed while at it, and they are back within {MAX_ACK_DEADLINE_SECONDS // 60} minutes"
    )


def _tell_left(left: int) -> None:
    if left:
        print_note(f"left, as they came from other subscriptions: {counted(left, 'dead letter')}")


def _as_it_was(message: Message, term: str) -> Message:
    """Without what it was given when it became a dead letter.

    And without the term of its partition: that may be over by now, and then the message would count as sent again.
    """
    attributes = message.attributes
    for name in [name for name in attributes if name == term or name.startswith(_PREFIX)]:
        del attributes[name]
    return Message(message.data, attributes, message.ordering_key)


def _work_off(
    given: argparse.Namespace,
    morgue: Subscription,
    work: Callable[[Sequence[Message]], object],
    limit: int | None,
    total: int,
    before: int,
) -> tuple[int, int]:
    """Do something with each dead letter of the subscription before a position, in order, and ack it then.

    Returns how many that were, and how many of other subscriptions were on the way; these wait as before.
    """
    working = WorkingOff(morgue, lambda message: _is_ours(given, message.attributes), limit, before=before)
    try:
        with Bar("dead letters", sys.stderr) as bar, working:
            for batch in working.batches():
                work(batch)
                bar(working.done, total)
    except BaseException:
        print_note(f"done before that: {counted(working.done, 'dead letter')}")
        raise
    return working.done, working.left


def _at_least_one(limit: int | None) -> int | None:
    if limit is not None and limit < 1:
        raise InvalidArgument(f"--max: at least 1, not {limit}")
    return limit
