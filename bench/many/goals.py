"""What many queries may take at most, beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.many.case import BY_HAND, SEPARATE, SHARED, SPARK
from bench.many.queries import asked, wanted_rows, workload_of

ALONE = "alone"
"""The largest query, in a pipeline of its own."""
COUNTED, WHOLE, STATE, LOGS = "counted CPU s", "CPU s", "state MB", "logs MB"

Rows = Mapping[tuple[int, str], Mapping[str, Any]]
"""Rows of the table, by the number of queries and the way."""


@dataclass(frozen=True)
class Goal:
    """So many queries in one pipeline take at most so much of what another way takes."""

    queries: int
    figure: str
    beside: str
    most: float

    def checked(self, rows: Rows) -> dict[str, Any] | None:
        """What was measured; None where one of the two was not."""
        own, other = rows.get((self.queries, SHARED)), rows.get((1 if self.beside == ALONE else self.queries, self.beside))
        if own is None or other is None:
            return None
        return kept(self.queries, f"{self.figure} of {self.beside}", self.most, own[self.figure] / other[self.figure])


GOALS = (
    Goal(36, COUNTED, ALONE, 1.3),
    Goal(300, COUNTED, ALONE, 3.0),
    Goal(12, COUNTED, SEPARATE, 1 / 5),
    Goal(12, COUNTED, BY_HAND, 1 / 2),
    Goal(10, COUNTED, SPARK, 1 / 20),
    Goal(10, STATE, SPARK, 1 / 20),
    Goal(12, WHOLE, SEPARATE, 1 / 5),
    Goal(12, LOGS, ALONE, 1.1),
    Goal(12, STATE, SEPARATE, 1 / 3),
)
THEOREM_MOST = 1.10


def kept(queries: int, text: str, most: float, measured: float) -> dict[str, Any]:
    return {
        "queries": queries, "goal": text, "at most": most, "measured": measured, "kept": "yes" if measured <= most else "no",
    }  # fmt: skip


def goals(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All goals of which both sides were measured."""
    found = {(row["queries"], row["way"]): row for row in rows}
    checked = [goal.checked(found) for goal in GOALS]
    return [row for row in checked if row is not None] + _theorem(found)


def _theorem(rows: Rows) -> list[dict[str, Any]]:
    """State beside that of the rows which some query wants, for as long as it wants them (theorem 4): the state of the
    largest query alone, times such rows by the rows that the largest wants."""
    alone = rows.get((1, ALONE))
    if alone is None:
        return []
    workload, batches = workload_of(alone["rate"]), alone["all batches"]
    least = wanted_rows(asked(1), workload, batches)
    found = []
    for (count, way), row in rows.items():
        if way == SHARED:
            sum_mb = alone[STATE] * wanted_rows(asked(count), workload, batches) / least
            found.append(kept(count, f"{STATE} of theorem 4's sum", THEOREM_MOST, row[STATE] / sum_mb))
    return found
