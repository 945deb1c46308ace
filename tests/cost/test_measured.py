"""What batches that ran tell: samples of keys, and unit costs."""


import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cost.facts import Measured
from anabranch.cost.model import CostModel
from anabranch.cost.refine import KINDS, refined
from anabranch.cost.samples import gathered, selectivity
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import LocalRun
from anabranch.engine.keys import hash_keys
from anabranch.engine.sample import SAMPLED_KEYS, sample
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import parse
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

SCRIPT = """
    CREATE STREAM a (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM c (k BIGINT, l BIGINT, ts TIMESTAMP) TIME ts;
"""
BATCHES = 8


def graph_of(where):
    text = f"{SCRIPT} CREATE QUERY q AS SELECT a.k, c.l FROM a, b, c WHERE {where} WINDOW 4 SECONDS"
    return JoinGraph(parse_script(text).queries[0].query)


def run(graph, plan, domains, rows=3000):
    """Batches of a second with keys drawn from domains by stream and column."""
    rng, engine, found = np.random.default_rng(5), LocalRun(graph.query, MemoryFilesystem(), plan), []
    for number in range(BATCHES):
        times = pa.array(number * 1_000_000 + np.arange(rows) * 1_000_000 // rows, pa.timestamp("us"))
        batch = {
            s: pa.table({c: rng.integers(0, domains.get(f"{s}.{c}", 100), rows) for c in "kl"} | {"ts": times})
            for s in "abc"
        }
        found.append(engine.step(number, batch).statistics)
    return Measured(parse(plan, graph), found, float(BATCHES))


def test_a_sample_has_all_rows_of_its_keys():
    keys = pa.array(np.random.default_rng(1).integers(0, 500, 20_000))
    hashes = hash_keys([keys], len(keys))
    found = sample("k", hashes, is_sorted=False)
    assert found.rows == 20_000
    kept = np.frombuffer(found.hashes, np.uint64)
    wanted, counts = np.unique(hashes[hashes < np.uint64(found.limit)], return_counts=True)
    assert kept.tolist() == wanted.tolist()
    assert np.frombuffer(found.counts, np.uint32).tolist() == counts.tolist()
    assert sample("k", np.sort(hashes), is_sorted=True) == found
    assert len(kept) == SAMPLED_KEYS
    few = sample("k", hashes[hashes < np.sort(np.unique(hashes))[10]], is_sorted=False)
    assert (len(few.hashes) // 8, few.limit) == (10, 2**64), "all keys, where there are few"


@given(st.integers(0, 2**32), st.sampled_from([30, 3000, 30_000]), st.sampled_from([40, 400, 4000]))
@settings(max_examples=30, deadline=None)
def test_samples_tell_the_selectivity(seed, rows, domain):
    rng = np.random.default_rng(seed)
    samples = []
    for _ in range(20):
        for term, many in (("a", rows), ("b", 2000)):
            hashes = hash_keys([pa.array(rng.integers(0, domain, many))], many)
            samples.append(sample(term, hashes, is_sorted=False))
    found = gathered(samples)
    share = selectivity(found["a"], found["b"])
    assert share is None or 0.2 < share * domain < 5


def test_samples_of_too_few_matches_say_nothing():
    one = sample("a", hash_keys([pa.array([1])], 1), is_sorted=False)
    other = sample("b", hash_keys([pa.array([2])], 1), is_sorted=False)
    found = gathered([one, other])
    assert selectivity(found["a"], found["b"]) is None


def test_only_what_probes_leave_open_is_sampled():
    assert graph_of("a.k = b.k AND b.l = c.l").sampled_terms == ()
    assert len(graph_of("a.k = b.k AND a.l = b.l AND b.k = c.k").sampled_terms) == 5
    assert len(graph_of("a.k = b.k AND b.k = c.k").sampled_terms) == 3


def test_keys_that_are_looked_up_together_are_told_apart():
    graph = graph_of("a.k = b.k AND a.l = b.l AND b.l = c.l")
    domains = {"a.k": 8, "b.k": 8, "a.l": 1000, "b.l": 1000, "c.l": 1000}
    facts = run(graph, "((a b) c)", domains).graph(graph)
    assert facts.selectivity(0b011) == pytest.approx(1 / 8000, rel=0.3), "a b is probed"
    assert facts.selectivity(0b110) == pytest.approx(1 / 1000, rel=0.4), "b c is not, but by the key it has with a"
    without = run(graph, "((a b) c)", domains)
    for statistics in without.batches:
        statistics.samples.clear()
    assert without.graph(graph).selectivity(0b011) == pytest.approx(1 / 8000, rel=0.3)


def test_a_key_of_three_streams_is_told_for_every_pair():
    graph = graph_of("a.k = b.k AND b.k = c.k")
    facts = run(graph, "((a b) c)", {"a.k": 200, "b.k": 200, "c.k": 4000}).graph(graph)
    assert facts.selectivity(0b011) == pytest.approx(1 / 200, rel=0.4)
    assert facts.selectivity(0b101) == pytest.approx(1 / 4000, rel=0.5), "a c is never probed"


def test_unit_costs_follow_what_tasks_report():
    graph = graph_of("a.k = b.k AND b.l = c.l")
    facts = run(graph, "((a b) c)", {f"{s}.{c}": 6000 for s in "abc" for c in "kl"})
    model = CostModel(facts.graph(graph), DEFAULT)
    first = refined(model, facts.plan, facts.batches, facts.span_s)
    for statistics in facts.batches:
        for step in statistics.steps:
            step.cpu_ns *= 2
        statistics.cpu_ns["emit"] *= 3
    second = refined(model, facts.plan, facts.batches, facts.span_s)
    assert second.join == pytest.approx(2 * first.join)
    assert second.result == pytest.approx(3 * first.result)
    assert second.insert == pytest.approx(first.insert)
    again = refined(CostModel(model.graph, second), facts.plan, facts.batches, facts.span_s)
    for name in (n for names in KINDS.values() for n in names):
        assert getattr(again, name) == pytest.approx(getattr(second, name)), "what agrees stays"


def test_without_reports_unit_costs_stay():
    graph = graph_of("a.k = b.k AND b.l = c.l")
    facts = run(graph, "(a b c)", {}, rows=200)
    assert refined(CostModel(facts.graph(graph), DEFAULT), facts.plan, [], 1.0) == DEFAULT
