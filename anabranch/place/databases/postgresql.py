"""PostgreSQL as a server, through ADBC: stored tables that are looked up where they are.

A lookup is one statement: the distinct keys of a batch, unless they are very many, go there as one array parameter for each
key column, are joined with the table by its index, and the rows found come back as Arrow. A temporary relation for the keys
takes longer (`python -m bench.keys`). Every statement runs in a transaction that may only read.

ADBC has no deadline of its own. The server ends a statement after the timeout (`statement_timeout`); that does not help when
the server itself hangs, or the network is cut. So a call runs in a thread of its own, and one that is not back in time
is left to itself, with its connection: the next call makes a new one (`calls.py` beside this).

Nobody waits for a call that was left, because it took too long or because who asked was interrupted; so the server is told
to cancel it. A worker that is killed tells nothing: the server itself looks whether its client is still there
(`client_connection_check_interval`, since PostgreSQL 14). An older one runs such a statement until its timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import ceil
from string import ascii_lowercase, ascii_uppercase
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.errors import DatabaseError, DatabaseGoneError
from anabranch.place.databases.calls import Call, LeftError
from anabranch.place.databases.postgresql_types import OddValueError, Stored, fetched, key_array, stored_type
from anabranch.place.databases.protocol import TableSize, Wanted
from anabranch.place.databases.settings import Settings

try:
    from adbc_driver_manager import Error as DriverError
    from adbc_driver_postgresql import dbapi as driver
except ImportError as error:  # an optional extra
    raise DatabaseError(f"PostgreSQL needs its driver: pip install 'anabranch[postgres]' ({error})") from None

T = TypeVar("T")

GRACE_S = 2.0
"""How much longer we wait than the server is told to take: its own answer says more."""

LOOK_S = 1
"""How often a server looks whether the client of a statement is still there."""

WATCH = f"""
SELECT set_config(name, '{LOOK_S}s', false) FROM pg_catalog.pg_settings WHERE name = 'client_connection_check_interval'
"""

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

HOLD = """
SELECT set_config(name, '0', true) FROM pg_catalog.pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')
"""
"""Has a transaction last for as long as it is held, whatever the server or the role has set: a batch may take longer. (The
latter exists since PostgreSQL 17. `idle_session_timeout` is for sessions that are in no transaction.)"""

GONE = ("08", "57P01", "57P02", "57P03", "53", "40001", "40P01", "55P03")
"""SQLSTATEs, or beginnings of them, of a connection that is gone, of a server that stops, starts or is at its limits, and of
a statement that gave way to another one, as on a standby that catches up."""

OTHER_LETTERS = "22P05"
"""SQLSTATE of text that has no form in the encoding of the database."""

KEYS_AT_ONCE, BYTES_AT_ONCE = 1_000_000, 64 << 20
"""No statement has more keys, or more bytes of them."""

MOST_FOUND = 1 << 30
"""No lookup gives more bytes of rows: a worker would not bear it."""

SNAPSHOT_GONE = ("22023", "42704")
"""SQLSTATEs of a snapshot that nobody holds any more, among other things that are none: the latter since PostgreSQL 17."""

PASSING = (
    "too many", "connection slots are reserved", "starting up", "shutting down", "in recovery", "terminating connection",
    "server closed the connection",
)  # fmt: skip
"""What a server says that goes, or is not there yet."""

REFUSED = ("FATAL:", "definition of service", "invalid ", "certificate", "SSL", "no pg_hba.conf entry")
"""What a failed connection says that fails the next time too."""

GRANT = "have its owner GRANT SELECT ON the table, and USAGE ON its schema"

LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)

DESCRIBE = """
SELECT a.attname, CASE WHEN t.typnamespace = 'pg_catalog'::regnamespace THEN t.typname END AS typname,
       t.typtype::text, a.atttypmod, format_type(a.atttypid, a.atttypmod) AS shown,
       has_column_privilege(a.attrelid, a.attnum, 'SELECT') AS is_ours
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


SIZE = """
SELECT c.reltuples::bigint AS rows, pg_table_size(c.oid) AS bytes
FROM pg_catalog.pg_class c WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'm')
"""


class TooMuchError(Exception):
    """A statement gives more than may be taken."""


class OtherLettersError(DatabaseError):
    """Text that has no form in the encoding of the database."""


