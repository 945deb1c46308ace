"""What a block in DuckDB's words may say: nothing whose result is not that of its rows alone, nothing that reads others."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import duckdb
import pytest

from anabranch.errors import QueryError
from anabranch.place.databases.duckdb import DuckDb
from anabranch.place.databases.duckdb_words import TABLE_FUNCTIONS
from anabranch.plan.statement import StatementError

REFUSED_NAMES = """
    ago current_catalog current_connection_id current_database current_date current_localtime current_localtimestamp
    current_query current_query_id current_role current_schema current_schemas current_setting current_transaction_id
    current_user currval error format_type gen_random_uuid get_block_size get_current_time get_current_timestamp getvariable
    in_search_path index_key json_serialize_plan nextval now pg_conf_load_time pg_get_constraintdef pg_get_viewdef
    pg_postmaster_start_time pg_sleep random session_user setseed setval sleep_ms stats today transaction_timestamp
    txid_current user uuid uuidv4 uuidv7 vector_type version write_log
"""
REFUSED = frozenset(REFUSED_NAMES.split())
"""They read the clock, chance, a setting, a sequence, other tables, how rows lie in memory; or they do something."""

TAKEN = frozenset((Path(__file__).parent / "duckdb_functions.txt").read_text().split())
"""All others, whose results are those of their arguments alone. A DuckDB that has more of them has them looked at, by
whoever adds them here or above."""

RAISES = frozenset({"assert_true", "json_group_object"})
"""Macros that call `error`, which is refused by itself: DuckDB takes it for one whose result may differ."""


@pytest.fixture(scope="module")
def database() -> DuckDb:
    return DuckDb()


@cache
def catalogue(*kinds: str) -> tuple[tuple[str, tuple[str, ...], str | None], ...]:
    """The functions of DuckDB: name, types of arguments, definition of a macro."""
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT DISTINCT function_name, parameter_types, macro_definition FROM duckdb_functions() "
            "WHERE list_contains($1, function_type) ORDER BY ALL", [kinds],
        ).fetchall()  # fmt: skip
    return tuple((name, tuple(types), definition) for name, types, definition in found)


def is_refused(database: DuckDb, sql: str) -> bool:
    try:
        database.words(sql)
    except StatementError:
        return True
    return False


def names(*kinds: str) -> set[str]:
    """The names of functions, but for operators, collations, and those that only DuckDB itself calls."""
    found = {name for name, _, _ in catalogue(*kinds)}
    return {n for n in found if n.isidentifier() and not n.startswith(("__internal_", "collate_", "icu_collate_"))}


def test_every_function_is_refused_whose_result_is_not_one_of_its_arguments_alone(database: DuckDb) -> None:
    assert names("scalar", "aggregate", "window", "macro") == REFUSED | TAKEN
    assert {name for name in REFUSED if is_refused(database, f'SELECT "{name}"(x, y) FROM r')} == REFUSED
    database.words(f"""SELECT {", ".join(f'"{name}"(x, y)' for name in TAKEN)} FROM r""")


def test_every_macro_is_refused_that_calls_what_is_refused(database: DuckDb) -> None:
    for name, _, definition in catalogue("macro"):
        calls = is_refused(database, f"SELECT {definition}")
        assert not calls or name in REFUSED | RAISES, name


def test_every_function_without_arguments_that_is_taken_gives_the_same_in_every_database(database: DuckDb) -> None:
    other = duckdb.connect(":memory:other", config={"threads": "2", "memory_limit": "100MiB"})
    for name in {name for name, types, _ in catalogue("scalar", "macro") if not types} & TAKEN:
        sql = f'SELECT "{name}"() AS x'
        with suppress(QueryError):  # it takes arguments all the same
            assert database.run(sql, {}).to_pylist() == other.sql(sql).to_arrow_table().to_pylist(), name


def test_every_table_function_is_refused_but_those_that_compute(database: DuckDb) -> None:
    every = names("table", "table_macro", "pragma")
    taken = {n for n in every if not is_refused(database, f'SELECT * FROM "{n}"(x)')}
    assert taken == TABLE_FUNCTIONS
    assert is_refused(database, "CALL range(3)")
    assert is_refused(database, "PRAGMA version")


@pytest.mark.parametrize(("sql", "under"), [
    ("SELECT age(ts) FROM r", "age"),
    ("SELECT ts.age() FROM r", "ts.age"),
    ("SELECT ago(INTERVAL 1 DAY) FROM r", "ago"),
    ("SELECT sum(y) FILTER (x < main.Ago(INTERVAL 1 DAY)) FROM r", "main"),
    ("SELECT x FROM r WHERE x < Current_Date", "Current_Date"),
    ("SELECT current_user, x FROM r", "current_user"),
    ("SELECT x FROM r USING SAMPLE 5 ROWS", "r USING"),
    ("SELECT x FROM q, (SELECT x FROM r USING SAMPLE 10%)", "r USING"),
    ("SELECT x FROM (SELECT x FROM r) USING SAMPLE reservoir(5 ROWS) REPEATABLE (1)", "(SELECT"),
    ("SELECT x FROM r TABLESAMPLE 5%", "r TABLE"),
    ("SELECT x FROM q JOIN r TABLESAMPLE system(5%) USING (x)", "r TABLE"),
])  # fmt: skip
def test_what_has_another_result_each_time_is_refused_where_it_stands(database: DuckDb, sql: str, under: str) -> None:
    with pytest.raises(StatementError) as caught:
        database.words(sql)
    assert sql[caught.value.at :].startswith(under)
    assert "a batch that is run again must give the same" in caught.value.hint


@pytest.mark.parametrize("sql", [
    "SELECT age(ts, TIMESTAMP '2026-01-01') FROM r",
    "SELECT r.current_date, r.x.localtime FROM r",
    "SELECT user, x AS now FROM r",
    "SELECT hash(x), md5(x), list(y), reservoir_quantile(y, 0.5) FROM r",
])  # fmt: skip
def test_what_only_looks_like_it_is_not(database: DuckDb, sql: str) -> None:
    assert [name.text for name in database.words(sql).tables] == ["r"]


@pytest.mark.parametrize(("sql", "read"), [
    ("WITH a AS (SELECT * FROM r), b AS (SELECT * FROM a) SELECT * FROM a, b", {"r"}),
    ("WITH r AS (SELECT * FROM r) SELECT * FROM r", {"r"}),
    ("WITH RECURSIVE r AS (SELECT * FROM r) SELECT * FROM r", {"r"}),
    ("WITH RECURSIVE a AS (SELECT x FROM r UNION ALL SELECT x + 1 FROM A WHERE x < 9) SELECT * FROM a", {"r"}),
    ("WITH RECURSIVE sqlite_master AS (SELECT x FROM sqlite_master UNION SELECT 1) FROM sqlite_master", {"sqlite_master"}),
    ("WITH sqlite_master AS (SELECT * FROM sqlite_master) SELECT * FROM sqlite_master", {"sqlite_master"}),
    ("WITH a AS (SELECT * FROM sqlite_master), sqlite_master AS (SELECT 1) FROM a, sqlite_master", {"sqlite_master"}),
    ("SELECT * FROM (WITH duckdb_views AS (FROM r) FROM duckdb_views) a, duckdb_views b", {"r", "duckdb_views"}),
    ("SELECT (WITH a AS (SELECT y FROM r) SELECT max(y) FROM a), (SELECT count(*) FROM a)", {"r", "a"}),
    ("WITH a AS (FROM r) SELECT (SELECT max(x) FROM a b WHERE b.x = ANY(FROM a)) FROM a", {"r"}),
])  # fmt: skip
def test_what_with_defines_hides_a_relation_only_where_it_is_seen(database: DuckDb, sql: str, read: set[str]) -> None:
    assert {name.text for name in database.words(sql).tables} == read
