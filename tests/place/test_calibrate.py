"""What databases take: measured with DuckDB and with a server, and remembered without a word about who is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from anabranch.cli import main
from anabranch.errors import DatabaseError
from anabranch.place.calibrate import (
    FORMAT,
    Measured,
    measure_blocks,
    measure_lookups,
    path_of,
    remember,
    remembered,
)
from anabranch.place.databases.protocol import Wanted
from anabranch.place.databases.registry import close_all
from anabranch.place.operators import Kind
from bench.postgres import PASSWORD, Server

SIZES = (100, 1000)


class Duck:
    """DuckDB over relations that are handed in."""

    def run(self, sql: str, relations: Mapping[str, pa.Table]) -> pa.Table:
        with duckdb.connect() as connection:
            for name, rows in relations.items():
                connection.register(name, rows)
            return connection.sql(sql).to_arrow_table()


class Shelf:
    """A table that is looked up by comparing; it notes how many keys came."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows, self.asked = rows, list[int]()

    def describe(self, table: str) -> tuple[tuple[str, pa.DataType], ...]:
        return tuple((f.name, f.type) for f in self.rows.schema)

    def read(
        self,
        table: str,
        columns: tuple[tuple[str, pa.DataType], ...],
        snapshot: str | None = None,
        most_rows: int | None = None,
    ) -> pa.Table:
        return self.rows.select([name for name, _ in columns]).slice(0, most_rows)

    def lookup(self, wanted: Wanted, keys: pa.Table, snapshot: str | None = None) -> pa.Table:
        self.asked.append(len(keys))
        return self.rows.join(keys, list(wanted.keys), list(wanted.keys), "inner")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_an_embedded_database_is_measured_for_all_that_a_block_does() -> None:
    measured = measure_blocks(Duck(), SIZES, times=1)
    assert {what: tuple(sizes) for what, sizes in measured.row_s.items()} == dict.fromkeys(
        ("in", "out", "group", "probe", "join"), SIZES
    )
    costs = measured.costs()
    assert costs is not None
    assert (costs.is_embedded, costs.in_s) == (True, 0.0), "rows are scanned where they lie"
    assert costs.per_row_s[Kind.AGGREGATE] == measured.row_s["group"][SIZES[-1]]
    assert set(costs.per_row_s) == set(Kind)


def test_rows_of_a_window_are_priced_as_many_rows() -> None:
    """A thousand rows take less than round trips differ by: with the median of all sizes a window would cost nothing."""
    row_s = {1_000: 0.0, 10_000: 0.0, 100_000: 1e-9, 1_000_000: 2e-8}
    costs = Measured(FORMAT, "here", True, 4e-3, dict.fromkeys(("in", "out", "group", "probe", "join"), row_s)).costs()
    assert costs is not None
    assert costs.out_s == 2e-8
    assert set(costs.per_row_s.values()) == {2e-8}
    assert costs.build_s == 2e-8, "a join has a kept row for each that is looked up"


def test_what_was_measured_is_remembered_by_name() -> None:
    measured = measure_blocks(Duck(), SIZES[:1], times=1)
    assert remembered("duck") is None
    remember("duck", measured)
    assert remembered("duck") == measured
    assert remembered("other") is None
    path_of("duck").write_bytes(path_of("duck").read_bytes().replace(b'"format":3', b'"format":1'))
    assert remembered("duck") is None
    path_of("duck").write_bytes(b"torn")
    assert remembered("duck") is None


def test_a_server_is_measured_by_lookups_of_keys_that_it_has() -> None:
    shelf = Shelf(pa.table({"id": pa.array([*range(300), None, 0]), "name": [str(n) for n in range(302)]}))
    measured = measure_lookups(shelf, "customers", "id", (10, 1000), times=1)
    assert tuple(measured.row_s["lookup"]) == (10, 300), "no more keys than there are"
    assert tuple(measured.row_s["out"]) == (10, 302)
    assert set(shelf.asked) == {1, 10, 300}
    assert measured.costs() is None, "it runs no blocks"


def test_a_table_that_cannot_be_looked_up_is_refused() -> None:
    with pytest.raises(DatabaseError, match="no column idd: it has id"):
        measure_lookups(Shelf(pa.table({"id": [1]})), "customers", "idd")
    with pytest.raises(DatabaseError, match="no rows to look up"):
        measure_lookups(Shelf(pa.table({"id": pa.array([None], pa.int64())})), "customers", "id")


@pytest.mark.parametrize("arguments", [["--table", "t"], ["--database", "crm"], ["--database", "crm", "--table", "t"]])
def test_what_is_missing_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *arguments]) != 0
    told = capsys.readouterr().err
    assert "--database" in told or "--table public.customers --key id" in told


def test_the_command_measures_duckdb(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("anabranch.place.calibrate.measure_blocks.__defaults__", (SIZES, 1))
    assert main(["calibrate", "--database", "duck"]) == 0
    assert "group, 1,000 rows" in capsys.readouterr().out
    found = remembered("duck")
    assert found is not None
    assert found.costs() is not None
    assert main(["calibrate", "--database", "duck", "--key", "id"]) != 0


def test_the_command_measures_a_server_and_keeps_no_word_of_how_it_is_reached(
    postgres: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in postgres.environment.items():
        monkeypatch.setenv(name, value)
    postgres.sql("CREATE TABLE measured AS SELECT n AS id, n::text AS name FROM generate_series(1, 50) n; "
                 "GRANT SELECT ON measured TO looker")  # fmt: skip
    try:
        assert main(["calibrate", "--database", "shop", "--table", "measured", "--key", "id"]) == 0
    finally:
        close_all()
        postgres.sql("DROP TABLE measured")
    told, found = capsys.readouterr(), remembered("shop")
    assert found is not None
    assert tuple(found.row_s["lookup"]) == (50,)
    assert PASSWORD not in path_of("shop").read_text() + told.out + told.err
