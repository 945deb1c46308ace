"""The last value that is allowed, and the first that is not."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.errors import SessionError, TypeMismatchError, UnsupportedSqlError
from anabranch.sql.bind import bind_query
from anabranch.sql.durations import LONGEST_US, parse_duration
from anabranch.sql.types import common_type
from tests.sql.sources import CATALOG, selected


def test_a_row_counts_at_a_hundred_thousand_instants_and_not_at_more() -> None:
    text = "SELECT COUNT(*) AS n FROM trades [RANGE {} SECONDS] SLIDE 1 SECOND"
    assert bind_query("q", text.format(100_000), CATALOG).grouping is not None
    with pytest.raises(UnsupportedSqlError, match="more than 100,000 instants"):
        bind_query("q", text.format(100_001), CATALOG)


@pytest.mark.parametrize(
    ("slide", "length_us"), [("", 1_000_000), ("SLIDE 2 SECONDS", 2_000_000), ("SLIDE 5 MINUTES", 300_000_000)]
)
def test_groups_of_a_subquery_are_valid_for_one_slide(slide: str, length_us: int) -> None:
    """The law: rows of an aggregate are valid [τ, τ+slide), however long the windows below it are."""
    inner = f"SELECT symbol, COUNT(*) AS n FROM trades [RANGE 1 HOUR] GROUP BY symbol {slide}"
    query = bind_query("q", f"SELECT g.n FROM quotes [RANGE 10 SECONDS] q, ({inner}) g WHERE q.symbol = g.symbol", CATALOG)
    assert [i.window.length_us for i in query.inputs] == [10_000_000, length_us]


def test_lengths_of_time_end_where_times_would_leave_the_range() -> None:
    """Each part may be as long as is allowed, and their sum, too; a microsecond more is refused."""
    assert parse_duration(f"{LONGEST_US} microseconds") == LONGEST_US
    assert parse_duration(f"{LONGEST_US - 1} microseconds 1 microsecond") == LONGEST_US
    for text in (f"{LONGEST_US + 1} microseconds", f"{LONGEST_US} microseconds 1 microsecond", "5000000 days 5000000 days"):
        with pytest.raises(SessionError, match="is out of range"):
            parse_duration(text)


def test_an_interval_is_taken_from_a_time_and_not_the_other_way_round() -> None:
    assert selected("t.ts - INTERVAL 5 SECONDS") == selected("(t.ts - INTERVAL 5 SECONDS)")
    assert selected("INTERVAL 5 SECONDS + t.ts") == selected("t.ts + INTERVAL 5 SECONDS")
    with pytest.raises(TypeMismatchError, match="an INTERVAL can only be added to a timestamp or subtracted from one"):
        selected("INTERVAL 5 SECONDS - t.ts")


@pytest.mark.parametrize(("left", "right", "both"), [
    (pa.uint8(), pa.int8(), pa.int16()), (pa.int16(), pa.uint8(), pa.int16()), (pa.uint16(), pa.int8(), pa.int32()),
    (pa.uint32(), pa.int32(), pa.int64()), (pa.int64(), pa.uint32(), pa.int64()),
    (pa.uint64(), pa.int8(), pa.decimal128(20, 0)), (pa.uint8(), pa.uint32(), pa.uint32()),
])  # fmt: skip
def test_integers_meet_in_a_type_that_holds_both(left: pa.DataType, right: pa.DataType, both: pa.DataType) -> None:
    assert common_type(left, right) == common_type(right, left) == both
