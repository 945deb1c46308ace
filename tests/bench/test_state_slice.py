"""The experiments of State-Slice, small: counts beside formulas, and a verdict for each claim."""

import pytest

from anabranch.share.reference.plans import pull_up, sliced, unshared
from bench.papers.state_slice import engine, figures, plots, verdicts
from bench.papers.state_slice.measure import measure, results_per_s
from bench.papers.state_slice.settings import (
    JOINS,
    PASSES,
    WINDOWS_S,
    Size,
    chain_queries,
    poisson,
    spread,
    three_queries,
)

TINY = Size(1, 1, (2, 4), (12,))


def test_streams_have_the_rate_and_the_selectivities_of_the_setting():
    rows = poisson(50, 3, 10, 0.2)
    assert [row.number for row in rows] == list(range(len(rows)))
    assert [row.time_s for row in rows] == sorted(row.time_s for row in rows)
    of_a = [row for row in rows if row.stream == "A"]
    assert len(of_a) == pytest.approx(50 * 90, rel=0.05)
    assert sum(row.satisfies == PASSES for row in of_a) / len(of_a) == pytest.approx(0.2, abs=0.03)
    assert not any(row.satisfies for row in rows if row.stream == "B")
    assert rows == poisson(50, 3, 10, 0.2) != poisson(50, 4, 10, 0.2)
    assert {joins: condition.selectivity for joins, condition in JOINS.items()} == {joins: joins for joins in JOINS}


def test_results_are_counted_as_queries_get_them():
    queries, condition = three_queries(WINDOWS_S["mostly-small"]), JOINS[0.4]
    rows = poisson(3, 1, condition.keys, 0.5)
    plan = sliced(queries, condition, is_counted=True)
    measure(plan, rows)
    found = pull_up(queries, condition).run(rows)
    late = [pair for pairs in found.values() for pair in pairs if max(row.time_s for row in pair) >= 30]
    assert results_per_s(plan, queries) == pytest.approx(len(late) / 60)


def test_only_the_measured_seconds_count():
    queries, rows = chain_queries((5.0,)), poisson(10, 1, 40)
    late = [row for row in rows if row.time_s >= 30]
    found = measure(unshared(queries, JOINS[0.025], is_counted=True), rows)
    assert found.visits_per_s == pytest.approx(len(late) / 60)
    assert found.cpu_per_s(2.0) == pytest.approx(found.comparisons_per_s + 2 * found.visits_per_s)
    assert found.stored_rows == pytest.approx(100, rel=0.1)


@pytest.mark.parametrize("name", ["uniform", "mostly-small", "small-large"])
def test_more_queries_are_spread_as_twelve_are(name):
    for queries in (12, 24, 36):
        windows = spread(name, queries)
        assert len(set(windows)) == queries
        assert windows == tuple(sorted(windows))
        assert windows[-1] == 30.0
        assert set(spread(name, 12)) <= {round(window, 9) for window in windows}


def test_every_claim_gets_a_verdict(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.report.OUT", tmp_path)
    told: list[str] = []
    grid, two = figures.figure_11(), figures.figure_11_counted(Size(1, 1, (4,)))
    three, chains = figures.figures_17_and_18(TINY, told.append), figures.figure_19(TINY, told.append)
    found = {row["claim"]: row["verdict"] for row in verdicts.all_verdicts(grid, two, three, chains, TINY)}
    assert len(told) == 27 + 3
    assert len(found) == 20
    assert found["all chains store and probe as much as one join"] == "reproduced"
    assert found["all savings are positive"] == "not"
    assert found["state-slice always stores least"] == "reproduced"
    assert found["about 20 to 30 % of memory saved on average"] == "partly"
    assert found["with uniform windows CPU-Opt is Mem-Opt"] == "not", "at so few rows any C_sys is worth a merge"
    drawn = [plots.draw_11(two), plots.draw_17_and_18(three), plots.draw_19(chains)]
    assert all(path.stat().st_size > 10_000 for path in drawn)


def test_counts_are_near_the_formulas():
    """Three seeds at 20 rows/s: the mean is within 5 %."""
    for row in figures.compare(three_queries(WINDOWS_S["uniform"]), 20, 0.5, 0.1, 3):
        assert abs(row["C_m off %"]) < verdicts.WITHIN_PERCENT
        assert abs(row["C_p off %"]) < verdicts.WITHIN_PERCENT


def measured(way: str, setting: str, ratio: float, high: float, on_spark: float, high_on_spark: float) -> dict[str, object]:
    kept = {"rows kept": 1_000, "slices of a": "[30.0]"}
    beside = {"CPU by chosen": ratio, "high": high, "with pipelines": on_spark, "high with": high_on_spark}
    return {"windows": setting, "S_σ": 0.8, "partners": 10, "way": way, **beside, **kept}


@pytest.mark.parametrize(
    ("ratio", "high", "on_spark", "high_on_spark", "alone", "together"),
    [
        (0.90, 0.92, 0.97, 0.98, "no", "yes"), (0.90, 0.92, 0.90, 0.99, "no", "no"), (0.90, 1.01, 0.90, 1.01, "yes", "yes"),
        (0.92, 0.93, 0.92, 0.93, "yes", "yes"), (0.80, 0.90, 0.95, 0.96, "no", "yes"),
    ],
)  # fmt: skip
def test_the_chosen_way_is_beaten_by_more_than_a_tenth_with_an_interval_that_excludes_1(
    ratio, high, on_spark, high_on_spark, alone, together
):
    rows = [measured(way, setting, 1.0, 1.0, 1.0, 1.0) for way in (engine.CHOSEN, "Mem-Opt") for setting in ("one", "other")]
    rows[-1] = measured("Mem-Opt", "other", ratio, high, on_spark, high_on_spark)
    (_, _, with_pipelines, without, _) = engine.verdicts(rows)
    assert (without["verdict"], with_pipelines["verdict"]) == (alone, together)
    assert without["measured"] == ("Mem-Opt at ('other', 0.8, 10)" if alone == "no" else "none")
