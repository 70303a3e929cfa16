"""The book of policies: tags that change with them, and which permissions hold."""

import pytest

from inorder.errors import Aborted, ForeignState, InvalidArgument
from inorder.server.iam.book import ETAG_OF_NONE, MAX_POLICY_BYTES, PERMISSIONS, PolicyBook, check_resource, granted

TOPIC = "projects/p/topics/orders"


def test_a_resource_has_no_policy_until_one_is_set() -> None:
    book = PolicyBook()
    assert book.get(TOPIC).content == b""
    assert book.get(TOPIC).etag == ETAG_OF_NONE
    policy = book.replaced(TOPIC, b"", b"one", now_us=5)
    assert TOPIC not in book
    book.put(TOPIC, policy)
    assert book.get(TOPIC) == policy


def test_the_etag_must_be_that_of_the_policy_as_it_is() -> None:
    book = PolicyBook()
    book.put(TOPIC, first := book.replaced(TOPIC, ETAG_OF_NONE, b"one", now_us=5))
    book.put(TOPIC, second := book.replaced(TOPIC, first.etag, b"two", now_us=5))
    assert first.etag != second.etag
    with pytest.raises(Aborted, match="concurrent policy changes"):
        book.replaced(TOPIC, first.etag, b"three", now_us=6)
    assert book.replaced(TOPIC, b"", b"three", now_us=6).content == b"three"


def test_a_resource_that_is_made_anew_repeats_no_etag() -> None:
    book = PolicyBook()
    book.put(TOPIC, first := book.replaced(TOPIC, b"", b"one", now_us=5))
    book.put(TOPIC, None)
    assert book.get(TOPIC).etag == ETAG_OF_NONE
    with pytest.raises(Aborted):
        book.replaced(TOPIC, first.etag, b"two", now_us=6)
    assert book.replaced(TOPIC, b"", b"two", now_us=6).etag != first.etag


def test_a_book_is_the_same_after_storage() -> None:
    book = PolicyBook()
    book.put(TOPIC, policy := book.replaced(TOPIC, b"", b"one", now_us=5))
    assert PolicyBook({TOPIC: policy.encode()}).get(TOPIC) == policy
    with pytest.raises(ForeignState, match=TOPIC):
        PolicyBook({TOPIC: b"short"})


def test_a_policy_has_a_limit() -> None:
    with pytest.raises(InvalidArgument, match="250001 bytes, more than the maximum of 250000"):
        PolicyBook().replaced(TOPIC, b"", bytes(MAX_POLICY_BYTES + 1), now_us=5)


def test_what_has_policies() -> None:
    for collection in ("topics", "subscriptions", "snapshots", "schemas"):
        assert check_resource(f"projects/p/{collection}/orders") == collection
    for wrong in ("", "orders", "projects/p", "projects/p/tables/orders", f"{TOPIC}/more", f"{TOPIC}@1"):
        with pytest.raises(InvalidArgument, match="Invalid resource name"):
            check_resource(wrong)


def test_what_has_a_meaning_here_is_granted() -> None:
    asked = ["pubsub.topics.publish", "pubsub.subscriptions.consume", "pubsub.topics.fly", "storage.buckets.get"]
    assert granted(asked) == asked[:2]
    assert granted(sorted(PERMISSIONS)) == sorted(PERMISSIONS)
    with pytest.raises(InvalidArgument, match="wildcards"):
        granted(["pubsub.topics.*"])