class PostgreSQL:
    """A PostgreSQL server, by its settings."""

    def __init__(self, settings: Settings) -> None:
        self.name, self._settings, self._limits = settings.name, settings, settings.limits
        self._connection: Any = None
        """That of the next call; None: it makes one."""
        self._stored: dict[str, dict[str, Stored]] = {}

    def describe(self, table: str) -> tuple[tuple[str, pa.DataType], ...]:
        return tuple((name, stored.type) for name, stored in self._columns(table, again=True).items())

    def lookup(self, wanted: Wanted, keys: pa.Table, snapshot: str | None = None) -> pa.Table:
        """A statement for every so many keys: a server that has to hold all of many might not bear it."""
        parts = [keys.slice(first, KEYS_AT_ONCE) for first in range(0, max(1, keys.num_rows), KEYS_AT_ONCE)]
        parts = [half for part in parts for half in _not_too_large(part)]
        found, left = list[pa.Table](), MOST_FOUND
        try:
            for part in parts:
                found.append(self._looked_up(wanted, part, snapshot, left))
                left -= found[-1].nbytes
        except TooMuchError:
            raise DatabaseError(
                f"the table {wanted.table} of the database {self.name} has more than {MOST_FOUND >> 20} MiB of rows for "
                f"{keys.num_rows:,} keys of a batch: is {', '.join(wanted.keys)} what rows are to be found by? If so, take "
                "smaller batches"
            ) from None
        return pa.concat_tables(found)

    def _looked_up(self, wanted: Wanted, keys: pa.Table, snapshot: str | None, most_bytes: int) -> pa.Table:
        try:
            return self._found(wanted, keys, snapshot, most_bytes)
        except OtherLettersError:  # a key has some that the database lacks: no index has text by its bytes
            return self._found(wanted, keys, snapshot, most_bytes, as_bytes=True)

    def _found(
        self, wanted: Wanted, keys: pa.Table, snapshot: str | None, most_bytes: int, as_bytes: bool = False
    ) -> pa.Table:
        columns = self._columns(wanted.table)
        self._require(wanted.table, columns, (*wanted.keys, *(name for name, _ in wanted.columns)))
        arrays, casts, conditions = [], [], []
        possible = [key_array(columns[key], keys.column(place), as_bytes) for place, key in enumerate(wanted.keys)]
        are = _all_of(each.possible for each in possible)
        for place, (key, each) in enumerate(zip(wanted.keys, possible, strict=True), start=1):
            values = each.values if are is None else each.values.filter(are)
            arrays.append(pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values))
            casts.append(f"${place}::{each.cast}")
            conditions.append(columns[key].condition(f"t.{quoted(key)}", each, f"k.k{place}", as_bytes))
        names = ", ".join(f"k{place}" for place in range(1, len(arrays) + 1))
        sql = (
            f"SELECT {_selected(wanted.columns, columns)} FROM unnest({', '.join(casts)}) AS k({names}) "
            f"JOIN {relation(wanted.table)} AS t ON {' AND '.join(conditions)}"
        )
        parameters = pa.RecordBatch.from_arrays(arrays, names=[f"k{place}" for place in range(1, len(arrays) + 1)])
        rows = self._call(lambda call: _rows(call, sql, parameters, snapshot, most_bytes))
        return self._typed(wanted.table, rows, wanted.columns)

    def read(
        self,
        table: str,
        columns: tuple[tuple[str, pa.DataType], ...],
        snapshot: str | None = None,
        most_rows: int | None = None,
        most_bytes: int | None = None,
    ) -> pa.Table:
        known = self._columns(table)
        self._require(table, known, [name for name, _ in columns])
        sql = f"SELECT {_selected(columns, known)} FROM {relation(table)} AS t"
        sql += f" LIMIT {int(most_rows)}" if most_rows is not None else ""
        try:
            rows = self._call(lambda call: _rows(call, sql, None, snapshot, most_bytes))
        except TooMuchError:
            raise DatabaseError(
                f"the table {table} of the database {self.name} has more than {(most_bytes or 0) >> 20} MiB of rows"
            ) from None
        return self._typed(table, rows, columns)

    def size(self, table: str) -> TableSize | None:
        named = pa.RecordBatch.from_arrays([pa.array([relation(table)])], names=["table"])
        found = self._call(lambda call: _execute(call, SIZE, named)).to_pylist()
        return TableSize(found[0]["rows"], found[0]["bytes"]) if found and found[0]["rows"] >= 0 else None

    @contextmanager
    def export_snapshot(self) -> Iterator[str]:
        """On a connection of its own, which is idle in its transaction until the context ends."""
        holder = PostgreSQL(self._settings)
        try:
            yield holder._call(_exported)
        finally:
            holder.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DriverError):
                connection.close()

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, ask: Callable[[Call], T]) -> T:
        """What a call gives, within the timeout; made again if its connection broke."""
        pause_s, left = self._limits.pause_s, self._limits.retries
        while True:
            try:
                return self._in_time(ask)
            except LeftError:
                raise DatabaseGoneError(self._too_slow) from None
            except DriverError as error:
                if left <= 0 or not _may_pass(error):
                    raise self._told(error) from None
            left -= 1
            time.sleep(pause_s)
            pause_s *= 2

    def _in_time(self, ask: Callable[[Call], T]) -> T:
        connection, self._connection = self._connection, None
        call = Call(self.name, self._connected, connection)
        found, self._connection = call.result(ask, self._limits.timeout_s + GRACE_S)
        return found

    def _connected(self) -> Any:
        options = dict(self._settings.options)
        own = f"-c default_transaction_read_only=on -c statement_timeout={max(1, int(self._limits.timeout_s * 1000))}"
        options["options"] = f"{options.get('options', '')} {own}".strip()
        options.setdefault("connect_timeout", str(max(2, int(self._limits.timeout_s))))
        options.setdefault("application_name", "anabranch")
        most_s = max(1, ceil(self._limits.timeout_s + GRACE_S))  # a call that was left ends soon where the network is cut
        options.setdefault("keepalives_idle", str(most_s))
        options.setdefault("tcp_user_timeout", str(1000 * most_s))
        options["client_encoding"] = "UTF8"  # else texts come and go as the server stores them
        dsn = Settings(self.name, options).dsn
        connection = driver.connect(dsn, autocommit=True)
        with suppress(DriverError), connection.cursor() as cursor:  # not every system can look
            cursor.execute(WATCH)
            cursor.fetchall()
        return connection

    def _columns(self, table: str, again: bool = False) -> dict[str, Stored]:
        """The columns of a table that we may read, as they were when it was first asked about."""
        if again or table not in self._stored:
            named = pa.RecordBatch.from_arrays([pa.array([relation(table)])], names=["table"])
            rows = self._call(lambda call: _execute(call, DESCRIBE, named)).to_pylist()
            if not rows:
                raise DatabaseError(
                    f"there is no table {table} in the database {self.name}, or we may not use its schema: "
                    "write it as schema.table, with \"…\" around names that have capitals"
                )
            ours = [row for row in rows if row["is_ours"]]
            if not ours:
                raise DatabaseError(f"we may not read the table {table} of the database {self.name}: {GRANT}")
            self._stored[table] = {
                row["attname"]: stored_type(f"column {row['attname']} of {table} in the database {self.name}", row)
                for row in ours
            }
        return self._stored[table]

    def _require(self, table: str, columns: Mapping[str, Stored], wanted: Iterable[str]) -> None:
        if lacking := [name for name in wanted if name not in columns]:
            self._stored.pop(table)  # it may be put back
            raise DatabaseError(
                f"the table {table} of the database {self.name} has no column {lacking[0]} any more: put it back, or "
                "declare the table and its queries anew"
            )

    def _typed(self, table: str, rows: pa.Table, columns: tuple[tuple[str, pa.DataType], ...]) -> pa.Table:
        try:
            return fetched(rows, columns)
        except OddValueError as error:
            raise DatabaseError(f"the table {table} of the database {self.name}: {error}") from None
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DatabaseError(
                f"the table {table} of the database {self.name} has other types than when it was declared ({error}): change "
                "them back, or declare the table and its queries anew"
            ) from None

    # -- errors ------------------------------------------------------------------------------------------------------

    @property
    def _too_slow(self) -> str:
        return (
            f"the database {self.name} took longer than {self._limits.timeout_s:g} s: is there an index on the key, is the "
            f"table locked? ANABRANCH_DATABASE_{self.name.upper()}_TIMEOUT says how many seconds it may take"
        )

    def _told(self, error: Exception) -> DatabaseError:
        """An error of the driver as one of ours: what, where, what to do, and nothing of how we log in."""
        self._stored.clear()  # tables may have changed
        said = self._settings.stripped(str(error)).partition("Query was:")[0]
        said = " ".join(said.partition(". SQLSTATE")[0].split())
        state = getattr(error, "sqlstate", None) or ""
        if state == "57014":
            return DatabaseGoneError(self._too_slow)
        if state == OTHER_LETTERS:
            return OtherLettersError(f"the database {self.name} says: {said}; its encoding lacks letters of Unicode: is "
                                     "there text in the table that is none in this encoding?")  # fmt: skip
        own = f"ANABRANCH_DATABASE_{self.name.upper()}_"
        todo = {
            "42P01": "is the table still there? Declared tables must stay while queries read them",
            "42703": "was the table altered? Put the column back, or declare the table and its queries anew",
            "42501": GRANT,
            "42883": "was the type of a key column changed? Declare the table and its queries anew",
        }.get(state)
        # A snapshot goes with the connection that holds it: the batch that runs again has another.
        is_without = state in SNAPSHOT_GONE and "snapshot" in said
        if is_without:
            todo = "the batch is run again with a new snapshot when the query is started again"
        if todo is None and "authentication failed" in said:
            todo = f"check {own}USER and {own}PASSWORD, or the passfile"
        if todo is None and state and not state.startswith(GONE):
            todo = "does SELECT * FROM the table, or the view, work in the database?"
        if todo is None:
            todo = f"is it running, and are {own}HOST, _PORT, _DBNAME, _USER right, or the service {self.name} of the "
            todo += "service file?"
        kind = DatabaseGoneError if is_without or _may_pass(error) else DatabaseError
        return kind(f"the database {self.name} says: {said}; {todo}")


