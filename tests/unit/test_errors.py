"""Errors are the same in whatever process they are read."""

import copy
import pickle
from typing import Any

import pytest

from inorder import errors
from inorder.errors import InorderError
from inorder.pool import ItemTimeout, WorkerDied, WorkersGone

MADE = [
    errors.NotFound("no such thing"),
    errors.DeadlineExceeded("no answer within 1 s"),
    errors.TopicNotFound("orders"),
    errors.InvalidAckId("a", "b"),
    errors.InvalidFilter("attributes:", 11, "a name is missing"),
    errors.OrderingNotEnabled(),
    errors.KeyPaused("order-7"),
    errors.QueueFull("billing", "it holds 1 messages"),
    errors.JournalDamaged("data/1", 3, "checksum", unit="row"),
    errors.InvalidEvent("key: missing", ("a", 1)),
    errors.LateEvent("a", 1, 3, ("a", 1)),
    errors.PipelineInvalid("pipeline.toml", ("one", "two")),
    ItemTimeout(2),
    WorkerDied(-9),
    WorkersGone(),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("travel", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
def test_an_error_that_travels_says_the_same(error: InorderError, travel: Any) -> None:
    error.add_note("as seen there")
    there = travel(error)
    assert type(there) is type(error)
    assert (str(there), there.args, there.code, vars(there)) == (str(error), error.args, error.code, vars(error))
