"""What a segment store keeps: frames in order, over segments, snapshots and reopening."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder.errors import Closed, FrameDropped, InvalidArgument
from inorder.journal import Location
from inorder.journal.files import Folder
from inorder.journal.segments import SegmentStore

SMALL = 500  # bytes per segment, so that a few frames fill one


def opened(folder: Path) -> tuple[SegmentStore, bytes | None, list[tuple[Location, bytes]]]:
    store = SegmentStore(Folder(folder), segment_bytes=SMALL)
    recovered = store.recover()
    return store, recovered.snapshot, list(recovered.frames)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    store, _, _ = opened(tmp_path)
    yield store
    store.close()


def fill(store: SegmentStore, count: int = 20) -> list[tuple[Location, bytes]]:
    bodies = [bytes([65 + number % 26]) * (40 + number * 7) for number in range(count)]
    return [(store.append([body[:5], body[5:]]), body) for body in bodies]


def test_a_new_folder_holds_nothing(tmp_path: Path) -> None:
    store, snapshot, frames = opened(tmp_path / "not" / "yet" / "there")
    assert (snapshot, frames, store.report) == (None, [], [])
    store.close()


def test_frames_come_back_in_order_over_many_segments(store: SegmentStore, tmp_path: Path) -> None:
    frames = fill(store)
    assert len(store.parts()) > 3
    store.close()
    store, snapshot, recovered = opened(tmp_path)
    assert (snapshot, recovered, store.report) == (None, frames, [])
    store.close()


def test_locations_grow_and_go_on_growing_after_reopening(store: SegmentStore, tmp_path: Path) -> None:
    first = fill(store)
    store.close()
    store, _, _ = opened(tmp_path)
    locations = [location for location, _ in first + fill(store)]
    assert locations == sorted(set(locations))
    store.close()


@pytest.mark.parametrize("body", [[], [b""], [b"x" * 5 * SMALL], [b"x"] * 3000])
def test_a_body_may_be_empty_larger_than_a_segment_or_in_many_pieces(
    store: SegmentStore, tmp_path: Path, body: list[bytes]
) -> None:
    locations = [store.append(body), store.append([b"behind"])]
    store.close()
    store, _, frames = opened(tmp_path)
    assert frames == [(locations[0], b"".join(body)), (locations[1], b"behind")]
    store.close()


def test_frames_are_read_again_from_and_up_to_a_location_before_they_are_synced(store: SegmentStore) -> None:
    frames = fill(store)
    for at in range(len(frames)):
        assert list(store.read(frames[at][0])) == frames[at:]
        assert list(store.read(frames[0][0], frames[at][0])) == frames[:at]
    assert list(store.read(frames[3][0], store.end())) == frames[3:]
    assert list(store.read(store.end())) == []


def test_a_reader_follows_frames_that_are_appended_while_it_reads(store: SegmentStore) -> None:
    frames = fill(store, 2)
    reading = store.read(frames[0][0])
    assert next(reading) == frames[0]
    frames += fill(store)
    assert list(reading)[-1] == frames[-1]


def test_a_snapshot_stands_for_all_frames_before_it(store: SegmentStore, tmp_path: Path) -> None:
    fill(store)
    store.save_snapshot([b"state", b" one"])
    store.save_snapshot([b"state", b" two"])
    behind = fill(store, 3)
    store.close()
    store, snapshot, frames = opened(tmp_path)
    assert (snapshot, frames) == (b"state two", behind)
    assert len(list(tmp_path.glob("*.snapshot"))) == 1
    store.close()


def test_frames_may_be_appended_while_a_snapshot_of_what_was_before_is_saved(
    store: SegmentStore, tmp_path: Path
) -> None:
    fill(store)
    before = store.begin_part()
    behind = fill(store)
    store.save_snapshot([b"state"], before)
    store.close()
    store, snapshot, frames = opened(tmp_path)
    assert (snapshot, frames) == (b"state", behind)
    with pytest.raises(InvalidArgument, match="snapshot"):
        store.save_snapshot([b"older"], before - (1 << 40))
    store.close()


def test_parts_before_the_snapshot_can_be_dropped_and_no_others(store: SegmentStore, tmp_path: Path) -> None:
    frames = fill(store)
    with pytest.raises(InvalidArgument, match="snapshot"):
        store.drop(store.parts()[0])
    store.save_snapshot([b"state"])
    parts = store.parts()
    with pytest.raises(InvalidArgument, match="snapshot"):
        store.drop(parts[-1])
    store.drop(parts[1])
    store.drop(parts[0])
    assert store.parts() == parts[2:]
    kept = [frame for frame in frames if frame[0] >= parts[2].first]
    assert list(store.read(parts[2].first)) == kept
    with pytest.raises(FrameDropped):
        list(store.read(frames[0][0]))
    store.close()
    store, _, after = opened(tmp_path)
    assert (after, store.parts()) == ([], parts[2:])
    assert list(store.read(parts[2].first)) == kept
    store.close()


def test_a_part_that_is_being_read_may_be_dropped(store: SegmentStore) -> None:
    frames = fill(store)
    store.save_snapshot([b"state"])
    first = store.parts()[0]
    reading = store.read(first.first, first.end)
    assert next(reading) == frames[0]
    store.drop(first)
    assert list(reading) == [frame for frame in frames[1:] if frame[0] < first.end]


def test_the_sizes_of_parts_are_those_of_their_files(store: SegmentStore, tmp_path: Path) -> None:
    fill(store)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.log"))]
    assert [part.size for part in store.parts()] == sizes
    assert store.parts()[-1].end == store.end()


def test_a_closed_store_takes_no_more_calls(store: SegmentStore) -> None:
    fill(store)
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.append([b"late"])
    with pytest.raises(Closed):
        store.sync()
