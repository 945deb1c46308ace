"""What a user asks for: streams, tables, windows and a join query over them, bound and typed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import pyarrow as pa

from anabranch.errors import PlanError
from anabranch.plan.expression import Column, Expr, aliases_of, columns_of
from anabranch.plan.statement import FAIL, Statement

FOREVER_US = 2**63 - 1
"""The end of what is valid for ever, and the length of a window without end."""

LATEST_US = FOREVER_US // 2
"""A later row (of the year 148,108 or after) is early whatever its stream allows: when it ends must be a time, too."""

BEGINNING_US = -(2**63)
"""The start of what was always valid (rows of stored tables), and the watermark before every stream has shown a row."""


@dataclass(frozen=True)
class Field:
    """A column of a stream or table."""

    name: str
    type: pa.DataType
    outward: pa.DataType | None = field(default=None, compare=False, repr=False)
    """The type under which its values leave (`anabranch.plan.outward`); None: with timestamps as instants."""


AHEAD_US = 86_400_000_000
"""How far ahead of the driver's clock rows of a stream may be, unless the stream says otherwise: one day."""


@dataclass(frozen=True)
class Stream:
    """Rows with an event time. `time` names the column of type timestamp[us] that holds it."""

    name: str
    fields: tuple[Field, ...]
    time: str
    lateness_us: int = 0
    ahead_us: int | None = AHEAD_US
    """A row whose time is later than the driver's clock by more than this is turned away; None: none is."""
    idle_us: int | None = None
    """A stream that has shown no row for longer than this, by the driver's clock, does not hold the watermark back; None: it
    always does."""

    def early_after_us(self, planned_us: int) -> int:
        """The last time that a row may have in a batch that was planned at some time.

        >>> Stream("s", (), "ts", ahead_us=10).early_after_us(5)
        15
        """
        return LATEST_US if self.ahead_us is None else min(planned_us + self.ahead_us, LATEST_US)

    def field(self, name: str) -> Field | None:
        return next((f for f in self.fields if f.name == name), None)

    @property
    def shown_fields(self) -> tuple[Field, ...]:
        """The columns that `*` means."""
        return self.fields


@dataclass(frozen=True)
class Derived(Stream):
    """The results of a subquery in FROM. Those of a grouping are a stream whose event time is the instant; others are taken
    apart into their inputs before anything runs (`anabranch.plan.flat`)."""

    query: Query | None = None

    @property
    def shown_fields(self) -> tuple[Field, ...]:
        return tuple(f for f in self.fields if f.name != INSTANT)


@dataclass(frozen=True)
class Table:
    """Stored rows, valid for ever. They are read before the first batch."""

    name: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        return next((f for f in self.fields if f.name == name), None)

    @property
    def shown_fields(self) -> tuple[Field, ...]:
        """The columns that `*` means."""
        return self.fields


CURRENT, STATIC = "current", "static"
"""What a user says of a table in a database: a row of a stream meets what its batch finds there; or it does not change."""


@dataclass(frozen=True)
class DatabaseTable(Table):
    """A table that stays in its database, and is looked up there (`anabranch.plan.lookups`). Where the database is, and who
    we are there, is told by the machine that asks it, by name."""

    database: str = ""
    relation: str = ""
    """The table's name in the database."""
    reading: str = CURRENT


@dataclass(frozen=True, kw_only=True)
class Enriched(Stream):
    """The rows of a stream, each with what was found for it in a table of a database when its batch was run: once for each
    row found, not at all if there is none. To all that comes after the lookup it is a stream as any other."""

    base: Stream
    table: DatabaseTable
    keys: tuple[tuple[str, Expr], ...]
    """Columns of the table, and the terms over a row of the base that they must equal; their alias is empty."""
    found: tuple[tuple[str, str], ...]
    """The columns that come from the table: what they are called here, and there."""
    place: str | None = field(default=None, compare=False)
    """Where a hint wants the table: `DATABASE`, it is looked up; `ENGINE`, its rows come here; None: whichever takes less.
    What is found is the same, so that two lookups are one whatever hints say of them."""

    @property
    def root(self) -> Stream:
        """The stream that is read: its rows may be looked up for in several tables, one after the other."""
        return self.base.root if isinstance(self.base, Enriched) else self.base

    @property
    def shown_fields(self) -> tuple[Field, ...]:
        return self.root.fields


@dataclass(frozen=True)
class Window:
    """How long a row is valid: `[ts, ts + length_us)`. Build with `range_window`, `NOW`, `UNBOUNDED` or `STORED`."""

    kind: str
    length_us: int

    def __str__(self) -> str:
        return {"range": f"RANGE {self.length_us} us", "now": "NOW", "unbounded": "UNBOUNDED", "stored": "STORED"}[
            self.kind
        ]

    def end_us(self, start_us: int) -> int:
        """The end of the validity of a row that starts at `start_us`."""
        return FOREVER_US if self.length_us == FOREVER_US else start_us + self.length_us


NOW = Window("now", 1)
UNBOUNDED = Window("unbounded", FOREVER_US)
STORED = Window("stored", FOREVER_US)


