"""Bad input: the right kind of error, a message that helps, and nothing stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from inorder.errors import (
    InvalidAckId,
    InvalidArgument,
    InvalidFilter,
    InvalidMessage,
    InvalidName,
    InvalidOrderingKey,
    SubscriptionAlreadyExists,
    SubscriptionNotFound,
    TopicAlreadyExists,
    TopicNotFound,
)
from inorder.message import Columns, Message
from inorder.testing.conformance.case import QueueCase

BAD_KEYS: dict[str, tuple[Any, list[str]]] = {
    "empty": ("", ["Ordering key cannot be empty"]),
    "too long": ("x" * 1025, ["Ordering key exceeds maximum length of 1024 bytes", "1025"]),
    "too long in bytes": ("é" * 513, ["Ordering key exceeds maximum length of 1024 bytes", "1026"]),
    "a number": (5, ["string", "int"]),
    "bytes": (b"key", ["string", "bytes"]),
    "half a character": ("key\ud800", ["not valid UTF-8", "3"]),
}

BAD_MESSAGES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "data is text": (lambda: Message("text"), ["data", "bytes", "str"]),  # type: ignore[arg-type]
    "data is nothing": (lambda: Message(None), ["data", "bytes", "NoneType"]),  # type: ignore[arg-type]
    "data is a list": (lambda: Message([1]), ["data", "bytes", "list"]),  # type: ignore[arg-type]
    "above 10 MB": (lambda: Message(bytes(10_000_001)), ["10000001", "10000000"]),
    "above 10 MB with its key": (lambda: Message(bytes(9_999_999), ordering_key="kk"), ["10000001", "10000000"]),
    "above 10 MB with its attributes": (lambda: Message(bytes(9_999_999), {"k": "v"}), ["10000001", "10000000"]),
    "an empty attribute key": (lambda: Message(b"", {"": "v"}), ["Attribute key cannot be empty"]),
    "a reserved prefix": (lambda: Message(b"", {"goog-x": "v"}), ["'goog-x'", "'goog'"]),
    "the other reserved prefix": (lambda: Message(b"", {"googclient_x": "v"}), ["'googclient_x'", "goog"]),
    "an attribute key too long": (lambda: Message(b"", {"k" * 257: "v"}), ["257", "256"]),
    "an attribute key too long in bytes": (lambda: Message(b"", {"é" * 129: "v"}), ["258", "256"]),
    "an attribute value too long": (lambda: Message(b"", {"key": "v" * 1025}), ["'key'", "1025", "1024"]),
    "an attribute value too long in bytes": (lambda: Message(b"", {"key": "é" * 513}), ["'key'", "1026", "1024"]),
    "an attribute value that is a number": (
        lambda: Message(b"", {"key": 5}),  # type: ignore[dict-item]
        ["'key'", "string", "int"],
    ),
    "an attribute value that is nothing": (
        lambda: Message(b"", {"key": None}),  # type: ignore[dict-item]
        ["'key'", "string", "NoneType"],
    ),
    "an attribute key that is a number": (
        lambda: Message(b"", {5: "v"}),  # type: ignore[dict-item]
        ["string", "int", "5"],
    ),
    "half a character in an attribute": (lambda: Message(b"", {"key": "\udc00"}), ["'key'", "not valid UTF-8"]),
    "too many attributes": (lambda: Message(b"", {f"k{n}": "" for n in range(101)}), ["101", "100"]),
    "attributes are a list": (lambda: Message(b"", [("k", "v")]), ["attributes", "list"]),  # type: ignore[arg-type]
    "attributes are text": (lambda: Message(b"", "k=v"), ["attributes", "str"]),  # type: ignore[arg-type]
    "attributes are an empty list": (lambda: Message(b"", []), ["attributes", "list"]),  # type: ignore[arg-type]
    "bytes in place of a message": (lambda: b"data", ["Message", "bytes"]),
    "nothing in place of a message": (lambda: None, ["Message", "NoneType"]),
}

BAD_COLUMNS: dict[str, tuple[Columns, list[str]]] = {
    "of different lengths": (Columns(["a", "b"], [b"1"]), ["2 keys", "1 data"]),
    "too few attributes": (Columns(["a"], [b"1"], []), ["1 keys", "1 data", "0 attributes"]),
    "keys are text": (Columns("ab", [b"1", b"2"]), ["keys", "list", "str"]),
    "data are bytes": (Columns(["a", "b"], b"12"), ["data", "list", "bytes"]),  # type: ignore[arg-type]
    "keys are an iterator": (Columns(iter("ab"), [b"1", b"2"]), ["keys", "list", "iterator"]),  # type: ignore[arg-type]
    "an empty key": (Columns(["a", ""], [b"1", b"2"]), ["Ordering key cannot be empty"]),
    "a key that is a number": (Columns(["a", 5], [b"1", b"2"]), ["string", "int"]),  # type: ignore[list-item]
    "data that is text": (Columns(["a", "b"], [b"1", "2"]), ["data", "bytes", "str"]),  # type: ignore[list-item]
    "a reserved prefix": (Columns(["a"], [b"1"], [{"goog-x": "v"}]), ["'goog-x'", "'goog'"]),
}

HUGE = 10**5000  # more digits than Python is willing to print

BAD_OPTIONS: list[tuple[Any, list[str]]] = [
    (5, ["options", "int"]),
    ("ordered", ["options", "str"]),
    ({"ack_dedline_seconds": 10}, ["'ack_dedline_seconds'", "'ack_deadline_seconds'"]),
    ({"colour": "red"}, ["'colour'"]),
    ({"messageOrdering": True}, ["'messageOrdering'", "message_ordering"]),
    ({"message_ordering": True, "enable_message_ordering": True}, ["enable_message_ordering", "twice"]),
    ({"ack_deadline_seconds": 0}, ["ack_deadline_seconds", "above 0", "600", "not 0"]),
    ({"ack_deadline_seconds": -1}, ["ack_deadline_seconds", "600", "not -1"]),
    ({"ack_deadline_seconds": 600.5}, ["ack_deadline_seconds", "600", "not 600.5"]),
    ({"ack_deadline_seconds": math.nan}, ["ack_deadline_seconds", "nan"]),
    ({"ack_deadline_seconds": math.inf}, ["ack_deadline_seconds", "inf"]),
    ({"ack_deadline_seconds": "10"}, ["ack_deadline_seconds", "'10'"]),
    ({"ack_deadline_seconds": True}, ["ack_deadline_seconds", "True"]),
    ({"enable_message_ordering": "yes"}, ["enable_message_ordering", "'yes'"]),
    ({"enable_message_ordering": 1}, ["enable_message_ordering", "not 1"]),
    ({"retain_acked_messages": "no"}, ["retain_acked_messages", "'no'"]),
    ({"retry_policy": {"minimum_backoff": -1}}, ["retry_policy", "minimum_backoff", "-1"]),
    ({"retry_policy": {"minimum_backoff": 20, "maximum_backoff": 10}}, ["retry_policy", "20", "10"]),
    ({"retry_policy": {"maximum_backof": 10}}, ["retry_policy", "'maximum_backof'", "'maximum_backoff'"]),
    ({"retry_policy": 10}, ["retry_policy", "int"]),
    ({"dead_letter_policy": {"dead_letter_topic": "dead", "max_delivery_attempts": 0}}, ["dead_letter_policy", "0"]),
    ({"dead_letter_policy": {"dead_letter_topic": ""}}, ["dead_letter_policy", "''"]),
    ({"dead_letter_policy": {"max_delivery_attempts": 5}}, ["dead_letter_policy", "dead_letter_topic"]),
    ({"dead_letter_policy": {"dead_letter_topic": "orders"}}, ["dead_letter_topic", "'orders'"]),
    ({"flow_control": {"max_messages": 0}}, ["flow_control", "max_messages", "at least 1", "0"]),
    ({"flow_control": {"max_bytes": 1.5}}, ["flow_control", "max_bytes", "1.5"]),
    ({"message_retention_duration": 0}, ["message_retention_duration", "above 0", "not 0"]),
    ({"message_retention_duration": 31 * 86_400 + 1}, ["message_retention_duration", "2678400", "2678401"]),
    ({"queue_limits": {"max_messages": 0}}, ["queue_limits", "max_messages", "at least 1", "0"]),
    ({"queue_limits": {"max_bytes": -1}}, ["queue_limits", "max_bytes", "-1"]),
    ({"queue_limits": {"when_full": "explode"}}, ["queue_limits", "when_full", "'drop'", "'explode'"]),
    ({"on_poison": "explode"}, ["on_poison", "'park_key'", "'explode'"]),
    ({"on_poison": "park_key"}, ["on_poison", "enable_message_ordering"]),
    ({"max_outstanding_per_key": 2}, ["max_outstanding_per_key", "enable_message_ordering"]),
    ({"max_outstanding_per_key": 0}, ["max_outstanding_per_key", "at least 1", "0"]),
    ({"max_outstanding_per_key": 1.0}, ["max_outstanding_per_key", "1.0"]),
    ({"max_outstanding_per_key": 10**30}, ["max_outstanding_per_key", "9223372036854775807"]),
    ({"flow_control": {"max_messages": HUGE}}, ["flow_control", "max_messages"]),
    ({"ack_deadline_seconds": HUGE}, ["ack_deadline_seconds", "600"]),
    ({"filter": "attributes:" + "k" * 250}, ["filter", "256"]),
    ({"filter": 5}, ["filter", "5"]),
    ({"filter": None}, ["filter", "None"]),
    ({"filter": 'attributes.k = "\ud800"'}, ["filter", "position 16"]),
]

OPTION_IDS = [", ".join(map(str, words)) for _, words in BAD_OPTIONS]

BAD_NAMES: list[tuple[Any, list[str]]] = [
    ("", ["''"]),
    ("1st", ["'1st'", "letter"]),
    ("two words", ["'two words'"]),
    ("line\n", [r"'line\n'"]),
    ("a/b", ["'a/b'"]),
    ("projects/p/schemas/a", ["'projects/p/schemas/a'"]),
    ("projects/p/q/a", ["'projects/p/q/a'"]),
    ("projects//a", ["'projects//a'"]),
    ("projects/\ud800/topics/a", ["projects/PROJECT"]),
    ("projects/\ud800/subscriptions/a", ["projects/PROJECT"]),
    ("schlüssel", ["'schlüssel'"]),
    ("google-orders", ["'google-orders'", "goog"]),
    ("x" * 256, ["256", "255"]),
    (None, ["string", "NoneType"]),
    (5, ["string", "int"]),
    (b"orders", ["string", "bytes"]),
    (["orders"], ["string", "list"]),
]

NAME_IDS = [ascii(name)[:40] for name, _ in BAD_NAMES]

# Each as (filter, the index of what is wrong with it).
BAD_FILTERS = [
    (" ", 0),
    ("colour", 0),
    ("attributes", 10),
    ("attributes.kind", 15),
    ("attributes.kind = order", 18),
    ('attributes.kind == "order"', 16),
    ("attributes:a AND", 16),
    ("attributes:a and attributes:b", 13),
    ("(attributes:a", 13),
    ("attributes:a)", 12),
]


class BadInput(QueueCase):
    def subscribe_twice(self) -> None:
        """An ordered subscription and a plain one, each with a message, so that there is something to disturb."""
        self.subscribe(enable_message_ordering=True)
        self.subscribe("plain")
        self.publish("there before", key="k")

    def assert_undisturbed(self) -> None:
        assert self.pull_texts() == ["there before"]
        assert self.pull_texts(subscription="plain") == ["there before"]

    # -- messages ----------------------------------------------------------------------------------

    @pytest.mark.parametrize(("key", "words"), BAD_KEYS.values(), ids=BAD_KEYS.keys())
    def test_a_bad_ordering_key_is_refused(self, key: Any, words: list[str]) -> None:
        """message-ordering BR-010"""
        self.subscribe_twice()
        with self.refused(InvalidOrderingKey, *words):
            self.queue.publish("orders", [Message(b"bad", ordering_key=key)])
        self.assert_undisturbed()

    @pytest.mark.parametrize("key", [*(key for key, _ in BAD_KEYS.values()), None, ["k"]], ids=str)
    def test_a_key_that_no_message_can_have_is_neither_resumed_nor_skipped(self, key: Any) -> None:
        self.subscribe_twice()
        for call in (self.queue.resume_key, self.queue.skip):
            with self.refused(InvalidOrderingKey):
                call("worker", key)
        self.assert_undisturbed()

    @pytest.mark.parametrize(("make", "words"), BAD_MESSAGES.values(), ids=BAD_MESSAGES.keys())
    def test_a_bad_message_is_refused(self, make: Callable[[], Any], words: list[str]) -> None:
        """message-queue BR-017"""
        self.subscribe_twice()
        with self.refused(InvalidMessage, *words):
            self.queue.publish("orders", [make()])
        self.assert_undisturbed()

    @pytest.mark.parametrize(("columns", "words"), BAD_COLUMNS.values(), ids=BAD_COLUMNS.keys())
    def test_bad_columns_are_refused(self, columns: Columns, words: list[str]) -> None:
        """message-queue BR-017"""
        self.subscribe_twice()
        with self.refused(InvalidArgument, *words):
            self.queue.publish("orders", columns)
        self.assert_undisturbed()

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_one_bad_message_refuses_its_whole_batch(self, place: int) -> None:
        """message-queue BR-017: before anything is stored."""
        self.subscribe_twice()
        batch = [Message(b"good", ordering_key="k"), Message(b"good")]
        batch.insert(place, Message(b"bad", {"": ""}))
        with self.refused(InvalidArgument):
            self.queue.publish("orders", batch)
        self.assert_undisturbed()
        assert len(self.publish("next")) == 1
        [message] = self.pull()
        assert (message.data, message.position) == (b"next", 1)

    @pytest.mark.parametrize("messages", [None, 5, Message(b"not in a list")], ids=["None", "a number", "one message"])
    def test_a_batch_that_is_none_is_refused(self, messages: Any) -> None:
        """message-queue BR-017"""
        self.subscribe_twice()
        with self.refused(InvalidArgument, "messages"):
            self.queue.publish("orders", messages)
        self.assert_undisturbed()

    def test_a_message_at_its_limits_is_accepted(self) -> None:
        """message-queue BR-017"""
        self.subscribe()
        attributes = {f"key-{number}": "" for number in range(98)} | {"k" * 256: "v" * 1024, "é" * 128: "é" * 512}
        self.queue.publish("orders", [Message(b"", attributes, "x" * 1024)])
        [message] = self.pull()
        assert dict(message.attributes) == attributes
        assert message.ordering_key == "x" * 1024

    def test_a_key_that_only_contains_the_reserved_prefix_is_accepted(self) -> None:
        """message-queue BR-017"""
        self.subscribe()
        attributes = {"my-goog": "", "Goog": "", "goo": ""}
        self.queue.publish("orders", [Message(b"", attributes)])
        assert dict(self.pull()[0].attributes) == attributes

    # -- names -------------------------------------------------------------------------------------

    @pytest.mark.parametrize(("name", "words"), BAD_NAMES, ids=NAME_IDS)
    def test_a_bad_name_is_refused(self, name: Any, words: list[str]) -> None:
        self.subscribe_twice()
        with self.refused(InvalidName, "topic", *words):
            self.queue.register_topic(name)
        with self.refused(InvalidName, "subscription", *words):
            self.queue.register_subscription(name, "orders")
        self.assert_undisturbed()

    @pytest.mark.parametrize("name", ["abc", "Orders-2_b.c~d+e%f", "x" * 255])
    @pytest.mark.parametrize("project", ["", "projects/my-project/", "projects/example.com:my_project-2/"])
    def test_a_name_that_pubsub_takes_is_accepted(self, project: str, name: str) -> None:
        topic, subscription = (f"{project}{kind}/{name}" if project else name for kind in ("topics", "subscriptions"))
        self.queue.register_topic(topic)
        self.queue.register_subscription(subscription, topic)
        assert self.queue.topic_exists(topic)
        assert self.queue.subscription_exists(subscription)

    def test_the_full_name_of_one_kind_is_no_name_of_another(self) -> None:
        self.subscribe_twice()
        topic, subscription = "projects/p/topics/a", "projects/p/subscriptions/a"
        with self.refused(InvalidName, "topic", subscription, "projects/PROJECT/topics/"):
            self.queue.register_topic(subscription)
        with self.refused(InvalidName, "subscription", topic, "projects/PROJECT/subscriptions/"):
            self.queue.register_subscription(topic, "orders")
        with self.refused(InvalidArgument, "dead_letter_topic", subscription):
            options = {"dead_letter_policy": {"dead_letter_topic": subscription}}
            self.queue.register_subscription("other", "orders", options)
        self.assert_undisturbed()

    @pytest.mark.parametrize("name", ["nowhere", "", 5, None])
    def test_an_unknown_topic_is_not_found(self, name: Any) -> None:
        self.subscribe_twice()
        calls: list[Callable[[], object]] = [
            lambda: self.queue.publish(name, [Message(b"a")]),
            lambda: self.queue.unregister_topic(name),
            lambda: self.queue.register_subscription("other", name),
            lambda: self.queue.get_subscriptions_for_topic(name),
        ]
        for call in calls:
            with self.refused(TopicNotFound, f"Topic not found: {name}"):
                call()
        self.assert_undisturbed()

    @pytest.mark.parametrize("name", ["nobody", "", 5, None])
    def test_an_unknown_subscription_is_not_found(self, name: Any) -> None:
        self.subscribe_twice()
        calls: list[Callable[[], object]] = [
            lambda: self.queue.pull(name, 1),
            lambda: self.queue.unregister_subscription(name),
            lambda: self.queue.update_subscription(name, {}),
            lambda: self.queue.metrics(name),
        ]
        for call in calls:
            with self.refused(SubscriptionNotFound, f"Subscription not found: {name}"):
                call()
        self.assert_undisturbed()

    @pytest.mark.parametrize("name", [[], {}, set()], ids=str)
    def test_a_name_that_cannot_be_looked_up_is_not_found(self, name: Any) -> None:
        self.subscribe_twice()
        with self.refused(TopicNotFound):
            self.queue.publish(name, [Message(b"a")])
        with self.refused(SubscriptionNotFound):
            self.queue.pull(name, 1)
        assert self.queue.get_topic(name) is None
        assert self.queue.get_subscription(name) is None

    def test_what_exists_is_not_registered_again(self) -> None:
        self.subscribe_twice()
        self.queue.register_topic("invoices")
        with self.refused(TopicAlreadyExists, "Topic already exists: orders"):
            self.queue.register_topic("orders")
        for topic in ("orders", "invoices"):
            with self.refused(SubscriptionAlreadyExists, "Subscription already exists: worker"):
                self.queue.register_subscription("worker", topic)
        self.assert_undisturbed()

    # -- options -----------------------------------------------------------------------------------

    @pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=OPTION_IDS)
    def test_a_bad_option_is_refused(self, options: Any, words: list[str]) -> None:
        self.subscribe_twice()
        with self.refused(InvalidArgument, *words):
            self.queue.register_subscription("other", "orders", options)
        self.assert_undisturbed()

    @pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=OPTION_IDS)
    def test_a_bad_change_is_refused(self, options: Any, words: list[str]) -> None:
        self.subscribe_twice()
        with self.refused(InvalidArgument, *words[:1]):
            self.queue.update_subscription("plain", options)
        self.assert_undisturbed()

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"message_retention_duration": 0}, ["message_retention_duration", "above 0", "not 0"]),
            ({"message_retention_duration": 31 * 86_400 + 1}, ["message_retention_duration", "2678401"]),
            ({"message_retention": 600}, ["'message_retention'", "'message_retention_duration'"]),
            (600, ["options", "int"]),
        ],
        ids=str,
    )
    def test_a_bad_topic_option_is_refused(self, options: Any, words: list[str]) -> None:
        with self.refused(InvalidArgument, *words):
            self.queue.register_topic("orders", options)
        assert not self.queue.topic_exists("orders")

    @pytest.mark.parametrize(("text", "position"), BAD_FILTERS)
    def test_a_bad_filter_is_refused_with_the_position_of_its_mistake(self, text: str, position: int) -> None:
        self.subscribe_twice()
        with self.refused(InvalidFilter, f"position {position}", repr(text)) as caught:
            self.queue.register_subscription("other", "orders", {"filter": text})
        assert (caught.value.text, caught.value.position) == (text, position)
        self.assert_undisturbed()

    def test_a_filter_cannot_be_changed(self) -> None:
        self.subscribe_twice()
        with self.refused(InvalidArgument, "filter", "''"):
            self.queue.update_subscription("worker", {"filter": "attributes:kind"})
        self.queue.update_subscription("worker", {"filter": ""})
        self.assert_undisturbed()

    # -- pull, ack and deadlines -------------------------------------------------------------------

    @pytest.mark.parametrize("max_messages", [0, -1, 1.0, "1", None, True])
    def test_a_pull_asks_for_a_whole_number_of_messages(self, max_messages: Any) -> None:
        self.subscribe_twice()
        with self.refused(InvalidArgument, "max_messages", "at least 1", repr(max_messages)):
            self.queue.pull("worker", max_messages)
        self.assert_undisturbed()

    @pytest.mark.parametrize(
        "ack_id", ["", "abc123", "-", "worker-1", "1", "abc-" + "9" * 30, "abc-²", "\ud800"], ids=ascii
    )
    def test_an_unknown_ack_id_is_refused(self, ack_id: str) -> None:
        """message-queue BR-018"""
        self.subscribe_twice()
        self.pull()
        calls: list[Callable[[], object]] = [
            lambda: self.queue.ack(ack_id),
            lambda: self.queue.nack(ack_id),
            lambda: self.queue.modify_ack_deadline(ack_id, 10),
        ]
        for call in calls:
            with self.refused(InvalidAckId, f"Invalid ack ID: {ack_id}"):
                call()

    @pytest.mark.parametrize("ack_id", [b"abc", bytearray(b"abc")], ids=str)
    def test_bytes_are_no_ack_id(self, ack_id: Any) -> None:
        """message-queue BR-018: nor are they several."""
        self.subscribe_twice()
        self.pull()
        calls: list[Callable[[], object]] = [
            lambda: self.queue.ack(ack_id),
            lambda: self.queue.nack(ack_id),
            lambda: self.queue.modify_ack_deadline(ack_id, 10),
        ]
        for call in calls:
            with self.refused(InvalidArgument, "ack_id", "string", type(ack_id).__name__):
                call()

    @pytest.mark.parametrize("ack_id", [None, 5, [None], [5], [[]]], ids=str)
    def test_what_is_no_ack_id_is_refused(self, ack_id: Any) -> None:
        """message-queue BR-018"""
        self.subscribe_twice()
        self.pull()
        for call in (self.queue.ack, self.queue.nack):
            with self.refused(InvalidArgument):
                call(ack_id)

    @pytest.mark.parametrize("seconds", [-1, 600.5, math.nan, math.inf, "10", None, True, False])
    def test_a_bad_deadline_is_refused(self, seconds: Any) -> None:
        """message-queue BR-009"""
        self.subscribe_twice()
        [message] = self.pull()
        with self.refused(InvalidArgument, "seconds", "600", repr(seconds)):
            self.queue.modify_ack_deadline(message.ack_id, seconds)
        self.ack(message)
