"""Slots that never change, tables that change as little as can be, and where the load is."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inorder.errors import InvalidArgument, InvalidOrderingKey
from inorder.options import SLOTS
from inorder.patterns.partitioning import Move, SlotTable, rebalanced, slot_of
from inorder.patterns.skew import skew_report

# CRC-32 of the key. The first is the check value that the catalogue of CRC algorithms publishes (CRC-32/ISO-HDLC).
VECTORS = {
    "123456789": 0xCBF43926,
    "The quick brown fox jumps over the lazy dog": 0x414FA339,
    "a": 0xE8B7BE43,
    "abc": 0x352441C2,
}


def plain_crc32(data: bytes) -> int:
    """The definition, bit by bit: what another language would be written from."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0xEDB88320 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(("key", "crc"), VECTORS.items())
def test_a_slot_is_made_of_the_published_crc_32_and_knuths_product(key: str, crc: int) -> None:
    """ordering-guarantees Pattern 2: a hash that every producer computes alike."""
    assert plain_crc32(key.encode()) == crc
    assert slot_of(key) == (crc * 2654435761) % 2**32 // 2**20
    signed = crc * -1640531535  # as in 64 bits with a sign, where the product with the other one would overflow
    assert abs(signed) < 2**63
    assert slot_of(key) == signed % 2**32 >> 20


@given(st.text(min_size=1, max_size=50))
def test_any_key_has_the_slot_of_the_definition(key: str) -> None:
    assert slot_of(key) == (plain_crc32(key.encode()) * 2654435761) % 2**32 // 2**20 < SLOTS


def test_a_slot_is_the_same_in_another_process_whatever_its_hash_seed() -> None:
    script = "from inorder.patterns.partitioning import slot_of; print(slot_of('order-7'), slot_of('größe'))"
    for seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        assert run.stdout.split() == [str(slot_of("order-7")), str(slot_of("größe"))]


@pytest.mark.parametrize("key", ["", None, 7, b"a", "k" * 1025, "\ud800"], ids=repr)
def test_what_is_no_key_has_no_slot(key: Any) -> None:
    with pytest.raises(InvalidOrderingKey):
        slot_of(key)


KEYS = {
    "order-1": [f"order-{number}" for number in range(40_960)],
    "00000001": [f"{number:08}" for number in range(40_960)],
    "hexadecimal": [f"{number:016x}" for number in range(40_960)],
    "every hundredth": [f"user-{number * 100}" for number in range(40_960)],
    "dates": [f"2026-{month:02}-{day:02}/{shop}" for month, day, shop in product(range(12), range(28), range(120))],
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS.keys())
@pytest.mark.parametrize("partitions", [4, 10, 64])
def test_numbered_keys_spread_evenly(keys: list[str], partitions: int) -> None:
    """ordering-guarantees Gotcha 6 and ordering-in-event-driven-systems Partition per entity: no hot partitions."""
    report = skew_report(keys, SlotTable.even(partitions))
    assert report.imbalance < 1.15


@pytest.mark.parametrize("form", ["order-{}", "{}", "user-{:06}", "{:08x}", "customer/{}/orders", "SKU{:05}"])
def test_a_few_keys_with_numbers_in_a_row_do_not_crowd_together(form: str) -> None:
    """ordering-guarantees Gotcha 6: a CRC by itself puts up to nine of ten such keys into one of two partitions."""
    for start in (0, 1, 100, 12_345):
        report = skew_report([form.format(number) for number in range(start, start + 40)], SlotTable.even(2))
        assert report.partitions[0].share < 0.7


def test_all_events_of_a_key_go_to_one_partition() -> None:
    """ordering-in-event-driven-systems Partition per entity and ordering-guarantees Pattern 2."""
    table = SlotTable.even(4)
    assert {table.partition_of("order-123") for _ in range(100)} == {table.partitions[slot_of("order-123")]}
    assert {table.partition_of(f"order-{number}") for number in range(100)} == {0, 1, 2, 3}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 64, 1000, 4095, 4096])
def test_an_even_table_has_shares_that_differ_by_one_at_most(count: int) -> None:
    table = SlotTable.even(count)
    shares = Counter(table.partitions).values()
    assert table.count == len(shares) == count
    assert max(shares) - min(shares) <= 1


def fewest_changes(owners: Sequence[int], count: int) -> int:
    """By trying every balanced assignment."""
    least, more = divmod(len(owners), count)
    expected = sorted([least] * (count - more) + [least + 1] * more)
    return min(
        sum(old != new for old, new in zip(owners, after, strict=True))
        for after in product(range(count), repeat=len(owners))
        if sorted(after.count(owner) for owner in range(count)) == expected
    )