def _may_pass(error: Exception) -> bool:
    """Whether a call that failed may succeed on a new connection."""
    state = getattr(error, "sqlstate", None)
    if state:
        return str(state).startswith(GONE)
    text = str(error)
    is_passing = any(word in text for word in PASSING)
    return text.startswith("IO:") and (is_passing or not any(word in text for word in REFUSED))


def _execute(
    call: Call, sql: str, parameters: pa.RecordBatch | None = None, most_bytes: int | None = None
) -> pa.Table:
    with call.statement() as cursor:
        cursor.execute(sql, parameters)
        if most_bytes is not None:
            return _up_to(most_bytes, cursor.fetch_record_batch())
        return cursor.fetch_arrow_table() if cursor.description else pa.table({})


def _rows(
    call: Call, sql: str, parameters: pa.RecordBatch | None, snapshot: str | None, most_bytes: int | None = None
) -> pa.Table:
    if snapshot is None:
        return _execute(call, sql, parameters, most_bytes)
    _execute(call, BEGIN)
    _execute(call, f"SET TRANSACTION SNAPSHOT {_literal(snapshot)}")
    found = _execute(call, sql, parameters, most_bytes)
    _execute(call, "COMMIT")
    return found


def _exported(call: Call) -> str:
    _execute(call, BEGIN)
    _execute(call, HOLD)
    return str(_execute(call, "SELECT pg_export_snapshot()").column(0)[0].as_py())


