"""The MIG box: a block that a database runs over the rows in the store of its slot (004, section 4.2: the MIG operator).

Like any box it is stepped once a batch and gives the rows of its block at the instants that the watermark has passed; these
come in as the rows of a stream, and so what the database said of an instant is state: it is not asked again. Unlike others
it keeps the rows of its inputs, for as long as their windows last, and owns nothing else. The database scans the segments of
the log where they lie.

At an instant τ the relation of an input has the rows that are its reader's own (`delta_of`: its batches, its watermark, its
part of the grid) and valid at τ: `start <= τ < end`. An instant at which no stream has such a row is passed over, whatever
the text says of no rows at all: a group without rows has no result.

The instants of a batch are asked for in one statement, as far as the rows of their windows are few enough
(`anabranch.engine.bounds`): they give the same, and to read and to plan a statement takes longer than a small window
(`python -m bench.instants`). If that fails, each of them is asked for by itself.

Where a statement fails and its block is one of ours, the engine makes the groups of that instant and of all later ones of
the batch, if the user wants that (`database_failure`): the rows that the database was to read are folded in one go, with
nothing kept for the next batch. Those of a block that joins are joined for that (`anabranch.engine.stand_in`). Before the
next batch the block comes home (`anabranch.drive.probation`).

A block on its way to the engine has groups beside what the database gives (`anabranch.engine.homecoming`).

Example: windows of 5 minutes, SLIDE 1 minute, batches of 10 seconds. In one batch of six the watermark passes a minute. Of
31 segments the first has rows that have ended, the last rows that are too new; of these two the valid rows are cut out, the
29 between are handed over as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from tempfile import SpooledTemporaryFile
from time import perf_counter, thread_time_ns

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import Border
from anabranch.engine import bounds
from anabranch.engine.accept import in_one_piece
from anabranch.engine.aggregation import Aggregator, instant_of
from anabranch.engine.arrival import Arrival, delta_of, ends_of
from anabranch.engine.box import Box
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.engine.homecoming import Homecoming
from anabranch.engine.log import Stored, starts_of
from anabranch.engine.reader import InputState, Reader
from anabranch.engine.results import Found
from anabranch.engine.stand_in import Spans, StandIn
from anabranch.engine.store import Store
from anabranch.errors import QueryError
from anabranch.plan.expression import Column, ResultTime
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Query, Stream, Table
from anabranch.plan.statement import IN_ENGINE, VALID, Embedded


@dataclass(frozen=True)
class Piece:
    """The rows of a segment that are an input's."""

    data: pa.Buffer
    """The segment, as it was when the piece was made."""
    rows: pa.RecordBatch
    starts: npt.NDArray[np.int64]
    least_us: int
    largest_us: int

    def valid_at(self, instant_us: int, window_us: int) -> pa.RecordBatch | None:
        """The rows that are valid at an instant: all of them where they lie, where all are."""
        after_us = BEGINNING_US if window_us == FOREVER_US else instant_us - window_us
        if self.least_us > instant_us or self.largest_us <= after_us:
            return None
        if self.least_us > after_us and self.largest_us <= instant_us:
            return self.rows
        places = np.flatnonzero((self.starts <= instant_us) & (self.starts > after_us))
        if not len(places):
            return None
        if places[-1] - places[0] + 1 == len(places):
            return self.rows.slice(int(places[0]), len(places))
        return self.rows.take(pa.array(places))


@dataclass(frozen=True)
class Windows:
    """The rows that are valid at an instant, by input."""

    instant_us: int
    relations: dict[str, pa.Table]

    @cached_property
    def size(self) -> tuple[int, int]:
        """Their rows and bytes."""
        return _size(self.relations)


ALL = (0, 2**62)
"""All batches."""


@dataclass
class Pieces:
    """What an input has, by batch; made once for each segment."""

    reader: Reader | None = None
    by_batch: dict[int, Piece] = field(default_factory=dict)


