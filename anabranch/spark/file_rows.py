"""Which rows of a file are good: each is judged by itself, on all columns that are asked for.

A row of text is a line. It is bad if it cannot be taken apart (a wrong number of fields, a quote that is not closed, no JSON
object), and if one of its values is none of its column's type. A row of parquet or Arrow is bad if one of its values cannot
be cast. Whether a row is good depends on its own bytes alone, never on other rows of the file, so every run finds the same.

The parsers of Arrow, which read files whole, are the judges: all values are converted at once, and where that fails, one
half after the other, down to the values that cannot be (`converted`). A file without bad rows costs one conversion.

Example, `k BIGINT, x DOUBLE`:

    k,x          the header is line 1
    1,0.5
    2,abc        set aside: line 3, column x: 'abc' is no DOUBLE
    3            set aside: line 4, CSV parse error: Expected 2 columns, got 1: 3
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.accept import check_fields, conform, in_one_piece
from anabranch.errors import AnabranchError, DamagedFileError, FilesError, SchemaMismatchError
from anabranch.plan.formats import TEXT
from anabranch.plan.query import Field, Stream, Table
from anabranch.spark import file_formats as formats
from anabranch.spark.file_formats import gone
from anabranch.sql.types import spell

SET_ASIDE = pa.schema([("row", pa.int64()), ("reason", pa.string()), ("raw", pa.string())])
"""What is told of a bad row: its line, or in parquet and Arrow its place, both counted from 1; what is wrong with it; and
its text, where it has one."""

KEPT_ASIDE = pa.schema([("file", pa.string()), *SET_ASIDE])
"""What is kept of bad rows in a folder. A file that is damaged as a whole has one row there, without a number."""

WHOLE_FILE = pa.RecordBatch.from_pylist([{}], schema=SET_ASIDE)
"""What is told of a file that is damaged as a whole: it has no row's number."""

LONGEST_SHOWN = 80
"""Of values that are longer, so many characters are shown in a reason."""

_LINE_END = "\r\n?|\n"
_ROW_OF_PARSER = re.compile(r"Row #\d+: |,? in row \d+$|\n.*", re.DOTALL)
"""Where the parsers say in which row they failed, they count those that they were given."""


Convert = Callable[[pa.Array], pa.Array]
"""Converts all values, or raises ArrowInvalid if one of them cannot be."""

Blame = Callable[[str, str], str]
"""What is told of a line, given its text and what the parser says."""


@dataclass(frozen=True)
class Judged:
    """The rows of a file."""

    good: pa.RecordBatch
    bad: pa.RecordBatch
    """As `SET_ASIDE` says, in the order of the file."""


def judge(path: str, format: str, source: Stream | Table, columns: Sequence[str]) -> Judged:
    """The rows of a file, judged on the named columns. `DamagedFileError`: the file holds no rows that could be told."""
    try:
        return _judged(path, format, source, columns)
    except FileNotFoundError:
        raise gone(path) from None
    except SchemaMismatchError as error:
        raise SchemaMismatchError(f"{path}: {error}") from None
    except (pa.ArrowException, OSError) as error:
        kind = DamagedFileError if _is_damage(error, format) else FilesError
        raise kind(f"{path} cannot be read as {format}: {_line(error)}") from error


def _judged(path: str, format: str, source: Stream | Table, columns: Sequence[str]) -> Judged:
    return _JUDGES[format](path, [f for f in source.fields if f.name in columns]).judged(columns)


def read_rows(path: str, format: str, source: Stream | Table, columns: tuple[str, ...]) -> pa.RecordBatch:
    """The named columns of a file, in one piece and in the types their source declares. A bad row is an error."""
    fields = [f for f in source.fields if f.name in columns]
    try:
        rows = formats.READERS[format](path, fields)
        cut = [formats.to_microseconds(in_one_piece(column)) for column in rows.columns]
        return conform(source, pa.table(cut, rows.schema.names) if cut else rows, columns)
    except FileNotFoundError:
        raise gone(path) from None
    except (pa.ArrowException, OSError, SchemaMismatchError) as error:
        if bad := _first_bad(path, format, source, columns, str(error)):
            raise SchemaMismatchError(f"{path}, {bad}: {_remedy(source)}") from None
        if isinstance(error, SchemaMismatchError):
            raise SchemaMismatchError(f"{path}: {error}") from None
        if format in TEXT and isinstance(error, pa.ArrowInvalid):
            text = f"{path} does not have the columns declared for {source.name}: {_line(error)}; {_remedy(source)}"
            raise SchemaMismatchError(text) from None
        raise FilesError(f"{path} cannot be read as {format}: {_line(error)}; {_remedy(source)}") from error


