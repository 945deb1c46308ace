"""What the slots of a batch measured, put together."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.control.pace import Took
from anabranch.control.records import (
    Border,
    Commit,
    Grouped,
    Held,
    Limited,
    Preparing,
    Probed,
    SourceStatistics,
    StateStatistics,
    Statistics,
    StepStatistics,
)


def summed(slots: Iterable[Statistics]) -> Statistics:
    """The statistics of all slots of a batch as one: counts and CPU are added up, and of clocks the slowest is told."""
    whole = Statistics()
    steps: dict[tuple[str, str], StepStatistics] = {}
    below: dict[str, dict[tuple[str, str], StepStatistics]] = {}
    states: dict[tuple[str, str], StateStatistics] = {}
    for slot in slots:
        for name, source in slot.sources.items():
            _add_source(whole.sources.setdefault(name, SourceStatistics()), source)
        _add_steps(steps, slot.steps)
        for block, probed in slot.blocks.items():
            _add_steps(below.setdefault(block, {}), probed.steps)
            whole.blocks.setdefault(block, Probed()).samples += probed.samples
        for state in slot.states:
            known = states.setdefault(
                (state.kind, state.name), StateStatistics(state.name, state.kind, sources=state.sources)
            )
            known.rows += state.rows
            known.bytes += state.bytes
            known.runs += state.runs
        whole.samples += slot.samples
        whole.add_cpu(slot)
        spent = {**slot.cpu_ns, **slot.slowest_ns} if slot.slowest_ns else slot.cpu_ns
        for what, spent_ns in spent.items():
            whole.slowest_ns[what] = max(whole.slowest_ns.get(what, 0), spent_ns)
        whole.results += slot.results
        whole.stale_results += slot.stale_results
        for alias, limited in slot.limited.items():
            _add_limited(whole.limited.setdefault(alias, Limited()), limited)
        whole.files_written += slot.files_written
        whole.bytes_written += slot.bytes_written
        for name, border in slot.borders.items():
            whole.borders.setdefault(name, Border(border.database)).add(border)
        for name, grouped in slot.grouped.items():
            whole.grouped.setdefault(name, Grouped()).add(grouped)
        for what, took in slot.took.items():
            whole.took.setdefault(what, Took(round_trip_s=took.round_trip_s)).add(took)
        _add_preparing(whole.preparing, slot.preparing)
    whole.steps, whole.states = list(steps.values()), list(states.values())
    for block, found in below.items():
        whole.blocks[block].steps = list(found.values())
    return whole


def _add_steps(total: dict[tuple[str, str], StepStatistics], steps: Iterable[StepStatistics]) -> None:
    for step in steps:
        counts = total.setdefault((step.route, step.target), StepStatistics(step.route, step.target))
        counts.probes += step.probes
        counts.lookups += step.lookups
        counts.candidates += step.candidates
        counts.matches += step.matches
        counts.cpu_ns += step.cpu_ns


def rows_by_source(commit: Commit) -> dict[str, int]:
    """The rows that a batch brought; those of a source that several queries read are counted once."""
    found: dict[str, int] = {}
    for own in commit.queries.values():
        for name, source in own.statistics.sources.items():
            found[name] = max(found.get(name, 0), source.rows)
    return found


def _add_source(total: SourceStatistics, source: SourceStatistics) -> None:
    total.rows += source.rows
    total.late_rows += source.late_rows
    total.early_rows += source.early_rows
    total.untimed_rows += source.untimed_rows
    total.stale_rows += source.stale_rows
    total.shed_rows += source.shed_rows
    total.skipped_rows += source.skipped_rows
    total.skipped_files += source.skipped_files
    total.stored_rows += source.stored_rows
    total.state_rows += source.state_rows
    total.state_bytes += source.state_bytes
    for counts, more in ((total.wanted_rows, source.wanted_rows), (total.slice_rows, source.slice_rows)):
        for length_us, rows in more.items():
            counts[length_us] = counts.get(length_us, 0) + rows
    for streams, held in source.held.items():
        total.held[streams] = total.held.get(streams, Held()) + held
    if source.largest_time_us is not None:
        known = total.largest_time_us
        total.largest_time_us = source.largest_time_us if known is None else max(known, source.largest_time_us)


def _add_limited(total: Limited, limited: Limited) -> None:
    total.rows += limited.rows
    total.probed += limited.probed
    total.results += limited.results
    total.estimated += limited.estimated
    total.variance += limited.variance
    total.covariance += limited.covariance
    total.cpu_ns += limited.cpu_ns
    total.arrived += limited.arrived


def _add_preparing(total: Preparing, done: Preparing) -> None:
    total.left += done.left
    total.unfolded += done.unfolded
    total.pieces += done.pieces
    total.rows += done.rows
    total.cpu_ns += done.cpu_ns
    total.slowest_ns = max(total.slowest_ns, done.cpu_ns, done.slowest_ns)
