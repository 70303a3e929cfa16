"""One batch of one bucket through `latest` or `merge_fields`, all keys at once.

Some columns are won together: a key has them of the greatest row that it ever had. `latest` has one such contest, for
the whole row, and `merge_fields` has one for each field. A row is greater by its time, and then by what it would win,
column by column, where null is the least. That order is total, so it does not matter which row comes first, or in
which batch.

It knows no Spark and no files: rows and lines are Arrow tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inorder.spark.hashing import Numbers
from inorder.spark.kernels import Rows
from inorder.spark.lines import HASH, KEY, SINCE, as_numbers, by_hash, one_chunk
from inorder.spark.sorting import Flags, sortable

_NEVER: Final = -1  # the time of what nobody has won yet


@dataclass(frozen=True, slots=True)
class Winners:
    """The greatest row of each key, or the greatest of each of its fields."""

    contests: Sequence[Sequence[str]]  # what is won together; a row takes part if the first of it is not null
    outcome: Mapping[str, str]  # the columns of what comes out, and those of the rows that they are
    absent: Mapping[str, str] = field(default_factory=dict)  # and those that say whether another one is null

    def lines(self, rows: pa.Schema) -> pa.Table:
        """A table of no lines: of each key the time of each contest, and what was won."""
        fields = [HASH, KEY, SINCE]
        for place, columns in enumerate(self.contests):
            fields.append(pa.field(_time(place), pa.int64(), nullable=False))
            fields += [pa.field(_held(place, name), rows.field(name).type) for name in columns]
        return pa.schema(fields).empty_table()

    def settle(self, new: Rows, lines: pa.Table) -> pa.Table:
        """The lines that new rows change, by hash and key. `lines` has those of their keys that exist."""
        step = _Step(new, lines)
        won = [step.contest(place, columns) for place, columns in enumerate(self.contests)]
        changed = np.flatnonzero(np.any([one.winner >= len(lines) for one in won], axis=0))
        codes = changed[by_hash(new.keys.take(pa.array(changed)), new.hashes[changed])]
        taken = [pa.array(new.hashes[codes]), new.keys.take(pa.array(codes)), pa.nulls(len(codes), SINCE.type)]
        for place, columns in enumerate(self.contests):
            taken.append(pa.array(won[place].time[codes]))
            taken += [step.take(place, name, won[place].winner[codes]) for name in columns]
        return pa.Table.from_arrays(taken, schema=self.lines(new.table.schema).schema)

    def told(self, lines: pa.Table, new: Rows) -> pa.Table:
        """Lines as rows that come out."""
        held = {name: _held(place, name) for place, columns in enumerate(self.contests) for name in columns}
        held |= {new.names.key: KEY.name, new.names.number: _time(0)}
        columns = {
            name: lines.column(held[column]).cast(new.table.schema.field(column).type)
            for name, column in self.outcome.items()
        }
        return pa.table(columns | {name: lines.column(held[column]).is_null() for name, column in self.absent.items()})


class _Won(NamedTuple):
    """Of each key: who won, an index into the lines and behind their end into the new rows, and its time."""

    winner: Numbers
    time: Numbers


class _Step:
    """A batch on its way."""

    def __init__(self, new: Rows, lines: pa.Table) -> None:
        self.new = new
        self.lines = lines
        self.code_of_line = as_numbers(pc.index_in(one_chunk(lines.column("key")), value_set=new.keys))

    def contest(self, place: int, columns: Sequence[str]) -> _Won:
        held = np.arange(len(self.lines))
        takes_part: Flags = one_chunk(self.new.table.column(columns[0])).is_valid().to_numpy(zero_copy_only=False)
        fresh = np.flatnonzero(takes_part)
        codes = np.concatenate([self.code_of_line, self.new.codes[fresh]])
        times = np.concatenate([as_numbers(self.lines.column(_time(place))), self.new.numbers[fresh]])
        rows = np.concatenate([held, fresh + len(held)])
        time = np.full(len(self.new.keys), _NEVER)
        np.maximum.at(time, codes, times)
        best = np.flatnonzero(times == time[codes])
        winner = np.full(len(self.new.keys), -1)
        winner[codes[best]] = rows[best]
        several = np.bincount(codes[best], minlength=len(winner)) > 1
        if several.any():
            tied = best[several[codes[best]]]
            self._settle_ties(winner, codes[tied], rows[tied], place, columns)
        return _Won(winner, time)

    def _settle_ties(self, winner: Numbers, codes: Numbers, rows: Numbers, place: int, columns: Sequence[str]) -> None:
        found = {"code": pa.array(codes)}
        for name in columns:
            found[_held(place, name)] = sortable(self.take(place, name, rows))
        # Nulls are last in any case. What is held is first among its equals, and stays so: then nothing has changed.
        by = [(name, "descending") for name in found]
        order = pc.sort_indices(pa.table(found), sort_keys=by).to_numpy()
        codes, rows = codes[order], rows[order]
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        winner[codes[first]] = rows[first]

    def take(self, place: int, name: str, rows: Numbers) -> pa.Array:
        """A column of these rows, where a negative one has none."""
        held, new = one_chunk(self.lines.column(_held(place, name))), one_chunk(self.new.table.column(name))
        if (rows >= len(held)).all():
            return new.take(pa.array(rows - len(held)))
        return pa.concat_arrays([held, new]).take(pa.array(rows, mask=rows < 0))


def _time(place: int) -> str:
    return f"{place} time"


def _held(place: int, name: str) -> str:
    """The column of a line, which has others than those that are won."""
    return f"{place}.{name}"
