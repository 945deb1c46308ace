"""Tables that a worker keeps: rows are found by their keys, whatever types these have, and the room for them is bounded."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.shipped import MOST_KNOWN, Shelf, shipped
from anabranch.place.reading import MOST_BYTES

KEYS = {
    "bigint": pa.array([3, None, 1, 3, -(2**63), 2**63 - 1, 0]),
    "text": pa.array(["", None, "a\0", "", "it's", "é", "a"]),
    "decimal": pa.array([Decimal("1.10"), None, Decimal("-0.01"), Decimal("1.10"), Decimal("9.99"), None, Decimal("2")]),
    "date": pa.array([date(1, 1, 1), None, date(9999, 12, 31), date(1, 1, 1), date(1970, 1, 1), date(2000, 2, 29), None]),
    "boolean": pa.array([True, None, False, True, False, True, False]),
    "bytes": pa.array([b"", None, b"\0", b"", b"\xff", b"x", b"y"]),
}


@pytest.mark.parametrize("kinds", [*((kind,) for kind in KEYS), ("bigint", "text"), ("text", "date", "decimal")])
def test_all_rows_with_a_key_are_among_the_candidates(kinds: tuple[str, ...]) -> None:
    rng = np.random.default_rng(len(kinds))
    places = rng.integers(0, 7, (60, len(kinds)))
    keys = pa.table({f"k{n}": KEYS[kind].take(pa.array(places[:, n])) for n, kind in enumerate(kinds)})
    table = keys.append_column("row", pa.array(np.arange(60)))
    kept = shipped(table, keys, 0)
    for _ in range(10):
        asked = keys.take(pa.array(rng.integers(0, 60, 5))).drop_null()
        asked = asked.group_by(asked.column_names).aggregate([])
        wanted = {tuple(row.values()) for row in asked.to_pylist()}
        found = kept.candidates(asked).to_pylist()
        matching = [row["row"] for row in table.to_pylist() if tuple(list(row.values())[:-1]) in wanted]
        assert sorted(row["row"] for row in found if tuple(list(row.values())[:-1]) in wanted) == matching
        assert len(found) == len({row["row"] for row in found}), "no row comes twice"
    assert kept.candidates(keys.slice(0, 0)).num_rows == 0


def test_rows_without_a_key_are_not_kept() -> None:
    table = pa.table({"k": [1, None, 2]})
    assert shipped(table, table, 0).rows.to_pydict() == {"k": [1, 2]}


def test_tables_of_other_runs_make_room_and_those_of_the_run_do_not() -> None:
    shelf, table = Shelf(), pa.table({"k": [1]})
    shelf.of("old", "a").table = shipped(table, table, MOST_BYTES // 2)
    shelf.of("new", "b").table = shipped(table, table, MOST_BYTES // 2)
    assert shelf.room("new") == MOST_BYTES - MOST_BYTES // 2
    shelf.make_room("new", MOST_BYTES // 4)
    assert [key for key, each in shelf.known.items() if each.table] == [("new", "b")]
    shelf.make_room("new", MOST_BYTES)
    assert shelf.of("new", "b").table is not None


def test_what_was_not_asked_for_longest_is_forgotten() -> None:
    shelf = Shelf()
    for number in range(MOST_KNOWN):
        shelf.of("run", str(number))
    shelf.of("run", "0").spent_s = 1.0
    shelf.of("run", "one more")
    assert len(shelf.known) == MOST_KNOWN
    assert shelf.of("run", "0").spent_s == 1.0
    assert ("run", "1") not in shelf.known


def test_the_size_of_a_table_is_asked_now_and_then() -> None:
    known, asked = Shelf().of("run", "a"), []
    for _ in range(130):
        known.size(lambda: asked.append(1))  # type: ignore[func-returns-value]
    assert len(asked) == 3
