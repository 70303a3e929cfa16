"""Options come out of the wire as they went in, and are checked there."""

import pytest

from inorder.errors import InvalidArgument
from inorder.options import (
    DeadLetterPolicy,
    FlowControl,
    QueueLimits,
    RetryPolicy,
    SubscriptionOptions,
    TopicOptions,
)
from inorder.protocol.options import changes_of, from_json, to_json, told

ALL = SubscriptionOptions(
    enable_message_ordering=True,
    ack_deadline_seconds=0.25,
    retry_policy=RetryPolicy(0.5, 3),
    dead_letter_policy=DeadLetterPolicy("dead", 3),
    flow_control=FlowControl(5, 1_000),
    message_retention_duration=60.5,
    retain_acked_messages=True,
    queue_limits=QueueLimits(None, 1_000, "block"),
    on_poison="park_key",
    max_outstanding_per_key=7,
    filter='attributes.colour = "blåt"',
    annotations="any text",
)


@pytest.mark.parametrize("options", [ALL, SubscriptionOptions(), TopicOptions(), TopicOptions(annotations="x")])
def test_options_come_back(options: SubscriptionOptions | TopicOptions) -> None:
    assert from_json(type(options), to_json(options)) == options
    assert told(type(options), to_json(options)) == options


def test_what_a_later_server_tells_besides_is_left_out() -> None:
    plain = changes_of(to_json(ALL))
    for nested in (plain, plain["retry_policy"], plain["dead_letter_policy"], plain["queue_limits"]):
        nested["of_a_later_version"] = {"any": "thing"}
    assert told(SubscriptionOptions, to_json(plain)) == ALL


def test_changes_may_be_values_or_mappings() -> None:
    as_values = to_json({"retry_policy": RetryPolicy(1, 2), "flow_control": None})
    as_mappings = to_json({"retry_policy": {"minimum_backoff": 1, "maximum_backoff": 2}, "flow_control": None})
    assert changes_of(as_values) == changes_of(as_mappings)
    assert changes_of("") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "options: not JSON"),
        ('{"annotations":' * 100_000, "options: not JSON"),
        ("[1]", "options: a JSON object, not"),
        ('{"ack_deadlin": 1}', "did you mean"),
        ('{"ack_deadline_seconds": NaN}', "ack_deadline_seconds: above 0, up to 600, not nan"),
        ('{"retry_policy": {"minimum_backoff": -1}}', "retry_policy: minimum_backoff: at least 0"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        from_json(SubscriptionOptions, text)
