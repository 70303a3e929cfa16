"""Topics, subscriptions and snapshots as google.pubsub.v1 describes them, and the options that the broker knows.

What the broker does not know, labels for instance, is kept in the annotations of its options, so that it is
created, changed and deleted together with the rest, and survives with it. Each field of these messages is in one of
the tables below: nothing is accepted and then forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from google.protobuf import field_mask_pb2, json_format
from google.pubsub_v1.types import pubsub

from inorder.metadata import SnapshotMetadata, SubscriptionMetadata, TopicMetadata
from inorder.options import (
    DAY_SECONDS,
    DEFAULT_DELIVERY_ATTEMPTS,
    DeadLetterPolicy,
    QueueLimits,
    RetryPolicy,
    SubscriptionOptions,
    TopicOptions,
)
from inorder.server.names import DELETED_TOPIC, Names
from inorder.server.push.config import PushTarget, check_push, target_of
from inorder.server.schemas.book import DELETED_SCHEMA, SchemaSettings
from inorder.server.schemas.publishing import settings_of
from inorder.server.status import absent, invalid, within

Proto: TypeAlias = Any  # a message of google.pubsub.v1; the package has no types

Topic = pubsub.Topic.pb()
Subscription = pubsub.Subscription.pb()
Snapshot = pubsub.Snapshot.pb()

# Fields that are kept in the annotations and returned.
KEPT: Mapping[str, tuple[str, ...]] = {
    "Topic": ("labels", "message_storage_policy", "schema_settings"),
    "Subscription": ("labels", "expiration_policy", "enable_exactly_once_delivery", "push_config"),
    "Snapshot": ("labels",),
}
# Fields that only the service sets; in a request they mean nothing, at Google's too.
SET_HERE: Mapping[str, tuple[str, ...]] = {
    "Topic": ("satisfies_pzs", "state"),
    "Subscription": ("detached", "topic_message_retention_duration", "state", "analytics_hub_subscription_info"),
    "Snapshot": (),
}
# Fields that say what the resource is, and never change.
FIXED: Mapping[str, tuple[str, ...]] = {
    "Topic": ("name",),
    "Subscription": ("name", "topic", "filter", "enable_message_ordering"),
    "Snapshot": ("name", "topic"),
}
# Fields that the broker's options have.
HONOURED: Mapping[str, tuple[str, ...]] = {
    "Topic": ("message_retention_duration",),
    "Subscription": (
        "ack_deadline_seconds",
        "retain_acked_messages",
        "message_retention_duration",
        "dead_letter_policy",
        "retry_policy",
    ),
    "Snapshot": ("expire_time",),
}
# Fields that are refused, and why.
ABSENT: Mapping[str, Mapping[str, str]] = {
    "Topic": {
        "kms_key_name": "Encryption keys of a key service are not supported: encrypt the disk instead.",
        "ingestion_data_source_settings": "Ingestion from other services is not supported.",
        "message_transforms": "Message transforms are not supported.",
        "tags": "Resource tags are not supported: use labels.",
    },
    "Subscription": {
        "bigquery_config": "Exports to BigQuery are not supported.",
        "cloud_storage_config": "Exports to Cloud Storage are not supported.",
        "bigtable_config": "Exports to Bigtable are not supported.",
        "message_transforms": "Message transforms are not supported.",
        "tags": "Resource tags are not supported: use labels.",
    },
    "Snapshot": {},
}

ACK_DEADLINE_SECONDS = (10, 600)
RETENTION_SECONDS = (600, 31 * DAY_SECONDS)
BACKOFF_SECONDS = (0, 600)
DELIVERY_ATTEMPTS = (5, 100)
MIN_EXPIRATION_SECONDS = DAY_SECONDS
DEFAULT_EXPIRATION_SECONDS = 31 * DAY_SECONDS
MAX_DURATION_SECONDS = 315_576_000_000  # protobuf's
MAX_LABELS = 64
MAX_LABEL_LENGTH = 63
MAX_OUTSTANDING_PER_KEY = 1_000  # as many as one pull may return

# A subscription of Google's never misses a message because others wait.
UNLIMITED = QueueLimits(max_messages=None, max_bytes=None)

_SECTION = "google.pubsub.v1"  # of the annotations, which others may use as well
_OWN_WINDOW = "inorder.maxOutstandingPerKey"  # in it: what a subscription had that is `_strict` for the time being


# -- topics ----------------------------------------------------------------------------------------


def topic_options(topic: Proto, before: TopicOptions | None = None, shown: Proto | None = None) -> TopicOptions:
    """What a topic asks for, checked. Of one that changes, `before` are its options, `shown` is how it looked."""
    _check_fields(topic)
    _check_labels(topic)
    if topic.HasField("message_storage_policy") and not topic.message_storage_policy.allowed_persistence_regions:
        raise invalid("message_storage_policy: allowed_persistence_regions must name at least one region.")
    before = before or TopicOptions()
    wanted: dict[str, Any] = {"annotations": _kept(topic, before.annotations)}
    if not _same("message_retention_duration", topic, shown):
        wanted["message_retention_duration"] = _retention(topic, None)
    return replace(before, **wanted)


def topic_of(metadata: TopicMetadata, names: Names) -> Proto:
    """A topic as the protocol shows it."""
    topic = _remembered(Topic, metadata.options.annotations)
    topic.name = names.topic_resource(metadata.name)
    topic.state = Topic.State.ACTIVE
    if metadata.options.message_retention_duration is not None:
        _set_seconds(topic.message_retention_duration, metadata.options.message_retention_duration)
    return topic


def topic_schema(options: TopicOptions) -> SchemaSettings | None:
    """What the messages of a topic must look like; None: anything."""
    settings = _remembered(Topic, options.annotations)
    return settings_of(settings.schema_settings) if settings.HasField("schema_settings") else None


def without_schema(options: TopicOptions) -> TopicOptions:
    """The same when the schema is deleted: the topic says so, and takes nothing."""
    topic = _remembered(Topic, options.annotations)
    topic.schema_settings.schema = DELETED_SCHEMA
    return replace(options, annotations=_kept(topic, options.annotations))


# -- subscriptions ---------------------------------------------------------------------------------


def subscription_options(
    subscription: Proto,
    names: Names,
    before: SubscriptionOptions | None = None,
    shown: Proto | None = None,
    *,
    window: int,
    push_anywhere: bool = False,
) -> SubscriptionOptions:
    """What a subscription asks for, checked; `window` is how many of a key may be out where there is order to keep.

    Some have one of a key out, see `_strict`. `push_anywhere`: beyond loopback.

    Of one that is changed, `before` are its options, and `shown` is how it looked: what stays as it is stays, even if
    only the embedded API could have made it so.
    """
    _check_fields(subscription)
    _check_labels(subscription)
    _check_expiration(subscription, shown)
    _check_push(subscription, shown, push_anywhere)
    if before is None:
        before = SubscriptionOptions(
            enable_message_ordering=subscription.enable_message_ordering,
            max_outstanding_per_key=window if subscription.enable_message_ordering else 1,
            filter=subscription.filter,
            queue_limits=UNLIMITED,
        )
    readers: Mapping[str, Callable[[], Any]] = {
        "ack_deadline_seconds": lambda: _ack_deadline(subscription),
        "retain_acked_messages": lambda: subscription.retain_acked_messages,
        "message_retention_duration": lambda: _retention(subscription, 7 * DAY_SECONDS),
        "retry_policy": lambda: _retry_policy(subscription),
        "dead_letter_policy": lambda: _dead_letter_policy(subscription, names),
    }
    wanted = {field: read() for field, read in readers.items() if not _same(field, subscription, shown)}
    strict = _strict(subscription)
    own_window = googles_part(before.annotations).get(_OWN_WINDOW)
    if before.enable_message_ordering and strict != (shown is not None and _strict(shown)):
        if strict and shown is not None:
            own_window = before.max_outstanding_per_key
        wanted["max_outstanding_per_key"] = 1 if strict else own_window or window
    aside = {_OWN_WINDOW: own_window} if strict and own_window else {}
    return replace(before, **wanted, annotations=_kept(subscription, before.annotations, aside))


def _strict(subscription: Proto) -> bool:
    """Whether one message of a key is out at a time, whatever the window.

    Of one that is pushed, nobody else would keep those in order. Where delivery is exactly once, a nack would take back
    what is out behind it, and clients would be told of each ack for these that it has failed; Google's Python client
    then takes all that were in the same request as failed, also those that are done and will not come again.
    """
    return bool(subscription.push_config.push_endpoint) or subscription.enable_exactly_once_delivery


def subscription_of(metadata: SubscriptionMetadata, topic: TopicMetadata | None, names: Names) -> Proto:
    """A subscription as the protocol shows it; `topic` is its own, if that is still there."""
    options = metadata.options
    subscription = _remembered(Subscription, options.annotations)
    subscription.name = names.subscription_resource(metadata.name)
    gone = metadata.topic_deleted or topic is None
    subscription.topic = DELETED_TOPIC if gone else names.topic_resource(metadata.topic)
    subscription.push_config.SetInParent()  # if it is empty, those who want messages ask for them
    subscription.ack_deadline_seconds = max(round(options.ack_deadline_seconds), 1)
    subscription.retain_acked_messages = options.retain_acked_messages
    _set_seconds(subscription.message_retention_duration, options.message_retention_duration)
    subscription.enable_message_ordering = options.enable_message_ordering
    subscription.filter = options.filter
    subscription.detached = metadata.detached and not metadata.topic_deleted
    subscription.state = Subscription.State.ACTIVE
    if (policy := options.dead_letter_policy) is not None:
        subscription.dead_letter_policy.dead_letter_topic = names.topic_resource(policy.dead_letter_topic)
        subscription.dead_letter_policy.max_delivery_attempts = policy.max_delivery_attempts
    if options.retry_policy is not None:
        _set_seconds(subscription.retry_policy.minimum_backoff, options.retry_policy.minimum_backoff)
        _set_seconds(subscription.retry_policy.maximum_backoff, options.retry_policy.maximum_backoff)
    if not gone and topic is not None and (retained := topic.options.message_retention_duration) is not None:
        _set_seconds(subscription.topic_message_retention_duration, retained)
    return subscription


def exactly_once(options: SubscriptionOptions) -> bool:
    """Whether a subscription tells of each ack that had no effect."""
    return bool(googles_part(options.annotations).get("enableExactlyOnceDelivery", False))


def push_target(options: SubscriptionOptions) -> PushTarget | None:
    """Where a subscription is pushed to; None: those who want its messages ask for them."""
    section = googles_part(options.annotations)
    return target_of(_remembered(Subscription, options.annotations).push_config) if "pushConfig" in section else None


def expiration_seconds(options: SubscriptionOptions) -> float | None:
    """How long a subscription may be left alone before it is deleted; None: for ever."""
    policy = _remembered(Subscription, options.annotations).expiration_policy
    return _seconds(policy.ttl) if policy.HasField("ttl") else None


def _retry_policy(subscription: Proto) -> RetryPolicy | None:
    if not subscription.HasField("retry_policy"):
        return None
    given, default = subscription.retry_policy, RetryPolicy()
    shortest = _seconds(given.minimum_backoff) if given.HasField("minimum_backoff") else default.minimum_backoff
    longest = _seconds(given.maximum_backoff) if given.HasField("maximum_backoff") else default.maximum_backoff
    within("minimum_backoff", shortest, *BACKOFF_SECONDS)
    within("maximum_backoff", longest, *BACKOFF_SECONDS)
    return RetryPolicy(shortest, longest)


def _dead_letter_policy(subscription: Proto, names: Names) -> DeadLetterPolicy | None:
    policy = subscription.dead_letter_policy
    if not policy.dead_letter_topic:
        if policy.max_delivery_attempts:
            raise invalid("dead_letter_policy.dead_letter_topic must be set.")
        return None
    attempts = policy.max_delivery_attempts or DEFAULT_DELIVERY_ATTEMPTS
    within("max_delivery_attempts", attempts, *DELIVERY_ATTEMPTS)
    return DeadLetterPolicy(names.topic(policy.dead_letter_topic), attempts, source=subscription.name)


def _ack_deadline(subscription: Proto) -> int:
    deadline: int = subscription.ack_deadline_seconds or ACK_DEADLINE_SECONDS[0]
    within("ack_deadline_seconds", deadline, *ACK_DEADLINE_SECONDS)
    return deadline


def _check_push(subscription: Proto, shown: Proto | None, anywhere: bool) -> None:
    """What stays as it is may stay, even if nobody could make it so any more."""
    if shown is None or subscription.push_config != shown.push_config:
        before = Subscription() if shown is None else shown
        check_push(subscription.push_config, before.push_config, anywhere=anywhere)
    if not subscription.push_config.push_endpoint:
        subscription.ClearField("push_config")
    elif subscription.enable_exactly_once_delivery:
        raise invalid("Exactly-once delivery is for subscriptions that are pulled: push_config must be empty.")


def _check_expiration(subscription: Proto, shown: Proto | None) -> None:
    if not subscription.HasField("expiration_policy"):
        # One that the embedded API made has no policy, and gets none by an update of something else.
        if shown is None or shown.HasField("expiration_policy"):
            _set_seconds(subscription.expiration_policy.ttl, DEFAULT_EXPIRATION_SECONDS)
    elif subscription.expiration_policy.HasField("ttl"):
        ttl = _seconds(subscription.expiration_policy.ttl)
        within("expiration_policy.ttl", ttl, MIN_EXPIRATION_SECONDS, float("inf"))


# -- snapshots -------------------------------------------------------------------------------------


def snapshot_annotations(snapshot: Proto, before: str = "") -> str:
    """What the broker keeps of a snapshot without knowing it, checked."""
    _check_labels(snapshot)
    return _kept(snapshot, before)


def snapshot_of(metadata: SnapshotMetadata, names: Names) -> Proto:
    """A snapshot as the protocol shows it."""
    snapshot = _remembered(Snapshot, metadata.annotations)
    snapshot.name = names.snapshot_resource(metadata.name)
    snapshot.topic = names.topic_resource(metadata.topic)
    snapshot.expire_time.FromDatetime(metadata.expires)
    return snapshot


# -- all of them ----------------------------------------------------------------------------------------


def updated(current: Proto, wanted: Proto, mask: field_mask_pb2.FieldMask) -> Proto:
    """A resource with those of its fields changed that an update names."""
    kind = current.DESCRIPTOR.name
    if not mask.paths:
        raise invalid(
            f"The update_mask in the Update{kind}Request must be set, and must contain a non-empty paths list."
        )
    for path in mask.paths:
        field = path.split(".")[0]
        if not field_mask_pb2.FieldMask(paths=[path]).IsValidForDescriptor(current.DESCRIPTOR):
            raise invalid(
                f"Invalid update_mask provided in the Update{kind}Request: '{path}' is not a known {kind} field. "
                "Note that field paths must be of the form 'push_config' rather than 'pushConfig'."
            )
        if field in FIXED[kind] or field in SET_HERE[kind]:
            raise invalid(
                f"Invalid update_mask provided in the Update{kind}Request: the '{field}' field in the {kind} "
                "is not mutable."
            )
    changed = type(current)()
    changed.CopyFrom(current)
    for path in mask.paths:
        _set_parents(path, wanted, current)
    mask.MergeMessage(wanted, changed, replace_message_field=True, replace_repeated_field=True)
    return changed


def _set_parents(path: str, wanted: Proto, current: Proto) -> None:
    """A field of a field that an update names and does not have is to be cleared: protobuf would leave it as it is."""
    for parent in path.split(".")[:-1]:
        if not current.HasField(parent):
            return
        wanted, current = getattr(wanted, parent), getattr(current, parent)
        wanted.SetInParent()


def _same(field: str, wanted: Proto, shown: Proto | None) -> bool:
    """Whether an update leaves a field as it is."""
    if shown is None or getattr(wanted, field) != getattr(shown, field):
        return False
    nested = wanted.DESCRIPTOR.fields_by_name[field].message_type is not None
    return not nested or wanted.HasField(field) == shown.HasField(field)


def _retention(resource: Proto, default: float | None) -> float | None:
    if not resource.HasField("message_retention_duration"):
        return default
    seconds = _seconds(resource.message_retention_duration)
    within("message_retention_duration", seconds, *RETENTION_SECONDS)
    return seconds


def _check_fields(resource: Proto) -> None:
    """Refuse what nobody would honour."""
    refused = ABSENT[resource.DESCRIPTOR.name]
    for field, _ in resource.ListFields():
        if field.name in refused:
            raise absent(refused[field.name])


def _check_labels(resource: Proto) -> None:
    within("label_count", len(resource.labels), 0, MAX_LABELS)
    for name, value in resource.labels.items():
        if not name or max(len(name), len(value)) > MAX_LABEL_LENGTH:
            raise invalid(f"labels: keys of 1 to 63 characters and values of at most 63, not {name!r}: {value!r}.")


def _kept(resource: Proto, annotations: str, aside: Mapping[str, Any] | None = None) -> str:
    """The annotations of a resource, with what the broker does not know of it, and what is to be kept `aside`."""
    rest = type(resource)()
    rest.CopyFrom(resource)
    for field in resource.DESCRIPTOR.fields:
        if field.name not in KEPT[resource.DESCRIPTOR.name]:
            rest.ClearField(field.name)
    section = {**json_format.MessageToDict(rest), **(aside or {})}
    return json.dumps({**_sections(annotations), _SECTION: section}, ensure_ascii=False)


def _remembered(kind: type[Any], annotations: str) -> Proto:
    """A resource that has what was kept, and nothing else."""
    try:
        return json_format.ParseDict(googles_part(annotations), kind(), ignore_unknown_fields=True)
    except (json_format.Error, ValueError):  # the embedded API has set it, and these calls would not have
        return kind()


def googles_part(annotations: str) -> Mapping[str, Any]:
    """What these calls keep in annotations, among others."""
    found = _sections(annotations).get(_SECTION, {})
    return found if isinstance(found, dict) else {}


def _sections(annotations: str) -> Mapping[str, Any]:
    """All that is kept in annotations. The embedded API takes any text, which is kept as it is."""
    try:
        found = json.loads(annotations) if annotations else {}
    except (ValueError, RecursionError):  # no JSON, or lists in lists beyond what Python takes
        found = None
    return found if isinstance(found, dict) else {"text": annotations}


def _seconds(duration: Any) -> float:
    # Parsing lets any numbers through; what is kept is JSON, which takes only those that mean a duration.
    if abs(duration.seconds) > MAX_DURATION_SECONDS or not 0 <= duration.nanos < 1_000_000_000:
        raise invalid(f"Not a duration: {duration.seconds} seconds and {duration.nanos} nanoseconds.")
    seconds: float = duration.seconds + duration.nanos / 1e9
    return seconds


def _set_seconds(duration: Any, seconds: float) -> None:
    duration.SetInParent()
    duration.FromNanoseconds(round(seconds * 1e9))
