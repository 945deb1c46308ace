"""The journal in words: what changed, what was done about it, what it cost, and what came of it.

A change of plan is told in up to three entries: *migrating* when it is decided on, *migrated* when the new plan gives the
results, *effect* when enough batches were measured under it. `stories` puts these together. That rows of a stream are cut
into other slices is told as *slicing* when it is decided on, and as *sliced* when no row is left that was cut in the old
way. That rows wait for a watermark which lags is told as *held back*, and that none does any more as *released*. Under
overload it is told when lookups are *limited* or rows *shed*, when that ends, and where it is of no use.

CPU is what tasks report: taking rows in, keeping indexes and views, looking up, handing out results. What was predicted and
what was measured are on that one scale (docs/plans.md, "What CPU means in the journal").
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anabranch.control.journal import Entry
from anabranch.show.trees import told

DECISIONS = (
    "migrating", "migrated", "effect", "kept", "proposed", "replanned", "cancelled", "given up", "left", "skipping",
    "placing", "placed", "slicing", "sliced", "held back", "released",
    "limiting", "lifted", "shedding", "cannot help", "too old",
)  # fmt: skip
"""The events that are decisions, and what came of them; others tell of starts and ends."""

UNDER_OVERLOAD = {
    "limiting": "Results are missing", "shedding": "Results are missing", "lifted": "Exact again",
    "cannot help": "Limiting lookups does not help", "too old": "Nothing is fresh",
}  # fmt: skip
"""What entries about an overload, and about freshness, begin with."""

OTHER_LOAD = 1.2
"""Where streams bring more rows than before by this factor, or fewer, a measured effect says so: it is not the plan's."""

WAYS = {
    "moving-state": "the new plan's state is computed before its first batch",
    "parallel-track": "both plans run side by side until the old one's rows have ended",
    "gradual": "the new plan's state is computed piece by piece, beside the batches",
}


@dataclass(frozen=True)
class Story:
    """Some entries about one change, in words."""

    at_s: float
    batch: int
    text: str
    is_decision: bool

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.at_s))
        return f"{clock} UTC  batch {self.batch:>6}  {self.text}"


def stories(entries: Iterable[Entry], names: Mapping[str, str] | None = None) -> list[Story]:
    """All entries of a query in words, oldest first; what came of a change of plan stands with the change. `names` are what
    aliases stand for, as far as the entries themselves do not tell."""
    found: list[Story] = []
    known, change = dict(names or {}), -1
    for entry in entries:
        known |= entry.details.get("names", {})
        text = words(entry, known)
        if entry.event in ("migrated", "effect") and change >= 0:
            found[change] = replace(found[change], text=f"{found[change].text} {text}")
            continue
        if entry.event not in ("kept", "slicing", "sliced", "held back", "released", *UNDER_OVERLOAD):
            change = len(found) if entry.event == "migrating" else -1
        found.append(Story(entry.at_s, entry.batch, text, entry.event in DECISIONS))
    return found


def last_decision(entries: Sequence[Entry], names: Mapping[str, str] | None = None) -> str:
    """The newest decision in words; an empty text if there is none."""
    found = [story.text for story in stories(entries, names) if story.is_decision]
    return found[-1] if found else ""


def words(entry: Entry, names: Mapping[str, str] | None = None) -> str:
    """One entry in words.

    >>> drifted = {"rate of payments": (1_000.0, 48_000.0)}
    >>> details = {"target": "((o s) p)", "strategy": "moving-state", "drifted": drifted, "why": "", "cpu": 0.87,
    ...            "cpu_before": 1.0, "memory": 102.0, "memory_before": 100.0}
    >>> print(words(Entry(0.0, 17, "migrating", "", details), {"o": "orders", "s": "shipments", "p": "payments"}))
    payments sped up 48 times (1,000 → 48,000 rows/s). Joining orders with shipments first, then payments, now takes \
13 % less CPU and 2 % more memory.
    >>> print(words(Entry(0.0, 18, "migrated", "", {"batches": 1, "waited_s": 0.21})))
    Went over in batch 18, which waited 0.2 s.
    >>> print(words(Entry(0.0, 23, "effect", "", {"cpu": 0.5, "cpu_before": 1.0, "cpu_predicted": 0.87})))
    Measured since: 50 % less CPU (0.5 cores instead of 1), 13 % less was predicted.
    """
    known, details = names or {}, entry.details
    if entry.event == "migrating":
        return _migrating(entry, known)
    if entry.event == "migrated" and "batches" in details:
        return _migrated(entry)
    if entry.event == "effect":
        return _effect(details)
    if entry.event == "kept" and "why" in details:
        rest = entry.text.removeprefix(str(details["why"])).lstrip("; ")
        return f"{_cause(details, known)}Kept the plan: {rest}."
    if entry.event == "proposed":
        return f"{_cause(details, known)}A change waits for your approval: {_gain(details, known, entry.text)}"
    if entry.event in ("started", "resumed") and "plan" in details:
        begun = "Started on an empty checkpoint" if entry.event == "started" else f"Went on after batch {entry.batch}"
        shared = f" {_sentence(str(details['sharing']['text']))}" if "sharing" in details else ""
        return f"{begun}, {told(str(details['plan']), known)}.{shared}"
    if entry.event in UNDER_OVERLOAD:
        return _overload(entry, known)
    return f"{entry.event.capitalize()}: {entry.text}."


