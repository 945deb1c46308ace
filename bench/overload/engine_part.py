"""The engine alone, in one process on one core: what share of the results a part of the probing CPU gives.

For each seed the chain runs exactly, by the n-ary plan and by two binary ones; from what each direction of the n-ary plan
took and gave, each way divides a half and a quarter of the probing CPU, and the chain runs again with these shares.
*Probing* is looking up partners where results arise, and what is made of them; CPU is that of the thread, over batches after
a window has filled. Binary plans get the CPU that the n-ary plan has in all, less what taking in rows and feeding views
takes in them; and, for a comparison of their own, a part of what they take beyond taking in rows. Beside it rows are shed at
random before they are joined: a curve of results over CPU, read off at the CPU that a way has taken. And the chain runs
exactly under `"fall behind"`, by which nothing is counted: a policy that limits nothing is not to be slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from time import thread_time_ns
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.control.records import Limit, Limited
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalPipeline
from anabranch.overload.algorithms import ALGORITHMS
from anabranch.overload.by_cpu import Direction
from anabranch.plan.overload import Overload, Policy
from anabranch.storage.filesystem import MemoryFilesystem
from bench import report
from bench.overload.chain import BINARY, N_ARY, STREAMS, Chain
from bench.overload.division import OURS, UNIFORM, Shares, by_the_paper, divided

PARTS = (0.5, 0.25)
KEPT = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The shares of rows that are kept where rows are shed at random."""
SHED = "shed at random"
GOALS = {0.5: (0.70, 2.0), 0.25: (0.50, 5.0)}
"""For each part of the probing CPU: the least share of all results, and how many times those of shedding at equal CPU."""
PLAIN = "exact, nothing counted"
"""Under the policy by which nothing is ever limited."""
EQUAL = ("equal probing CPU", "equal CPU")
COLUMNS = (
    "part", "plan", "way", "results %", "±", "probing CPU %", "CPU %", "probing of CPU %",
    *(f"times shed, {what}" for what in EQUAL), "note",
)  # fmt: skip
VERDICTS = ("part of CPU", "probing CPU %", "goal", "at least", "at most", "found", "kept")
T_90 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86, 9: 1.83}
"""Student's t for an interval of 90 %, by degrees of freedom."""


@dataclass(frozen=True)
class Ran:
    """What some batches took and gave."""

    results: int
    cpu_ns: int
    directions: Mapping[str, Limited]

    @property
    def probing_ns(self) -> int:
        return sum(each.cpu_ns for each in self.directions.values())

    @property
    def fixed_ns(self) -> int:
        """What is not limited: rows are taken in, views are fed."""
        return self.cpu_ns - self.probing_ns

    def as_directions(self) -> list[Direction]:
        """What each direction takes and gives."""
        return [
            Direction(alias, d.rows, d.cpu_ns / 1e9 / max(1, d.probed), d.results / max(1, d.probed))
            for alias, d in self.directions.items()
        ]


def run(
    chain: Chain, plan: str, measured: int, shares: Shares | None = None, kept: float = 1.0,
    policy: Policy = Policy.ADAPT_JOINS,
) -> Ran:  # fmt: skip
    """Runs the chain until a window has filled, and then so many batches."""
    limiting = Limiting(Overload(policy))
    limiting.limits = {"q": {alias: Limit(share=share) for alias, share in (shares or {}).items() if share < 1}}
    pipeline = LocalPipeline([chain.query], MemoryFilesystem(), {"q": plan}, limiting=limiting)
    warm, results, cpu_ns, directions = chain.window_s + 1, 0, 0, dict[str, Limited]()
    for number in range(warm + measured):
        rows = chain.batch(number, kept)
        began = thread_time_ns()
        step = pipeline.step(number, rows)["q"]
        if number < warm:
            continue
        cpu_ns += thread_time_ns() - began
        results += step.results.num_rows
        for alias, found in step.statistics.limited.items():
            each = directions.setdefault(alias, Limited())
            each.rows, each.probed = each.rows + found.rows, each.probed + found.probed
            each.results, each.cpu_ns = each.results + found.results, each.cpu_ns + found.cpu_ns
    return Ran(results, cpu_ns, {alias: directions[alias] for alias in STREAMS if alias in directions})


