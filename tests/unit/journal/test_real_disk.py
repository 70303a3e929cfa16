"""A disk that is really full, and a limit that really ends a write."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder.errors import JournalFailed
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no `mount` on this machine, so no small disk to fill")
    if mounted.returncode:
        pytest.skip(f"no right to mount a small disk to fill: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def filled(store: SegmentStore) -> int:
    """Append and sync until it fails; how many frames were synced."""
    list(store.recover().frames)
    for synced in range(10_000):
        try:
            store.append([b"%05d" % synced * 300])
            store.sync()
        except JournalFailed:
            return synced
    raise AssertionError("the disk never was full")


@pytest.mark.parametrize("segment_bytes", [20_000, 1 << 20])
def test_a_full_disk_stops_the_store_and_loses_nothing_that_was_synced(small_disk: Path, segment_bytes: int) -> None:
    store = SegmentStore(Folder(small_disk), segment_bytes=segment_bytes)
    synced = filled(store)
    with pytest.raises(JournalFailed, match=r"could not (write|create) 0000\d+.log: \[Errno 28\] No space left"):
        store.append([b""])
    store.close()
    store = SegmentStore(Folder(small_disk), segment_bytes=1 << 20)
    bodies = [body for _, body in store.recover().frames]
    assert bodies == [b"%05d" % number * 300 for number in range(len(bodies))]
    assert len(bodies) >= synced > 100
    store.close()


LIMITED = """
import resource, signal, sys
from inorder.errors import JournalFailed
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
store = SegmentStore(Folder(sys.argv[1]))
list(store.recover().frames)
try:
    while True:
        store.append([b"x" * 700])
        store.sync()
except JournalFailed as error:
    print(error)
"""


def test_a_write_beyond_the_limit_of_the_process_is_short_and_then_an_error(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "could not write 00000001.log: [Errno 27] File too large" in run.stdout
    assert (tmp_path / "00000001.log").stat().st_size == 10_000
    store = SegmentStore(Folder(tmp_path))
    assert [body for _, body in store.recover().frames] == [b"x" * 700] * 13
    assert store.report == [f"cut {10_000 - 32 - 13 * 724} bytes of an incomplete frame at the end of 00000001.log"]
    store.close()
