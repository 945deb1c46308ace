"""Paper 004 again: what follows from the equations alone, whatever machine it runs on."""

from __future__ import annotations

from typing import Any

import pytest

from bench.papers.federation import figures, tables, verdicts
from bench.papers.federation.published import RATES


@pytest.fixture(scope="module")
def model() -> list[dict[str, Any]]:
    return figures.model(RATES)


def test_plans_are_as_many_as_printed() -> None:
    assert [(row["plans"], row["operators"]) for row in tables.table_2(1)] == [(11, 6), (312, 15), (8411, 24)]
    assert all(row["plans"] == row["by the paper"] for row in tables.chains())


def test_the_choices_of_figure_5_that_one_set_of_costs_gives(model: list[dict[str, Any]]) -> None:
    told = {(row["query"], row["rate"]): row["as printed"] for row in model}
    assert all(told[name, rate] for name in ("CQ3", "CQ5") for rate in (1000, 5000, 15_000, 25_000, 40_000))
    assert told["CQ6", 5000]
    assert not told["CQ6", 15_000]


def test_every_claim_has_a_verdict(model: list[dict[str, Any]]) -> None:
    told = [
        *verdicts.of_table_2(tables.table_2(1), tables.chains()),
        *verdicts.of_table_3(tables.table_3(1)),
        *verdicts.of_figures(model),
    ]
    by_claim = {row["claim"]: row["verdict"] for row in told}
    assert len(by_claim) == len(told)
    assert by_claim["11, 312 and 8411 plans are looked at with pruning"] == "reproduced"
    assert by_claim["CQ5 moves to the engine above 10,000 rows/s, for C_u"] == "partly", "costs are fitted to it"
