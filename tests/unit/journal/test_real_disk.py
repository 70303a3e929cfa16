"""A disk that is really full, and a limit that really ends a write."""

import subprocess
import sys
from pathlib import Path

import pytest

from inorder.errors import JournalFailed
from inorder.journal import files
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore


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


ENDLESS = """
import sys
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore
store = SegmentStore(Folder(sys.argv[1]), segment_bytes=20_000)
recovered = store.recover()
number = int(recovered.snapshot or 0) + sum(1 for _ in recovered.frames)
while True:
    number += 1
    store.append([b"%d " % number * 50])
    store.sync()
    print(number, flush=True)
    if number % 37 == 0:
        store.save_snapshot([b"%d" % number])
        for part in store.parts()[:-1]:
            store.drop(part)
"""


def test_a_killed_process_leaves_all_that_it_answered_for(tmp_path: Path) -> None:
    answered = 0
    for kill in range(6):
        with subprocess.Popen([sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(10 + 31 * kill):
                answered = int(process.stdout.readline())
            process.kill()
            answered = int([answered, *process.stdout.read().split(b"\n")[:-1]][-1])
        store = SegmentStore(Folder(tmp_path), segment_bytes=20_000)
        recovered = store.recover()
        covered = int(recovered.snapshot or b"0")
        bodies = [body for _, body in recovered.frames]
        assert bodies == [b"%d " % number * 50 for number in range(covered + 1, covered + 1 + len(bodies))]
        assert answered <= covered + len(bodies) <= answered + 1
        store.close()


def test_folders_that_are_made_are_made_durable_one_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "_sync_folder", synced.append)
    Folder(tmp_path / "a" / "b" / "c")
    assert {*synced} == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    synced.clear()
    Folder(tmp_path / "a" / "d")
    assert synced == [tmp_path / "a"]