def _overload(entry: Entry, names: Mapping[str, str]) -> str:
    """
    >>> text = "streams bring 2.1 times what there is time for: 40 % of rows of o look up their partners"
    >>> print(_overload(Entry(0.0, 41, "limiting", text, {"shares": {"o": 0.4}}), {"o": "orders"}))
    Results are missing from batch 42 on: streams bring 2.1 times what there is time for: 40 % of rows of orders look up \
their partners.
    """
    text = entry.text
    for alias in entry.details.get("shares", entry.details.get("pinned", {})):
        text = text.replace(f" rows of {alias} ", f" rows of {names.get(alias, alias)} ")
    since = "" if entry.event in ("cannot help", "too old") else f" from batch {entry.batch + 1} on"
    return f"{UNDER_OVERLOAD[entry.event]}{since}: {text}."


def _migrating(entry: Entry, names: Mapping[str, str]) -> str:
    details = entry.details
    if "cpu" not in details:
        plan, way = told(str(details.get("target", "")), names), WAYS.get(str(details.get("strategy")), "")
        reason = entry.text.rpartition(": ")[2]
        return " ".join(_sentence(each) for each in (reason, f"{plan}, from now on", way) if each)
    return f"{_cause(details, names)}{_gain(details, names, entry.text)}"


def _gain(details: Mapping[str, Any], names: Mapping[str, str], otherwise: str) -> str:
    """What a plan would take, beside the one that runs."""
    if "cpu" not in details or "cpu_before" not in details:
        return _sentence(otherwise)
    subject = told(str(details["target"]), names) if "target" in details else "the plan that was found"
    if grouped := details.get("grouped_input"):
        subject += f", with rows of {names.get(grouped, grouped)} grouped before they are joined"
    elif details.get("grouped_input_before"):
        subject += ", with groups above the join"
    takes = f"{compared(details['cpu'], details['cpu_before'])} CPU"
    if details.get("memory_before"):
        takes += f" and {compared(details['memory'], details['memory_before'])} memory"
    comma = "," if ", " in subject else ""
    return _sentence(f"{subject}{comma} now takes {takes}")


def _migrated(entry: Entry) -> str:
    batches, waited_s = int(entry.details["batches"]), float(entry.details.get("waited_s", 0.0))
    if batches == 1:
        waits = f", which waited {waited_s:.1f} s" if waited_s >= 0.05 else ""
        return f"Went over in batch {entry.batch}{waits}."
    waits = f", none of which waited longer than {waited_s:.1f} s" if waited_s >= 0.05 else ""
    return f"Went over in batches {entry.batch - batches + 1} to {entry.batch}{waits}."


def _effect(details: Mapping[str, Any]) -> str:
    now, before, predicted = (float(details[name]) for name in ("cpu", "cpu_before", "cpu_predicted"))
    text = f"Measured since: {compared(now, before)} CPU ({now:.3g} cores instead of {before:.3g}), "
    if details.get("cpu_old_plan", 0.0) > 0:
        text += f"{compared(now, float(details['cpu_old_plan']))} than the old plan would take by now; "
    text += f"{compared(predicted, before)} was predicted"
    load, load_before = (float(details.get(name, 0.0)) for name in ("rows_per_s", "rows_per_s_before"))
    if load > 0 and load_before > 0 and not 1 / OTHER_LOAD < load / load_before < OTHER_LOAD:
        text += f", while streams bring {load:,.0f} rows/s instead of {load_before:,.0f}"
    return f"{text}."


def _cause(details: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Why a plan was thought about: what has changed most, in rates first."""
    drifted: Mapping[str, Sequence[float]] = details.get("drifted") or {}
    if not drifted:
        return f"{_sentence(str(details['why']))} " if details.get("why") else ""
    ordered = sorted(drifted, key=lambda name: (not name.startswith("rate of "), -_distance(*drifted[name])))
    parts = [_change(name, drifted[name][0], drifted[name][1], names) for name in ordered[:2]]
    others = len(ordered) - 2
    more = f" (and {others} more {'change' if others == 1 else 'changes'})" if others > 0 else ""
    return f"{', '.join(parts)}{more}. "


def _distance(before: float, now: float) -> float:
    return abs(math.log(max(now, 1e-9) / max(before, 1e-9)))


def _change(signal: str, before: float, now: float, names: Mapping[str, str]) -> str:
    if signal.startswith("rate of "):
        stream = signal.removeprefix("rate of ")
        if before <= 0 or now <= 0:
            return f"{stream} went from {_count(before)} to {_count(now)} rows/s"
        verb, times = ("sped up", now / before) if now > before else ("slowed down", before / now)
        by = f"{times:.0f} times" if times >= 1.95 else f"by {abs(now / before - 1) * 100:.0f} %"
        return f"{stream} {verb} {by} ({_count(before)} → {_count(now)} rows/s)"
    route, _, target = signal.removeprefix("matches of ").partition(" in ")
    return f"a row of {_named(route, names)} finds {now:.2g} of {_named(target, names)}, {before:.2g} before"


def _named(aliases: str, names: Mapping[str, str]) -> str:
    return " ".join(names.get(word, word) for word in aliases.strip("()").split())


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def compared(now: float, before: float) -> str:
    """
    >>> compared(87, 100), compared(102, 100), compared(100, 100), compared(300, 100)
    ('13 % less', '2 % more', 'as much', '3 times the')
    """
    if before <= 0:
        return "as much" if now <= 0 else "more"
    ratio = now / before
    if ratio >= 2:
        return f"{ratio:.0f} times the"
    percent = round(abs(ratio - 1) * 100)
    return "as much" if not percent else f"{percent} % {'less' if ratio < 1 else 'more'}"


def _sentence(text: str) -> str:
    text = text.strip()
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}" if text else ""