def range_window(length_us: int) -> Window:
    """`[RANGE d]`: valid for d after the event time.

    >>> range_window(10).end_us(5)
    15
    """
    if length_us <= 0:
        raise PlanError(f"a RANGE window must be longer than 0, not {length_us} us")
    return Window("range", length_us)


ENGINE, DATABASE = "engine", "database"
"""The places that a hint may name; others are names of databases."""


@dataclass(frozen=True)
class Input:
    """One entry of FROM: a source under an alias, its window, and the predicates on it alone (all must be true)."""

    alias: str
    source: Stream | Table
    window: Window
    filters: tuple[Expr, ...] = ()
    freshness_us: int | None = None
    """A result has no row of the input that is older than this by the clock of the query (001, definition 2); None: any."""
    place: str | None = None
    """Where a hint wants a subquery to be computed: `ENGINE`, `DATABASE` (whichever), or the name of a database; None:
    wherever it is cheapest. Of a stored table that stays in its database: see `Enriched.place`."""


@dataclass(frozen=True)
class Equality:
    """`left = right` between two inputs; both sides have the same type, each reads exactly one input."""

    left: Expr
    right: Expr

    def __str__(self) -> str:
        return f"{self.left} = {self.right}"


INSTANT = "_instant"
"""The column of a subquery's groups that holds the instant of each: their event time."""

PARTS = pa.binary()
"""The type of an aggregate that is handed on as partial values, in bytes, to be aggregated again."""

GROUP = ""
"""The alias under which expressions over groups read their keys (`key0`, `key1`, …) and aggregates (`agg0`, …); or, where a
database makes them, its columns (`out0`, …)."""

SECOND_US = 1_000_000


@dataclass(frozen=True)
class Aggregate:
    """One aggregate over the rows of a group: `count` (of rows, or of values that are not NULL), `count_distinct`, `sum`,
    `avg`, `min`, `max` or `stddev` (of a sample). `argument` is the place of its argument in the query's select list. A sum
    or mean may be of type `PARTS`, and so may its argument."""

    function: str
    argument: int | None
    type: pa.DataType

    def __str__(self) -> str:
        return f"{self.function}({'*' if self.argument is None else f'#{self.argument}'})"


@dataclass(frozen=True)
class Grouping:
    """GROUP BY, and what is selected of the groups at every slide instant.

    The first `keys` columns of the query's select list are the keys of the groups, the rest arguments of aggregates. Where a
    database makes the groups, they are the column that rows may be spread by, if there is one, and what the database reads.
    """

    keys: int
    aggregates: tuple[Aggregate, ...]
    select: tuple[tuple[str, Expr], ...]
    having: Expr | None = None
    slide_us: int = SECOND_US
    statement: Statement | None = None
    """What a database is asked for at each instant, over the rows that are valid then."""

    def __post_init__(self) -> None:
        if self.slide_us <= 0:
            raise PlanError(f"a SLIDE must be longer than 0, not {self.slide_us} us")


