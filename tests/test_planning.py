"""Planning without Spark: what `explain` shows, wherever it is asked, and how many slots it takes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from anabranch.balance.layout import layout_of
from anabranch.balance.partition import choose_distribution
from anabranch.cli import main
from anabranch.control.ledger import commits_in
from anabranch.control.records import Commit, ExecutionRecord, QueryCommit
from anabranch.cost.facts import Given
from anabranch.cost.model import Cost
from anabranch.errors import AnabranchError, NoQualifiedPlanError, SessionError
from anabranch.optimize.planner import Bounds
from anabranch.plan.overload import Overload, Policy
from anabranch.planning import Planning, machine_slots
from anabranch.settings import Budget
from anabranch.share.join_load import JoinLoad
from anabranch.share.ways import SharingDecision, chosen_way, push_down_way
from anabranch.show.spread import Origin, Slots
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem

SOURCES = """
CREATE STREAM a (k BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts FROM 'a/*.parquet';
CREATE STREAM b (k BIGINT, g STRING, ts TIMESTAMP) TIME ts LATENESS 3 SECONDS FROM 'b/*.parquet';
CREATE TABLE d (k BIGINT, name STRING) FROM 'd.parquet';
"""
QUERIES = {
    "pairs": "CREATE QUERY pairs AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;",
    "pinned": "CREATE QUERY pinned PLAN '(b a)' AS SELECT a.k FROM a, b WHERE a.v > b.k WINDOW 5 SECONDS;",
    "named": "CREATE QUERY named AS SELECT a.k, d.name FROM a [NOW], d WHERE a.k = d.k;",
    "total": "CREATE QUERY total AS SELECT b.g, SUM(a.v) AS s FROM a, b WHERE a.k = b.k GROUP BY b.g WINDOW 5 SECONDS;",
    "sums": """CREATE QUERY sums AS SELECT x.s, b.g FROM (SELECT k, SUM(v) AS s FROM a [RANGE 5 SECONDS] GROUP BY k) x,
               b [RANGE 5 SECONDS] WHERE x.k = b.k;""",
    "far": """CREATE QUERY far AS SELECT x.s, b.g FROM (SELECT k, SUM(v) AS s FROM a [RANGE 5 SECONDS] GROUP BY k) x,
              b [RANGE 5 SECONDS] WHERE x.s > b.k;""",
}
SCRIPT = SOURCES + "\n".join(QUERIES.values())


def planning_of(script: str = SCRIPT, **options: object) -> Planning:
    planning = Planning(**options)  # type: ignore[arg-type]
    planning.add_script(parse_script(script))
    return planning


def commit(planning: Planning, name: str, slots: int, may_skip_exchange: bool = True) -> None:
    """Leaves a commit of a query that was spread over so many slots."""
    assert planning.checkpoint is not None
    layout = layout_of(choose_distribution(planning.query(name).forms.written, slots, may_skip_exchange))
    folder = planning.checkpoint.below("pipeline-0")
    own = QueryCommit("", "", 0, ExecutionRecord("(a b)"), layout)
    commits_in(folder, 1).write(0, Commit(0, 0, {name: own}))


def spread_of(planning: Planning, name: str, parallelism: Slots | None = None) -> list[str]:
    text = planning.explain(name, parallelism, verbose=True)
    return [line.strip() for line in text.partition("\nspread\n")[2].splitlines()]


# One text, wherever it is asked


@pytest.mark.parametrize("options", [{}, {"slots": 6}])
def test_the_command_and_the_session_show_the_same(
    options: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from anabranch.session import Session

    (tmp_path / "q.sql").write_text(SCRIPT)
    checkpoint = str(tmp_path / "checkpoint")
    arguments = [f"--{option}={value}" for option, value in options.items()]
    session = Session(None, checkpoint, Budget(2, "1 GiB"), facts=Given({"a": 5000.0}), **options)  # type: ignore[arg-type]
    session.script(SCRIPT)
    shown = "\n\n\n".join(session.explain(name, verbose=True) for name in QUERIES)
    assert session._spark is None
    budget = ["--cpu", "2", "--memory", "1 GiB", "--rate", "a=5000"]
    assert main(["explain", str(tmp_path / "q.sql"), "--verbose", "--checkpoint", checkpoint, *budget, *arguments]) == 0
    assert capsys.readouterr().out == shown + "\n"
    assert shown.count("\ntimes\n") == shown.count("\nspread\n") == len(QUERIES)
    assert not (tmp_path / "checkpoint").exists()


def test_programs_are_told_what_people_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "q.sql").write_text(SCRIPT)
    arguments = ["--json", "--slots", "4", "--checkpoint", str(tmp_path)]
    assert main(["explain", str(tmp_path / "q.sql"), *arguments]) == 0
    told = {value["query"]: value for value in json.loads(capsys.readouterr().out)}
    assert list(told) == list(QUERIES)
    assert "costs" in told["pairs"]
    assert told["pinned"]["pinned"]
    assert told["pinned"]["costs"]["plan"] == "(b a)"
    assert [t["lateness_us"] for t in told["pairs"]["times"]] == [0, 3_000_000]
    spread = told["pinned"]["spread"]
    assert (spread["slots"], spread["slots_from"], spread["replication"]) == (4, "asked", 2.5)
    assert spread["copies"] == {"a": 1, "b": 4}, "beside the others that makes the fewest copies"
    assert not told["named"]["spread"]["needs_no_exchange"], "others have the rows of its stream exchanged anyway"
    assert told["named"]["together"] == [name for name in QUERIES if name != "named"]
    assert told["total"]["spread"]["groups_span_slots"]
    assert {"name": "b0_a", "alias": "a", "block": "sums.x"} in told["sums"]["spread"]["names"]


# Slots


def test_slots_that_were_asked_for(tmp_path: Path) -> None:
    planning = planning_of(slots=4, checkpoint=LocalFilesystem(str(tmp_path)))
    head = "over 4 slots (as asked), fixed when the query first starts"
    assert spread_of(planning, "pairs")[:2] == [head, "a.k = b.k in 4 parts"]
    commit(planning, "pairs", 2)
    told = spread_of(planning, "pairs")
    assert told[:2] == [head, "the checkpoint has 2 slots: from it the query goes on only with as many"]
    commit(planning, "pairs", 4)
    assert spread_of(planning, "pairs")[1] == "a.k = b.k in 4 parts"


def test_slots_of_the_checkpoint(tmp_path: Path) -> None:
    planning = planning_of(checkpoint=LocalFilesystem(str(tmp_path)))
    commit(planning, "pairs", 7)
    for parallelism in (None, Slots(3, Origin.SPARK)):
        told = spread_of(planning, "pairs", parallelism)
        assert told[:2] == ["over 7 slots (as the checkpoint has)", "a.k = b.k in 7 parts"]
    commit(planning, "far", 7)
    assert spread_of(planning, "far")[0] == "over 1 slot (as the checkpoint has)"


def test_slots_that_nobody_named(tmp_path: Path) -> None:
    planning = planning_of(checkpoint=LocalFilesystem(str(tmp_path)))
    assert spread_of(planning, "pairs")[0].startswith(f"over {machine_slots()}, fixed")
    assert machine_slots().count >= 1
    assert str(machine_slots()).endswith("(this machine's cores)")
    in_use = spread_of(planning, "pairs", Slots(12, Origin.SPARK))
    assert in_use[0] == "over 12 slots (Spark's parallelism), fixed when the query first starts"


@pytest.mark.parametrize("slots", [0, -1, 2.0, "2"])
def test_slots_that_cannot_be(slots: object) -> None:
    with pytest.raises(SessionError, match="slots is a number of tasks, 1 or more: not"):
        Planning(slots=slots)  # type: ignore[arg-type]


# The spread


def test_rows_that_stay_where_they_come_in(tmp_path: Path) -> None:
    planning = planning_of(slots=4, checkpoint=LocalFilesystem(str(tmp_path)))
    assert "together\n  with pairs, pinned, total, sums, far: one scan" in planning.explain("named")
    planning.alone.add("named")
    assert "one scan" not in planning.explain("named")
    stays = [
        "rows stay where they come in: none is exchanged",
        "every slot has all rows of d, if that is at most 64 MiB when the query first starts",
    ]
    assert spread_of(planning, "named")[1:] == stays
    commit(planning, "named", 4)
    assert spread_of(planning, "named")[1:] == stays
    commit(planning, "named", 4, may_skip_exchange=False)
    assert spread_of(planning, "named")[1] == "a.k = d.k in 4 parts"


def test_groups_and_subqueries() -> None:
    planning = planning_of(slots=4)
    combined = "a group may have rows in several slots: what each slot has of it is combined"
    assert combined in spread_of(planning, "total")
    told = spread_of(planning, "sums")
    assert told[1:4] == ["b0_a is a in sums.x", "b1_b is b in sums", "b0_a.k = b1_b.k in 4 parts"]
    assert combined not in told
    one = "all rows go to one of them: there is no key by which every part of the query can be spread"
    assert one in spread_of(planning, "far")


# What is declared


def test_a_script_is_taken_whole_or_not_at_all() -> None:
    planning = planning_of(SOURCES + QUERIES["pairs"])
    for wrong in ("PLAN '(a c)' AS", "AS"):
        name = "other" if wrong != "AS" else "PAIRS"
        text = f"CREATE TABLE e (k BIGINT); {QUERIES['named']} CREATE QUERY {name} {wrong} SELECT a.k FROM a [NOW], b [NOW];"
        with pytest.raises(AnabranchError):
            planning.add_script(parse_script(text, planning.catalog))
        assert list(planning.queries) == ["pairs"]
        assert planning.catalog.source("e") is None


def test_pinned_plans_are_priced_and_drawn() -> None:
    planning = planning_of()
    assert planning.query("pinned").is_pinned
    assert "Why this plan: it is pinned" in planning.explain("pinned")
    assert "% of a core" in planning.draw("pinned")
    assert not planning.query("pairs").is_pinned
    assert planning.draw("pairs").startswith("<svg")


def test_windows_that_are_too_short_are_told_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    lost = """CREATE QUERY lost AS SELECT a.k FROM a, b WHERE a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 5 MINUTES
              WINDOW 1 MINUTE;"""
    planning_of(SOURCES + QUERIES["pairs"] + lost).warn()
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("anabranch: warning: query lost: the condition lets rows of b be up to 5 minutes later")
    assert told.endswith("write a [RANGE 301 SECONDS]")


def test_a_plan_with_an_input_that_there_is_not() -> None:
    told = r"query q has no input paymnts; there are: a, payments; did you mean payments\?"
    with pytest.raises(AnabranchError, match=told):
        planning_of(SOURCES + "CREATE QUERY q PLAN '(paymnts a)' AS SELECT a.k FROM a [NOW], b [NOW] payments;")


def test_budgets() -> None:
    with pytest.raises(NoQualifiedPlanError):
        planning_of(budget=Budget(cpu=1e-9, strict=True))
    text = planning_of(budget=Budget(cpu=1e-9)).explain("pairs")
    assert "no plan within the budget: the least bad exceeds CPU" in text
    strict = planning_of(SOURCES + QUERIES["pinned"], budget=Budget(cpu=1e-9, strict=True))
    assert "it is pinned, more than the budget" in strict.explain("pinned")


def test_who_shares_a_join_is_told_and_how_long_rows_are_kept() -> None:
    script = parse_script("""
        CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
        CREATE QUERY short AS SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 MINUTE;
        CREATE QUERY long AS SELECT q.x FROM b AS p, a AS q WHERE q.k = p.k AND q.x > 3 WINDOW 1 HOUR;
        CREATE QUERY other AS SELECT k FROM a [NOW]""")
    planning = Planning(slots=2)
    planning.add_script(script)
    text = str(planning.explain("short"))
    assert "its join is run once for it and long" in text
    lines = text.splitlines()
    begin = lines.index("slices")
    told = [line.split("  ")[0] for line in map(str.strip, lines[begin + 1 : begin + 9])]
    assert told[3].startswith("Mem-Opt, if half of the rows pass a predicate: 2 slices keep 49 % fewer bytes than one, and ")
    assert told == [
        "rows of a are kept", "for 1 minute", "for 1 hour", told[3], "rows of b are kept", "for 1 hour",
        "pull-up, if half of the rows pass a predicate: all rows are wanted for 1 hour: there is one slice, however it is "
        "cut",
        lines[begin + 8].strip(),
    ]  # fmt: skip
    assert lines[begin + 8].strip().startswith("by itself each of 2 queries would take, together, 0.2")
    assert "its join is run once" not in str(planning.explain("other"))
    assert "slices" not in str(planning.explain("other")), "it joins nothing"


def test_slices_and_ways_as_plain_values_and_drawn() -> None:
    script = parse_script("""
        CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
        CREATE QUERY short AS SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 MINUTE;
        CREATE QUERY long AS SELECT q.x FROM b AS p, a AS q WHERE q.k = p.k AND q.x > 3 WINDOW 1 HOUR""")
    planning = Planning(slots=2)
    planning.add_script(script)
    told = planning.explain_json("long")["sharing"]
    assert told["members"] == ["long", "short"]
    a, b = sorted(told["chains"], key=lambda chain: chain["source"])
    assert [(each["kept_us"], each["rows_per_s"], each["read_by"]) for each in a["slices"]] == [
        (60_000_000, 500.0, ["short"]), (3_600_000_000, 500.0, ["long", "short"]),
    ]  # fmt: skip
    assert [each["kept_us"] for each in b["slices"]] == [3_600_000_000]
    assert [way["way"] for way in told["ways"]] == ["Mem-Opt", "CPU-Opt", "pull-up", "push-down", "unshared"]
    assert told["runs"]["memory"] == pytest.approx(min(way["memory"] for way in told["ways"]))
    assert told["runs"]["slices_us"] == {"b": [3_600_000_000], "a": [60_000_000, 3_600_000_000]}
    drawn = [text.text for text in ElementTree.fromstring(planning.draw("short")).iter("{http://www.w3.org/2000/svg}text")]
    begin, end = drawn.index("slices, for all who read it:"), drawn.index("one join for long and short")
    assert drawn[begin + 1 : begin + 5] == [
        "1 minute: 31,000 rows, 1.29 MiB", "read by short", "1 hour: 1,801,000 rows, 74.7 MiB", "read by long and short",
    ]  # fmt: skip
    would, more = planning.explain("short").partition("would take, together, ")[2].splitlines()[0].split(": ")
    assert drawn[end + 1 :][:2] == [f"each by itself, together: {would.replace(' and ', ', ')}", more]
    alone = Planning(slots=2)
    alone.add_script(parse_script(SOURCES + QUERIES["pairs"]))
    assert "one join for" not in alone.draw("pairs")
    verbose = str(planning.explain("short", verbose=True))
    assert "push-down" in verbose
    assert "push-down" not in str(planning.explain("short"))
    dear = Planning(Budget(1.0, "1 GiB"), slots=2)
    dear.add_script(script)
    assert dear.byte_cores == 1.0 / 2**30, "the budget says what a byte is worth"


def test_what_sharing_saves_is_told_when_queries_start() -> None:
    planning = Planning(slots=2)
    planning.add_script(parse_script("""
        CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
        CREATE QUERY short AS SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 1 MINUTE;
        CREATE QUERY long AS SELECT q.x FROM b AS p, a AS q WHERE q.k = p.k AND q.x > 3 WINDOW 1 HOUR;
        CREATE QUERY other AS SELECT k FROM a [NOW]"""))
    told = planning.started_with("short")
    assert told is not None
    assert told == planning.started_with("long")
    shown = planning.explain_json("short")["sharing"]
    (alone,) = [way for way in shown["ways"] if way["way"] == "unshared"]
    assert (told["joins"], told["queries"]) == (1, 2)
    assert (told["cpu_alone"], told["memory_alone"]) == (alone["cpu"], alone["memory"])
    assert (told["cpu"], told["memory"]) == pytest.approx((shown["runs"]["cpu"], shown["runs"]["memory"]))
    (would,) = [line for line in planning.explain("short").splitlines() if "by itself each of 2" in line]
    assert would.partition("together, ")[2].replace(":", ",") in told["text"]
    assert told["text"].startswith("one join for long and short, ")
    assert planning.started_with("other") is None


def test_queries_with_one_join_have_one_plan() -> None:
    script = "".join(f"CREATE STREAM {s} (k BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc") + """
        CREATE QUERY small AS SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 1 SECOND;
        CREATE QUERY large PLAN '((x y) z)' AS
            SELECT z.k FROM a AS x, b AS y, c AS z WHERE x.k = y.k AND y.k = z.k WINDOW 9 SECONDS"""
    planning = Planning(slots=2)
    planning.add_script(parse_script(script))
    assert planning.query("small").lead == "large"
    assert str(planning.query("small").execution.plan) == "((a b) c)"
    assert "it is the plan of large: both run one join. By itself (a b c) would be chosen" in str(planning.explain("small"))


# One budget for all queries

STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abcd")
CHAIN = "SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.j = c.j{} WINDOW {} SECONDS"
FACTS = Given({"a": 20_000.0, "b": 20_000.0, "c": 20_000.0, "d": 20_000.0}, {}, {"a.k": 2_000.0, "b.j": 200_000.0})


def chain(name: str, window_s: int, more: str = "", plan: str = "") -> str:
    pinned = f" PLAN '{plan}'" if plan else ""
    return f"CREATE QUERY {name}{pinned} AS {CHAIN.format(more, window_s)};"


DIFFERENT = "CREATE QUERY ends AS SELECT b.x FROM b, c, d WHERE b.j = c.j AND c.k = d.k WINDOW 8 SECONDS;"


def shown(planning: Planning) -> dict[str, str]:
    return {name: str(planning.query(name).execution.plan) for name in planning.queries}


def test_without_a_budget_plans_are_those_of_each() -> None:
    script = STREAMS + chain("long", 20) + chain("short", 5, " AND a.x > 3") + DIFFERENT
    planning = planning_of(script, facts=FACTS)
    alone = {name: planning.queries[name].execution.plan for name in ("long", "ends")}
    assert {name: planning.query(name).execution.plan for name in alone} == alone
    assert planning.left_for("long") == Bounds()
    assert "\nbudget\n" not in planning.explain("long")
    assert planning.explain_json("long")["budget"] is None
    ample = planning_of(script, facts=FACTS, budget=Budget(1000, "1000 GiB"))
    assert shown(ample) == shown(planning), "nothing is short"


def test_two_queries_take_no_more_than_the_budget() -> None:
    """Each by itself would keep views, and has room for them; both have not."""
    free = planning_of(STREAMS + chain("one", 20) + DIFFERENT, facts=FACTS, budget=Budget(memory="100 GiB"))
    plans = free._together().plans
    assert plans is not None
    wanted = plans.joint.total
    least = min(cost.memory for _, cost in free.queries["one"].decision.front)  # type: ignore[union-attr]
    most = free.queries["one"].decision.cost.memory  # type: ignore[union-attr]
    assert least < most < wanted.memory
    tight = planning_of(STREAMS + chain("one", 20) + DIFFERENT, facts=FACTS, budget=Budget(memory=wanted.memory * 0.9))
    found = tight._together().plans
    assert found is not None
    assert found.joint.fits
    assert found.joint.total.memory <= wanted.memory * 0.9
    assert found.joint.total.cpu > wanted.cpu
    assert shown(tight) != shown(free)
    changed = next(name for name in tight.queries if shown(tight)[name] != shown(free)[name])
    assert "Why this plan: all queries of the session were planned together, within one budget. By itself" in " ".join(
        tight.explain(changed).split()
    )
    assert sum(found.joint.charged, Cost(0, 0)).memory == pytest.approx(found.joint.total.memory)


def test_queries_with_one_join_are_a_company() -> None:
    script = STREAMS + chain("short", 5, " AND a.x > 3") + chain("long", 20) + chain("other", 7)
    planning = planning_of(script, facts=FACTS, budget=Budget(4, "10 GiB"))
    plans = planning._together().plans
    assert plans is not None
    assert plans.starts["short"].company == ("long", "other", "short")
    assert len(plans.joint.chosen) == 1
    assert len(set(shown(planning).values())) == 1
    text = planning.explain("short")
    assert "budget\n  it takes with long and other, who run its join too, " in text
    assert "all 3 queries of the session: " in text
    told = planning.explain_json("short")["budget"]
    assert told["company"] == ["long", "other", "short"]
    assert told["bounds"] == {"cpu": 4.0, "memory": 10.0 * 2**30}
    assert told["all"] == {"cpu": told["cpu"], "memory": told["memory"]}
    assert told["breaks"] == []
    alone = planning_of(STREAMS + chain("long", 20), facts=FACTS, budget=Budget(4, "10 GiB"))._together().plans
    assert alone is not None
    assert plans.joint.total.memory == pytest.approx(alone.joint.total.memory), "the log is there once"
    apart = planning_of(script, facts=FACTS, budget=Budget(4, "10 GiB"))
    apart.alone |= {"short", "long", "other"}
    assert apart._together().plans.joint.total.memory > plans.joint.total.memory  # type: ignore[union-attr]


def test_pinned_plans_count() -> None:
    """The others take the pinned plan of their join; a pinned plan that breaks the budget is named."""
    script = STREAMS + chain("one", 20, plan="(a b c)") + chain("two", 5) + DIFFERENT
    planning = planning_of(script, facts=FACTS, budget=Budget(4, "10 GiB"))
    assert shown(planning)["one"] == shown(planning)["two"] == "(a b c)"
    assert planning.query("one").is_pinned
    assert planning._together().plans.starts["two"].company == ("one", "two")  # type: ignore[union-attr]
    small = Budget(memory="40 MiB", strict=True)
    assert planning_of(STREAMS + chain("one", 20, plan="((a b) c)"), facts=FACTS, budget=small).query("one").is_pinned
    few = "CREATE QUERY few AS SELECT d.x FROM d, c WHERE d.k = c.k WINDOW 1 SECOND;"
    with pytest.raises(NoQualifiedPlanError, match=r"query one: no plans of all 2 queries .* memory is exceeded by"):
        planning_of(STREAMS + chain("one", 20, plan="((a b) c)") + few, facts=FACTS, budget=small)


def test_a_strict_budget_refuses_by_name() -> None:
    whole = planning_of(STREAMS + chain("one", 20) + DIFFERENT, facts=FACTS, budget=Budget(memory="100 GiB"))
    least = min(cost.memory for _, cost in whole.queries["one"].decision.front)  # type: ignore[union-attr]
    strict = Budget(memory=least * 1.05, strict=True)
    planning = planning_of(STREAMS + chain("one", 20), facts=FACTS, budget=strict)
    told = r"query ends: no plans of all 2 queries are within the budget: .* memory is exceeded by .*: ends is the first"
    script = parse_script(DIFFERENT, planning.catalog)
    for declare in (lambda: planning.add_script(script), lambda: planning.add_query(script.queries[0])):
        with pytest.raises(NoQualifiedPlanError, match=told):
            declare()
        assert list(planning.queries) == ["one"]
    planning.add_script(parse_script(chain("two", 20), planning.catalog))
    assert list(planning.queries) == ["one", "two"], "one join: hardly more"
    planning.alone |= {"one", "two"}
    for _ in range(2):
        with pytest.raises(NoQualifiedPlanError, match="query two: no plans of all 2 queries"):
            planning.query("one")
    lenient = planning_of(STREAMS + chain("one", 20) + DIFFERENT, facts=FACTS, budget=Budget(memory=least * 1.05))
    assert "ends is the first that does not fit" in " ".join(lenient.explain("one").split())
    (broken,) = lenient.explain_json("one")["budget"]["breaks"]
    assert (broken["resource"], broken["query"]) == ("memory", "ends")


def test_what_is_left_for_a_query() -> None:
    """All others as planned, and what it shares with them counted with it; never less than it was planned for."""
    script = STREAMS + chain("one", 20) + DIFFERENT
    planning = planning_of(script, facts=FACTS, budget=Budget(4, "10 GiB"))
    plans = planning._together().plans
    assert plans is not None
    total, own = plans.joint.total, plans.starts["one"].alone
    left = planning.left_for("one")
    assert left.cpu == pytest.approx(4 - (total.cpu - own.cpu))
    assert left.memory == pytest.approx(10 * 2**30 - (total.memory - own.memory))
    assert own.within(left.cpu, left.memory)
    scarce = planning_of(script, facts=FACTS, budget=Budget(4, "1 MiB"))
    start = scarce._together().plans.starts["one"]  # type: ignore[union-attr]
    assert scarce.left_for("one").memory == pytest.approx(start.alone.memory)


def test_a_loop_has_what_others_leave(tmp_path: Path) -> None:
    from anabranch.session import Session

    session = Session(None, str(tmp_path), Budget(4, "10 GiB"), facts=FACTS, slots=2)
    session.script(STREAMS.replace("TIME ts", "TIME ts FROM 'rows/*.parquet'") + chain("one", 20) + DIFFERENT)
    left = session.planning.left_for("one")
    loop = session._queries.loop(session.planning.query("one").forms, left)
    assert loop.known.bounds == left  # type: ignore[attr-defined]
    assert left.cpu < 4


def test_groups_may_stand_in_another_form() -> None:
    """A query alone has the plans of all its forms to choose from, and folding rows counts."""
    text = "CREATE QUERY g AS SELECT b.x, SUM(a.j) AS s FROM a, b WHERE a.k = b.k GROUP BY b.x WINDOW 60 SECONDS;"
    facts = Given({"a": 10_000.0, "b": 10.0}, {}, {"a.k": 50.0, "b.k": 50.0})
    for budget in (None, Budget(10, "10 GiB")):
        assert planning_of(STREAMS + text, facts=facts, budget=budget).query("g").execution.grouped_input == "a"
    found = planning_of(STREAMS + text, facts=facts, budget=Budget(10, "10 GiB"))
    plans = found._together().plans
    assert plans is not None
    assert plans.joint.total.cpu > found.priced("g").cost.cpu


def test_many_queries_over_one_join_are_one_company() -> None:
    script = STREAMS + "".join(chain(f"q{n}", 1 + n % 40, f" AND a.x > {n}") for n in range(300))
    parsed = parse_script(script)
    planning = Planning(Budget(4, "10 GiB"), FACTS)
    planning.add_script(parsed)
    assert planning.query("q7").execution == planning.query("q7").execution
    planning.explain("q7")
    assert len(planning._together().plans.joint.chosen) == 1  # type: ignore[union-attr]


def test_a_query_over_a_part_of_a_join_is_explained_with_it() -> None:
    """Whoever takes results from a larger join is named, and reads the slices of its own streams."""
    planning = Planning()
    planning.add_script(parse_script("""
        CREATE STREAM a (k BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;
        CREATE STREAM b (k BIGINT, j BIGINT, ts TIMESTAMP) TIME ts;
        CREATE STREAM c (j BIGINT, w DOUBLE, ts TIMESTAMP) TIME ts;
        CREATE QUERY whole AS SELECT a.k, c.w FROM a, b, c WHERE a.k = b.k AND b.j = c.j AND a.v > 3 WINDOW 60 SECONDS;
        CREATE QUERY part AS SELECT a.k FROM a [RANGE 10 SECONDS], b [RANGE 20 SECONDS] WHERE a.k = b.k;
    """))  # fmt: skip
    whole, part = str(planning.explain("whole")), str(planning.explain("part"))
    assert "its join is run once for it and part" in whole
    assert "its join is run once for it and whole" in part
    assert "rows of c are kept" not in part
    assert "part and whole" in whole
    assert "its join is contained in that of whole, and takes its combinations from there: as a member it adds" in part
    told = planning.explain_json("part")["contained"]
    assert (told["in"], told["is_member"]) == ("whole", True)
    assert told["member"]["cpu"] < told["apart"]["cpu"]
    assert planning.explain_json("whole")["contained"] is None


APART = """
    CREATE STREAM a (k BIGINT, j BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, j BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY pairs AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 10 SECONDS;
    CREATE QUERY few AS SELECT m.k FROM a AS m, b AS n WHERE m.k = n.k AND m.j = n.j WINDOW 10 SECONDS;
"""
MANY_PAIRS = Given({"a": 2_000.0, "b": 2_000.0}, {}, {"a.k": 20.0, "m.j": 5_000.0, "n.j": 5_000.0})


@pytest.mark.parametrize("budget", [None, Budget(100, "100 GiB")])
def test_a_query_that_asks_for_much_more_than_a_join_runs_apart(budget: Budget | None) -> None:
    planning = planning_of(APART, facts=MANY_PAIRS, budget=budget)
    few = str(planning.explain("few"))
    assert "its join is run once" not in few
    assert "its join is contained in that of pairs, and runs apart: as a member it adds" in few
    assert planning.query("few").execution.company == "few"
    assert planning.query("pairs").execution.company == ""


def test_a_budget_prices_a_query_as_a_member_of_a_larger_join() -> None:
    """The part of a join adds what is handed to it, not lookups of its own; where no plan of the budget has it, it does."""
    whole = "CREATE QUERY whole AS SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.j = c.j WINDOW 20 SECONDS;"
    part = "CREATE QUERY part AS SELECT p.x FROM b AS o, a AS p WHERE p.k = o.k WINDOW 10 SECONDS;"
    one = planning_of(STREAMS + whole, budget=Budget(100, "100 GiB"))._together().plans
    planning = planning_of(STREAMS + whole + part, budget=Budget(100, "100 GiB"))
    both = planning._together().plans
    assert one is not None
    assert both is not None
    start = both.starts["part"]
    assert set(start.company) == {"part", "whole"}
    assert start.lead == "whole"
    assert start.taking_in is not None
    assert start.taking_in.is_member
    assert len(both.joint.chosen) == 1, "one company"
    added = both.joint.total.cpu - one.joint.total.cpu
    assert 0 < added < start.taking_in.apart.cpu
    assert both.joint.total.memory == pytest.approx(one.joint.total.memory), "no state of its own"
    assert planning.explain_json("part")["budget"]["company"] == ["whole", "part"]
    assert str(planning.query("part").execution.plan) == "(o p)"


def test_many_parts_of_a_join_are_planned_in_no_time() -> None:
    script = STREAMS + "CREATE QUERY whole AS SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.j = c.j WINDOW 20 SECONDS;"
    script += "".join(f"CREATE QUERY p{n} AS SELECT b.x FROM b, c WHERE b.j = c.j AND b.x > {n} WINDOW 5 SECONDS;"
                      for n in range(200))  # fmt: skip
    for budget in (None, Budget(100, "100 GiB")):
        planning = planning_of(script, facts=FACTS, budget=budget)
        assert planning.query("p7").taking_in is planning.query("p7").taking_in
        assert planning.query("p7").taking_in is not None


MANY_PARTNERS = """
    CREATE STREAM a (k BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;
    CREATE QUERY q1 AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;
    CREATE QUERY q2 AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k AND a.v < 0.2 AND b.v < 0.5 WINDOW 10 SECONDS;
    CREATE QUERY q3 AS SELECT a.v, b.v AS w FROM a, b WHERE a.k = b.k AND a.v < 0.2 AND b.v < 0.5 WINDOW 30 SECONDS;
    CREATE QUERY apart AS SELECT a.v FROM a [NOW];
"""


def partners(count: int) -> Given:
    return Given(dict.fromkeys("ab", 20_000.0), {}, dict.fromkeys(("a.k", "b.k"), 20_000.0 * 30 / count))


def test_joins_are_run_once_for_each_set_of_filters_where_sets_are_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second and the third query have the same filter."""
    assert planning_of(MANY_PARTNERS, facts=partners(600)).explain_json("q1")["way"]["way"] == "together"
    monkeypatch.setattr("anabranch.share.ways.SET_S", 100e-9)
    planning = planning_of(MANY_PARTNERS, facts=partners(600))
    assert {name: planning.query(name).execution.company for name in planning.queries} == {
        "q1": "q1", "q2": "q3", "q3": "q3", "apart": "",
    }  # fmt: skip
    text = str(planning.explain("q2"))
    assert "its join is run once for it and q3" in text
    assert "it runs its join with those that have its filters alone, although q3 and q1 have the join in common: " in text
    assert planning.explain_json("q1")["way"]["groups"] == [["q3", "q2"], ["q1"]]
    assert planning.explain_json("apart")["way"] is None
    assert len(planning.pipelines()) == 1, "rows are read and stored once"
    few = planning_of(MANY_PARTNERS, facts=partners(1))
    assert {few.query(name).execution.company for name in few.queries} == {""}
    assert few.explain_json("q1")["way"]["way"] == "together"


def test_a_join_with_members_over_some_of_its_streams_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else would take less: those members have no join of their own."""
    monkeypatch.setattr("anabranch.session_sharing.chosen_way", lambda load, *given: push_down_way(load))
    queries = [chain("one", 60, plan="((a b) c)"), chain("two", 20, " AND a.x > 3", "((a b) c)")]
    part = "CREATE QUERY part AS SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 20 SECONDS;"
    planning = planning_of(STREAMS + "".join([*queries, part]))
    taken = planning.query("part").taking_in
    assert taken is not None
    assert taken.is_member
    assert {planning.query(name).execution.company for name in planning.queries} == {""}
    assert planning.explain_json("one")["way"] is None
    without = planning_of(STREAMS + "".join(queries))
    assert {name: without.query(name).execution.company for name in without.queries} == {"one": "one", "two": "two"}


def test_several_joins_must_keep_to_what_others_leave_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Cost] = []

    def chosen(load: JoinLoad, byte_cores: float, most: Cost) -> SharingDecision:
        asked.append(most)
        return chosen_way(load, byte_cores, most)

    monkeypatch.setattr("anabranch.session_sharing.chosen_way", chosen)
    planning = planning_of(MANY_PARTNERS, facts=partners(1), budget=Budget(40, "100 GiB"))
    left = planning.left_for("q3")
    assert asked == [Cost(left.cpu, left.memory)]
    assert 0 < left.cpu < 40, "another query reads a"


def test_where_pipelines_cost_next_to_nothing_queries_run_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.share.ways.PIPELINE_S", 0.0)
    monkeypatch.setattr("anabranch.share.ways.READ_S", 0.0)
    monkeypatch.setattr("anabranch.share.ways.SET_S", 100e-9)
    script = MANY_PARTNERS.replace(" AND a.v < 0.2 AND b.v < 0.5", "").replace("10 SECONDS", "1 SECOND")
    planning = planning_of(script.replace("WINDOW 5 SECONDS", "WINDOW 1 SECOND"), facts=partners(600))
    assert planning.explain_json("q1")["way"]["way"] == "unshared"
    assert planning.apart == {"q1", "q2", "q3"}
    assert sorted(each.queries[0].name for each in planning.pipelines()) == ["apart", "q1", "q2", "q3"]
    assert "apart\n  it has a pipeline of its own, although" in str(planning.explain("q2"))


def test_no_more_queries_run_one_join_than_a_set_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one too many is refused by its name, whoever declares it; the others stay, and other joins have room."""
    monkeypatch.setattr("anabranch.planning.MOST_MEMBERS", 3)
    planning = planning_of(STREAMS + "".join(chain(f"q{n}", n + 1) for n in range(3)))
    script = parse_script(chain("many", 9), planning.catalog)
    told = "query many joins a, b, c as 3 others do, and no more queries run one join: drop one of them"
    for declare in (lambda: planning.add_script(script), lambda: planning.add_query(script.queries[0])):
        with pytest.raises(SessionError, match=told):
            declare()
    pair = "CREATE QUERY other AS SELECT a.x FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;"
    planning.add_script(parse_script(pair, planning.catalog))
    assert planning.queries.keys() == {"q0", "q1", "q2", "other"}
    del planning.queries["q1"]
    planning.add_script(parse_script(chain("many", 9), planning.catalog))


# -- overload --------------------------------------------------------------------------------------------------------

BY_K = "SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS"


def overloaded(*clauses: str, **options: object) -> Planning:
    """The same join under several policies, as q0, q1, …; options are those of a planning."""
    return planning_of(SOURCES + "".join(f"CREATE QUERY q{n} {c} AS {BY_K};" for n, c in enumerate(clauses)), **options)


def test_queries_that_do_something_else_under_overload_run_apart() -> None:
    planning = overloaded("", "OVERLOAD 'adapt joins'", "OVERLOAD 'fall behind'", "OVERLOAD 'adapt joins' CPU 1",
                          "OVERLOAD 'adapt joins'")  # fmt: skip
    names = [[query.name for query in workload.queries] for workload in planning.pipelines()]
    assert names == [["q0", "q2"], ["q1", "q4"], ["q3"]]
    assert "together\n  with q2: " in planning.explain("q0")
    assert "its join is run once for it and q2" in planning.explain("q0")
    assert "together\n  with q4: " in planning.explain("q1")
    assert "its join is run once" not in planning.explain("q1")
    assert "not in one pipeline with q0, q2, q3: under overload these do something else" in planning.explain("q1")


def test_queries_follow_their_session_under_overload() -> None:
    planning = overloaded("", "OVERLOAD 'fall behind'", overload=Overload(Policy.ADAPT_JOINS))
    assert [len(workload.queries) for workload in planning.pipelines()] == [1, 1]
    assert planning.may_lose("q0")
    assert not planning.may_lose("q1")
    assert not planning.query("q1").lead


@pytest.mark.parametrize("budget", [None, Budget(cpu=4, memory="1 GiB")])
def test_what_may_lose_results_starts_with_a_plan_of_its_own(budget: Budget | None) -> None:
    """Without a policy both start with the plan of the larger windows, with one each by itself."""
    facts = Given({"a": 5000, "b": 10, "c": 300})
    sources = SOURCES + "CREATE STREAM c (k BIGINT, ts TIMESTAMP) TIME ts;"
    for clause, is_led in (("", True), ("OVERLOAD 'shed'", False)):
        planning = Planning(budget, facts)
        planning.add_script(parse_script(sources + f"""
            CREATE QUERY long PLAN '((a b) c)' AS SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 9 SECONDS;
            CREATE QUERY short {clause} AS SELECT a.k FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW 1 SECOND;
        """.replace("long PLAN", f"long {clause} PLAN")))  # fmt: skip
        assert (str(planning.query("short").execution.plan) == "((a b) c)") is is_led


def test_a_query_is_explained_under_overload() -> None:
    planning = planning_of(SOURCES + f"CREATE QUERY q OVERLOAD 'adapt joins' CLOCK WALL AS {BY_K} FRESHNESS 7 SECONDS;")
    told = planning.explain("q")
    for text in (
        "policy adapt joins, clock wall: where there is not CPU enough",
        "no result has a row of a that is older than 7 seconds",
        "it may fall behind by 2 seconds before anything is limited",
        "the freshness of b, 7 seconds, is below its window and the lateness together, 8",
        "refused while results may be lost: a shared join, a parallel track",
    ):
        assert text in told
    told_json = planning.explain_json("q")["overload"]
    assert (told_json["policy"], told_json["slack_us"]) == ("adapt joins", 2_000_000)
    assert told_json["freshness_us"] == {"a": 7_000_000, "b": 7_000_000}
    assert "under overload" not in planning_of().explain("pairs")


def test_freshness_too_short_for_late_rows_is_told_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    planning_of(SOURCES + f"CREATE QUERY q AS {BY_K} FRESHNESS 7 SECONDS;").warn()
    assert "anabranch: warning: query q: the freshness of a, 7 seconds" in capsys.readouterr().err


def test_policies_that_a_query_cannot_have_are_refused_when_it_is_declared() -> None:
    with pytest.raises(SessionError, match="query named cannot run under the policy"):
        planning_of(overload=Overload(Policy.SHED))
    changing = SOURCES.replace("FROM 'd.parquet'", "FROM 'd.parquet' REFRESH 1 MINUTE")
    joined = "SELECT a.k FROM a, b, d WHERE a.k = b.k AND a.k = d.k WINDOW 5 SECONDS"
    with pytest.raises(SessionError, match=r"the stored table d is read again \(REFRESH\)"):
        planning_of(f"{changing} CREATE QUERY q AS {joined} FRESHNESS 9 SECONDS;")
    with pytest.raises(SessionError, match="query q has no input x"):
        planning_of(f"{SOURCES} CREATE QUERY q OVERLOAD 'adapt joins' ALLOW x 0.5 AS {BY_K};")
