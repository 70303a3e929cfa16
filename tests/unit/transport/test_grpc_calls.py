"""What a call that failed stands for, and when it is tried again."""

import random
from collections.abc import Iterator
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


class Answers:
    """A call whose answers end so."""

    def __init__(self, answers: list[bytes], code: grpc.StatusCode | None = None) -> None:
        self._answers = answers
        self._code = code

    def __iter__(self) -> Iterator[bytes]:
        yield from self._answers
        if self._code is not None:
            raise grpc.RpcError

    def code(self) -> grpc.StatusCode | None:
        return self._code

    def details(self) -> str:
        return "it took too long"

    def trailing_metadata(self) -> list[tuple[str, bytes]]:
        return []

    def cancel(self) -> None:
        """It has ended."""


PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("code", [grpc.StatusCode[name] for name in PASSING])
def test_answers_that_somebody_on_the_way_has_ended_are_asked_for_from_there(code: grpc.StatusCode) -> None:
    calls_made = iter([Answers([b"1"], code), Answers([b"2"], code), Answers([b"3"])])
    channel: Any = SimpleNamespace(address="localhost:1", answers=lambda method, request: next(calls_made))
    assert list(Calls(channel, 60).answers("/inorder.v1.Inorder/ReadTopic", bytes)) == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("answers", "code"),
    [([], grpc.StatusCode.DEADLINE_EXCEEDED), ([b"1"], grpc.StatusCode.PERMISSION_DENIED)],
    ids=["no answer in time", "refused"],
)
def test_answers_that_do_not_come_or_are_refused_are_not_asked_for_again(
    answers: list[bytes], code: grpc.StatusCode
) -> None:
    calls_made = iter([Answers(answers, code)])
    channel: Any = SimpleNamespace(address="localhost:1", answers=lambda method, request: next(calls_made))
    with pytest.raises(InorderError) as caught:
        list(Calls(channel, 60).answers("/inorder.v1.Inorder/ReadTopic", bytes))
    assert int(caught.value.code) == code.value[0]


def test_pauses_grow_and_leave_the_chance_of_the_program_alone() -> None:
    random.seed(1)
    before = random.getstate()
    waits = list(islice(pauses(), 20))
    assert random.getstate() == before
    random.seed(1)
    assert list(islice(pauses(), 20)) != waits  # processes that were seeded alike do not come back at once
    assert 0.025 <= waits[0] <= 0.05
    assert 1 <= waits[-1] <= 2
