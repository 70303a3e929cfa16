"""Options under both of their spellings, as keywords and as mappings."""

import inspect
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from inorder.errors import InvalidArgument, InvalidName
from inorder.options import SubscriptionOptions, build, check_name, merge

WAYS: dict[str, Callable[..., SubscriptionOptions]] = {
    "keywords": lambda **given: SubscriptionOptions(**given),
    "a mapping": lambda **given: build(SubscriptionOptions, given),
    "changes": lambda **given: merge(SubscriptionOptions(), given),
}
ways = pytest.mark.parametrize("make", WAYS.values(), ids=WAYS.keys())


@ways
def test_both_spellings_can_be_given_and_read(make: Callable[..., SubscriptionOptions]) -> None:
    for given in (
        {"message_ordering": True, "ack_deadline": 30},
        {"enable_message_ordering": True, "ack_deadline_seconds": 30},
    ):
        options = make(**given)
        assert (options.message_ordering, options.enable_message_ordering) == (True, True)
        assert (options.ack_deadline, options.ack_deadline_seconds) == (30, 30)


@ways
@pytest.mark.parametrize("value", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_an_option_is_not_given_twice(make: Callable[..., SubscriptionOptions], value: bool, other: bool) -> None:
    with pytest.raises(InvalidArgument, match="'enable_message_ordering' is given twice, as 'message_ordering' and as"):
        make(message_ordering=value, enable_message_ordering=other)


@ways
@pytest.mark.parametrize("given", [{"ack_deadline": None}, {"message_ordering": None}, {"ack_deadline": 601}], ids=str)
def test_a_value_is_checked_under_either_spelling(
    make: Callable[..., SubscriptionOptions], given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        make(**given)


def test_a_misspelt_keyword_is_refused_with_the_closest_name() -> None:
    with pytest.raises(InvalidArgument, match="did you mean 'ack_deadline_seconds'"):
        SubscriptionOptions(ack_deadline_second=30)  # type: ignore[call-arg]


def test_options_can_be_copied_with_a_change() -> None:
    options = replace(SubscriptionOptions(message_ordering=True, ack_deadline=30), ack_deadline_seconds=60)
    assert (options.enable_message_ordering, options.ack_deadline) == (True, 60)


def test_the_signature_tells_the_options() -> None:
    names = [field.name for field in fields(SubscriptionOptions)]
    assert list(inspect.signature(SubscriptionOptions).parameters) == names


@pytest.mark.parametrize("kind", ["topic", "subscription", "snapshot"])
def test_a_project_may_be_as_long_as_a_name(kind: str) -> None:
    check_name(kind, f"projects/{'p' * 255}/{kind}s/{'x' * 255}")
    for project, name in ((256, 1), (1, 256)):
        with pytest.raises(InvalidName, match=f"{kind} name: 256 characters, more than the maximum of 255"):
            check_name(kind, f"projects/{'p' * project}/{kind}s/{'x' * name}")
