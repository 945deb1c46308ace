"""Sets of members: numbered, what they have in common, and forgotten when there are too many."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine import lineage
from anabranch.engine.lineage import NOBODY, Lineage, Sets
from anabranch.plan.distribution import Distribution
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep
from anabranch.plan.migration import Execution
from anabranch.plan.shared_join import SharedJoin
from anabranch.share.canonical import Running, shared_joins
from anabranch.sql import parse_script
from tests.support.kin import Kin
from tests.support.together import check_sharing

MASKS = st.lists(st.integers(0, 2**70 - 1), min_size=1, max_size=60)


@given(MASKS, st.randoms(use_true_random=False), st.sampled_from([8, 70, 2048]))
@settings(deadline=None)
def test_what_sets_have_in_common(masks, random, most):
    """By the table, as long as there are not too many."""
    with mock.patch.object(lineage, "MOST_TABLE", most):
        sets = Sets()
        numbers = np.array([sets.number(mask) for mask in masks], np.int32)
        other = np.array(random.choices(numbers.tolist(), k=len(numbers)), np.uint16)
        for _ in range(2):
            found = sets.common(numbers, other)
            expected = [sets.masks[a] & sets.masks[b] for a, b in zip(numbers.tolist(), other.tolist(), strict=True)]
            assert (found is None) == (len(sets) > most)
            assert found is None or [sets.masks[n] for n in found.tolist()] == expected
    assert sets.masks[NOBODY] == 0
    assert len(set(sets.masks)) == len(sets)
    members = sets.members(numbers, 70)
    assert [[bool(mask >> m & 1) for m in range(70)] for mask in masks] == members.tolist()


def shared(*wheres: str) -> SharedJoin:
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    for number, where in enumerate(wheres):
        script += f"CREATE QUERY q{number} AS SELECT a.x FROM a, b WHERE a.k = b.k{where} WINDOW {100 - number} SECONDS;"
    queries = [declared.query for declared in parse_script(script).queries]
    (found,) = shared_joins(Running(q, Execution(left_deep(JoinGraph(q))), Distribution()) for q in queries)
    return found


def rows(*x: int) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(x), "x": pa.array(x)})


def test_a_member_is_in_no_set_of_a_row_that_came_before_it():
    """Nor are its predicates asked of such a row, whose segment may lack the column."""
    found = replace(shared("", " AND a.x > 3", ""), since=(0, 5, 7))
    made, bare = Lineage(found), pa.record_batch({"k": pa.array([1, 2]), "s": pa.array([["u"], ["v"]])})
    assert [bin(made.sets.masks[n]) for n in made.number("a", 4, bare)] == ["0b1", "0b1"]
    assert [bin(made.sets.masks[n]) for n in made.number("a", 5, rows(1, 4))] == ["0b1", "0b11"]
    assert [bin(made.sets.masks[n]) for n in made.number("a", 7, rows(1, 4))] == ["0b101", "0b111"]
    assert made.number("b", 7, rows(1)) is None


def test_sets_are_taken_over_when_members_come_and_go():
    """As another lineage tells them of the rows that are stored; rows of a batch with a new member are told anew."""
    before = Lineage(replace(shared("", " AND a.x > 3", " AND a.x > 5"), since=(0, 0, 2)))
    stored = {batch: rows(*x) for batch, x in enumerate([(1, 4, 7), (6, 2), (7, 0), (9, 4)])}
    for batch, there in stored.items():
        before.learn("a", batch, before.number("a", batch, there))
    members = shared("", " AND a.x > 3", " AND a.x > 5", " AND a.x < 2").members
    now = replace(before.shared, members=(members[0], members[2], members[3]), since=(0, 2, 3))
    after, anew = Lineage(now), Lineage(now)
    after.inherit(before)
    assert after._known["a"].keys() == {0, 1, 2}
    for batch, numbers in after._known["a"].items():
        told = anew.number("a", batch, stored[batch])
        assert [after.sets.masks[n] for n in numbers] == [anew.sets.masks[n] for n in told], batch


def test_the_set_of_a_row_is_who_can_use_it():
    made = Lineage(shared("", " AND a.x > 3", " AND a.x > 3 AND a.x < 6", " AND b.x = 1"))
    numbers = made.number("a", 0, rows(1, 4, 7))
    assert [bin(made.sets.masks[n]) for n in numbers] == ["0b1001", "0b1111", "0b1011"]
    assert [bin(made.sets.masks[n]) for n in made.number("b", 0, rows(0, 1))] == ["0b111", "0b1111"]


def test_what_a_segment_has_passed_is_not_asked_again_and_may_lack_its_columns():
    made = Lineage(shared("", " AND a.x > 3"))
    assert made.number("a", 0, rows(1, 4), {"(a.x > 3)"}) is None
    assert made.number("a", 0, pa.record_batch({"k": pa.array([1])}), {"(a.x > 3)"}) is None


def test_more_than_64_predicates():
    made = Lineage(shared(*(f" AND a.x > {n}" for n in range(80))))
    numbers = made.number("a", 0, rows(0, 40, 100))
    assert [made.sets.masks[n] for n in numbers] == [0, (1 << 40) - 1, (1 << 80) - 1]
    assert numbers[0] == NOBODY


@pytest.mark.parametrize("seed", range(6))
def test_results_are_the_same_when_combinations_carry_bits(seed: int):
    with mock.patch.object(lineage, "MOST_TABLE", 2 + 4 * (seed % 3)):
        check_sharing(Kin(seed, 6, 6), 1 + seed % 2, [(3, "plan of all", 0, seed), (5, "restart", 0, 0)], [0, 1, 1])


@pytest.mark.parametrize("seed", range(4))
def test_results_are_the_same_when_sets_are_forgotten_after_each_batch(seed: int):
    with mock.patch.object(lineage, "MOST_SETS", 1), mock.patch.object(lineage, "MOST_TABLE", 8 if seed % 2 else 2048):
        check_sharing(Kin(seed, 6, 6), 1 + seed % 2, [(3, "plan of all", 0, seed), (5, "restart", 0, 0)], [0, 1, 1])


def test_sets_do_not_grow_with_batches():
    """Rows of each batch have sets that no row had before; only those of rows that are there are known."""
    made = Lineage(shared(*(f" AND a.x % {n} = 0" for n in range(2, 40))))
    with mock.patch.object(lineage, "MOST_SETS", 64):
        made._most_sets = 64
        for batch in range(60):
            made.learn("a", batch, made.number("a", batch, rows(*range(40 * batch, 40 * batch + 40))))
            made.forget("a", range(batch - 2, batch + 1))
            made.settle()
            assert len(made.sets) <= 2 * (3 * 40 + 2) + 64
