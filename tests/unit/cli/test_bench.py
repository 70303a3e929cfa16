"""`inorder bench`: figures, a verdict, and nothing left behind."""

from itertools import count
from threading import Event

import pytest

from inorder.cli import bench
from inorder.message import Message

from .conftest import Program

QUICK = ("bench", "--seconds", 0.2, "--publishers", 2, "--keys", 4, "--size", 50, "--batch", 10)


def test_a_load_is_measured_and_judged(inorder: Program) -> None:
    [found] = inorder.json(*QUICK)
    assert found["published"] == found["handled"] > 0
    assert found["published"] % 10 == 0
    assert found["in_order"]
    assert "of 4 keys: in order, none lost" in found["verdict"]
    assert 0 < found["publish_p50_ms"] <= found["publish_p99_ms"]
    assert 0 < found["delivery_p50_ms"] <= found["delivery_p99_ms"]
    assert inorder.json("topic", "list") == inorder.json("subscription", "list") == []


def test_the_verdict_is_printed(inorder: Program) -> None:
    lines = [line.split()[0] for line in inorder.ok(*QUICK, "--window", 10)]
    assert lines == ["published", "rate", "publish", "delivery", "verdict"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--keys", 1), "--keys: at least one for each of 2 publishers, not 1"),
        (("--size", 0), "--size: at least 1, not 0"),
        (("--size", 10**15), "--size: up to 9999994, as a key belongs to a message as well, not 1000000000000000"),
        (("--size", 9_999_995), "--size: up to 9999994, as a key belongs to a message as well, not 9999995"),
        (("--seconds", 0), "--seconds: above 0, up to 60, not 0"),
        (("--seconds", "nan"), "--seconds: above 0, up to 60, not nan"),
    ],
)
def test_a_load_that_cannot_be_is_refused(inorder: Program, given: tuple[object, ...], problem: str) -> None:
    assert inorder("bench", *given).err == f"inorder: {problem}\n"


def test_no_more_is_published_than_the_window_has_room_for(inorder: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    over = Event()
    publisher, handle = bench._Load._publisher, bench._Load.handle

    def publish_to_the_end(load: bench._Load, number: int) -> None:
        publisher(load, number)
        over.set()

    def handle_after_the_end(load: bench._Load, message: Message) -> None:
        over.wait()
        handle(load, message)

    monkeypatch.setattr(bench, "monotonic", lambda: next(ticks) / 100)  # however busy the machine is
    monkeypatch.setattr(bench, "_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(bench._Load, "_publisher", publish_to_the_end)
    monkeypatch.setattr(bench._Load, "handle", handle_after_the_end)
    [found] = inorder.json(*QUICK, "--seconds", 1, "--publishers", 1, "--window", 25)
    assert found["published"] == 30, "three requests of ten: the third when there was room for some"
    assert found["handled"] == 30
