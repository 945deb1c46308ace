"""Over 80 % of the results at 60 % of the resources, on linear plans (section 5.1): for which parameters does it hold?

All paths of a linear plan go through its root, and almost all that a row costs it costs near the root. So with table 3,
where a row finds some 140 partners at each join, paths hardly differ in productivity, and the best allocation gives 60
% at 60 %. Only the path of D is short: its rows probe the state of A, B and C directly. It costs next to nothing, so
the best allocation gives about q + 0.6·(1−q), q being the share of the results that rows of D find: 80 % from q = 1/2
on. Rows of D find λ_D·σ·|S_ABC| results per second, the other rows F·σ·|S_D|, F being the rows of A, B and C together
that arise per second. So it holds where |S_ABC| / F ≥ |S_D| / λ_D: where joined rows stay longer in their state than
rows of D in theirs.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

from anabranch.overload.allocation import Limits
from anabranch.overload.grepp import grepp
from anabranch.overload.jaqpot import jaqpot
from bench.papers.jaqpot.settings import FRESHNESS, Setting, Size, drawn, freshness_s, linear

Rows = list[dict[str, Any]]
SHARE, GOAL = 0.6, 0.8
VIEW_ROWS = (200.0, 500.0, 1000.0, 2000.0, 3000.0, 5000.0)
"""Of S_ABC, by which the setting below is varied."""


def setting(view_rows: float) -> Setting:
    """Within table 3: few partners below the root, and a small state of D."""
    return Setting((300.0,) * 3 + (1200.0,), (200.0, 200.0, 200.0, 200.0), (200.0, view_rows), (0.01, 0.01, 0.1))


def eighty(size: Size) -> Rows:
    """A row for table 3 as it is, and one for each size of S_ABC."""
    plans = [linear(drawn(seed)) for seed in range(size.settings)]
    shares = [_share(grepp(plan, Limits(SHARE * plan.saturation)).results_per_s, plan) for plan in plans]
    table: Rows = [{
        "setting": f"table 3, {size.settings} drawn", "stay in S_ABC s": None, "window of D s": None, "found by D %": None,
        "GrePP %": mean(shares), "above 80 %": f"{sum(share > 100 * GOAL for share in shares)} of {len(shares)}",
    }]  # fmt: skip
    for view_rows in VIEW_ROWS:
        plan = linear(setting(view_rows))
        limits = Limits(SHARE * plan.saturation, freshness_s(plan, FRESHNESS[-1]))
        arising = plan.full_rates["((A B) C)"]
        d = plan.by_input["D"]
        best, fresh = grepp(plan, limits), jaqpot(plan, limits)
        table.append({
            "setting": f"|S_ABC| {view_rows:.0f}", "stay in S_ABC s": view_rows / arising, "window of D s": 200 / 1200,
            "found by D %": _share(plan.full_rates["D"] * d.results_per_row, plan),
            "GrePP %": _share(best.results_per_s, plan),
            "above 80 %": "yes" if _share(best.results_per_s, plan) > 100 * GOAL else "no",
            "JAQPOT %": _share(fresh.results_per_s, plan), "freshness kept, windows": FRESHNESS[-1] * fresh.freshness_factor,
        })  # fmt: skip
    return table


def _share(results_per_s: float, plan: Any) -> float:
    return 100 * results_per_s / float(plan.saturation_results_per_s)
