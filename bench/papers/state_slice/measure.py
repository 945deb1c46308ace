"""One way of sharing over one stream of rows: what it stores and compares, once windows are full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from anabranch.share.reference.plans import SharedPlan
from anabranch.share.reference.rows import Meter, Row
from anabranch.share.window_queries import WindowQuery
from bench.papers.state_slice.settings import MEASURED_FROM_S, SECONDS


@dataclass(frozen=True)
class Measured:
    """Means over the measured seconds."""

    stored_rows: float
    """In the mean over all arrivals."""
    comparisons_per_s: float
    probing_per_s: float
    visits_per_s: float
    """What C_sys is counted for."""

    def cpu_per_s(self, overhead: float) -> float:
        """C_p with a C_sys."""
        return self.comparisons_per_s + overhead * self.visits_per_s


def measure(plan: SharedPlan, rows: Sequence[Row]) -> Measured:
    """Runs a plan that counts, each row drained before the next comes."""
    began = Meter()
    stored = arrivals = 0
    for row in rows:
        if row.time_s >= MEASURED_FROM_S:
            if not arrivals:
                began = plan.meter.since(began)
                for joined in plan.joined:
                    joined.clear()
            arrivals += 1
        plan.arrive(row)
        plan.drain()
        if arrivals:
            stored += plan.meter.stored_rows
    counted, seconds = plan.meter.since(began), SECONDS - MEASURED_FROM_S
    return Measured(
        stored / arrivals, counted.comparisons / seconds, counted.probing / seconds, counted.visits / seconds
    )  # fmt: skip


def mean(found: Sequence[Measured]) -> Measured:
    return Measured(*(sum(getattr(each, f.name) for each in found) / len(found) for f in fields(Measured)))


def results_per_s(plan: SharedPlan, queries: Sequence[WindowQuery]) -> float:
    """Results that all queries got from a Mem-Opt chain in the measured seconds: the k-th slice serves each query from the
    k-th on."""
    ordered = sorted(queries, key=lambda query: query.window_s)
    total = 0
    for place, joined in enumerate(plan.joined):
        for (of_a, of_b), count in joined.items():
            total += count * sum(query.wants("A", of_a) and query.wants("B", of_b) for query in ordered[place:])
    return total / (SECONDS - MEASURED_FROM_S)
