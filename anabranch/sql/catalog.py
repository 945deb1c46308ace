"""The streams and tables that queries may name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from anabranch.errors import DuplicateNameError, InvalidNameError, MissingTimeColumnError, SqlError, did_you_mean
from anabranch.plan.names import NAME_RULE, why_not_a_name
from anabranch.plan.on_error import FAIL, OnError
from anabranch.plan.query import Stream, Table
from anabranch.plan.statement import Open, no_database
from anabranch.sql.types import TIMESTAMP, spell


@dataclass(frozen=True)
class Location:
    """Where the rows of a source are read: a path or glob, and one of the formats parquet, csv, json, arrow."""

    path: str
    format: str
    refresh_us: int = 0
    """A table is read again every so much event time; 0: never."""
    on_error: OnError = FAIL
    at: int = field(default=0, compare=False, repr=False)
    """Where in the script the path stands."""
    database: str = field(default="", repr=False)
    """The database that a table is read from; the path is its name there."""


@dataclass(frozen=True)
class Problem:
    """Why a source cannot enter a catalog; `column` is the column to blame, if there is one."""

    kind: type[SqlError]
    message: str
    hint: str = ""
    column: str | None = None


@dataclass(frozen=True)
class Catalog:
    """Sources by name, without regard to case. Adding gives a new catalog.

    >>> import pyarrow as pa
    >>> from anabranch.plan.query import Field
    >>> catalog = Catalog().with_table(Table("Symbols", (Field("id", pa.int64()),)))
    >>> catalog.source("symbols").name
    'Symbols'
    """

    sources: tuple[Stream | Table, ...] = ()
    locations: tuple[tuple[str, Location], ...] = ()
    databases: Open = field(default=no_database, compare=False, repr=False)
    """Opens the databases that FROM DATABASE may name."""

    def __iter__(self) -> Iterator[Stream | Table]:
        return iter(self.sources)

    def source(self, name: str) -> Stream | Table | None:
        return next((s for s in self.sources if s.name.lower() == name.lower()), None)

    def location(self, name: str) -> Location | None:
        """Where a source is read; None if its rows are supplied from code."""
        return next((where for known, where in self.locations if known.lower() == name.lower()), None)

    def with_stream(self, stream: Stream, location: Location | None = None) -> Catalog:
        return self._with(stream, location)

    def with_table(self, table: Table, location: Location | None = None) -> Catalog:
        return self._with(table, location)

    def problem_with(self, source: Stream | Table) -> Problem | None:
        """What speaks against adding a source."""
        if reason := why_not_a_name(source.name):
            return Problem(InvalidNameError, reason, NAME_RULE)
        if self.source(source.name) is not None:
            return Problem(DuplicateNameError, f"{source.name} exists already", "choose another name")
        seen: set[str] = set()
        for each in source.fields:
            if each.name.lower() in seen:
                return Problem(DuplicateNameError, f"{source.name} has two columns {each.name}", column=each.name)
            seen.add(each.name.lower())
        if isinstance(source, Table):
            return None
        time = source.field(source.time)
        if time is None:
            hint = did_you_mean(source.time, (f.name for f in source.fields))
            message = f"the time column {source.time} is not among the columns of {source.name}"
            return Problem(MissingTimeColumnError, message, hint or "name a column of type TIMESTAMP", source.time)
        if time.type != TIMESTAMP:
            message = f"the time column {source.time} of {source.name} is {spell(time.type)}, not TIMESTAMP"
            return Problem(MissingTimeColumnError, message, "name a column of type TIMESTAMP", source.time)
        return None

    def _with(self, source: Stream | Table, location: Location | None) -> Catalog:
        problem = self.problem_with(source)
        if problem is not None:
            raise problem.kind(problem.message, "", 0, 0, problem.hint)
        locations = (*self.locations, (source.name, location)) if location is not None else self.locations
        return replace(self, sources=(*self.sources, source), locations=locations)
