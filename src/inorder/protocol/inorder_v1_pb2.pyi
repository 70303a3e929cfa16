from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Description(_message.Message):
    __slots__ = ("protocol", "version", "project", "columns")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    project: str
    columns: bool
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., project: _Optional[str] = ..., columns: bool = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "options", "created_us", "published")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    name: str
    options: str
    created_us: int
    published: int
    def __init__(self, name: _Optional[str] = ..., options: _Optional[str] = ..., created_us: _Optional[int] = ..., published: _Optional[int] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("topic", "options")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    options: str
    def __init__(self, topic: _Optional[str] = ..., options: _Optional[str] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("project", "page_token", "page_size")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    project: str
    page_token: str
    page_size: int
    def __init__(self, project: _Optional[str] = ..., page_token: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics", "next_page_token")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    next_page_token: str
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("name", "topic", "options", "created_us", "detached", "topic_deleted")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    TOPIC_DELETED_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic: str
    options: str
    created_us: int
    detached: bool
    topic_deleted: bool
    def __init__(self, name: _Optional[str] = ..., topic: _Optional[str] = ..., options: _Optional[str] = ..., created_us: _Optional[int] = ..., detached: bool = ..., topic_deleted: bool = ...) -> None: ...

class CreateSubscriptionRequest(_message.Message):
    __slots__ = ("subscription", "topic", "options")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    topic: str
    options: str
    def __init__(self, subscription: _Optional[str] = ..., topic: _Optional[str] = ..., options: _Optional[str] = ...) -> None: ...

class UpdateSubscriptionRequest(_message.Message):
    __slots__ = ("subscription", "changes")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    changes: str
    def __init__(self, subscription: _Optional[str] = ..., changes: _Optional[str] = ...) -> None: ...

class GetSubscriptionRequest(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    def __init__(self, subscription: _Optional[str] = ...) -> None: ...

class ListSubscriptionsRequest(_message.Message):
    __slots__ = ("project", "topic", "page_token", "page_size")
    PROJECT_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    project: str
    topic: str
    page_token: str
    page_size: int
    def __init__(self, project: _Optional[str] = ..., topic: _Optional[str] = ..., page_token: _Optional[str] = ..., page_size: _Optional[int] = ...) -> None: ...

class ListSubscriptionsResponse(_message.Message):
    __slots__ = ("subscriptions", "next_page_token")
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    next_page_token: str
    def __init__(self, subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("subscription", "position", "time_us")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    position: int
    time_us: int
    def __init__(self, subscription: _Optional[str] = ..., position: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...

class BlockedKey(_message.Message):
    __slots__ = ("ordering_key", "reason", "waiting", "position", "failures", "age_seconds", "head_of_line_seconds")
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEAD_OF_LINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ordering_key: str
    reason: str
    waiting: int
    position: int
    failures: int
    age_seconds: float
    head_of_line_seconds: float
    def __init__(self, ordering_key: _Optional[str] = ..., reason: _Optional[str] = ..., waiting: _Optional[int] = ..., position: _Optional[int] = ..., failures: _Optional[int] = ..., age_seconds: _Optional[float] = ..., head_of_line_seconds: _Optional[float] = ...) -> None: ...

class BlockedKeysRequest(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    def __init__(self, subscription: _Optional[str] = ...) -> None: ...

class BlockedKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[BlockedKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[BlockedKey, _Mapping]]] = ...) -> None: ...

class WatchKeysRequest(_message.Message):
    __slots__ = ("subscription", "seconds")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    seconds: float
    def __init__(self, subscription: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class KeyRequest(_message.Message):
    __slots__ = ("subscription", "ordering_key")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    ordering_key: str
    def __init__(self, subscription: _Optional[str] = ..., ordering_key: _Optional[str] = ...) -> None: ...

class SkipKeyResponse(_message.Message):
    __slots__ = ("message_id",)
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    def __init__(self, message_id: _Optional[str] = ...) -> None: ...

class UnackedRequest(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    def __init__(self, subscription: _Optional[str] = ...) -> None: ...

class UnackedKey(_message.Message):
    __slots__ = ("ordering_key", "messages", "position")
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ordering_key: str
    messages: int
    position: int
    def __init__(self, ordering_key: _Optional[str] = ..., messages: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class UnackedResponse(_message.Message):
    __slots__ = ("keys", "known_to")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_TO_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[UnackedKey]
    known_to: int
    def __init__(self, keys: _Optional[_Iterable[_Union[UnackedKey, _Mapping]]] = ..., known_to: _Optional[int] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ("subscription",)
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    def __init__(self, subscription: _Optional[str] = ...) -> None: ...

class MetricsResponse(_message.Message):
    __slots__ = ("counters", "backlog_messages", "backlog_bytes", "outstanding_messages", "outstanding_bytes", "oldest_unacked_seconds", "blocked_keys", "parked_keys", "head_of_line_seconds")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BACKLOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OUTSTANDING_BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNACKED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_KEYS_FIELD_NUMBER: _ClassVar[int]
    PARKED_KEYS_FIELD_NUMBER: _ClassVar[int]
    HEAD_OF_LINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    counters: _containers.ScalarMap[str, int]
    backlog_messages: int
    backlog_bytes: int
    outstanding_messages: int
    outstanding_bytes: int
    oldest_unacked_seconds: float
    blocked_keys: int
    parked_keys: int
    head_of_line_seconds: float
    def __init__(self, counters: _Optional[_Mapping[str, int]] = ..., backlog_messages: _Optional[int] = ..., backlog_bytes: _Optional[int] = ..., outstanding_messages: _Optional[int] = ..., outstanding_bytes: _Optional[int] = ..., oldest_unacked_seconds: _Optional[float] = ..., blocked_keys: _Optional[int] = ..., parked_keys: _Optional[int] = ..., head_of_line_seconds: _Optional[float] = ...) -> None: ...

class OpenProducerRequest(_message.Message):
    __slots__ = ("topic", "producer", "held_epoch")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    HELD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    topic: str
    producer: str
    held_epoch: int
    def __init__(self, topic: _Optional[str] = ..., producer: _Optional[str] = ..., held_epoch: _Optional[int] = ...) -> None: ...

class OpenProducerResponse(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("producer", "epoch", "number", "now", "columns")
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    producer: str
    epoch: int
    number: int
    now: bool
    columns: bool
    def __init__(self, producer: _Optional[str] = ..., epoch: _Optional[int] = ..., number: _Optional[int] = ..., now: bool = ..., columns: bool = ...) -> None: ...

class TopicBoundsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class TopicBoundsResponse(_message.Message):
    __slots__ = ("serial", "begin", "end", "created_us")
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    serial: int
    begin: int
    end: int
    created_us: int
    def __init__(self, serial: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., created_us: _Optional[int] = ...) -> None: ...

class PositionAtRequest(_message.Message):
    __slots__ = ("topic", "time_us")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    topic: str
    time_us: int
    def __init__(self, topic: _Optional[str] = ..., time_us: _Optional[int] = ...) -> None: ...

class PositionAfterRequest(_message.Message):
    __slots__ = ("topic", "first", "bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    first: int
    bytes: int
    def __init__(self, topic: _Optional[str] = ..., first: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class PositionResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: int
    def __init__(self, position: _Optional[int] = ...) -> None: ...

class ReadTopicRequest(_message.Message):
    __slots__ = ("topic", "serial", "first", "end", "first_slot", "end_slot")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FIRST_SLOT_FIELD_NUMBER: _ClassVar[int]
    END_SLOT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    serial: int
    first: int
    end: int
    first_slot: int
    end_slot: int
    def __init__(self, topic: _Optional[str] = ..., serial: _Optional[int] = ..., first: _Optional[int] = ..., end: _Optional[int] = ..., first_slot: _Optional[int] = ..., end_slot: _Optional[int] = ...) -> None: ...

class ReadTopicResponse(_message.Message):
    __slots__ = ("batches", "end")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    batches: bytes
    end: int
    def __init__(self, batches: _Optional[bytes] = ..., end: _Optional[int] = ...) -> None: ...

class StagePartRequest(_message.Message):
    __slots__ = ("topic", "writer", "epoch", "batches")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    writer: str
    epoch: int
    batches: bytes
    def __init__(self, topic: _Optional[str] = ..., writer: _Optional[str] = ..., epoch: _Optional[int] = ..., batches: _Optional[bytes] = ...) -> None: ...

class StagePartResponse(_message.Message):
    __slots__ = ("part",)
    PART_FIELD_NUMBER: _ClassVar[int]
    part: str
    def __init__(self, part: _Optional[str] = ...) -> None: ...

class CommitEpochRequest(_message.Message):
    __slots__ = ("topic", "writer", "epoch", "parts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    writer: str
    epoch: int
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., writer: _Optional[str] = ..., epoch: _Optional[int] = ..., parts: _Optional[_Iterable[str]] = ...) -> None: ...

class CommitEpochResponse(_message.Message):
    __slots__ = ("first",)
    FIRST_FIELD_NUMBER: _ClassVar[int]
    first: bool
    def __init__(self, first: bool = ...) -> None: ...

class DiscardPartsRequest(_message.Message):
    __slots__ = ("topic", "writer", "epoch", "parts")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    writer: str
    epoch: int
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topic: _Optional[str] = ..., writer: _Optional[str] = ..., epoch: _Optional[int] = ..., parts: _Optional[_Iterable[str]] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("subscription", "number", "ack_id_prefix", "acks", "nacks", "keeps", "releases", "messages", "bytes", "last")
    class Keep(_message.Message):
        __slots__ = ("leases", "seconds")
        LEASES_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        leases: _containers.RepeatedScalarFieldContainer[int]
        seconds: float
        def __init__(self, leases: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ...) -> None: ...
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ACK_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    NACKS_FIELD_NUMBER: _ClassVar[int]
    KEEPS_FIELD_NUMBER: _ClassVar[int]
    RELEASES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    number: int
    ack_id_prefix: str
    acks: _containers.RepeatedScalarFieldContainer[int]
    nacks: _containers.RepeatedScalarFieldContainer[int]
    keeps: _containers.RepeatedCompositeFieldContainer[Demand.Keep]
    releases: _containers.RepeatedScalarFieldContainer[int]
    messages: int
    bytes: int
    last: bool
    def __init__(self, subscription: _Optional[str] = ..., number: _Optional[int] = ..., ack_id_prefix: _Optional[str] = ..., acks: _Optional[_Iterable[int]] = ..., nacks: _Optional[_Iterable[int]] = ..., keeps: _Optional[_Iterable[_Union[Demand.Keep, _Mapping]]] = ..., releases: _Optional[_Iterable[int]] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., last: bool = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("terms", "messages", "confirmations", "problems", "sent_bytes", "sent_us", "granted_us")
    TERMS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CONFIRMATIONS_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SENT_US_FIELD_NUMBER: _ClassVar[int]
    GRANTED_US_FIELD_NUMBER: _ClassVar[int]
    terms: Terms
    messages: Columns
    confirmations: _containers.RepeatedCompositeFieldContainer[Confirmation]
    problems: _containers.RepeatedScalarFieldContainer[str]
    sent_bytes: int
    sent_us: int
    granted_us: int
    def __init__(self, terms: _Optional[_Union[Terms, _Mapping]] = ..., messages: _Optional[_Union[Columns, _Mapping]] = ..., confirmations: _Optional[_Iterable[_Union[Confirmation, _Mapping]]] = ..., problems: _Optional[_Iterable[str]] = ..., sent_bytes: _Optional[int] = ..., sent_us: _Optional[int] = ..., granted_us: _Optional[int] = ...) -> None: ...

class Columns(_message.Message):
    __slots__ = ("leases", "positions", "attempts", "ordering_keys", "data", "publish_us", "attributes", "gaps")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Attributes
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Attributes, _Mapping]] = ...) -> None: ...
    class GapsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Gap
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Gap, _Mapping]] = ...) -> None: ...
    LEASES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    ORDERING_KEYS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_US_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    ordering_keys: _containers.RepeatedScalarFieldContainer[str]
    data: _containers.RepeatedScalarFieldContainer[bytes]
    publish_us: _containers.RepeatedScalarFieldContainer[int]
    attributes: _containers.MessageMap[int, Attributes]
    gaps: _containers.MessageMap[int, Gap]
    def __init__(self, leases: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., attempts: _Optional[_Iterable[int]] = ..., ordering_keys: _Optional[_Iterable[str]] = ..., data: _Optional[_Iterable[bytes]] = ..., publish_us: _Optional[_Iterable[int]] = ..., attributes: _Optional[_Mapping[int, Attributes]] = ..., gaps: _Optional[_Mapping[int, Gap]] = ...) -> None: ...

class Attributes(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Confirmation(_message.Message):
    __slots__ = ("number", "over")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    number: int
    over: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., over: _Optional[_Iterable[int]] = ...) -> None: ...

class PublishColumns(_message.Message):
    __slots__ = ("topic", "messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: Columns
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[_Union[Columns, _Mapping]] = ...) -> None: ...

class PublishedColumns(_message.Message):
    __slots__ = ("id_prefix", "first_position")
    ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    id_prefix: str
    first_position: int
    def __init__(self, id_prefix: _Optional[str] = ..., first_position: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("message_ids",)
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    message_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, message_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("ordering_key", "first_position", "last_position", "count", "reason")
    ORDERING_KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_POSITION_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ordering_key: str
    first_position: int
    last_position: int
    count: int
    reason: str
    def __init__(self, ordering_key: _Optional[str] = ..., first_position: _Optional[int] = ..., last_position: _Optional[int] = ..., count: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("options", "id_prefix", "ack_id_prefix")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ACK_ID_PREFIX_FIELD_NUMBER: _ClassVar[int]
    options: str
    id_prefix: str
    ack_id_prefix: str
    def __init__(self, options: _Optional[str] = ..., id_prefix: _Optional[str] = ..., ack_id_prefix: _Optional[str] = ...) -> None: ...

class TakeRequest(_message.Message):
    __slots__ = ("subscription", "max_messages", "take", "unseen")
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TAKE_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_FIELD_NUMBER: _ClassVar[int]
    subscription: str
    max_messages: int
    take: str
    unseen: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, subscription: _Optional[str] = ..., max_messages: _Optional[int] = ..., take: _Optional[str] = ..., unseen: _Optional[_Iterable[str]] = ...) -> None: ...
