"""What can go wrong, as a kind (its code is gRPC's number) and, beneath it, a fact.

Raise the fact, catch the kind. A server maps `code` and needs to know no subclass.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class Code(IntEnum):
    """The status numbers of gRPC that this library uses."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class InorderError(Exception):
    """Every error that this library raises on purpose."""

    code: Code

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel between processes. Python would make one anew of its text, around which its class puts the
        # words that are in there already, if it takes a text at all.
        return _as_it_was, (type(self), self.args), self.__dict__


def _as_it_was(kind: type[InorderError], args: tuple[Any, ...]) -> InorderError:
    error = kind.__new__(kind)
    error.args = args
    return error


class InvalidArgument(InorderError):
    """The call is wrong whatever the state of the broker; repeating it cannot help."""

    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(InorderError, TimeoutError):
    """The answer did not come within the time the caller gave it."""

    code = Code.DEADLINE_EXCEEDED


class NotFound(InorderError):
    """What the call names does not exist."""

    code = Code.NOT_FOUND


class AlreadyExists(InorderError):
    """What the call wants to create is there."""

    code = Code.ALREADY_EXISTS


class PermissionDenied(InorderError):
    """A server knows who asks, and that one has no right to this."""

    code = Code.PERMISSION_DENIED


class ResourceExhausted(InorderError):
    """A limit is reached. Nothing was stored; the call may succeed later."""

    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(InorderError):
    """The call is fine, but not in this state."""

    code = Code.FAILED_PRECONDITION


class Aborted(InorderError):
    """The work was given up before it was done; it may be tried again."""

    code = Code.ABORTED


class Unavailable(InorderError):
    """The broker cannot be reached, or has been closed."""

    code = Code.UNAVAILABLE


class DataLoss(InorderError):
    """Stored data is damaged."""

    code = Code.DATA_LOSS


class Unauthenticated(InorderError):
    """A server wants a token, and got none that it knows."""

    code = Code.UNAUTHENTICATED


class TopicNotFound(NotFound):
    """The topic was never created, or was deleted."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"Topic not found: {topic}")
        self.topic = topic


class SubscriptionNotFound(NotFound):
    """The subscription was never created, or was deleted."""

    def __init__(self, subscription: str) -> None:
        super().__init__(f"Subscription not found: {subscription}")
        self.subscription = subscription


class SnapshotNotFound(NotFound):
    """The snapshot was never created, was deleted, alone or with its topic, or its time is over."""

    def __init__(self, snapshot: str) -> None:
        super().__init__(f"Snapshot not found: {snapshot}")


class TopicAlreadyExists(AlreadyExists):
    """A topic of this name is there."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"Topic already exists: {topic}")


class SubscriptionAlreadyExists(AlreadyExists):
    """A subscription of this name is there."""

    def __init__(self, subscription: str) -> None:
        super().__init__(f"Subscription already exists: {subscription}")


class SnapshotAlreadyExists(AlreadyExists):
    """A snapshot of this name is there."""

    def __init__(self, snapshot: str) -> None:
        super().__init__(f"Snapshot already exists: {snapshot}")


class InvalidAckId(InvalidArgument):
    """The ack id was never given out, was used, or its lease is over."""

    def __init__(self, *ack_ids: str) -> None:
        super().__init__(f"Invalid ack ID: {', '.join(ack_ids)}")
        self.ack_ids: Sequence[str] = ack_ids


class InvalidOrderingKey(InvalidArgument):
    """The ordering key is empty, too long or not a string."""


class InvalidMessage(InvalidArgument):
    """The message's data or attributes break a limit."""


class InvalidName(InvalidArgument):
    """A topic or subscription name that Pub/Sub would refuse."""


class InvalidFilter(InvalidArgument):
    """The filter text does not parse; `position` is the index of the offending character."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        super().__init__(f"invalid filter at position {position}: {problem}: {text!r}")
        self.text = text
        self.position = position


class OrderingNotEnabled(InvalidArgument):
    """The topic's publish options say `message_ordering=False`, and the message has a key."""

    def __init__(self) -> None:
        super().__init__("Message ordering must be enabled on topic to use ordering keys")


class KeyPaused(FailedPrecondition):
    """An earlier publish of this key failed; publishing on would break its order."""

    def __init__(self, ordering_key: str) -> None:
        super().__init__(
            f"ordering key {ordering_key!r} is paused since a publish of it failed; "
            f"call resume_publishing({ordering_key!r}) to go on"
        )


class KeyNotBlocked(FailedPrecondition):
    """Only a key that is parked or waits for a retry can be resumed or skipped."""

    def __init__(self, ordering_key: str) -> None:
        super().__init__(f"ordering key {ordering_key!r} is neither parked nor waiting for a retry")


class NotRetained(FailedPrecondition):
    """The position is older than all that is retained, or still unacked, for the subscription."""

    def __init__(self, position: int, oldest: int) -> None:
        super().__init__(
            f"position {position} is no longer retained: replay is possible from {oldest} on; "
            "retain_acked_messages or the topic's message_retention_duration keep more"
        )


class ProducerFenced(FailedPrecondition):
    """Somebody has opened the producer again: what its earlier epochs attempt is refused, and was not stored."""

    def __init__(self, producer: str, epoch: int, now: int) -> None:
        super().__init__(
            f"producer {producer!r} was opened again: it is in epoch {now}, and attempts of epoch {epoch} are refused"
        )


class OutOfSequence(FailedPrecondition):
    """An attempt came whose predecessor is not there; nothing of it was stored."""


