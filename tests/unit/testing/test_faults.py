"""The faulty disk fails as real ones do, so that a store which survives it has survived something."""

import errno

import pytest

from inorder.errors import JournalInUse
from inorder.testing.faults import Faults, FaultyDisk, PowerCut


def test_what_was_synced_survives_and_what_was_not_comes_in_every_state() -> None:
    left = set()
    for seed in range(300):
        disk = FaultyDisk(seed, sector_bytes=4)
        file = disk.create("a")
        file.write(0, [b"synced--"])
        file.sync()
        disk.sync()
        file.write(8, [b"torn", b"torn"])
        disk.restart()
        assert disk.read("a").startswith(b"synced--")
        left.add(disk.read("a")[8:])
    assert {b"", b"to", b"torn", b"torntorn", b"\0\0\0\0torn"} <= left


def test_what_was_cut_off_and_synced_does_not_come_back_when_the_file_grows_again() -> None:
    disk = FaultyDisk(1, sector_bytes=4)
    file = disk.create("a")
    disk.sync()
    file.write(0, [b"12345678abcdefgh"])
    file.sync()
    file.truncate(2)
    file.write(14, [b"z"])
    file.sync()
    disk.restart_without_the_unsynced()
    assert disk.read("a") == b"12" + bytes(12) + b"z"


def test_a_name_is_durable_when_its_folder_is() -> None:
    left = set()
    for seed in range(100):
        disk = FaultyDisk(seed)
        for name in ("a", "b"):
            disk.create(name).sync()
        disk.sync()
        disk.rename("a", "c")
        disk.unlink("b")
        disk.create("d").sync()
        disk.restart()
        left.add("".join(sorted(disk.names())))
    assert {"ab", "bc", "abd", "cd", "c"} <= left


def test_after_a_failed_sync_the_cache_says_one_thing_and_the_platter_another() -> None:
    left = set()
    for seed in range(50):
        disk = FaultyDisk(seed, sector_bytes=4)
        file = disk.create("a")
        disk.sync()
        file.write(0, [b"12345678"])
        disk.faults = Faults(sync_error=1)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        disk.faults = Faults()
        file.sync()  # nothing is dirty any more, so this proves nothing
        assert disk.read("a") == b"12345678"
        disk.restart_without_the_unsynced()
        left.add(disk.read("a"))
    assert left == {b"", b"1234", b"\0\0\0\x005678", b"12345678"}


def test_writes_are_short_fail_and_run_out_of_space() -> None:
    disk = FaultyDisk(1, Faults(short_write=1))
    file = disk.create("a")
    assert 0 < file.write(0, [b"12345678"]) < 8
    disk.faults = Faults(write_error=1)
    with pytest.raises(OSError, match="Input/output error"):
        file.write(0, [b"x"])
    disk.faults = Faults(capacity=10)
    size = file.size()
    assert file.write(size, [bytes(20)]) == 10 - size
    with pytest.raises(OSError, match="No space left") as full:
        file.write(10, [b"x"])
    assert full.value.errno == errno.ENOSPC
    assert file.write(0, [b"over"]) == 4


def test_power_goes_at_the_change_it_is_told_to_and_stays_away() -> None:
    disk = FaultyDisk(1, Faults(power_cut_at=3))
    file = disk.create("a")
    file.sync()
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.sync()
    disk.restart()
    disk.create("b")


def test_it_has_one_owner_until_that_is_gone() -> None:
    disk = FaultyDisk(1)
    disk.lock()
    with pytest.raises(JournalInUse):
        disk.lock()
    disk.kill()
    disk.lock().release()
    disk.lock()
