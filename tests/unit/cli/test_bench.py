"""`inorder bench`: figures, a verdict, and nothing left behind."""

import pytest

from .conftest import Program

QUICK = ("bench", "--seconds", 0.1, "--publishers", 2, "--keys", 4, "--size", 50, "--batch", 10)


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
        (("--seconds", 0), "--seconds: above 0, up to 60, not 0"),
        (("--seconds", "nan"), "--seconds: above 0, up to 60, not nan"),
    ],
)
def test_a_load_that_cannot_be_is_refused(inorder: Program, given: tuple[object, ...], problem: str) -> None:
    assert inorder("bench", *given).err == f"inorder: {problem}\n"
