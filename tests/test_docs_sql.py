"""The examples of docs/sql.md: queries are run and compared with the oracle, errors with those that are raised."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalRun
from anabranch.errors import SqlError
from anabranch.place.capabilities import DUCKDB
from anabranch.place.databases.embedded import open_embedded
from anabranch.place.statement_of import placed
from anabranch.place.wishes import wished_places
from anabranch.plan.query import Stream, Table
from anabranch.sql import Catalog, parse_script
from anabranch.sql.functions import AGGREGATES, FUNCTIONS, INSTEAD, OTHER_AGGREGATES, OUTPUT_STREAMS, WINDOW_FUNCTIONS
from anabranch.sql.refusals import REFUSED_STATEMENTS, REFUSED_TOKENS, REFUSED_WORDS
from anabranch.sql.types import TYPE_NAMES
from anabranch.storage.filesystem import MemoryFilesystem
from bench import smart_plugs
from tests.support import oracle

DOCUMENT = (Path(__file__).parent.parent / "docs" / "sql.md").read_text()
BLOCKS = re.findall(r"^```(sql|sql-error|text)\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
EXAMPLES = [text for kind, text in BLOCKS if kind == "sql"]
ERRORS = [(BLOCKS[place][1], BLOCKS[place + 1]) for place, (kind, _) in enumerate(BLOCKS) if kind == "sql-error"]

SECOND_US = 1_000_000
ROWS, BATCHES = 60, 4
MOST_SECONDS = 400


def has_query(text: str) -> bool:
    return re.search(r"^(SELECT|CREATE QUERY)\b", text, re.MULTILINE) is not None


SOURCES = "\n".join(text for text in EXAMPLES if not has_query(text))
CATALOG = parse_script(SOURCES, Catalog(databases=open_embedded)).catalog
"""The sources that the document creates by themselves; all its queries may read them."""

QUERIES = [text for text in EXAMPLES if has_query(text)]


def value(rng: np.random.Generator, kind: pa.DataType) -> Any:
    """A small value: many are equal, sums of floats are exact in any order, one in ten is NULL."""
    if rng.random() < 0.1:
        return None
    if pa.types.is_list(kind) or pa.types.is_struct(kind):
        return [1, None, 3] if pa.types.is_list(kind) else {"x": 1, "y": "a"}
    number = int(rng.integers(0, 4))
    if pa.types.is_integer(kind) or pa.types.is_date(kind):
        return pa.scalar(number, pa.int32()).cast(kind).as_py()
    if pa.types.is_floating(kind):
        return int(rng.integers(-4, 9)) / 4
    if pa.types.is_decimal(kind):
        return Decimal(int(rng.integers(-150, 300))) / 100
    if pa.types.is_boolean(kind):
        return number % 2 == 0
    text = ("ACME", "IBM", "ibm ", "Ü")[number]
    return text if pa.types.is_string(kind) else text.encode()


def rows_of(rng: np.random.Generator, source: Stream | Table, count: int, seconds: int) -> pa.Table:
    columns = {f.name: pa.array([value(rng, f.type) for _ in range(count)], f.type)
               for f in source.fields if not pa.types.is_timestamp(f.type)}  # fmt: skip
    if isinstance(source, Stream):
        times = np.sort(rng.integers(0, seconds * 4, count)) * (SECOND_US // 4) + rng.integers(-2, 3, count) * SECOND_US
        columns[source.time] = pa.array(times, pa.int64()).cast(pa.timestamp("us"))
    return pa.table({f.name: columns[f.name] for f in source.fields})


@pytest.mark.parametrize("text", QUERIES, ids=[f"{n}: {text[:60].splitlines()[0]}" for n, text in enumerate(QUERIES)])
def test_query_gives_what_the_oracle_gives(text: str) -> None:
    (bound,) = parse_script(text, CATALOG).queries
    query, rng = placed(bound.query, wished_places(bound.query, {"duck": DUCKDB})), np.random.default_rng(7)
    lengths = [i.window.length_us for q in (query, *query.subqueries) for i in q.inputs if i.window.kind == "range"]
    seconds = min(max([20, *(2 * length // SECOND_US for length in lengths)]), MOST_SECONDS)
    tables = {s.name: rows_of(rng, s, 6, 0) for s in query.base_sources if isinstance(s, Table)}
    rows = {s.name: rows_of(rng, s, ROWS, seconds) for s in query.base_sources if isinstance(s, Stream)}
    size = ROWS // BATCHES
    batches = [{name: table.slice(n * size, size) for name, table in rows.items()} for n in range(BATCHES)]
    run = LocalRun(query, MemoryFilesystem(), plan=bound.plan, tables=tables)
    found: oracle.Bag = Counter()
    for number, batch in enumerate([*batches, {}]):
        found += oracle.bag(run.step(number, batch).results)
    wanted = oracle.expected(query, batches, tables)
    problem = oracle.difference(found, wanted)
    assert not problem, f"{query.sql}\n{problem}"
    assert wanted, f"no results: {query.sql}"


@pytest.mark.parametrize(("sql", "shown"), ERRORS, ids=[text.splitlines()[0] for _, (_, text) in ERRORS])
def test_error_is_as_shown(sql: str, shown: tuple[str, str]) -> None:
    kind, text = shown
    assert kind == "text"
    with pytest.raises(SqlError) as caught:
        parse_script(sql, CATALOG)
    assert f"{caught.value}\n" == text


def test_smart_plug_queries_are_those_of_the_benchmark() -> None:
    section = DOCUMENT[DOCUMENT.index("## The smart-plug queries") : DOCUMENT.index("## Where this differs from Spark")]
    stream, *shown = re.findall(r"^```sql\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert stream.strip() == smart_plugs.PLUGS
    assert {f"CQ{n}": text.strip().removesuffix(";") for n, text in enumerate(shown, 1)} == smart_plugs.QUERIES


def test_every_word_of_the_language_is_mentioned() -> None:
    refused = [what for what, _ in (*REFUSED_TOKENS.values(), *REFUSED_WORDS.values())]
    words = [*FUNCTIONS, *AGGREGATES, *TYPE_NAMES, *OTHER_AGGREGATES, *WINDOW_FUNCTIONS, *OUTPUT_STREAMS, *INSTEAD]
    known = (*words, *refused, *REFUSED_STATEMENTS)
    assert not [word for word in known if not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", DOCUMENT)]
