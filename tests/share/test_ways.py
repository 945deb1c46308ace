"""The ways of sharing on this engine's costs: CPU-Opt against every chain, Mem-Opt stores least, and which way when."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from anabranch.cost.facts import Given
from anabranch.cost.model import Cost
from anabranch.cost.units import DEFAULT
from anabranch.plan.distribution import Distribution
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution
from anabranch.plan.query import FOREVER_US
from anabranch.share.canonical import Running
from anabranch.share.chain import every_chain
from anabranch.share.cpu_opt import cpu_opt
from anabranch.share.join_load import JoinLoad, Wants, merged, shares_by_window
from anabranch.share.mem_opt import mem_opt
from anabranch.share.pipeline_chains import Known, first_chains, pipeline_joins, source_loads
from anabranch.share.slice_cost import SET_S, SLICE_S, SourceLoad, slice_cost
from anabranch.share.source_chain import (
    BYTE_CORES,
    CPU_OPT,
    MEM_OPT,
    MOST_WINDOWS,
    PULL_UP,
    chain_of,
    coarse,
    limits_of,
    priced,
    worth,
)
from anabranch.share.ways import (
    CHEAPER,
    PIPELINE_S,
    READ_S,
    WAYS,
    as_cut,
    chosen_way,
    cpu_opt_way,
    mem_opt_way,
    pull_up_way,
    push_down_way,
    unshared_way,
)
from anabranch.sql import parse_script
from tests.support.scenarios import properties

WINDOWS = st.sets(st.integers(1, 60), min_size=1, max_size=10).map(lambda found: tuple(s * 1_000_000 for s in sorted(found)))


def drawn_load(windows_us: tuple[int, ...], data: st.DataObject) -> SourceLoad:
    rates = st.sampled_from((0.0, 1.0, 30.0, 2_000.0, 50_000.0))
    wanted = [data.draw(rates) for _ in windows_us]
    probes = [data.draw(rates) for _ in windows_us]
    match = data.draw(st.sampled_from((0.0, 1e-6, 1e-4, 0.1)))
    return SourceLoad("s", windows_us, tuple(wanted), tuple(probes), match, 24.0, data.draw(st.integers(1, 3)))


def check_engine_costs(windows_us: tuple[int, ...], data: st.DataObject, price: float) -> None:
    """By this engine's cost of a slice no chain of the 2^(N-1) takes less CPU than CPU-Opt, none keeps fewer bytes than
    Mem-Opt, and none is cheaper by both than the one that is chosen."""
    load = drawn_load(windows_us, data)
    edge, w = slice_cost(load, DEFAULT), load.windows_s
    every = {chain: priced(chain, edge) for chain in every_chain(w)}
    found = cpu_opt(w, lambda i, j: edge(i, j).cpu).chain
    assert every[found].cpu == pytest.approx(min(cost.cpu for cost in every.values()))
    assert every[mem_opt(w).chain].memory == pytest.approx(min(cost.memory for cost in every.values()))
    chosen = chain_of(load, DEFAULT, price)
    assert chosen.worth(price) == pytest.approx(min(worth(cost, price) for cost in every.values()))
    assert chosen.limits_us[-1] == windows_us[-1], "no row is kept too short"
    assert set(chosen.limits_us) <= set(windows_us)
    least = min(cost.memory for cost in every.values())
    assert chain_of(load, DEFAULT, price, most_bytes=least).cost.memory == pytest.approx(least), "memory is short"


test_engine_costs, test_engine_costs_long = properties(
    check_engine_costs, 60, 800, windows_us=WINDOWS, data=st.data(), price=st.sampled_from((0.0, 1e-10, 1e-6)),
)  # fmt: skip


def test_a_slice_does_not_pay_for_others():
    """Lemma 2: what a slice costs is the same in every chain."""
    load = SourceLoad("s", (5_000_000, 10_000_000, 60_000_000), (900.0, 90.0, 10.0), (0.0, 0.0, 1_000.0), 1e-4, 24.0)
    edge = slice_cost(load, DEFAULT)
    assert edge(1, 2).memory == pytest.approx(90 * (10 + DEFAULT.slack_s) * (24 + DEFAULT.index_bytes))
    assert edge(0, 3).memory > sum(edge(i, i + 1).memory for i in range(3)), "rows are kept longer than wanted"
    found = replace(load, wanted_per_s=(900.0, 0.0, 10.0))
    assert slice_cost(found, DEFAULT)(1, 2).cpu == 0, "a slice that no row goes to is not there"


def test_every_term_of_a_slice():
    """The slice from 0 to 10 s, of two: rows that are wanted for 5 s are found, and thrown away, by those that look back."""
    load = SourceLoad("s", (5_000_000, 10_000_000, 60_000_000), (900.0, 90.0, 10.0), (100.0, 0.0, 1_000.0), 1e-4, 24.0, 2)
    upkeep = 2 * SLICE_S / DEFAULT.batch_s
    lookups = 1_100 * DEFAULT.lookup_run * DEFAULT.runs(10.0)
    pairs = (900 + 90) * 1e-4 * (100 * 5 + 1_000 * 10)
    found = slice_cost(load, DEFAULT)(0, 2)
    assert found.cpu == pytest.approx(upkeep + lookups + pairs * (DEFAULT.join + SET_S))
    assert found.memory == pytest.approx((900 + 90) * (10 + DEFAULT.slack_s) * (24 + 2 * DEFAULT.index_bytes))
    assert slice_cost(load, DEFAULT, 0.0)(0, 2).cpu == pytest.approx(upkeep + lookups + pairs * DEFAULT.join)


HOUR_US, MINUTE_US = 3_600_000_000, 60_000_000


def few_for_an_hour(share: float, rate: float = 1_000.0) -> SourceLoad:
    """All rows are wanted for a minute, some for an hour: the motivating example of the paper."""
    return SourceLoad("s", (MINUTE_US, HOUR_US), (rate * (1 - share), rate * share), (0.0, rate), 1e-5, 40.0)


def test_selections_decide_between_slices_and_one():
    few, all_ = chain_of(few_for_an_hour(0.01), DEFAULT), chain_of(few_for_an_hour(1.0), DEFAULT)
    assert few.limits_us == (MINUTE_US, HOUR_US)
    assert few.cost.memory < 0.05 * few.one.memory
    assert (all_.limits_us, all_.way) == ((HOUR_US,), PULL_UP)
    assert "however it is cut" in all_.reason
    slow = chain_of(few_for_an_hour(0.9, 20.0), DEFAULT, byte_cores=0.0)
    assert (slow.limits_us, slow.way) == ((HOUR_US,), PULL_UP), "a lookup more costs more than the rows it spares"
    assert "one slice" in slow.reason
    assert chain_of(few_for_an_hour(0.9, 20.0), DEFAULT, byte_cores=1.0).way in (CPU_OPT, MEM_OPT)


def test_windows_beyond_so_many_are_not_told_apart():
    windows = tuple(n * 1_000_000 for n in range(1, 201))
    load = coarse(SourceLoad("s", windows, (1.0,) * 200, (2.0,) * 200, 1e-4, 24.0))
    assert len(load.windows_us) == MOST_WINDOWS
    assert load.windows_us[-1] == windows[-1]
    assert (sum(load.wanted_per_s), sum(load.probes_per_s)) == (200.0, 400.0)


def test_a_window_without_end_is_the_longest():
    load = SourceLoad("s", (1_000_000, 3 * HOUR_US, FOREVER_US), (1.0,) * 3, (1.0,) * 3, 0.0, 8.0)
    assert load.windows_s == (1.0, 10_800.0, 21_600.0)
    assert chain_of(load, DEFAULT, 1.0).limits_us == load.windows_us


def test_for_how_long_rows_are_wanted():
    x, y = frozenset({"x"}), frozenset({"y"})
    assert shares_by_window([Wants(5), Wants(60, x, 0.1), Wants(30, x | y, 0.05)]) == pytest.approx({60: 0.1, 5: 0.9})
    assert shares_by_window([Wants(5, x, 0.5), Wants(60, y, 0.5)]) == pytest.approx({60: 0.5, 5: 0.25})
    assert shares_by_window([Wants(60), Wants(5, x, 0.5)]) == pytest.approx({60: 1.0})
    assert shares_by_window([Wants(60, x | y, 0.05), Wants(30, x, 0.1)]) == pytest.approx({60: 0.05, 30: 0.05})


def loads(where: tuple[str, ...], windows: tuple[str, ...], rate: float = 1_000.0, distinct: float = 5_000.0) -> JoinLoad:
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    for number, (text, window) in enumerate(zip(where, windows, strict=True)):
        script += f"CREATE QUERY q{number} AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k{text} WINDOW {window};"
    running = []
    for declared in parse_script(script).queries:
        running.append(Running(declared.query, Execution(left_deep(JoinGraph(declared.query))), Distribution()))
    given = Given(dict.fromkeys("ab", rate), {}, {"a.k": distinct, "b.k": distinct})
    (found,) = pipeline_joins(running, lambda _: given, DEFAULT, Known({("q1", "a"): 0.01}))
    return found


def test_every_way_by_one_contract():
    load = loads(("", " AND a.x < 5"), ("60 SECONDS", "3600 SECONDS"))
    assert load.members[0].name == "q1", "the largest windows lead"
    found = {way(load).way: way(load) for way in WAYS}
    assert list(found) == ["Mem-Opt", "CPU-Opt", "pull-up", "push-down", "unshared"]
    assert all(each.cost.cpu > 0 and each.cost.memory > 0 and each.reason for each in found.values())
    least = min(each.cost.memory for each in found.values())
    assert found["Mem-Opt"].cost.memory == pytest.approx(least), "theorem 4"
    assert dict(found["Mem-Opt"].limits_us)["a"] == (MINUTE_US, HOUR_US)
    assert dict(found["pull-up"].limits_us)["a"] == (HOUR_US,)
    assert found["pull-up"].cost.memory > 1.5 * found["Mem-Opt"].cost.memory
    assert found["unshared"].cost.cpu > found["CPU-Opt"].cost.cpu, "pipelines of their own"
    assert min(found[each].cost.cpu for each in ("Mem-Opt", "pull-up")) >= found["CPU-Opt"].cost.cpu
    assert (found["push-down"].joins, found["unshared"].joins) == (2, 2)
    assert found["push-down"].cost.memory < found["unshared"].cost.memory, "logs are there once"
    as_chosen = as_cut(load, [("a", (MINUTE_US, HOUR_US)), ("b", (HOUR_US,))], "chosen", "")
    assert as_chosen.cost.memory == pytest.approx(found["Mem-Opt"].cost.memory)


def test_without_filters_there_is_one_slice_in_every_chain():
    load = loads(("", "", ""), ("10 SECONDS", "20 SECONDS", "30 SECONDS"))
    chains = [way(load) for way in (mem_opt_way, cpu_opt_way, pull_up_way)]
    assert len({each.limits_us for each in chains}) == 1
    assert len({each.cost for each in chains}) == 1
    assert push_down_way(load).cost == chains[0].cost, "one set of filters"
    assert unshared_way(load).cost.memory > 1.5 * chains[0].cost.memory


def test_what_nobody_wants_is_no_result_of_a_shared_join() -> None:
    """Of 600 partners within 30 s the first query wants those of 5 s, and the other of few rows: what both get together is
    made, and not what all rows find in the longest window."""
    load = loads(("", " AND a.x < 5"), ("5 SECONDS", "30 SECONDS"), 1_000.0, 50.0)
    graph = load.model.graph
    assert load.results_per_s < 0.3 * graph.rate(graph.everything)
    assert cpu_opt_way(load).cost.cpu < 0.5 * load.cost.cpu


def test_several_joins_must_be_cheaper_by_far_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.share.ways.SET_S", 100e-9)
    many = loads(("", " AND a.x < 5"), ("5 SECONDS", "30 SECONDS"), 20_000.0, 1_000.0)
    chosen, ways = chosen_way(many), {way(many).way: way(many) for way in WAYS}
    assert (chosen.way, chosen.groups) == ("push-down", (("q1",), ("q0",)))
    one = min(worth(ways[name].cost, BYTE_CORES) for name in ("Mem-Opt", "CPU-Opt"))
    assert worth(chosen.cost, BYTE_CORES) < CHEAPER * one
    assert "less than one join of all" in chosen.reason
    assert chosen_way(many, most=Cost(float("inf"), 0.99 * chosen.cost.memory)).way == "together"
    assert chosen_way(many, most=Cost(0.99 * chosen.cost.cpu, float("inf"))).way == "together"
    few = loads(("", " AND a.x < 5"), ("5 SECONDS", "30 SECONDS"), 20_000.0, 600_000.0)
    assert (chosen_way(few).way, chosen_way(few).groups) == ("together", (("q1", "q0"),))
    alone = unshared_way(few)
    assert alone.groups == (("q1",), ("q0",))
    assert alone.cost.cpu > PIPELINE_S + 40_000 * READ_S, "a pipeline more, and rows read twice"


def test_a_join_of_one_member_is_the_model():
    load = loads(("", " AND a.x < 5"), ("60 SECONDS", "3600 SECONDS"))
    alone = load.of([load.members[1]])
    found = pull_up_way(alone)
    assert found.cost.memory == pytest.approx(alone.cost.memory)
    assert found.cost.cpu == pytest.approx(alone.cost.cpu), "no predicate, nothing handed out"


def test_sources_of_several_joins():
    one = SourceLoad("s", (5, 60), (10.0, 1.0), (0.0, 4.0), 0.5, 8.0)
    other = SourceLoad("s", (30,), (5.0,), (4.0,), 0.1, 16.0, 2)
    both = merged([one, other])
    assert both.windows_us == (5, 30, 60)
    assert both.wanted_per_s == (6.0, 4.0, 1.0), "eleven rows in all, five of them for 30 or more"
    assert both.probes_per_s == (0.0, 4.0, 4.0)
    assert (both.match, both.row_bytes, both.indexes) == (pytest.approx(0.3), 16.0, 3)
    assert merged([one, other], {60: 7.0}).wanted_per_s == (0.0, 0.0, 7.0)


def test_the_first_chains_of_a_pipeline():
    load = loads(("", " AND a.x < 5"), ("60 SECONDS", "3600 SECONDS"))
    a, b = first_chains([load], DEFAULT)
    assert (a.source, a.limits_us) == ("a", (MINUTE_US, HOUR_US))
    assert (b.source, b.limits_us) == ("b", (HOUR_US,)), "each row of b is wanted for an hour"
    assert limits_of(mem_opt(source_loads([load])["b"].windows_s).chain, source_loads([load])["b"]) == (HOUR_US,)