class TooLongAgo(FailedPrecondition):
    """The attempt was stored, but its ids are forgotten."""

    def __init__(self, producer: str, number: int, oldest: int) -> None:
        super().__init__(
            f"attempt {number} of producer {producer!r} was stored too long ago: ids are known from {oldest} on"
        )


class QueueFull(ResourceExhausted):
    """A subscription with `when_full="error"` has no room for the batch; nothing was stored."""

    def __init__(self, subscription: str, limit: str) -> None:
        super().__init__(f"subscription {subscription!r} is full: {limit}")


class Closed(Unavailable):
    """The object was closed; it takes no more calls."""


class JournalDamaged(DataLoss):
    """What a journal had made durable cannot be read any more. Nothing on disk was changed."""

    def __init__(self, file: str, position: int, problem: str, *, unit: str = "byte") -> None:
        super().__init__(f"journal damaged: {file}, {unit} {position}: {problem}")
        self.file = file
        self.position = position
        self.problem = problem


class JournalFailed(Unavailable):
    """The disk refused a read, a write or a sync. The journal takes no more calls until it is opened anew."""

    def __init__(self, operation: str, file: str, error: Exception) -> None:
        super().__init__(f"the journal stopped, as it could not {operation} {file}: {error}")
        self.operation = operation
        self.file = file
        self.error = error


class JournalInUse(FailedPrecondition):
    """Another broker owns the folder."""

    def __init__(self, folder: str, owner: str) -> None:
        super().__init__(f"the journal in {folder} is in use by {owner}")


class JournalTooNew(FailedPrecondition):
    """The file was written in a format that this version does not know."""

    def __init__(self, file: str, version: int, known: int) -> None:
        super().__init__(f"{file} has journal format {version}, and this version of inorder knows format {known} only")


class OtherJournal(FailedPrecondition):
    """The folder holds a journal of another kind."""

    def __init__(self, folder: str, file: str) -> None:
        super().__init__(f"{folder} holds a journal of another kind: {file}")


class FrameDropped(FailedPrecondition):
    """The location was in the journal once; its part has been dropped since."""

    def __init__(self, location: int, oldest: int) -> None:
        super().__init__(f"location {location} is no longer in the journal, which begins at {oldest}")
        self.location = location
        self.oldest = oldest


class InvalidEvent(InvalidArgument):
    """A pattern cannot read the event: its key, number, time or fields are not what they must be."""

    def __init__(self, problem: str, event: object) -> None:
        super().__init__(problem)
        self.event: Any = event


class LateEvent(FailedPrecondition):
    """The pattern went on without this event, and its policy is not to take it any more."""

    def __init__(self, key: str, number: int, expected: int, event: object) -> None:
        super().__init__(f"key {key!r}: {number} comes too late, {expected} is expected next")
        self.event = event


class DuplicateEvent(AlreadyExists):
    """The event was taken before, and the policy is to be told."""

    def __init__(self, key: str, number: int, expected: int, event: object) -> None:
        super().__init__(f"key {key!r}: {number} was released before, {expected} is expected next")
        self.event = event


class ParkingFull(ResourceExhausted):
    """As many events of the key wait for an earlier one as may."""

    def __init__(self, key: str, capacity: int, expected: int, event: object) -> None:
        super().__init__(f"key {key!r}: {capacity} events are parked, as many as may be, and {expected} is missing")
        self.event = event


class ProgressMissing(FailedPrecondition):
    """The pattern begins no key by itself, and the key has no stored state."""

    def __init__(self, key: str, event: object) -> None:
        super().__init__(f"key {key!r}: no progress is stored, and initial='stored' begins no key by itself")
        self.event = event


class ForeignState(DataLoss):
    """The stored bytes are not the state of this pattern, or are damaged."""

    def __init__(self, expected: str, problem: str) -> None:
        super().__init__(f"not a state of {expected}: {problem}")


class ClockDrift(FailedPrecondition):
    """Another clock is further ahead than it may be; following it would spread its error."""

    def __init__(self, ahead_us: int, limit_us: int) -> None:
        super().__init__(f"a clock is {ahead_us} µs ahead, more than the limit of {limit_us} µs")
        self.ahead_us = ahead_us
        self.limit_us = limit_us


class FieldOwnedTwice(InvalidArgument):
    """Two event types would write one field, so the order of their events would matter."""

    def __init__(self, field: str, first: str, second: str) -> None:
        super().__init__(f"field {field!r} is owned by both {first!r} and {second!r}; give each a field of its own")
        self.field = field
        self.owners = (first, second)


class UnknownEventType(InvalidArgument):
    """No handler is registered for the event type, and the policy is to fail."""


class UndecodableEvent(InvalidArgument):
    """The message is not what its event type says it is."""


class PipelineInvalid(InvalidArgument):
    """The file of a pipeline says what cannot be. All that is wrong is told together, a line each."""

    def __init__(self, file: str, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join([f"{file}:", *(f"  {problem}" for problem in problems)]))
        self.problems = problems


class PipelineFailed(FailedPrecondition):
    """A batch of a pipeline could not be done. What was done before stays, and another run goes on from there."""


class StateRefused(FailedPrecondition):
    """The stored state of a streaming query was made for something else than what is asked of it now."""

    def __init__(self, folder: str, problem: str) -> None:
        super().__init__(f"the state in {folder} cannot be used: {problem}")


class StateDamaged(DataLoss):
    """A part of the stored state of a streaming query is missing or cannot be read. Nothing was changed."""

    def __init__(self, folder: str, problem: str) -> None:
        super().__init__(f"the state in {folder} is damaged: {problem}")
