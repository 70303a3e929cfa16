"""The state of a streaming operator, in files beside the checkpoint of its query: versions of N buckets of keys.

    manifest.json                   what the state is of: the operator, N, columns, schema, query
    batches/00000012.json           the clock of batch 12, pinned before it first runs
    runs/00000012/003-1.arrow       what batch 12 changed in bucket 3, and how many older runs stay as they are
    versions/00000012.json          the runs of each bucket after batch 12, and its options, written when all is there

Version b follows from version b-1, the rows of batch b, its clock and the options, so that a batch that is run again
writes the same. Options may change from one start of a query to the next; a batch that has a version keeps its own,
and one that failed takes the new ones, because they may be what helps it. A version that is missing is an error and
never a new beginning. The last two versions are kept: Spark runs again the batch that it has not committed, and no
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from inorder.errors import StateDamaged, StateRefused
from inorder.spark.folders import Folder
from inorder.spark.runs import Runs

FORMAT = 1
KEPT_VERSIONS = 2


class Run(NamedTuple):
    """A file of a bucket."""

    name: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a state is of. With another one it would be misread, so it stays the same for its whole life."""

    operator: str
    buckets: int
    columns: dict[str, str | None]  # what the operator reads
    schema: dict[str, str]  # of the rows: name and type
    query: str | None = None  # Spark's id of the query; None: not known yet

    def problem(self, found: Manifest) -> str | None:
        """Why a state with another manifest cannot be used, in words; None if it can."""
        if found.operator != self.operator:
            return f"it is of {found.operator}, not of {self.operator}; {_ANEW}"
        if found.buckets != self.buckets:
            return (
                f"it has {found.buckets} buckets, not {self.buckets}: keys would not find their state; "
                f"leave buckets={found.buckets}, or {_ANEW}"
            )
        if found.columns != self.columns:
            return f"it was made with {_listed(found.columns)}, not with {_listed(self.columns)}; {_ANEW}"
        if [*found.schema.items()] != [*self.schema.items()]:
            return f"the rows have changed ({'; '.join(self._differences(found))}), and rows are parked; {_ANEW}"
        if None not in (found.query, self.query) and found.query != self.query:
            return f"it belongs to query {found.query}, and this is query {self.query}: the checkpoint is another one"
        return None

    def _differences(self, found: Manifest) -> list[str]:
        gone = [f"{name} is gone" for name in found.schema if name not in self.schema]
        new = [f"{name} is new" for name in self.schema if name not in found.schema]
        other = [
            f"{name} was {found.schema[name]} and is {kind}"
            for name, kind in self.schema.items()
            if found.schema.get(name, kind) != kind
        ]
        return [*gone, *new, *other] or ["the order of the columns"]


_ANEW = "start with a new checkpoint"