def _up_to(most_bytes: int, rows: pa.RecordBatchReader) -> pa.Table:
    """All rows of a statement."""
    found, size_bytes = list[pa.RecordBatch](), 0
    for batch in rows:
        size_bytes += batch.nbytes
        if size_bytes > most_bytes:
            raise TooMuchError
        found.append(batch)
    return pa.Table.from_batches(found, rows.schema)


def _not_too_large(keys: pa.Table) -> Iterator[pa.Table]:
    """Keys in parts of no more than so many bytes, as far as a key is not longer."""
    if keys.num_rows < 2 or keys.get_total_buffer_size() <= BYTES_AT_ONCE or keys.nbytes <= BYTES_AT_ONCE:
        yield keys
        return
    half = keys.num_rows // 2
    yield from _not_too_large(keys.slice(0, half))
    yield from _not_too_large(keys.slice(half))


def _all_of(masks: Iterable[pa.Array | None]) -> pa.Array | None:
    found: pa.Array | None = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else pc.and_(found, mask)
    return found


def _selected(columns: tuple[tuple[str, pa.DataType], ...], known: Mapping[str, Stored]) -> str:
    return ", ".join(f"{known[name].fetched(f't.{quoted(name)}')} AS {quoted(name)}" for name, _ in columns)


def relation(table: str) -> str:
    """The name of a table as SQL, every part quoted; letters of ASCII that are not in quotes become small ones, as in
    PostgreSQL.

    >>> relation("public.Customers"), relation('"My Schema"."a ""b"". c"'), relation("Ärger.ÄB")
    ('"public"."customers"', '"My Schema"."a ""b"". c"', '"Ärger"."Äb"')
    """
    parts, rest = [], table.strip()
    while True:
        if rest.startswith('"'):
            end = 1
            while (end := rest.find('"', end)) >= 0 and rest[end + 1 : end + 2] == '"':
                end += 2
            if end < 0:
                raise DatabaseError(f"the name of the table {table} has a quote that does not end")
            part, rest = rest[1:end].replace('""', '"'), rest[end + 1 :]
        else:
            part, dot, after = rest.partition(".")
            part, rest = part.strip().translate(LOWER), dot + after
        if not part or "\0" in part:
            raise DatabaseError(f"{table!r} is no name of a table: write schema.table")
        parts.append(quoted(part))
        if not rest.strip():
            return ".".join(parts)
        if not rest.startswith(".") or len(parts) > 2:
            raise DatabaseError(f"{table!r} is no name of a table: write schema.table")
        rest = rest[1:]


def quoted(name: str) -> str:
    """A name as SQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