def _line(error: Exception) -> str:
    """What a library says, in one line however many it took."""
    return " ".join(str(error).split())


def _first_bad(path: str, format: str, source: Stream | Table, columns: Sequence[str], why: str) -> str | None:
    """The first row of a file that is bad, and why, if that is what is wrong with the file. Where rows of CSV are not
    judged, a value in quotes may span lines: these are not to blame for a value that is wrong elsewhere."""
    with contextlib.suppress(AnabranchError, pa.ArrowException, OSError):
        bad = _judged(path, format, source, columns).bad
        if format == "csv" and formats.holds(formats.read_text(path), b'"'):
            bad = bad.filter(
                pc.starts_with(bad.column("reason"), "column " if "conversion" in why else "CSV parse error")
            )
        if bad.num_rows:
            first = bad.slice(0, 1).to_pylist()[0]
            return f"{'line' if format in TEXT else 'row'} {first['row']}: {first['reason']}"
    return None


def _remedy(source: Stream | Table) -> str:
    if isinstance(source, Table):
        return "mend the file, and start again"
    return (
        f'have bad rows left out (CREATE STREAM {source.name} … ON ERROR SKIP; on_error="skip" in Python) or kept apart '
        "(ON ERROR INTO 'folder'), or the whole file left out (skip, see docs/sql.md, Files)"
    )


def _is_damage(error: Exception, format: str) -> bool:
    """Whether the content of a file is to blame. An error of the system has a number, and text is damaged by the line."""
    return (
        error.errno is None if isinstance(error, OSError) else format not in TEXT and isinstance(error, pa.ArrowInvalid)
    )


