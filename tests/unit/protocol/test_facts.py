"""An error comes out of the wire as it went in."""

import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from inorder import errors
from inorder.errors import InorderError
from inorder.protocol.facts import details_of, error_of

FACTS = (
    errors.TopicNotFound("orders"),
    errors.SubscriptionAlreadyExists("worker"),
    errors.InvalidAckId("a-1", "a-2"),
    errors.InvalidFilter("attributes.x =", 14, "a value is missing"),
    errors.KeyNotBlocked("k"),
    errors.NotRetained(3, 7),
    errors.FrameDropped(1, 2),
    errors.Unavailable("gone"),
)


@pytest.mark.parametrize("error", FACTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("text", ["", "In other words."])
def test_an_error_comes_back(error: InorderError, text: str) -> None:
    said = text or str(error)
    found = error_of(int(error.code), said, details_of(error, int(error.code), said))
    assert (type(found), str(found), found.code) == (type(error), str(error), error.code)
    assert vars(found) == {name: list(v) if isinstance(v, tuple) else v for name, v in vars(error).items()}


@pytest.mark.parametrize("details", [None, b"", b"\xff\xff"])
def test_without_a_fact_the_code_is_the_kind(details: bytes | None) -> None:
    found = error_of(5, "There is none.", details)
    assert (type(found), str(found)) == (errors.NotFound, "There is none.")
    assert type(error_of(13, "A mistake.", details)) is errors.FailedPrecondition


@pytest.mark.parametrize(
    ("domain", "reason"),
    [("pubsub.googleapis.com", "TopicNotFound"), ("inorder.v1", "OfALaterVersion"), ("inorder.v1", "Code")],
)
def test_what_is_no_fact_of_ours_is_left_alone(domain: str, reason: str) -> None:
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(domain=domain, reason=reason, metadata={"a": "no JSON"}))
    status = status_pb2.Status(code=5, message="There is none.", details=[packed])
    assert type(error_of(5, "There is none.", status.SerializeToString())) is errors.NotFound


def test_a_fact_brings_no_more_than_facts() -> None:
    packed = any_pb2.Any()
    metadata = {"__class__": '"x"', "position": "1", "text": "no JSON"}
    packed.Pack(error_details_pb2.ErrorInfo(domain="inorder.v1", reason="InvalidFilter", metadata=metadata))
    status = status_pb2.Status(code=3, message="No.", details=[packed])
    found = error_of(3, "No.", status.SerializeToString())
    assert (type(found), str(found), vars(found)) == (errors.InvalidFilter, "No.", {"position": 1})
