"""What a call that failed stands for, and when it is tried again."""

import random
from itertools import islice
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from inorder.errors import Closed, InorderError, QueueFull, Unavailable
from inorder.protocol.facts import DETAILS, details_of
from inorder.transport.grpc.calls import Calls, pauses


def failed(code: grpc.StatusCode, text: str, told: InorderError | None = None) -> Any:
    metadata = [] if told is None else [(DETAILS, details_of(told, int(told.code), str(told)))]
    return SimpleNamespace(code=lambda: code, details=lambda: text, trailing_metadata=lambda: metadata)


@pytest.mark.parametrize("told", [None, Closed("no room"), QueueFull("worker", "it holds 1 message")])
def test_a_call_that_we_have_cancelled_was_not_answered_whatever_came_at_the_same_moment(
    told: InorderError | None,
) -> None:
    calls = Calls(SimpleNamespace(address="localhost:1"), 60)  # type: ignore[arg-type]
    error = calls.error_of(failed(grpc.StatusCode.CANCELLED, "Locally cancelled by application!", told))
    assert type(error) is Unavailable
    assert calls.worth_repeating(error)


def test_what_a_server_tells_in_details_is_its_answer() -> None:
    calls = Calls(SimpleNamespace(address="localhost:1"), 60)  # type: ignore[arg-type]
    error = calls.error_of(failed(grpc.StatusCode.UNAVAILABLE, "no room", Closed("no room")))
    assert type(error) is Closed


def test_pauses_grow_and_leave_the_chance_of_the_program_alone() -> None:
    random.seed(1)
    before = random.getstate()
    waits = list(islice(pauses(), 20))
    assert random.getstate() == before
    random.seed(1)
    assert list(islice(pauses(), 20)) != waits  # processes that were seeded alike do not come back at once
    assert 0.025 <= waits[0] <= 0.05
    assert 1 <= waits[-1] <= 2