def test_a_resize_moves_as_few_slots_as_any_balanced_table_would() -> None:
    """ordering-guarantees Gotcha 7: by brute force, for every table of 5 slots and every number of partitions."""
    for owners in product(range(3), repeat=5):
        for count in (1, 2, 3, 4):
            after = rebalanced(owners, count)
            shares = [after.count(owner) for owner in range(count)]
            assert max(shares) - min(shares) <= 1
            assert sum(old != new for old, new in zip(owners, after, strict=True)) == fewest_changes(owners, count)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_whatever_sizes_a_table_went_through_it_is_balanced_and_moved_what_it_had_to(sizes: list[int]) -> None:
    table = SlotTable.even(sizes[0])
    for count in sizes[1:]:
        plan = table.resize(count)
        shares = Counter(plan.after.partitions)
        assert sorted(shares) == list(range(count))
        assert max(shares.values()) - min(shares.values()) <= 1
        assert len(plan.moves) <= SLOTS * abs(count - table.count) // max(count, table.count) + max(count, table.count)
        moved = list(table.partitions)
        for slot, source, target in plan.moves:
            assert moved[slot] == source != target
            moved[slot] = target
        assert tuple(moved) == plan.after.partitions
        table = plan.after


def test_growing_moves_slots_to_new_partitions_only_and_shrinking_from_old_ones_only() -> None:
    """ordering-guarantees Gotcha 7: a key whose slot does not move keeps its partition, and so its order."""
    grown = SlotTable.even(4).resize(5)
    assert {move.target for move in grown.moves} == {4}
    assert grown.share == pytest.approx(1 / 5, abs=0.001)
    assert {move.source for move in grown.after.resize(4).moves} == {4}
    moving = {move.slot for move in grown.moves}
    for key in (f"order-{number}" for number in range(1000)):
        stays = grown.before.partition_of(key) == grown.after.partition_of(key)
        assert stays == (slot_of(key) not in moving)


def test_no_change_moves_nothing() -> None:
    assert SlotTable.even(7).resize(7).moves == ()
    assert SlotTable.even(1).resize(2).moves[0] == Move(2048, 0, 1)


@pytest.mark.parametrize("count", [0, -1, True, 2.0, None, SLOTS + 1])
def test_there_are_1_to_4096_partitions(count: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"partitions: (a whole number of at least 1|up to 4096), "):
        SlotTable.even(count)
    with pytest.raises(InvalidArgument, match="partitions: "):
        SlotTable.even(2).resize(count)


@pytest.mark.parametrize(
    "partitions", [(), (0,) * (SLOTS - 1), (1,) * SLOTS, (0, 2) * (SLOTS // 2), (0.0,) * SLOTS, ("a",) * SLOTS]
)
def test_a_table_that_is_none_is_refused(partitions: Any) -> None:
    with pytest.raises(InvalidArgument, match="partitions: "):
        SlotTable(partitions)


def test_a_report_names_the_hottest_keys_slots_and_partitions_with_their_shares() -> None:
    """ordering-guarantees Gotcha 6: monitor, and see whether more partitions would help."""
    table = SlotTable.even(4)
    keys = ["order-1"] * 60 + [f"order-{number}" for number in range(2, 42)]
    report = skew_report(keys, table, top=2)
    assert report.total == 100
    assert report.keys == (("order-1", 60, 0.6), ("order-10", 1, 0.01))
    assert report.slots[0] == (slot_of("order-1"), 60, 0.6)
    assert report.partitions[0].number == table.partition_of("order-1")
    assert sum(partition.load for partition in report.partitions) == 100
    assert report.imbalance == pytest.approx(report.partitions[0].load / 25)
    assert report.least_possible == 0.6  # one key: no table divides it


def test_a_report_takes_loads_and_of_no_load_nothing_is_hot() -> None:
    weighed = skew_report({"a": 1.5, "b": 0.5}, SlotTable.even(2))
    assert weighed.total == 2
    assert weighed.keys[0] == ("a", 1.5, 0.75)
    empty = skew_report([], SlotTable.even(2))
    assert (empty.total, empty.keys, empty.imbalance, empty.least_possible) == (0, (), 1.0, 0.5)


@pytest.mark.parametrize("load", [-1, True, None, float("nan"), float("inf"), "1"])
def test_a_load_is_a_number(load: Any) -> None:
    with pytest.raises(InvalidArgument, match="load of 'a': at least 0"):
        skew_report({"a": load}, SlotTable.even(2))
