"""Groups go where they cost less, by what was measured."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from anabranch.adapt.grouping_loop import GroupingLoop, measured_facts
from anabranch.adapt.loop import Knowledge
from anabranch.control.journal import Entry
from anabranch.control.loop import Proposal
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import LocalRun
from anabranch.plan.actions import MoveGroups
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Strategy
from anabranch.show.journal import words
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle

FORMS = Forms(
    parse_script("""
    CREATE STREAM a (k BIGINT, g BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.g, COUNT(*) AS n, SUM(b.x) AS s FROM a, b WHERE a.k = b.k GROUP BY a.g WINDOW 4 SECONDS
    """)
    .queries[0]
    .query
)
FEW_KEYS, MANY_KEYS = (30, 2000, 5), (30, 2000, 100_000)
"""Rows a second of a and of b, and how many keys there are."""


def batch_of(number: int, phase: tuple[int, int, int], rng: np.random.Generator) -> dict[str, pa.Table]:
    rows = {}
    for name, column, n in (("a", "g", phase[0]), ("b", "x", phase[1])):
        times = number * 1_000_000 + np.sort(rng.integers(0, 1_000_000, n))
        keys = rng.integers(0, phase[2], n)
        rows[name] = pa.table({"k": keys, column: rng.integers(0, 9, n), "ts": pa.array(times, pa.timestamp("us"))})
    return rows


def test_groups_follow_the_streams() -> None:
    """Many rows of a key in a slide are grouped first; when there are few, they no longer are."""
    rng, loop = np.random.default_rng(2), GroupingLoop(FORMS, Knowledge(FORMS.graphs[None], DEFAULT))
    local = LocalRun(FORMS.written, MemoryFilesystem())
    grouped, proposals, batches = [], [], []
    found: oracle.Bag = Counter()
    for number in range(44):
        batches.append(batch_of(number, FEW_KEYS if number < 18 else MANY_KEYS, rng))
        found += oracle.bag(local.step(number, batches[-1]).results)
        grouped.append(local.execution.grouped_input)
        assert local.commit is not None
        said = loop.after(local.execution, local.observed)
        if isinstance(said, Proposal):
            proposals.append(said)
            groups_below = said.action.grouped_input or "" if isinstance(said.action, MoveGroups) else None
            local.migrate(said.action.plan, said.action.strategy, said.action.pause_us, groups_below)
    found += oracle.bag(local.step(44, {}).results)
    assert grouped[17] == "b"
    assert grouped[-1] is None
    moves = [p.action.grouped_input for p in proposals if isinstance(p.action, MoveGroups)]
    assert moves == ["b", None], [p.text for p in proposals]
    assert proposals[0].details["cpu"] < 0.9 * proposals[0].details["cpu_before"]
    assert not (wrong := oracle.difference(found, oracle.expected(FORMS.written, batches, {}))), wrong


def test_a_form_that_is_not_worth_the_way_there_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be better, but nothing stays as it is for long. It is told again when it was not so for a while."""
    monkeypatch.setattr("anabranch.adapt.grouping_loop.expected_life_s", lambda known, state: 1e-6)
    rng, loop = np.random.default_rng(2), GroupingLoop(FORMS, Knowledge(FORMS.graphs[None], DEFAULT))
    local, told, looks = LocalRun(FORMS.written, MemoryFilesystem()), list[int](), 0
    for number in range(54):
        local.step(number, batch_of(number, MANY_KEYS if 18 <= number < 36 else FEW_KEYS, rng))
        said = loop.after(local.execution, local.observed)
        assert not isinstance(said, Proposal)
        looks += said is not None and said.event == "kept"
        if said is not None and "form" in said.details:
            told.append(number)
            assert said.details["form"]["grouped_input"] == "b"
            assert said.details["form"]["cost_cpu_s"] > said.details["form"]["gain_cpu_s"]
            line = words(Entry(0.0, number, said.event, said.text, dict(said.details)))
            assert "rows of b grouped before they are joined would save" in line
    assert len([number for number in told if number < 18]) == 1
    assert [number // 18 for number in told] == [0, 2]
    assert looks > len(told)


@pytest.mark.parametrize("start", [None, "b"])
def test_facts_are_the_same_in_both_forms(start: str | None) -> None:
    rng, loop = np.random.default_rng(3), GroupingLoop(FORMS, Knowledge(FORMS.graphs[None], DEFAULT))
    local = LocalRun(FORMS.written, MemoryFilesystem())
    if start is not None:
        local.migrate("(a b)", Strategy.MOVING_STATE, groups_below=start)
    for number in range(8):
        local.step(number, batch_of(number, FEW_KEYS, rng))
        assert local.commit is not None
        loop.loops[start].after(local.execution, local.observed)
    facts = measured_facts(FORMS, local.execution, loop.loops[start].state.monitor, loop.known.otherwise)
    assert facts.rates["a"] == pytest.approx(30, rel=0.2)
    assert facts.rates["b"] == pytest.approx(2000, rel=0.2)
    assert facts.distinct["a.k"] == pytest.approx(5, rel=0.3)
    assert facts.distinct["b.k"] == facts.distinct["a.k"]
    if start:
        assert facts.rates["q.b"] == pytest.approx(5, rel=0.3), "a group of each key in a slide of a second"