def converted(values: pa.Array, convert: Convert, type: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """The values as another type, NULL where they cannot be; and for those, by place, why.

    >>> found, bad = converted(pa.array(["1", "x", "3"]), lambda v: v.cast(pa.int64()), pa.int64())
    >>> found.to_pylist(), bad
    ([1, None, 3], {1: "Failed to parse string: 'x' as a scalar of type int64"})
    """
    parts: list[pa.Array] = []
    bad: dict[int, str] = {}

    def add(first: int, count: int) -> None:
        try:
            parts.append(convert(values.slice(first, count)))
        except pa.ArrowInvalid as error:
            if count == 1:
                parts.append(pa.nulls(1, type))
                bad[first] = str(error)
            else:
                add(first, count // 2)
                add(first + count // 2, count - count // 2)

    add(0, len(values))
    return (pa.concat_arrays(parts) if len(parts) > 1 else parts[0]), bad


@dataclass
class Candidates:
    """The rows of a file on their way to be judged."""

    numbers: npt.NDArray[np.int64]
    """Of the rows that could be taken apart: where each stands in the file."""
    raw: pa.Array | None
    """Their texts."""
    columns: dict[str, tuple[Field, pa.Array]] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """What is wrong with these rows, by their places among them: the first thing that was found."""
    torn: list[tuple[int, str, str]] = field(default_factory=list)
    """Of rows that could not be taken apart: where each stands in the file, why, and its text."""

    def add(self, declared: Field, values: pa.Array, convert: Convert) -> None:
        """Converts a column. Values that occur often are converted once: bad ones tend to be the same."""
        try:
            self.columns[declared.name] = declared, convert(values)
            return
        except pa.ArrowInvalid:
            is_text = pa.types.is_binary(values.type) or pa.types.is_string(values.type)
        if is_text:
            encoded = values.dictionary_encode()
            found, bad = converted(encoded.dictionary, convert, declared.type)
            places = np.flatnonzero(np.isin(encoded.indices.fill_null(-1).to_numpy(), list(bad)))
            self.columns[declared.name] = declared, found.take(encoded.indices)
        else:
            found, reasons = converted(values, convert, declared.type)
            places = np.array(sorted(reasons), np.int64)
            self.columns[declared.name] = declared, found
        for place, value in zip(places.tolist(), values.take(pa.array(places)).to_pylist(), strict=True):
            self.problems.setdefault(place, f"column {declared.name}: {shown(value)} is no {spell(declared.type)}")

    def judged(self, columns: Sequence[str]) -> Judged:
        """The good rows with the named columns in this order, and what is told of the bad ones."""
        named = [self.columns[name] for name in columns]
        schema = pa.schema([pa.field(declared.name, declared.type) for declared, _ in named])
        rows = pa.RecordBatch.from_arrays([values for _, values in named], schema=schema)
        is_bad = np.zeros(len(self.numbers), np.bool_)
        is_bad[list(self.problems)] = True
        places = np.flatnonzero(is_bad)
        texts = self.raw.take(pa.array(places)).to_pylist() if self.raw is not None else [None] * len(places)
        bad = [(int(self.numbers[p]), self.problems[p], text) for p, text in zip(places.tolist(), texts, strict=True)]
        told = sorted([*bad, *self.torn])
        parts = zip(*told, strict=True) if told else ([], [], [])
        arrays = [pa.array(part, type) for part, type in zip(parts, SET_ASIDE.types, strict=True)]
        aside = pa.RecordBatch.from_arrays(arrays, schema=SET_ASIDE)
        return Judged(rows.filter(pa.array(~is_bad)) if len(places) else rows, aside)


def shown(value: object) -> str:
    """A value as a message shows it.

    >>> shown(b"abc"), shown(1.5)
    ("'abc'", '1.5')
    """
    text = repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


# -- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    """The lines of a text that are not empty."""

    texts: pa.Array
    numbers: npt.NDArray[np.int64]

    def apart(self, take_apart: Convert, type: pa.DataType, blame: Blame) -> tuple[Candidates, pa.StructArray]:
        """The rows that lines hold, and what there is of each."""
        found, bad = converted(self.texts, take_apart, type)
        texts = {place: _text(self.texts[place]) for place in bad}
        torn = [(int(self.numbers[place]), blame(texts[place], why), texts[place]) for place, why in bad.items()]
        if bad:
            is_whole = np.ones(len(self.texts), np.bool_)
            is_whole[list(bad)] = False
            whole = pa.array(is_whole)
            return Candidates(self.numbers[is_whole], _decoded(self.texts.filter(whole)), torn=torn), found.filter(
                whole
            )
        return Candidates(self.numbers, _decoded(self.texts)), found


def _text(line: pa.Scalar) -> str:
    return str(line.as_buffer().to_pybytes().decode("utf-8", "replace"))


def _decoded(lines: pa.Array) -> pa.Array:
    try:
        return lines.cast(pa.large_string())
    except pa.ArrowInvalid:
        return pa.array([_text(line) for line in lines], pa.large_string())


def _lines(text: pa.Buffer, blank: str) -> Lines:
    """The lines of a text but for those that are blank."""
    lines = pc.split_pattern_regex(formats.as_value(text), pattern=_LINE_END).flatten()
    is_blank = pc.match_substring_regex(lines, pattern=blank).to_numpy(zero_copy_only=False)
    return Lines(lines.filter(pa.array(~is_blank)), np.flatnonzero(~is_blank) + 1)


def _joined(lines: pa.Array) -> pa.Buffer:
    """Lines as one text."""
    ended = pa.concat_arrays([lines, pa.array([b""], lines.type)])
    listed = pa.ListArray.from_arrays(pa.array([0, len(ended)], pa.int32()), ended)
    return pc.binary_join(listed, pa.scalar(b"\n", lines.type))[0].as_buffer()


def _judge_csv(path: str, fields: Sequence[Field]) -> Candidates:
    text = formats.read_text(path)
    if not formats.holds(text, b'"'):  # else a row may be several lines to the reader
        with contextlib.suppress(pa.ArrowInvalid):
            return _judge_columns("csv")(path, fields)
    lines = _lines(text, r"\A\z")
    if not len(lines.texts):
        return _nothing(fields)
    header = lines.texts.slice(0, 1)
    names = formats.header_names(path, _joined(header))
    formats.require(fields, names)
    type = pa.struct([(name, pa.binary()) for name in names])

    def take_apart(some: pa.Array) -> pa.Array:
        # The header stands at the end, too: a quote that is not closed would swallow it.
        rows = formats.read_cells(path, _joined(pa.concat_arrays([header, some, header])), names)
        if rows.num_rows != len(some) + 1:
            raise pa.ArrowInvalid("a quote is not closed on its line")
        return pa.StructArray.from_arrays([in_one_piece(c) for c in rows.slice(0, len(some)).columns], fields=[*type])

    below = Lines(lines.texts.slice(1), lines.numbers[1:])
    if not len(below.texts):
        return _nothing(fields)
    candidates, rows = below.apart(take_apart, type, lambda line, why: _ROW_OF_PARSER.sub("", why))
    for each in fields:
        candidates.add(each, rows.field(each.name), formats.cells_to(each.type))
    return candidates


def _judge_json(path: str, fields: Sequence[Field]) -> Candidates:
    lines = _lines(formats.read_text(path), r"\A[ \t]*\z")
    if not len(lines.texts):
        return _nothing(fields)
    formats.require_no_binary(fields)
    schema = formats.json_schema([(f.name, pa.string() if f.type == formats.MICROSECONDS else f.type) for f in fields])
    type = pa.struct([*schema])

    def take_apart(some: pa.Array) -> pa.Array:
        trimmed = pc.ascii_trim_whitespace(some.cast(pa.large_string()))
        # The parser must not see what is no object: it crashes over some.
        is_object = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}"))
        if not pc.all(is_object).as_py():
            raise pa.ArrowInvalid("there is no JSON object on the line")
        rows = formats.parse_json(_joined(trimmed.cast(pa.large_binary())), schema)
        if rows.num_rows != len(some):
            raise pa.ArrowInvalid("there are several JSON objects on the line")
        return pa.StructArray.from_arrays([in_one_piece(c) for c in rows.columns], fields=[*type])

    candidates, rows = lines.apart(take_apart, type, lambda line, why: _blamed(line, schema, fields, why))
    for each in fields:
        candidates.add(each, rows.field(each.name), _cast_to(each.type))
    return candidates


def _blamed(line: str, schema: pa.Schema, fields: Sequence[Field], why: str) -> str:
    """The column of an object of JSON that cannot be read, and its value; or what the parser says."""
    why = _ROW_OF_PARSER.sub("", why)
    try:
        found = json.loads(line)
    except ValueError:
        return why
    for each, declared in zip(schema, fields, strict=True):
        try:
            if isinstance(found, dict) and each.name in found:
                formats.parse_json(pa.py_buffer(line.encode()), pa.schema([each]))
        except pa.ArrowInvalid:
            return f"column {each.name}: {shown(found[each.name])} is no {spell(declared.type)}"
    return why


def _nothing(fields: Sequence[Field]) -> Candidates:
    columns = {f.name: (f, pa.array([], f.type)) for f in fields}
    return Candidates(np.array([], np.int64), None, columns)


# -- columns ---------------------------------------------------------------------------------------------------------


def _judge_columns(format: str) -> Callable[[str, Sequence[Field]], Candidates]:
    """What judges files that have columns, with types of their own."""

    def judged(path: str, fields: Sequence[Field]) -> Candidates:
        rows = formats.READERS[format](path, fields)
        candidates = Candidates(np.arange(1, rows.num_rows + 1), None)
        for each in fields:
            values = in_one_piece(rows.column(each.name))
            check_fields(f"column {each.name}", values.type, each.type)
            try:
                candidates.add(each, values, _cast_to(each.type))
            except pa.ArrowNotImplementedError as error:
                raise SchemaMismatchError(
                    f"column {each.name} is {values.type}, declared as {each.type}: {error}"
                ) from None
        return candidates

    return judged


def _cast_to(type: pa.DataType) -> Convert:
    def cast(values: pa.Array) -> pa.Array:
        if type == formats.MICROSECONDS and pa.types.is_string(values.type):
            return formats.in_any_notation(values.cast)
        return formats.to_microseconds(values).cast(type)

    return cast


_JUDGES: dict[str, Callable[[str, Sequence[Field]], Candidates]] = {
    "csv": _judge_csv,
    "json": _judge_json,
    "parquet": _judge_columns("parquet"),
    "arrow": _judge_columns("arrow"),
}
