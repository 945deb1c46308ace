"""Which queries may be without some of their results, and how far they may fall behind."""

from __future__ import annotations

import math

import pytest

from anabranch.errors import SessionError
from anabranch.plan.overload import Overload, Policy
from anabranch.plan.partial import check_overload, late_suppressed, slack_us, why_not_partial
from anabranch.plan.query import Query
from anabranch.sql import parse_script

CREATE = """
CREATE STREAM a (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts LATENESS 3 SECONDS;
CREATE TABLE d (k BIGINT);
"""
PAIRS = "SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS"


def query(sql: str) -> Query:
    (found,) = parse_script(f"{CREATE} CREATE QUERY q AS {sql};").queries
    return found.query


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        (PAIRS, None),
        ("SELECT x.k FROM a [NOW] x, a [NOW] y WHERE x.k = y.k", None),
        ("SELECT a.k FROM a, b, d WHERE a.k = b.k AND a.k = d.k WINDOW 5 SECONDS", None),
        ("SELECT x.k FROM (SELECT k FROM a [NOW]) x, b [NOW] WHERE x.k = b.k", None),
        ("SELECT a.k, COUNT(*) AS n FROM a, b WHERE a.k = b.k GROUP BY a.k WINDOW 5 SECONDS", "wrong, not missing"),
        ("SELECT x.n FROM (SELECT k, COUNT(*) AS n FROM a [NOW] GROUP BY k) x, b [NOW] WHERE x.k = b.k", "wrong, not"),
        ("SELECT k FROM a [NOW]", "one stream"),
        ("SELECT a.k FROM a [NOW], d WHERE a.k = d.k", "one stream"),
    ],
)
def test_a_part_of_a_group_is_wrong_and_a_part_of_a_join_is_not(sql: str, reason: str | None) -> None:
    found, made = why_not_partial(query(sql)), query(sql)
    assert (found is None) if reason is None else (reason in str(found))
    for policy in ("adapt joins", "shed"):
        if reason is None:
            check_overload(made, Overload(Policy(policy)))
            continue
        with pytest.raises(SessionError, match=f'query q cannot run under the policy "{policy}": .*OVERLOAD'):
            check_overload(made, Overload(Policy(policy)))
    for policy in ("fall behind", "fail"):
        check_overload(made, Overload(Policy(policy)))


def test_tables_that_change_are_whole() -> None:
    joined = "SELECT a.k FROM a, b, d WHERE a.k = b.k AND a.k = d.k WINDOW 5 SECONDS"
    check_overload(query(joined), Overload(Policy.ADAPT_JOINS), ["e"])
    with pytest.raises(SessionError, match=r"the stored table d is read again \(REFRESH\)"):
        check_overload(query(joined), Overload(Policy.SHED), ["d"])
    with pytest.raises(SessionError, match="query q cannot have FRESHNESS: the stored table d"):
        check_overload(query(f"{joined} FRESHNESS 6 SECONDS"), Overload(), ["d"])


@pytest.mark.parametrize(
    ("allowances", "message"),
    [
        ({"aa": 0.4}, "query q has no input aa that an allowance could be for; there are: a, b; did you mean a?"),
        ({"d": 0.4}, "an allowance for d: rows of a stored table look up nothing"),
        ({"a": 0, "b": 0.0}, "the allowances of query q are 0 for a, b: it would have no results"),
    ],
)
def test_allowances_that_make_no_sense(allowances: dict[str, float], message: str) -> None:
    made = query("SELECT a.k FROM a, b, d WHERE a.k = b.k AND a.k = d.k WINDOW 5 SECONDS")
    with pytest.raises(SessionError) as caught:
        check_overload(made, Overload(Policy.ADAPT_JOINS, allowances=allowances))
    assert message in str(caught.value)
    check_overload(made, Overload(Policy.ADAPT_JOINS, allowances={"a": 0}))


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan, math.inf, True, "0.4"])
def test_an_allowance_is_a_share(share: object) -> None:
    with pytest.raises(SessionError, match="the allowance of a is a share from 0 to 1"):
        Overload(Policy.ADAPT_JOINS, allowances={"a": share})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("windows", "slack_s"),
    [("WINDOW 5 SECONDS", None), ("WINDOW 5 SECONDS FRESHNESS 9 SECONDS", 4), ("WINDOW 5 SECONDS FRESHNESS 5 SECONDS", 0)],
)
def test_slack_is_the_least_freshness_beyond_a_window(windows: str, slack_s: int | None) -> None:
    found = slack_us(query(PAIRS.replace("WINDOW 5 SECONDS", windows)))
    assert found == (None if slack_s is None else slack_s * 1_000_000)
    fresh = "a [RANGE 5 SECONDS FRESHNESS 9 SECONDS], b [RANGE 1 SECOND FRESHNESS 3 SECONDS]"
    assert slack_us(query(f"SELECT a.k FROM {fresh} WHERE a.k = b.k")) == 2_000_000


def test_freshness_is_too_short_for_late_rows() -> None:
    """Rows of b come up to 3 seconds late, and meet rows of a that are 5 seconds older."""
    (told, other) = late_suppressed(query(f"{PAIRS} FRESHNESS 7999 MILLISECONDS"))
    assert told.startswith("the freshness of a, 7999000 microseconds, is below its window and the lateness together, 8 s")
    assert told.endswith("write FRESHNESS 8 SECONDS")
    assert other.startswith("the freshness of b")
    assert late_suppressed(query(f"{PAIRS} FRESHNESS 8 SECONDS")) == []
    assert late_suppressed(query("SELECT 1 AS one FROM a x, a y WINDOW 5 SECONDS FRESHNESS 5 SECONDS")) == []
