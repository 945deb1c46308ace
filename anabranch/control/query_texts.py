"""Queries as data: what state belongs to, and what workers bind.

Records name a query by the digest of its text. The text is kept once, in `queries/<digest>`: the SQL, the sources it reads,
and its *identity*, the parts of the bound query that its state depends on, whatever its plan. A worker binds the SQL again
and compares the identities (`anabranch.drive.queries`). Nothing that was pickled is ever read back.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from functools import cached_property

import msgspec
import pyarrow as pa
import xxhash

from anabranch.errors import DamagedStateError, ForeignStateError
from anabranch.plan.adoption import kept_columns, looked_at
from anabranch.plan.query import DatabaseTable, Field, Query, Stream, Table
from anabranch.plan.statement import FAIL
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import damaged, seal, unseal

FOLDER, KIND = "queries", "query"

_DIGEST = re.compile(r"[0-9a-f]{32}")


def identity_of(query: Query) -> str:
    """The parts of a query that its state depends on, a line each. What is selected of stored rows, or of groups, is no part
    of it: rows are there with the columns that the state keeps, and groups with its keys and aggregates
    (`anabranch.plan.adoption`)."""
    return "\n".join(_state_lines(query))


def _state_lines(query: Query) -> list[str]:
    lines = [f"{block.name}: {line}" for block in query.subqueries for line in (*_state_lines(block), *_result_lines(block))]
    for i in query.inputs:
        time = f" by {i.source.time}" if isinstance(i.source, Stream) else ""
        lines.append(f"input {i.alias}: {i.source.name}{time} [{i.window}]")
        lines += [f"  keeps {c.name} {c.type}" for c in kept_columns(query, i.alias)]
        lines += [f"  reads {c.name} {c.type}" for c in looked_at(query, i.alias)]
        lines += [f"  filter {f}" for f in i.filters]
    lines += [f"equality {e}" for e in query.equalities]
    lines += [f"residual {r}" for r in query.residuals]
    if query.asked is not None:
        lines.append(f"joined by {query.asked.database}")
    if (grouping := query.grouping) is not None:
        lines.append(f"groups, slide {grouping.slide_us} us")
        if (asked := grouping.statement) is not None and asked.is_printed:
            lines.append(f"  by {asked.database}")
        elif asked is not None:
            lines += [f"  by {asked.database}: {line}" for line in asked.sql.splitlines()]
        lines += [f"  key {expr} {expr.type}" for _, expr in query.select[: grouping.keys]]
        lines += [f"  argument {expr} {expr.type}" for _, expr in query.select[grouping.keys :]]
        lines += [f"  aggregate {a}: {a.type}" for a in grouping.aggregates]
    return lines


def _result_lines(query: Query) -> list[str]:
    """What a subquery hands on: the state of the query above it depends on all of that."""
    lines = [f"select {name}: {expr} {expr.type}" for name, expr in query.select]
    if (grouping := query.grouping) is not None:
        lines += [f"result {name}: {expr} {expr.type}" for name, expr in grouping.select]
        lines += [f"having {grouping.having}"] if grouping.having is not None else []
    return lines


class SourceText(msgspec.Struct, frozen=True):
    """A stream or a table that a query reads, as it is declared."""

    name: str
    schema: bytes
    """Its columns, as Arrow writes a schema."""
    time: str | None = None
    """The time column of a stream; None: it is a table."""
    lateness_us: int = 0
    ahead_us: int | None = None
    idle_us: int | None = None
    database: str = ""
    """The database of a table that is looked up there, by name; empty: it is not."""
    relation: str = ""
    """What the table is called in its database."""
    reading: str = ""

    @property
    def source(self) -> Stream | Table:
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        fields = tuple(Field(f.name, f.type) for f in schema)
        if self.time is None:
            if self.database:
                return DatabaseTable(self.name, fields, self.database, self.relation, self.reading)
            return Table(self.name, fields)
        return Stream(self.name, fields, self.time, self.lateness_us, self.ahead_us, self.idle_us)


def source_text(source: Stream | Table) -> SourceText:
    """
    >>> source_text(Table("t", (Field("k", pa.int64()),))).source
    Table(name='t', fields=(Field(name='k', type=DataType(int64)),))
    """
    schema = pa.schema([pa.field(f.name, f.type) for f in source.fields]).serialize().to_pybytes()
    if isinstance(source, DatabaseTable):
        return SourceText(
            source.name, schema, database=source.database, relation=source.relation, reading=source.reading
        )
    if isinstance(source, Table):
        return SourceText(source.name, schema)
    return SourceText(source.name, schema, source.time, source.lateness_us, source.ahead_us, source.idle_us)


class QueryText(msgspec.Struct, frozen=True, dict=True):
    """A query as data: what a worker binds, and what the result must be."""

    name: str
    identity: str
    """The parts that its state depends on."""
    sql: str = ""
    sources: tuple[SourceText, ...] = ()
    base: str = ""
    """The digest of the text whose state it goes on with, if that is written in another way: the query has its shape then
    (`anabranch.plan.adoption`)."""
    places: dict[str, str] = {}
    """The databases that run blocks of ours, by the names of the blocks."""
    database_failure: str = FAIL
    """What becomes of statements of theirs that fail."""

    @cached_property
    def digest(self) -> str:
        """Names the text."""
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(self))

    @cached_property
    def state_digest(self) -> str:
        """Names what state belongs to: the same however the query is written, and whatever it selects of its state."""
        return xxhash.xxh3_128_hexdigest(f"{self.name}\n{self.identity}".encode())

    @cached_property
    def sql_digest(self) -> str:
        """Names how the query is written, whatever its sources are."""
        return xxhash.xxh3_128_hexdigest(f"{self.name}\n{self.sql}".encode())


def text_of(query: Query) -> QueryText:
    sources = tuple(source_text(source) for source in query.declared_sources)
    return QueryText(
        query.name, identity_of(query), query.sql, sources, query.base, query.places, query.database_failure
    )


class QueryTexts:
    """The texts of a checkpoint's queries.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> texts, text = QueryTexts(MemoryFilesystem()), QueryText("pairs", "input a: trades")
    >>> texts.keep(text)
    >>> texts.read(text.digest) == text
    True
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def keep(self, text: QueryText) -> None:
        """Writes the text of a query, if it is not there."""
        try:
            self.read(text.digest)
        except DamagedStateError:
            self._filesystem.put(f"{FOLDER}/{text.digest}", [seal(KIND, msgspec.json.encode(text))])

    def forget(self, digest: str) -> None:
        """Deletes the text of a query that no record names."""
        self._filesystem.delete(f"{FOLDER}/{digest}")

    def digests(self) -> list[str]:
        """What texts there are; a file that is not called like one is somebody else's."""
        return [name for name in self._filesystem.list(FOLDER) if _DIGEST.fullmatch(name)]

    def read(self, digest: str) -> QueryText:
        """The query of a digest."""
        path = f"{FOLDER}/{digest}"
        try:
            payload = unseal(KIND, memoryview(self._filesystem.get(path)), path)
        except FileNotFoundError:
            raise damaged(path, "it is missing although a record names it") from None
        return msgspec.json.decode(payload, type=QueryText)

    def require(self, text: QueryText, state_digest: str, digest: str, lacking: Sequence[str] = ()) -> None:
        """Refuses state of another query than one, and shows the difference; the digests are those of the state's query.
        `lacking` tells what the state does not have of what the query selects."""
        if text.state_digest == state_digest:
            return
        written, wanted = self.read(digest).identity.splitlines(), text.identity.splitlines()
        changes = difflib.unified_diff(written, wanted, "checkpoint", f"query {text.name}", lineterm="")
        raise ForeignStateError(
            f"the checkpoint was written for another query than {text.name}:\n"
            + "\n".join([*lacking, *changes])
            + f"\nrun the query it was written for; or have {text.name} start anew, from the beginning of its streams, "
            f"into an empty sink: --fresh {text.name}, start(fresh=[{text.name!r}]); or use another checkpoint"
        )
