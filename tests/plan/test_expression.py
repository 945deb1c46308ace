"""What an expression reads is found once, and is no part of it."""

from __future__ import annotations

import copy
import pickle

import pyarrow as pa
import pytest

from anabranch.plan.expression import Call, Column, Expr, Literal, ResultTime, aliases_of, columns_of

K, L = Column(pa.int64(), "a", "k"), Column(pa.int64(), "b", "l")
SUM = Call(pa.int64(), "add", (K, Call(pa.int64(), "add", (L, Literal(pa.int64(), 1)))))


@pytest.mark.parametrize(
    ("expr", "columns", "aliases"),
    [(K, {K}, {"a"}), (SUM, {K, L}, {"a", "b"}), (ResultTime(pa.timestamp("us")), set(), set())],
)
def test_what_an_expression_reads(expr: Expr, columns: set[Column], aliases: set[str]) -> None:
    for _ in range(2):
        assert columns_of(expr) == columns
        assert aliases_of(expr) == aliases


@pytest.mark.parametrize("expr", [K, SUM])
def test_one_that_knows_what_it_reads_is_copied_and_sent_as_before(expr: Expr) -> None:
    fresh = pickle.loads(pickle.dumps(expr))
    assert aliases_of(expr) == aliases_of(fresh)
    assert columns_of(expr) == columns_of(fresh)
    for other in (pickle.loads(pickle.dumps(expr)), copy.deepcopy(expr)):
        assert other == expr
        assert hash(other) == hash(expr)
        assert columns_of(other) == columns_of(expr)