@dataclass(frozen=True)
class Query:
    """A bound query: a join of its inputs, and a grouping of what it gives, if it has one.

    `equalities` connect two inputs each; `residuals` are all other predicates over two or more inputs (or over none);
    predicates over one input stand in its `filters`. Inputs stand in order of appearance. When SQL is bound, all
    predicates are residuals at first; `anabranch.plan.rewrites` puts them where they belong.
    """

    name: str
    inputs: tuple[Input, ...]
    equalities: tuple[Equality, ...]
    residuals: tuple[Expr, ...]
    select: tuple[tuple[str, Expr], ...]
    """The columns of the join's rows; with a grouping they are its keys and arguments."""
    sql: str = field(default="", compare=False)
    grouping: Grouping | None = None
    kept: tuple[Column, ...] = ()
    """Columns of inputs that are stored although nothing reads them: state that is gone on with has them
    (`anabranch.plan.adoption`)."""
    place: str | None = None
    """Where a hint wants the block itself, as `Input.place` says it of a subquery."""
    asked: Statement | None = None
    """What a database is asked for in each batch, of a join without groups that it may run; of groups, `Grouping` has it."""
    base: str = field(default="", compare=False)
    """Whose state the query goes on with, if it was written in another way: a digest (`anabranch.control.query_texts`)."""

    def __post_init__(self) -> None:
        if len(set(self.aliases)) != len(self.aliases):
            raise PlanError(f"query {self.name}: an alias stands twice in FROM")
        if odd := [a for a in self.aliases if not a.isidentifier()]:
            raise PlanError(f"query {self.name}: {odd[0]!r} cannot name an input: plans are written in plain words")
        known = set(self.aliases)
        for expr in (*self.residuals, *(e for _, e in self.select), *self.kept):
            if not aliases_of(expr) <= known:
                raise PlanError(f"query {self.name}: {expr} reads an input that is not in FROM")
        for equality in self.equalities:
            sides = aliases_of(equality.left), aliases_of(equality.right)
            if len(sides[0]) != 1 or len(sides[1]) != 1 or sides[0] == sides[1] or not sides[0] | sides[1] <= known:
                raise PlanError(f"query {self.name}: {equality} does not connect two inputs")
            if equality.left.type != equality.right.type:
                raise PlanError(
                    f"query {self.name}: {equality} compares {equality.left.type} with {equality.right.type}"
                )

    @cached_property
    def aliases(self) -> tuple[str, ...]:
        return tuple(i.alias for i in self.inputs)

    def input(self, alias: str) -> Input:
        return next(i for i in self.inputs if i.alias == alias)

    @cached_property
    def sources(self) -> tuple[Stream | Table, ...]:
        """The streams and tables of the query, each once, in order of appearance; subqueries too."""
        return tuple({i.source.name: i.source for i in self.inputs}.values())

    @cached_property
    def statement(self) -> Statement | None:
        """What a database is asked for, if one runs the block."""
        asked = self.may_ask
        return None if asked is None or asked.is_idle else asked

    @property
    def may_ask(self) -> Statement | None:
        """What a database is asked for, if one runs the block, or may."""
        return self.grouping.statement if self.grouping is not None else self.asked

    @property
    def keeps_log(self) -> bool:
        """Whether rows are kept because a database runs the block, or may."""
        return self.may_ask is not None

    def asking(self, statement: Statement | None) -> Query:
        """The block with another statement, or none."""
        if self.grouping is None:
            return replace(self, asked=statement)
        return replace(self, grouping=replace(self.grouping, statement=statement))

    @property
    def at_home(self) -> Query:
        """A block that a database may run, run by the engine."""
        assert self.may_ask is not None, "a block of a database has a statement"
        return self.asking(replace(self.may_ask, is_idle=True))

    @cached_property
    def passing_stream(self) -> str | None:
        """The alias of a single stream among stored tables: its rows meet what is stored, and are not stored themselves."""
        if self.keeps_log:
            return None
        streams = [i.alias for i in self.inputs if isinstance(i.source, Stream)]
        return streams[0] if len(streams) == 1 < len(self.inputs) else None

    @cached_property
    def subqueries(self) -> tuple[Query, ...]:
        """The subqueries in FROM."""
        return tuple(s.query for s in self.sources if isinstance(s, Derived) and s.query is not None)

    @cached_property
    def blocks(self) -> tuple[Query, ...]:
        """All queries that this one consists of, those below before those above, itself last."""
        return (*(block for inner in self.subqueries for block in inner.blocks), self)

    @cached_property
    def places(self) -> dict[str, str]:
        """The databases that run blocks of ours, by the names of the blocks (`anabranch.place.statement_of`)."""
        asked = ((block.name, block.may_ask) for block in self.blocks)
        return {name: found.database for name, found in asked if found is not None and found.is_printed}

    @cached_property
    def database_failure(self) -> str:
        """What becomes of statements that fail, of blocks of ours."""
        asked = (block.may_ask for block in self.blocks)
        return next((found.failure for found in asked if found is not None and found.is_printed), FAIL)

    @cached_property
    def hinted(self) -> dict[str, str]:
        """Where hints want blocks with groups, by the names of the blocks."""
        found = {self.name: self.place} if self.place is not None else {}
        for block in self.blocks:
            for i in block.inputs:
                if i.place is not None and isinstance(i.source, Derived) and i.source.query is not None:
                    found[i.source.query.name] = i.place
        return found

    @cached_property
    def base_sources(self) -> tuple[Stream | Table, ...]:
        """The streams and tables that the query and its subqueries read, each once."""
        found = (s for block in self.blocks for s in block.sources if not isinstance(s, Derived))
        return tuple({s.name: s for s in found}.values())

    @cached_property
    def declared_sources(self) -> tuple[Stream | Table, ...]:
        """The streams and tables that a user declared, of those that the query and its subqueries read, each once."""
        found: dict[str, Stream | Table] = {}
        for source in self.base_sources:
            tables = []
            while isinstance(source, Enriched):
                tables.append(source.table)
                source = source.base
            found |= {each.name: each for each in (source, *reversed(tables))}
        return tuple(found.values())

    def needed_columns(self, alias: str) -> tuple[str, ...]:
        """The columns of an input that must be stored: for keys, residuals and results (not for its own filters), and those
        that state has which the query goes on with."""
        return tuple(f.name for f in self.input(alias).source.fields if (alias, f.name) in self._read)

    @cached_property
    def _read(self) -> frozenset[tuple[str, str]]:
        exprs = [e for q in self.equalities for e in (q.left, q.right)]
        exprs += [*self.residuals, *(e for _, e in self.select), *self.kept]
        return frozenset((column.alias, column.name) for e in exprs for column in columns_of(e))

    @cached_property
    def row_schema(self) -> pa.Schema:
        """What the join gives."""
        return pa.schema([pa.field(name, expr.type) for name, expr in self.select])

    @cached_property
    def output_schema(self) -> pa.Schema:
        """What the query gives."""
        select = self.select if self.grouping is None else self.grouping.select
        return pa.schema([pa.field(name, expr.type) for name, expr in select])