def measure(chain: Chain, measured: int) -> list[dict[str, Any]]:
    """All ways, with one seed."""
    exact = run(chain, N_ARY, measured)
    about = {"seed": chain.seed, "plan": N_ARY, "part": 1.0}
    plain = run(chain, N_ARY, measured, policy=Policy.FALL_BEHIND)
    if plain.results != exact.results:
        raise SystemExit(f"{Policy.FALL_BEHIND} gives {plain.results} results, {Policy.ADAPT_JOINS} {exact.results}")
    rows: list[dict[str, Any]] = [{**about, "way": "exact", **_told(exact, exact)}]
    rows.append({**about, "way": PLAIN, "results": 1.0, "CPU": plain.cpu_ns / exact.cpu_ns})
    curve = [(kept, run(chain, N_ARY, measured, kept=kept)) for kept in KEPT]
    binary = {plan: run(chain, plan, measured) for plan in BINARY}
    for plan, found in binary.items():
        if found.results != exact.results:
            raise SystemExit(f"{plan} gives {found.results} results, {N_ARY} {exact.results}")
        rows.append({**about, "plan": plan, "way": "exact", **_told(found, exact)})
    for part in PARTS:
        capacity_s = part * exact.probing_ns / 1e9
        for way in (OURS, UNIFORM, *ALGORITHMS):
            found = run(chain, N_ARY, measured, divided(way, exact.as_directions(), capacity_s, chain.as_written))
            # By what it took, which is not quite what was foreseen.
            taken = dict(zip(EQUAL, (found.probing_ns, found.cpu_ns), strict=True))
            shed = {f"{SHED}, {what}": read_off(curve, exact, ns, what)[0] for what, ns in taken.items()}
            rows.append({**about, "part": part, "way": way, **_told(found, exact), **shed})
        for what, equal_to in zip(EQUAL, (capacity_s * 1e9, exact.fixed_ns + capacity_s * 1e9), strict=True):
            share, kept = read_off(curve, exact, equal_to, what)
            rows.append({**about, "part": part, "way": f"{SHED}, {what}", "results": share, "kept": kept})
        for plan, whole in binary.items():
            feeding_s, row = (whole.fixed_ns - exact.fixed_ns) / 1e9, {**about, "part": part, "plan": plan}
            own_s = part * (whole.cpu_ns - exact.fixed_ns) / 1e9
            for way, left_s in ((OURS, capacity_s - feeding_s), (f"{OURS}, part of its own", own_s - feeding_s)):
                if left_s <= 0:
                    rows.append({**row, "way": way, "results": 0.0, "note": "feeding views alone takes more"})
                    continue
                found = run(chain, plan, measured, divided(OURS, whole.as_directions(), left_s, chain.as_written))
                shed = {f"{SHED}, {EQUAL[1]}": read_off(curve, exact, found.cpu_ns, EQUAL[1])[0]}
                rows.append({**row, "way": way, **_told(found, exact), **shed})
    return rows


def _told(found: Ran, exact: Ran) -> dict[str, float]:
    return {
        "results": found.results / exact.results, "probing CPU": found.probing_ns / exact.probing_ns,
        "CPU": found.cpu_ns / exact.cpu_ns, "probing of CPU": found.probing_ns / found.cpu_ns,
    }  # fmt: skip


