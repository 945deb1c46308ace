"""What `explain` says of tables that stay in their databases: which way is taken when, and why."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from anabranch.control.pace import Pace
from anabranch.place.reading import LookupCosts, Way, at_pace, pace_name
from anabranch.plan.query import Query
from anabranch.show.lookups import lookups_json, lookups_text
from anabranch.sql import parse_script

SCRIPT = """
CREATE STREAM orders (id BIGINT, customer BIGINT, ts TIMESTAMP) TIME ts;
CREATE TABLE customers FROM DATABASE crm TABLE 'public.customers';
CREATE TABLE regions FROM DATABASE crm TABLE 'regions' STATIC;
CREATE QUERY q AS SELECT o.id, r.rate FROM orders [NOW] o, customers c, regions r
WHERE o.customer = c.id AND c.region = r.code;
CREATE QUERY other AS SELECT o.id FROM orders [NOW] o;
"""
COLUMNS = {
    "public.customers": (("id", pa.int64()), ("region", pa.string())),
    "regions": (("code", pa.string()), ("rate", pa.float64())),
}
COSTS = LookupCosts(0.0004, key_s=3e-6, row_s=9e-7)


def bound(name: str) -> Query:
    queries = parse_script(SCRIPT, describe=lambda _, table: COLUMNS[table]).queries
    return next(each.query for each in queries if each.query.name == name)


def words(text: str | None) -> str:
    return " ".join((text or "").split())


def test_what_was_never_measured_is_not_trusted() -> None:
    told = words(lookups_text(bound("q"), lambda _: None))
    assert "customers in crm, by id, for rows of orders: looked up in every batch." in told
    assert "anabranch calibrate --database crm --table public.customers --key id measures them" in told
    assert "regions in crm, by code, for rows of orders+customers." in told


def test_which_way_is_taken_and_why() -> None:
    told = words(lookups_text(bound("q"), lambda _: COSTS))
    assert "read whole in a batch where a slot has more keys than 0.3 of the rows of the table" in told
    assert "regions in crm, by code" in told
    assert "then it is read once and kept in the worker, as long as it has no more than 256 MiB" in told
    assert "a round trip takes 0.4 ms, a key 3 µs, a row that is read 0.9 µs" in told


def test_what_a_hint_says_is_told() -> None:
    hinted = SCRIPT.replace("SELECT o.id, r.rate", "SELECT /*+ PLACE(c, crm) PLACE(r, engine) */ o.id, r.rate")
    query = parse_script(hinted, describe=lambda _, table: COLUMNS[table]).queries[0].query
    told = words(lookups_text(query, lambda _: None))
    assert "customers in crm, by id, for rows of orders: looked up in every batch: a hint says so" in told
    assert "read once and kept in the worker: a hint says so, and as long as it has no more than 256 MiB" in told
    assert [each["place"] for each in lookups_json(query, lambda _: None)] == ["database", "engine"]
    query = parse_script(hinted.replace("c, crm", "c, engine"), describe=lambda _, table: COLUMNS[table]).queries[0].query
    assert "by id, for rows of orders: read whole in every batch" in words(lookups_text(query, lambda _: None))


def test_for_programs() -> None:
    customers, regions = lookups_json(bound("q"), lambda _: COSTS)
    assert (customers["table"], customers["keys"], customers["reading"]) == ("public.customers", ["id"], "current")
    assert (regions["reading"], regions["measured"]["key_s"]) == ("static", 3e-6)
    assert lookups_json(bound("q"), lambda _: None)[0]["measured"] is None


def test_nothing_is_said_where_nothing_is_looked_up() -> None:
    assert lookups_text(bound("other"), lambda _: COSTS) is None
    assert lookups_json(bound("other"), lambda _: COSTS) == []


def test_what_batches_have_measured_is_told_beside_what_was_calibrated() -> None:
    pace = Pace(math.log(2), 0.0, 100, 0, COSTS.round_trip_s)
    costs = at_pace(COSTS, {pace_name("orders+customers", Way.LOOKUP): pace}, "orders+customers")
    told = words(lookups_text(bound("q"), lambda source: costs if source.table.name == "customers" else COSTS))
    assert "more keys than 0.15 of the rows of the table" in told
    assert "0.9 µs; by what batches have measured since, lookups take 2 times as long" in told
    assert told.count("measured since") == 1
    (found, _) = lookups_json(bound("q"), lambda _: costs)
    assert (found["measured"]["lookup_pace"], found["measured"]["whole_pace"]) == (pytest.approx(2), 1.0)
