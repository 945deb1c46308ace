"""What the slots of a batch measured, put together."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.control.records import SourceStatistics, StateStatistics, Statistics, StepStatistics

COUNTED = (
    "rows", "late_rows", "early_rows", "untimed_rows", "skipped_rows", "skipped_files", "stored_rows", "state_rows",
    "state_bytes",
)  # fmt: skip


def summed(slots: Iterable[Statistics]) -> Statistics:
    """The statistics of all slots of a batch as one: counts and CPU are added up, and of clocks the slowest is told."""
    whole = Statistics()
    steps: dict[tuple[str, str], StepStatistics] = {}
    states: dict[tuple[str, str], StateStatistics] = {}
    for slot in slots:
        for name, source in slot.sources.items():
            _add_source(whole.sources.setdefault(name, SourceStatistics()), source)
        for step in slot.steps:
            counts = steps.setdefault((step.route, step.target), StepStatistics(step.route, step.target))
            for each in ("probes", "lookups", "candidates", "matches", "cpu_ns"):
                setattr(counts, each, getattr(counts, each) + getattr(step, each))
        for state in slot.states:
            known = states.setdefault(
                (state.kind, state.name), StateStatistics(state.name, state.kind, inputs=state.inputs)
            )
            known.rows, known.bytes, known.runs = (
                known.rows + state.rows,
                known.bytes + state.bytes,
                known.runs + state.runs,
            )
        whole.samples += slot.samples
        whole.add_cpu(slot)
        for what, spent_ns in {**slot.cpu_ns, **slot.slowest_ns}.items():
            whole.slowest_ns[what] = max(whole.slowest_ns.get(what, 0), spent_ns)
        whole.results += slot.results
        whole.files_written += slot.files_written
        whole.bytes_written += slot.bytes_written
        for each in ("left", "pieces", "rows", "cpu_ns"):
            setattr(whole.preparing, each, getattr(whole.preparing, each) + getattr(slot.preparing, each))
        slowest_ns = max(slot.preparing.cpu_ns, slot.preparing.slowest_ns)
        whole.preparing.slowest_ns = max(whole.preparing.slowest_ns, slowest_ns)
    whole.steps, whole.states = list(steps.values()), list(states.values())
    return whole


def _add_source(total: SourceStatistics, source: SourceStatistics) -> None:
    for each in COUNTED:
        setattr(total, each, getattr(total, each) + getattr(source, each))
    for counts, more in ((total.wanted_rows, source.wanted_rows), (total.slice_rows, source.slice_rows)):
        for length_us, rows in more.items():
            counts[length_us] = counts.get(length_us, 0) + rows
    if source.largest_time_us is not None:
        known = total.largest_time_us
        total.largest_time_us = source.largest_time_us if known is None else max(known, source.largest_time_us)