def _listed(columns: dict[str, str | None]) -> str:
    return ", ".join(f"{role}={name!r}" for role, name in columns.items() if name is not None)


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a batch runs with, however often it does."""

    batch: int
    now_us: int
    options: dict[str, Any]
    runs: dict[int, list[Run]] = field(default_factory=dict)  # of each bucket, before the batch


class BucketState:
    """The state as the driver sees it. One query at a time may use it, which its checkpoint sees to."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @staticmethod
    def recorded_buckets(folder: Folder) -> int | None:
        """How many buckets the state has, if there is one."""
        return _manifest(folder).buckets if folder.exists("manifest.json") else None

    def open(self) -> None:
        """Refuse a state of something else; where there is none, begin one."""
        if self.folder.exists("manifest.json"):
            found = _manifest(self.folder)
            if problem := self.manifest.problem(found):
                raise StateRefused(self.folder.uri, problem)
            if found.query is not None or self.manifest.query is None:
                return
        elif versions := self._versions():
            raise StateDamaged(self.folder.uri, f"manifest.json is missing, and version {versions[-1]} is there")
        known = {name: getattr(self.manifest, name) for name in Manifest.__dataclass_fields__}
        self.folder.write_record("manifest.json", {"format": FORMAT, **known})

    def begin(self, batch: int, now_us: int, options: dict[str, Any]) -> Pinned:
        """What the batch runs with, or has run with; the clock never goes back."""
        versions = self._versions()
        if versions and versions[-1] > batch:
            raise StateRefused(
                self.folder.uri,
                f"it is at version {versions[-1]}, and the query is at batch {batch}: the checkpoint is another one, "
                f"or was set back; {_ANEW}, or restore both from one moment",
            )
        before: dict[str, Any] = {"now_us": 0, "runs": {}}
        if batch > 0:
            if batch - 1 not in versions:
                there = f"there are {', '.join(map(str, versions))}" if versions else "there is none at all"
                raise StateDamaged(
                    self.folder.uri,
                    f"batch {batch} needs version {batch - 1}, and {there}; restore it, or {_ANEW}, from the beginning",
                )
            before = self.folder.read_record(_version(batch - 1))
        pin = f"batches/{batch:08}.json"
        if not self.folder.exists(pin):
            self.folder.write_record(pin, {"now_us": max(now_us, before["now_us"])})
        if batch in versions:
            options = self.folder.read_record(_version(batch))["options"]
        else:
            for name in self.folder.sizes(_runs(batch)):  # of an attempt that failed, perhaps with other options
                self.folder.delete(f"{_runs(batch)}/{name}")
        runs = {int(bucket): [Run(*run) for run in runs] for bucket, runs in before["runs"].items()}
        return Pinned(batch, self.folder.read_record(pin)["now_us"], options, runs)

    def missing(self, batch: int) -> list[int]:
        """The buckets that have not written what the batch changed."""
        written = {_parsed(name)[0] for name in self.folder.sizes(_runs(batch))}
        return [bucket for bucket in range(self.manifest.buckets) if bucket not in written]

    def commit(self, pinned: Pinned) -> None:
        """Make a version of what the buckets have written, and forget the oldest."""
        if missing := self.missing(pinned.batch):
            raise StateDamaged(
                self.folder.uri,
                f"batch {pinned.batch} has left nothing of bucket {missing[0]} there: driver and executors must reach "
                "the folder under one name",
            )
        runs: dict[int, list[Run]] = {}
        for name, size in sorted(self.folder.sizes(_runs(pinned.batch)).items()):
            bucket, kept = _parsed(name)
            runs[bucket] = [*pinned.runs.get(bucket, ())[:kept], Run(f"{_runs(pinned.batch)}/{name}", size)]
        version = {"now_us": pinned.now_us, "options": pinned.options, "runs": runs}
        self.folder.write_record(_version(pinned.batch), version)
        self._clean_up(pinned.batch)

    def _versions(self) -> list[int]:
        return sorted(int(name.partition(".")[0]) for name in self.folder.sizes("versions"))

    def _clean_up(self, batch: int) -> None:
        kept = range(batch - KEPT_VERSIONS + 1, batch + 1)
        versions = self._versions()
        names = {version: self._run_names(version) for version in versions}
        needed = {name for version in versions if version in kept for name in names[version]}
        for version in versions:
            if version not in kept:
                for name in names[version] - needed:
                    self.folder.delete(name)
                    self.folder.tidy(name.rpartition("/")[0])
                self.folder.delete(f"batches/{version:08}.json")
                self.folder.delete(_version(version))

    def _run_names(self, version: int) -> set[str]:
        return {run[0] for runs in self.folder.read_record(_version(version))["runs"].values() for run in runs}


def newest_runs(folder: Folder, after: int) -> dict[int, list[str]]:
    """What the batches after this one wrote of each bucket, of those whose version is kept."""
    kept = {int(name.partition(".")[0]) for name in folder.sizes("versions")}
    return {
        batch: [runs[-1][0] for runs in folder.read_record(_version(batch))["runs"].values()]
        for batch in sorted(kept)
        if batch > after
    }


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket before a batch, as a task sees it: a plain value until it is read."""

    folder: Folder
    number: int
    batch: int
    runs: list[Run]

    def read(self, empty: pa.Table) -> Runs:
        """Its runs; `empty` is a table of no lines."""
        tables = []
        there: dict[str, dict[str, int]] = {}
        for name, size in self.runs:
            folder, _, file = name.rpartition("/")
            found = there.setdefault(folder, self.folder.sizes(folder)).get(file)
            if found is None:
                raise StateDamaged(self.folder.uri, f"{name} is missing")
            if found != size:
                raise StateDamaged(self.folder.uri, f"{name} has {found} bytes, and had {size} when it was written")
            table = self.folder.read_table(name)
            if not table.schema.equals(empty.schema):
                raise StateDamaged(self.folder.uri, f"{name} has other columns than the state of this operator")
            tables.append(table)
        return Runs(tables, empty)

    def write(self, kept: int, run: pa.Table) -> None:
        """The run of this batch, in place of all but the oldest `kept`. To write it twice is to write it once."""
        self.folder.write_table(f"{_runs(self.batch)}/{self.number:03}-{kept}.arrow", run)


def _version(batch: int) -> str:
    return f"versions/{batch:08}.json"


def _runs(batch: int) -> str:
    return f"runs/{batch:08}"


def _parsed(name: str) -> tuple[int, int]:
    """The bucket of a run, and how many older ones stay."""
    bucket, _, kept = name.removesuffix(".arrow").partition("-")
    return int(bucket), int(kept)


def _manifest(folder: Folder) -> Manifest:
    found = folder.read_record("manifest.json")
    if not isinstance(found, dict) or found.pop("format", None) != FORMAT:
        raise StateRefused(folder.uri, f"its manifest is of another format than {FORMAT}")
    try:
        return Manifest(**found)
    except TypeError as error:
        raise StateDamaged(folder.uri, f"manifest.json: {error}") from None