class MigBox(Box):
    """One block of a query in one slot, run by a database."""

    def __init__(self, reader: Reader, store: Store, database: Callable[[], Embedded]) -> None:
        """`database` gives the one to ask, which is opened when there is something to be asked."""
        super().__init__(reader, store)
        self._database = database
        self.emitted_us = BEGINNING_US
        """The watermark of the batch before: the rows of instants before it have been handed out."""
        self._pieces: dict[str, Pieces] = {}
        self._is_failing = False
        """Whether a statement has failed, so that it is of no use to wait for another one to."""
        self._stand_in: StandIn | None = None
        """What the engine joins by in this batch, if the database has failed in it."""
        self.homecoming: Homecoming | None = None
        """What the groups have of a block that is on its way to the engine."""

    def begin(self, arrival: Arrival) -> None:
        super().begin(arrival)
        self._stand_in = None

    def step(self, watermark_us: int) -> Iterator[Found]:
        """Gives the rows of the block at the instants that the watermark has passed since the batch before."""
        yield from self._given(watermark_us)
        if self.homecoming is not None:
            self.homecoming.advance(self.arrival.batch, watermark_us)

    def _given(self, watermark_us: int) -> Iterator[Found]:
        began = thread_time_ns()
        for i in self.reader.inputs:
            self._look_at(i)
        for together in self._together(watermark_us):
            left = [together]
            while left:
                asked = left.pop(0)
                try:
                    found = self._ask(asked)
                except QueryError:
                    if len(asked) > 1:  # what is too much for all of them may do for each
                        left = [[each] for each in asked]
                        continue
                    if not self._may_make_up():
                        raise
                    self._has_failed()
                    self._spent("database", began)
                    for rows in self._made_up(asked[0].instant_us, watermark_us):
                        self.statistics.results += rows.num_rows
                        yield self.reader.query, rows
                    return
                self._spent("database", began)
                for rows in found:
                    self.statistics.results += rows.num_rows
                    yield self.reader.query, rows
                began = thread_time_ns()
        self._spent("database", began)

    # -- what is there -----------------------------------------------------------------------------------------------

    def _look_at(self, i: InputState) -> None:
        """Knows the pieces of all segments that there are of an input."""
        log, known = self.log_of(i.alias), self._pieces.setdefault(i.alias, Pieces())
        if known.reader is not self.reader:
            known.reader, known.by_batch = self.reader, {}
        found: dict[int, Piece] = {}
        for batch, stored in log:
            if self.reader.is_shown(i, batch):
                piece = known.by_batch.get(batch)
                is_same = piece is not None and piece.data is stored.data
                found[batch] = piece if is_same and piece is not None else self._piece(i, batch, stored)
        known.by_batch = found

    def _schema(self, i: InputState) -> pa.Schema:
        """The columns that the database gets of an input: those that are read, or its time if rows are just counted."""
        wanted = self.reader.graph.query.needed_columns(i.alias)
        if not wanted and isinstance(i.source, Stream):
            wanted = (i.source.time,)
        return pa.schema([pa.field(f.name, f.type) for f in i.source.fields if f.name in wanted])

    def _piece(self, i: InputState, batch: int, stored: Stored) -> Piece:
        delta = delta_of(self.reader, i, batch, stored, starts_of(i.source, stored.rows))
        names, schema = stored.rows.schema.names, self._schema(i)
        columns = [
            stored.rows.column(names.index(f.name)) if f.name in names else pa.nulls(stored.rows.num_rows, f.type)
            for f in schema
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        if len(delta.starts) < rows.num_rows:
            rows = rows.take(pa.array(delta.positions))
        if self.reader.graph.query.grouping is None:
            rows = _with_validity(rows, delta.starts, delta.ends)
        ends = (int(delta.starts.min()), int(delta.starts.max())) if len(delta.starts) else (FOREVER_US, BEGINNING_US)
        return Piece(stored.data, rows, delta.starts, *ends)

    def _instants(self, watermark_us: int) -> Iterator[int]:
        """The instants that the watermark has passed and at which some stream may have rows: where none has, the next one
        is that of the next row."""
        grouping = self.reader.graph.query.grouping
        assert grouping is not None, "a block of a database has instants"
        if watermark_us == BEGINNING_US:
            return
        slide_us, end = grouping.slide_us, instant_of(watermark_us, grouping.slide_us)
        after_us = BEGINNING_US if self.emitted_us == BEGINNING_US else self.emitted_us - 1
        instant = end if self.emitted_us == BEGINNING_US else instant_of(self.emitted_us, slide_us)
        if self.emitted_us == BEGINNING_US and (first_us := self._next_start_us(after_us)) is not None:
            instant = instant_of(first_us, slide_us)
        while instant < end:
            if self._has_rows(instant * slide_us):
                yield instant * slide_us
                instant += 1
                continue
            first_us = self._next_start_us(instant * slide_us)
            if first_us is None:
                return
            instant = instant_of(first_us, slide_us)

    def _streams(self) -> Iterator[tuple[InputState, Piece]]:
        for i in self.reader.inputs:
            if not isinstance(i.source, Table):
                for piece in self._pieces[i.alias].by_batch.values():
                    yield i, piece

    def _has_rows(self, instant_us: int) -> bool:
        return any(piece.valid_at(instant_us, i.window_us) is not None for i, piece in self._streams())

    def _next_start_us(self, after_us: int) -> int | None:
        """The least start of a row of a stream behind a time."""
        found = [
            piece.least_us if piece.least_us > after_us else int(piece.starts[piece.starts > after_us].min())
            for _, piece in self._streams()
            if piece.largest_us > after_us
        ]
        return min(found, default=None)

    # -- what the database says --------------------------------------------------------------------------------------

    def _relation(self, i: InputState, instant_us: int) -> pa.Table:
        schema = self._schema(i)
        pieces = self._pieces[i.alias].by_batch.values()
        if isinstance(i.source, Table):
            return pa.Table.from_batches([piece.rows for piece in pieces], schema)
        valid = [piece.valid_at(instant_us, i.window_us) for piece in pieces]
        return pa.Table.from_batches([rows for rows in valid if rows is not None], schema)

    def _together(self, watermark_us: int) -> Iterator[list[Windows]]:
        """The windows of the instants that the watermark has passed, as many as the database is asked for at once."""
        found, size_bytes = list[Windows](), 0
        for instant_us in self._instants(watermark_us):
            windows = Windows(instant_us, {i.alias: self._relation(i, instant_us) for i in self.reader.inputs})
            size_bytes += windows.size[1]
            if found and (size_bytes > bounds.TOGETHER_BYTES or len(found) >= bounds.TOGETHER_INSTANTS):
                yield found
                found, size_bytes = [], windows.size[1]
            found.append(windows)
        if found:
            yield found

    def _run_there(self, windows: Sequence[Windows]) -> list[pa.Table]:
        """What the database gives, over the windows of some instants; what went over the border is counted."""
        asked, back, given = self.reader.graph.query.statement, (0, 0), list[pa.Table]()
        assert asked is not None, "a block of a database has a statement"
        border = self.statistics.borders.setdefault(self.name, Border(asked.database))
        database, began = self._database(), perf_counter()
        rows, nbytes = (sum(figures) for figures in zip(*(each.size for each in windows), strict=True))
        try:
            given = _given_over(database, [each.relations for each in windows], asked.sql)
            back = sum(each.num_rows for each in given), sum(each.nbytes for each in given)
        finally:
            border.count((rows, nbytes), back, perf_counter() - began, len(given))
        if given[0].num_columns < len(asked.types):
            raise QueryError(f"DATABASE {asked.database} gives {given[0].num_columns} columns: start the query anew")
        return [each.combine_chunks() for each in given]

    def _ask(self, windows: Sequence[Windows]) -> list[pa.RecordBatch]:
        """The rows of the block at some instants, each with its instant; none of one without rows."""
        pairs = zip(windows, self._run_there(windows), strict=True)
        return [self._groups(each.instant_us, given) for each, given in pairs if given.num_rows]

    def _groups(self, instant_us: int, given: pa.Table) -> pa.RecordBatch:
        """What the database gave of an instant, as rows of the block."""
        query = self.reader.graph.query
        schema, columns, found = query.output_schema, [], iter(given.columns)
        assert query.grouping is not None, "a block of a database has instants"
        for wanted, (_, expr) in zip(schema.types, query.grouping.select, strict=True):
            if isinstance(expr, ResultTime):
                columns.append(pa.array(np.full(given.num_rows, instant_us, np.int64)).cast(wanted))
                continue
            columns.append(_in_type(next(found), wanted))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _may_make_up(self) -> bool:
        """Whether the engine does what a statement that fails was to do."""
        asked = self.reader.graph.query.statement
        return asked is not None and asked.failure == IN_ENGINE and asked.is_printed

    def _has_failed(self) -> None:
        """Counts a statement that has failed."""
        asked = self.reader.graph.query.statement
        assert asked is not None, "a block of a database has a statement"
        self.statistics.borders.setdefault(self.name, Border(asked.database)).failed += 1
        self._is_failing = True

    def _standing_in(self) -> StandIn:
        """What the engine joins the stored rows by."""
        if self._stand_in is None:
            self._stand_in = StandIn(self)
        return self._stand_in

    def _made_up(self, instant_us: int, watermark_us: int) -> Iterator[pa.RecordBatch]:
        """The groups from an instant on, as far as the watermark has come, of the rows that the database was to read."""
        began, query = thread_time_ns(), self.reader.graph.query
        assert query.grouping is not None, "a block of a database has groups"
        groups = Aggregator(query.grouping, query.row_schema)
        groups.restore((), instant_us)
        if len(self.reader.inputs) > 1:
            self._join(groups, {i.alias: ALL for i in self.reader.inputs})
        else:
            (i,) = self.reader.inputs
            for batch in self.batches_of(i):
                self.fold_into(groups, {i.alias: (batch, batch + 1)})
        groups.settle(0)
        for rows in groups.advance(watermark_us):
            self._spent("groups", began)
            yield rows
            began = thread_time_ns()
        self._spent("groups", began)

    def _join(self, groups: Aggregator, spans: Spans) -> None:
        """Has groups take what the engine joins of the rows of some batches."""
        joined = self._standing_in()
        joined.aggregator = groups
        for _ in joined.find(spans):
            raise AssertionError("groups give results before the watermark has passed them")

    # -- on the way to the engine ------------------------------------------------------------------------------------

    def look_at_all(self) -> None:
        """Knows what there is of all inputs, before a batch: since the last that was run here, others may have run some."""
        self._stand_in = None
        for i in self.reader.inputs:
            self._look_at(i)

    def batches_of(self, i: InputState) -> Iterator[int]:
        """The batches that have brought rows of an input which are there."""
        return (batch for batch, piece in self._pieces[i.alias].by_batch.items() if piece.rows.num_rows)

    def fold_into(self, groups: Aggregator, spans: Spans) -> None:
        """Has groups take what the block groups of the rows of some batches, by input: rows, or what the database joins them
        to. If that fails, the engine does."""
        query, relations = self.reader.graph.query, dict[str, pa.Table]()
        for i in self.reader.inputs:
            first, end = spans[i.alias]
            pieces = [self._pieces[i.alias].by_batch[batch] for batch in self.batches_of(i) if first <= batch < end]
            if not pieces:
                return
            valid = [_with_validity(piece.rows, piece.starts, ends_of(i, piece.starts)) for piece in pieces]
            relations[i.alias] = pa.Table.from_batches(valid)
        if len(relations) == 1:
            (rows,) = relations.values()
            groups.take(*_grouped(query, rows.combine_chunks().to_batches()[0]))
            return
        if self._is_failing and self._may_make_up():
            self._join(groups, spans)
            return
        assert query.statement is not None, "a block of a database has a statement"
        try:
            given = self._database().run(query.statement.combinations, relations).combine_chunks()
        except QueryError:
            if not self._may_make_up():
                raise
            self._has_failed()
            self._join(groups, spans)
            return
        if given.num_rows:
            types = [*query.row_schema.types, pa.int64(), pa.int64()]
            *columns, starts, ends = (_in_type(column, wanted) for column, wanted in zip(given.columns, types, strict=True))
            groups.take(columns, starts.to_numpy(), ends.to_numpy())


class JoinMigBox(MigBox):
    """A join without groups, run by a database in each batch: what is new of an input against all of the inputs ahead of it,
    and against what was there before of those behind it. So every combination is found once, as in a box of our own.

    Example: a and b bring a row each in batch 5. DuckDB is asked for the new row of a with the rows of b up to batch 4, then
    for the new row of b with the rows of a up to batch 5.
    """

    def step(self, watermark_us: int) -> Iterator[Found]:
        """Gives the results that the rows of the batch have."""
        began, batch, inputs = thread_time_ns(), self.arrival.batch, self.reader.inputs
        for i in inputs:
            self._look_at(i)
        for place, i in enumerate(inputs):
            fresh = self._pieces[i.alias].by_batch.get(batch)
            if fresh is None or not fresh.rows.num_rows or isinstance(i.source, Table):
                continue  # no row of a stream is there before a table
            spans = {
                j.alias: (0, batch + 1 if other < place or isinstance(j.source, Table) else batch)
                for other, j in enumerate(inputs)
            }
            spans[i.alias] = batch, batch + 1
            relations = dict[str, pa.Table]()
            for j in inputs:
                first, end = spans[j.alias]
                seen = [piece.rows for n, piece in self._pieces[j.alias].by_batch.items() if first <= n < end]
                if there := [rows for rows in seen if rows.num_rows]:
                    relations[j.alias] = pa.Table.from_batches(there)
            if len(relations) == len(inputs):
                yield from self._met(relations, spans, began)
                began = thread_time_ns()
        self._spent("database", began)

    def _met(self, relations: Mapping[str, pa.Table], spans: Spans, began_ns: int) -> Iterator[Found]:
        """What the database finds of the rows of some batches, or the engine, where that fails."""
        if not self._may_make_up():
            for found in self._results(relations, began_ns):
                self.statistics.results += found[1].num_rows
                yield found
            return
        if self._stand_in is None:
            with SpooledTemporaryFile(bounds.TOGETHER_BYTES) as waiting:
                try:
                    with pa.ipc.new_stream(waiting, self.reader.graph.query.output_schema) as writer:
                        for _, piece in self._results(relations, began_ns):
                            writer.write_batch(piece)
                except QueryError:
                    self._has_failed()
                else:
                    waiting.seek(0)
                    for piece in pa.ipc.open_stream(waiting):
                        self.statistics.results += piece.num_rows
                        yield self.reader.query, piece
                    return
        began = thread_time_ns()
        for query, piece in self._standing_in().find(spans):
            self.statistics.results += piece.num_rows
            self._spent("made up", began)
            yield query, piece
            began = thread_time_ns()
        self._spent("made up", began)

    def _results(self, relations: Mapping[str, pa.Table], began_ns: int) -> Iterator[Found]:
        """What the database finds, in pieces, as it finds them."""
        query = self.reader.graph.query
        asked, schema, sent = query.statement, query.output_schema, _size(relations)
        assert asked is not None, "a block of a database has a statement"
        border, began = self.statistics.borders.setdefault(self.name, Border(asked.database)), perf_counter()
        rows = nbytes = 0
        seconds = 0.0
        try:
            for piece in self._database().pieces(asked.sql, relations, bounds.RESULT_ROWS):
                seconds += perf_counter() - began
                rows, nbytes = rows + piece.num_rows, nbytes + piece.nbytes
                columns = [_in_type(column, wanted) for column, wanted in zip(piece.columns, schema.types, strict=True)]
                self._spent("database", began_ns)
                yield self.reader.query, pa.RecordBatch.from_arrays(columns, schema=schema)
                began, began_ns = perf_counter(), thread_time_ns()
        finally:
            border.count(sent, (rows, nbytes), seconds + perf_counter() - began, 1 - border.instants)
            self._spent("database", began_ns)


Grouped = tuple[list[pa.Array], npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Keys and arguments of rows that are grouped, and their validity."""


def _grouped(query: Query, rows: pa.RecordBatch) -> Grouped:
    """What a block over one input groups of some rows with their validity."""

    def column(wanted: Column) -> pa.Array:
        return rows.column(wanted.name)

    columns = [evaluate(expr, column, rows.num_rows) for _, expr in query.select]
    starts, ends = (rows.column(name).to_numpy() for name in VALID)
    mask = predicate_mask(query.residuals, column, rows.num_rows)
    if mask is None:
        return columns, starts, ends
    return [each.filter(pa.array(mask)) for each in columns], starts[mask], ends[mask]


def _with_validity(
    rows: pa.RecordBatch, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> pa.RecordBatch:
    return rows.append_column(VALID[0], pa.array(starts)).append_column(VALID[1], pa.array(ends))


def _given_over(database: Embedded, relations: Sequence[Mapping[str, pa.Table]], sql: str) -> list[pa.Table]:
    """What a statement gives over the relations of each of some instants."""
    return [database.run(sql, relations[0])] if len(relations) == 1 else database.run_all(sql, relations)


def _size(relations: Mapping[str, pa.Table]) -> tuple[int, int]:
    """The rows and bytes of relations."""
    return sum(rows.num_rows for rows in relations.values()), sum(rows.nbytes for rows in relations.values())


def _in_type(column: pa.ChunkedArray | pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column that a database gave, in the type that it has here."""
    whole = in_one_piece(column)
    return whole if whole.type == wanted else whole.cast(wanted)
