"""Where operators run, as `explain` shows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cost.facts import Given
from anabranch.drive.local import LocalRun
from anabranch.place.calibrate import FORMAT, Measured, remember
from anabranch.place.capabilities import DUCKDB
from anabranch.plan.query import SECOND_US
from anabranch.planning import Planning
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem

SOURCES = "CREATE STREAM plugs (plug BIGINT, load DOUBLE, ts TIMESTAMP) TIME ts;"
MEANS = "(SELECT plug, AVG(load) AS mean FROM plugs [RANGE {} MINUTES] GROUP BY plug)"
SELECT = f"SELECT {{}} f.plug, f.mean FROM {MEANS.format(5)} f, {MEANS.format(1)} o WHERE f.plug = o.plug"
FACTS = Given(rates={"plugs": 2000.0}, distinct={"plugs.plug": 2125.0})
FREE = Measured(FORMAT, "here", True, 1e-9, {each: {1000: 1e-15} for each in ("in", "out", "group", "probe", "join")})
DEAR = Measured(FORMAT, "here", True, 1.0, {each: {1000: 1e-3} for each in ("in", "out", "group", "probe", "join")})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def planning(hint: str = "", databases: tuple[str, ...] = ("duck",), select: str = SELECT) -> Planning:
    found = Planning(facts=FACTS, slots=2)
    found.units = replace(found.units, accept=0.0)
    found.databases = dict.fromkeys(databases, DUCKDB)
    found.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS {select.format(hint)};"))
    return found


def places(found: Planning) -> dict[str, str]:
    told = found.explain_json("q")["placement"]
    return {each["name"]: each["place"] for each in told["operators"]}


def test_a_database_that_was_never_measured_gets_nothing() -> None:
    found = planning()
    assert set(places(found).values()) == {"engine"}
    assert "places" not in found.explain("q")
    text = found.explain("q", verbose=True)
    assert "a cost that was never measured is not trusted" in " ".join(text.split())
    assert "anabranch calibrate --database duck" in " ".join(text.split())


def test_unless_a_hint_places_it() -> None:
    told = places(planning("/*+ PLACE(f, duck) */"))
    assert {name for name, place in told.items() if place == "duck"} == {"AGGREGATE f"}


def test_operators_run_where_they_are_cheapest() -> None:
    remember("duck", DEAR)
    assert set(places(planning()).values()) == {"engine"}
    remember("duck", FREE)
    told = places(planning())
    assert {name for name, place in told.items() if place == "duck"} == {"AGGREGATE o"}, "one block of a query goes"


def test_why_a_block_stays_of_which_too_little_is_known() -> None:
    remember("duck", FREE)
    found = planning()
    found.facts = Given(rates={"plugs": 2000.0})
    text = " ".join(found.explain("q").split())
    stays = "engine, and stays: the number of groups is not known: it is counted while the block runs, or say --distinct"
    assert f"AGGREGATE f {stays} plugs.plug=VALUES" in text
    told = {each["name"]: each["assumed"] for each in found.explain_json("q")["placement"]["operators"]}
    assert told["AGGREGATE f"] in text
    assert told["PROJECT"] is None
    assert "stays" not in planning().explain("q")
    hinted = " ".join(planning("/*+ PLACE(f, duck) */").explain("q").split())
    assert "AGGREGATE f duck" in hinted
    assert "AGGREGATE f duck, and stays" not in hinted


def test_why_a_block_that_joins_stays_of_which_too_little_is_known() -> None:
    remember("duck", FREE)
    joins = "SELECT {} COUNT(*) AS n FROM plugs [NOW] p, plugs [NOW] o WHERE p.plug = o.plug AND p.load > o.load"
    found = planning(select=joins)
    meets = "JOIN engine, and stays: how many rows meet is not known, and is counted while the engine joins them"
    assert f"{meets}, or say --distinct p.plug=VALUES" in " ".join(found.explain("q").split())
    found.facts = Given(rates={"plugs": 2000.0}, distinct={"p.plug": 9.0, "o.plug": 9.0})
    assert f"{meets}: which share of them passes (p.load > o.load) is not" in " ".join(found.explain("q").split())
    found.facts = replace(found.facts, passing={"q": 0.5})
    assert "stays" not in found.explain("q")


def test_a_log_that_only_the_database_reads_has_its_price() -> None:
    remember("duck", FREE)
    found = planning()
    written = found.query("q").forms.written
    found.units = replace(found.units, accept=1e-3)
    assert found.choose_places(written, FACTS).blocks == frozenset()  # type: ignore[union-attr]
    there = found.choose_places(written, FACTS, frozenset({"q.f"}))
    assert there is not None
    assert there.other is not None
    assert there.decision is not None
    assert there.decision.use.total < there.other.use.total, "what runs there has its log already"


@pytest.mark.parametrize(("failure", "when"), [
    ("fail", "to take over from the database, within the pause of each batch, the engine"),
    ("engine", "within the pause of each batch, and at once in a batch in which that fails, the engine"),
])  # fmt: skip
def test_what_it_takes_the_engine_to_take_over_is_told(failure: str, when: str) -> None:
    found = Planning(facts=FACTS, slots=2, database_failure=failure)
    found.units = replace(found.units, fold=1e-6)
    found.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS {SELECT.format('/*+ PLACE(f, duck) */')};"))
    told = " ".join(found.explain("q").split())
    assert f"{when} folds 600,000 rows of q.f: 0.6 s of CPU" in told
    assert found.explain_json("q")["placement"]["folding"] == {"q.f": {"rows": 600_000.0, "cpu_s": pytest.approx(0.6)}}
    found.facts = replace(FACTS, rates={})
    assert "folds" not in found.explain("q")


@pytest.mark.parametrize(("sql", "does", "rows"), [
    ("a.plug, COUNT(*) AS n FROM plugs [RANGE 10 SECONDS] a, plugs [RANGE 5 SECONDS] b WHERE a.plug = b.plug "
     "GROUP BY a.plug",
     "joins the rows of q, and folds 2,000,000 combinations", 2e6),
    ("a.load FROM plugs [RANGE 10 SECONDS] a, plugs [RANGE 5 SECONDS] b WHERE a.plug = b.plug",
     "derives the indexes of q, of 38,000 rows", 3.8e4),
])  # fmt: skip
def test_what_it_takes_the_engine_to_join_in_the_place_of_a_database_is_told(sql: str, does: str, rows: float) -> None:
    """20,000 rows meet 10,000, of which each finds a hundredth; rows are kept somewhat longer than they are valid."""
    found = Planning(facts=replace(FACTS, distinct={"a.plug": 100.0, "b.plug": 100.0}), slots=2, database_failure="engine")
    found.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS SELECT /*+ PLACE(duck) */ {sql};"))
    assert f"in which that fails, the engine {does}:" in " ".join(found.explain("q").split())
    (told,) = found.explain_json("q")["placement"]["folding"].values()
    assert told["rows"] == pytest.approx(rows)
    assert told["cpu_s"] > rows * (found.units.fold if "GROUP" in sql else found.units.insert) * 0.99
    found.facts = FACTS
    assert found.explain_json("q")["placement"]["folding"] == {}, "how many rows meet is not known"


def test_what_is_refused_meanwhile_is_told() -> None:
    alone = planning(select="SELECT {} COUNT(*) AS n FROM plugs [NOW]", hint="/*+ PLACE(duck) */")
    assert alone.explain_json("q")["placement"]["refused"] == [
        "refused while duck may run q: another plan, groups or selects elsewhere"
    ]
    joined = "SELECT {} p.load FROM plugs [NOW] p, plugs [NOW] o WHERE p.plug = o.plug"
    text = " ".join(planning(select=joined, hint="/*+ PLACE(duck) */").explain("q").split())
    assert "refused while duck may run q: another plan, groups or selects elsewhere; and its join is shared with no" in text
    below = planning("/*+ PLACE(f, duck) */")
    assert below.explain_json("q")["placement"]["refused"] == ["refused: to have another block of q in a database as well"]
    assert planning("/*+ PLACE(f, engine) */").explain_json("q")["placement"]["refused"] == []


@pytest.mark.parametrize(("sql", "told"), [
    ("{} p.plug, COUNT(*) AS n FROM plugs [NOW] p, plugs [NOW] o WHERE p.plug = o.plug GROUP BY p.plug",
     "spread by p.plug = o.plug"),
    ("{} p.load, COUNT(*) AS n FROM plugs [NOW] p, plugs [NOW] o WHERE p.plug = o.plug GROUP BY p.load", "in one slot"),
    ("{} COUNT(*) AS n FROM plugs [NOW]", "in one slot"),
    ("x.plug FROM DATABASE duck (SELECT plug FROM plugs [NOW] PARTITION BY plug) x", "spread by plugs.plug"),
    ("x.plug, MAX(x.load) AS m FROM DATABASE duck (SELECT plug, load FROM plugs [NOW] PARTITION BY plug) x GROUP BY x.plug",
     "spread by plugs.plug"),
    ("x.plug FROM DATABASE duck (SELECT plug FROM plugs [NOW] PARTITION BY plug) x, plugs [NOW] p WHERE p.load > x.plug",
     "in one slot"),
])  # fmt: skip
def test_where_the_groups_of_a_database_are_made_is_told(sql: str, told: str) -> None:
    found = Planning(slots=4)
    query = f"CREATE QUERY q AS SELECT {sql.format('/*+ PLACE(duck) */')};"
    found.add_script(parse_script(SOURCES + query, found.catalog))
    text = " ".join(found.explain("q", verbose=True).split())
    assert f"asked every 1 second {told} select" in text
    assert ("all rows go to one of them" in text) == (told == "in one slot")


def test_a_hint_decides_against_the_costs() -> None:
    remember("duck", FREE)
    assert places(planning("/*+ PLACE(f, engine) */"))["AGGREGATE f"] == "engine"
    remember("duck", DEAR)
    told = places(planning("/*+ PLACE(o, database) */"))
    assert (told["AGGREGATE o"], told["AGGREGATE f"]) == ("duck", "engine")


def test_the_plan_and_the_next_best_are_told() -> None:
    remember("duck", DEAR)
    found = planning()
    text, told = " ".join(found.explain("q").split()), found.explain_json("q")["placement"]
    assert "plans looked at" in text
    assert "next best:" in text
    assert told["chosen"]["feasible"]
    assert told["chosen"]["exact"]
    assert told["next"]["c_u"] > told["chosen"]["c_u"]
    assert "places AGGREGATE f engine" in text


def test_nothing_is_told_where_there_is_no_choice() -> None:
    assert planning(databases=()).explain_json("q")["placement"] is None
    assert "places" not in planning(databases=()).explain("q")
    alone = "SELECT {} plug FROM plugs [NOW]"
    assert planning(select=alone).explain_json("q")["placement"] is None


def test_a_block_that_went_there_while_it_ran_is_shown_as_one_that_began_there(tmp_path: Path) -> None:
    """Its statement, what it takes home, and what is refused meanwhile."""
    joined = "plugs [RANGE 1 SECOND] p, plugs [NOW] o WHERE p.plug = o.plug"
    sql = f"SELECT {{}} p.plug, COUNT(*) AS n FROM {joined} GROUP BY p.plug"
    facts = Given(rates={"plugs": 4.0}, distinct={"p.plug": 9.0, "o.plug": 9.0})
    found = Planning(facts=facts, slots=1, checkpoint=LocalFilesystem(str(tmp_path)))
    found.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS {sql.format('')};"))
    run = LocalRun(found.query("q").forms.written, LocalFilesystem(str(tmp_path / "pipeline-0")))
    for batch in range(3):
        at = pa.array([batch * SECOND_US], pa.timestamp("us"))
        if batch == 1:
            run.place("q", "duck")
        run.step(batch, {"plugs": pa.table({"plug": [1], "load": [0.5], "ts": at})})
    hinted = Planning(facts=facts, slots=1)
    hinted.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS {sql.format('/*+ PLACE(duck) */')};"))
    told, expected = (each.explain_json("q")["placement"] for each in (found, hinted))
    assert told["statements"].keys() == {"q"}
    for what in ("statements", "folding", "refused"):
        assert told[what] == expected[what]
    assert "within the pause of each batch, the engine joins the rows of q" in " ".join(found.explain("q").split())


def test_a_statement_in_the_words_of_a_database_is_told_as_well() -> None:
    block = "DATABASE duck (SELECT plug, median(load) AS m FROM plugs [RANGE 1 MINUTE] GROUP BY plug) x"
    found = Planning(facts=FACTS, slots=2)
    found.add_script(parse_script(f"{SOURCES} CREATE QUERY q AS SELECT x.m FROM {block};", found.catalog))
    told = " ".join(found.explain("q").split())
    assert 'q.x in duck: SELECT plug, median(load) AS m FROM "plugs" GROUP BY plug' in told
    assert [*found.explain_json("q")["placement"]["statements"]] == ["q.x"]
