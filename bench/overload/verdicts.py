"""Whether what was set for overload on Spark is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.overload.cases import FRESHNESS_S, OURS, SHED, WINDOW_S, Capacity


def goals(rows: Sequence[Mapping[str, Any]], capacity: Capacity) -> list[dict[str, Any]]:
    """Whether what was set is kept."""
    found: list[dict[str, Any]] = [_goal("probing, % of all CPU of the exact run", 100 * capacity.probing_share, ">=", 50)]
    at = {row["way"]: row for row in rows if row["part"] == "load" and row["load"] == 2.0}
    if OURS in at:
        ours = at[OURS]
        found.append(_goal("load 2: lag, s", ours["lag s"], "<=", FRESHNESS_S))
        found.append(_goal("load 2: stale results", ours["stale"], "<=", 0))
        if ours["told %"] is not None:
            found.append(_goal("load 2: told less true, points", abs(ours["told %"] - ours["true %"]), "<=", 3))
        if SHED in at and at[SHED]["results/s"]:
            found.append(_goal("load 2: times the results of shed", ours["results/s"] / at[SHED]["results/s"], ">=", 1.8))
    wrong = sum(row.get("wrong", 0) for row in rows)
    found.append(_goal("results that are none, or given twice", wrong, "<=", 0))
    for row in rows:
        if row["part"] == "burst" and row["way"] == OURS:
            if row["load"] == 4.0:
                after = batches_until_exact(row)
                found.append(_goal("burst of 4: batches beyond a window until exact again", after, "<=", 10))
            else:
                since_s = row["falls_s"] - row["burst s"]
                lost = sum(p["exact"] - p["given"] for p in row["series"] if p["second"] >= since_s)
                found.append(_goal("burst of 2 within the slack: results lost", lost, "<=", 0))
    for row in rows:
        if row["part"] == "cannot-help":
            told = [e["text"] for e in row["journal"] if "without looking up" in e["text"]]
            found.append({**_goal("cannot help: told in the journal", len(told), ">=", 1), "note": (told or [""])[0]})
    return found


def batches_until_exact(row: Mapping[str, Any]) -> float:
    """How many batches after the load fell, and a window, some result was still missing."""
    falls_s, series = row["falls_s"], row["series"]
    missing = [p for p in series if p["given"] < p["exact"]]
    if not missing:
        return 0.0
    last_s = missing[-1]["second"]
    return float(sum(1 for p in series if falls_s + WINDOW_S < p["second"] <= last_s))


def _goal(goal: str, measured: float, sign: str, limit: float) -> dict[str, Any]:
    is_kept = measured >= limit if sign == ">=" else measured <= limit
    return {"goal": goal, "found": float(measured), "": sign, "limit": limit, "kept": "yes" if is_kept else "no", "note": ""}
