"""What every store keeps: frames in order, over parts, snapshots and reopening."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from inorder.errors import Closed, FrameDropped, InvalidArgument, OtherJournal
from inorder.journal import Location, Store
from inorder.journal.files import Folder
from inorder.journal.reader import Reader, SegmentReader
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteReader, SqliteStore

SMALL = 500  # bytes per segment, so that a few frames fill one


KINDS = {"segments": SegmentStore, "sqlite": SqliteStore}
READERS = {"segments": SegmentReader, "sqlite": SqliteReader}


class Opener:
    """Opens one folder again and again as one kind of store."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = Folder(folder)
        self.store: Store | None = None

    def __call__(self) -> tuple[Store, bytes | None, list[tuple[Location, bytes]]]:
        self.close()
        self.store = KINDS[self.kind](self.folder, segment_bytes=SMALL)
        recovered = self.store.recover()
        return self.store, recovered.snapshot, list(recovered.frames)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def reader(self) -> Reader:
        return READERS[self.kind](self.folder)


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(request.param, tmp_path / "not" / "yet" / "there")
    yield opener
    opener.close()


@pytest.fixture
def store(opened: Opener) -> Store:
    return opened()[0]


def fill(store: Store, count: int = 20) -> list[tuple[Location, bytes]]:
    bodies = [bytes([65 + number % 26]) * (40 + number * 7) for number in range(count)]
    return [(store.append([body[:5], body[5:]]), body) for body in bodies]


def test_a_new_folder_holds_nothing(opened: Opener) -> None:
    store, snapshot, frames = opened()
    assert (snapshot, frames, store.report) == (None, [], [])


def test_frames_come_back_in_order_over_many_segments(store: Store, opened: Opener) -> None:
    frames = fill(store)
    assert len(store.parts()) > 3
    store, snapshot, recovered = opened()
    assert (snapshot, recovered, store.report) == (None, frames, [])


def test_locations_grow_and_go_on_growing_after_reopening(store: Store, opened: Opener) -> None:
    first = fill(store)
    store, _, _ = opened()
    locations = [location for location, _ in first + fill(store)]
    assert locations == sorted(set(locations))


@pytest.mark.parametrize("body", [[], [b""], [b"x" * 5 * SMALL], [b"x"] * 3000])
def test_a_body_may_be_empty_larger_than_a_segment_or_in_many_pieces(
    store: Store, opened: Opener, body: list[bytes]
) -> None:
    locations = [store.append(body), store.append([b"behind"])]
    store, _, frames = opened()
    assert frames == [(locations[0], b"".join(body)), (locations[1], b"behind")]


def test_frames_are_read_again_from_and_up_to_a_location_before_they_are_synced(store: Store) -> None:
    frames = fill(store)
    for at in range(len(frames)):
        assert list(store.read(frames[at][0])) == frames[at:]
        assert list(store.read(frames[0][0], frames[at][0])) == frames[:at]
    assert list(store.read(frames[3][0], store.end())) == frames[3:]
    assert list(store.read(store.end())) == []


def test_a_reader_follows_frames_that_are_appended_while_it_reads(store: Store) -> None:
    frames = fill(store, 2)
    reading = store.read(frames[0][0])
    assert next(reading) == frames[0]
    frames += fill(store)
    assert list(reading) == frames[1:]


def test_a_snapshot_stands_for_all_frames_before_it(store: Store, opened: Opener) -> None:
    fill(store)
    store.save_snapshot([b"state", b" one"])
    store.save_snapshot([b"state", b" two"])
    behind = fill(store, 3)
    store, snapshot, frames = opened()
    assert (snapshot, frames) == (b"state two", behind)


def test_frames_may_be_appended_while_a_snapshot_of_what_was_before_is_saved(store: Store, opened: Opener) -> None:
    fill(store)
    before = store.begin_part()
    behind = fill(store)
    store.save_snapshot([b"state"], before)
    store, snapshot, frames = opened()
    assert (snapshot, frames) == (b"state", behind)
    with pytest.raises(InvalidArgument, match="snapshot"):
        store.save_snapshot([b"older"], store.parts()[0].first)
    with pytest.raises(InvalidArgument, match="snapshot"):
        store.save_snapshot([b"in the middle of a part"], store.end())


def test_parts_before_the_snapshot_can_be_dropped_and_no_others(store: Store, opened: Opener) -> None:
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
    store, _, after = opened()
    assert (after, store.parts()) == ([], parts[2:])
    assert list(store.read(parts[2].first)) == kept


def test_who_reads_a_part_that_is_dropped_gets_the_rest_or_is_told(store: Store) -> None:
    frames = fill(store)
    store.save_snapshot([b"state"])
    first = store.parts()[0]
    expected = [frame for frame in frames if frame[0] < first.end]
    reading = store.read(first.first, first.end)
    assert next(reading) == expected.pop(0)
    store.drop(first)
    with suppress(FrameDropped):  # a file that is open can be read to its end, a row that is gone cannot
        for frame in reading:
            assert frame == expected.pop(0)
        assert expected == []


def test_parts_have_a_size_and_follow_each_other(store: Store, opened: Opener) -> None:
    frames = fill(store)
    parts = store.parts()
    assert [frame for part in parts for frame in store.read(part.first, part.end)] == frames
    assert all(0 < part.size <= SMALL for part in parts)
    assert parts[-1].end == store.end()
    if opened.kind == "segments":
        files = sorted(opened.folder.path.glob("*.log"))
        sizes = [file.stat().st_size for file in files]
        assert [part.size for part in parts[:-1]] == sizes[:-1]
        assert parts[-1].size <= sizes[-1]  # there is room for more
    assert opened()[0].parts() == parts


def test_a_reader_sees_what_is_durable(store: Store, opened: Opener) -> None:
    reader = opened.reader()
    assert (list(reader.read()), reader.snapshot(), reader.end()) == ([], None, store.end())
    frames = fill(store)
    store.sync()
    fill(store, 1)
    assert list(reader.read()) == frames
    assert list(reader.read(frames[5][0], frames[9][0])) == frames[5:9]
    store.save_snapshot([b"state"])
    assert reader.snapshot() == (store.end(), b"state")
    assert reader.parts() == store.parts()
    assert list(reader.read(reader.end())) == []
    store.drop(store.parts()[0])
    with pytest.raises(FrameDropped):
        list(reader.read(frames[0][0]))
    assert next(reader.read())[0] == store.parts()[0].first


def test_a_folder_with_a_journal_of_another_kind_is_refused(store: Store, opened: Opener) -> None:
    store.close()
    (other,) = KINDS.keys() - {opened.kind}
    with pytest.raises(OtherJournal):
        Opener(other, opened.folder.path)()
    assert opened()[2] == []


def test_one_thread_appends_while_another_syncs_and_a_third_reads(store: Store, opened: Opener) -> None:
    first = store.append([b"0"])
    failures: list[BaseException] = []
    done = threading.Event()

    def repeat(action: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                action()
        except BaseException as error:
            failures.append(error)

    def read_all() -> None:
        bodies = [int(body) for _, body in store.read(first)]
        assert bodies == list(range(len(bodies)))

    threads = [threading.Thread(target=repeat, args=[action]) for action in (store.sync, read_all)]
    for thread in threads:
        thread.start()
    for number in range(1, 300):
        store.append([b"%d" % number])
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [body for _, body in opened()[2]] == [b"%d" % number for number in range(300)]


def test_a_closed_store_takes_no_more_calls(store: Store) -> None:
    fill(store)
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.append([b"late"])
    with pytest.raises(Closed):
        store.sync()