def read_off(
    curve: Sequence[tuple[float, Ran]], exact: Ran, cpu_ns: float, equal: str
) -> tuple[float, float]:  # fmt: skip
    """The share of the results, and the share of rows kept, where random shedding takes so much CPU: between two points of a
    curve, in logarithms, for all of them grow like powers of the share."""
    points = [*curve, (1.0, exact)]
    taken = [np.log(ran.probing_ns if equal == EQUAL[0] else ran.cpu_ns) for _, ran in points]
    order = np.argsort(taken)
    found = np.log([max(1, ran.results) / exact.results for _, ran in points])
    kept = np.log([share for share, _ in points])
    xs = np.asarray(taken)[order]
    share, rows = (float(np.exp(np.interp(np.log(cpu_ns), xs, ys[order]))) for ys in (found, kept))
    return share, rows


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its interval of 90 %."""
    if len(values) < 2:
        return fmean(values), float("nan")
    t = T_90.get(len(values) - 1, 1.7)
    return fmean(values), t * stdev(values) / len(values) ** 0.5


def summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The mean over seeds of each way, and by how many times it gives more than shedding."""
    found: list[dict[str, Any]] = []
    keys = dict.fromkeys((row["part"], row["plan"], row["way"]) for row in rows)
    for part, plan, way in keys:
        own = [row for row in rows if (row["part"], row["plan"], row["way"]) == (part, plan, way)]
        mean, half = interval([row["results"] for row in own])
        told: dict[str, Any] = {"part": part, "plan": plan, "way": way, "results %": 100 * mean, "±": 100 * half}
        for name in ("probing CPU", "CPU", "probing of CPU"):
            if known := [row[name] for row in own if name in row]:  # with some seeds feeding views alone takes too much
                told[f"{name} %"] = 100 * fmean(known)
        for what in EQUAL:
            if all(f"{SHED}, {what}" in row for row in own):
                told[f"times shed, {what}"] = fmean(row["results"] / row[f"{SHED}, {what}"] for row in own)
        found.append({**told, "note": next((row["note"] for row in own if "note" in row), "")})
    return found


def goals(found: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Whether ours keeps what was set; by means, and by all rows that they are made of."""
    verdicts = []
    for part, (least, times) in GOALS.items():
        own = next(r for r in found if (r["part"], r["plan"], r["way"]) == (part, N_ARY, OURS))
        shares = {"% of the results": (100 * least, own["results %"])}
        shares |= {f"times shed, {what}": (times, own[f"times shed, {what}"]) for what in EQUAL}
        for what, (goal, measured) in shares.items():
            kept = "yes" if measured >= goal else "no"
            verdicts.append({
                "part of CPU": part, "probing CPU %": own["probing CPU %"], "goal": what, "at least": goal,
                "found": measured, "kept": kept,
            })  # fmt: skip
    ratios = [1 / row["CPU"] for row in rows if row["way"] == PLAIN]
    mean, half = interval(ratios)
    verdicts.append({
        "goal": "nothing limited: times the CPU of fall behind, less half the interval", "at most": 1.0,
        "found": mean - (half if len(ratios) > 1 else 0.0), "kept": "yes" if mean - half <= 1 or mean <= 1 else "no",
    })  # fmt: skip
    return verdicts


def main(quick: bool, seeds: int | None = None) -> list[dict[str, Any]]:
    """Measures, prints and writes."""
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    rate_per_s, measured, seeds = (2_000, 3, seeds or 2) if quick else (20_000, 6, seeds or 5)
    run(Chain(100, 1, 0), N_ARY, 1, dict.fromkeys(STREAMS, 0.5))  # compiles the kernels
    rows: list[dict[str, Any]] = []
    for seed in range(seeds):
        rows += measure(Chain(rate_per_s, 3 if quick else 4, seed), measured)
        print(f"seed {seed} of {seeds} is done", flush=True)
    found = summary(rows)
    print(report.table(found, COLUMNS))
    model = [
        {"part": part, "plan": BINARY[0], **{name: 100 * share for name, share in shares.items()}}
        for part, shares in ((part, by_the_paper(Chain(rate_per_s, 4, 0).as_written, part)) for part in PARTS)
    ]
    print("\n% of the results by the paper's model, a probe costing 1, with a part of all probes of the binary plan:")
    print(report.table(model), "\n")
    kept = goals(found, rows)
    print(report.table(kept, VERDICTS))
    print(report.markdown(found, COLUMNS), report.markdown(kept, VERDICTS), sep="\n\n")
    print(f"written to {report.write('overload-engine', [*rows, *kept])}")
    return rows
