"""A broker on disk does what the model says, whatever happens in whatever order, crashes included."""

from __future__ import annotations

import logging

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from inorder.core import subscription

from .durable_machine import DurableMachine, SqliteMachine


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="inorder")


def search(factor: float) -> settings:
    examples = int(factor * settings().max_examples)
    return settings(max_examples=examples, stateful_step_count=40, report_multiple_bugs=False)


def test_a_durable_broker_does_what_the_model_says() -> None:
    run_state_machine_as_test(DurableMachine, settings=search(3))


def test_a_broker_that_holds_little_in_memory_does_what_the_model_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "READ_AHEAD", 3)
    monkeypatch.setattr(subscription, "HOT_BYTES", 0)
    monkeypatch.setattr(DurableMachine, "lags", True)
    run_state_machine_as_test(DurableMachine, settings=search(3))


def test_a_broker_on_sqlite_does_what_the_model_says() -> None:
    run_state_machine_as_test(SqliteMachine, settings=search(0.3))
