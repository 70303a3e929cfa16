"""Figures as people read them, and the bar."""

import io

import pytest

from inorder.cli.progress import Bar
from inorder.cli.wording import counted, duration, moment, size, table, timestamp


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (64 << 20, "64.0 MiB"),
        (3 << 30, "3.0 GiB"),
        (5000 << 40, "5000.0 TiB"),
    ],
)
def test_a_size_has_a_unit(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (59, "59 s"), (60, "1 min"), (90, "90 s"), (7200, "2 h"), (604_800, "7 d"), (86_401, "86401 s")],
)
def test_a_duration_is_exact(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_times_are_utc() -> None:
    assert moment(1_700_000_000_000_001) == "2023-11-14 22:13:20"
    assert timestamp(1_700_000_000_000_001) == "2023-11-14T22:13:20.000001Z"
    assert moment(None) == ""


def test_one_is_not_many() -> None:
    assert [counted(number, "frame") for number in (0, 1, 2000)] == ["0 frames", "1 frame", "2,000 frames"]


def test_a_table_is_aligned() -> None:
    assert table(("name", "n"), [("a", 1), ("long name", 2000)]) == [
        "name           n",
        "a              1",
        "long name  2,000",
    ]
    assert table(("name", "n"), []) == ["name  n"]


def test_a_bar_is_drawn_on_a_terminal_and_cleared() -> None:
    stream = Terminal()
    with Bar("verifying", stream, patience_seconds=0) as bar:
        bar(1, 4)
        assert stream.getvalue().endswith("verifying [########......................]  25%")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_nothing_is_drawn_for_what_is_quick_or_elsewhere() -> None:
    quick, elsewhere = Terminal(), io.StringIO()
    with Bar("verifying", quick) as bar, Bar("verifying", elsewhere, patience_seconds=0) as other:
        bar(1, 4)
        other(1, 4)
    assert (quick.getvalue(), elsewhere.getvalue()) == ("", "")
