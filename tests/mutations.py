"""Small wrongs, one at a time, to see that tests notice: `python -m tests.mutations [room …]`.

Each mutation changes one place in a copy of the tree, in which the tests of its room then run, first with few cases, then
with all fixed ones. One that nothing notices *survives*: it gets a test, or stands in `docs/testing.md` with the reason. A
mutation whose text is not in its file any more is *stale*: write it anew. One with which the tests have not ended after
`LIMIT_S` counts as noticed: whoever runs them sees that they hang.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("anabranch", "bench", "tests", "docs", "pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md")
RUNS = (("not spark", ["--quick"]), ("spark", ["--quick"]), ("not spark", []), ("spark", []))
"""Tests are run in this order, until one notices: by their marks, and with few cases or all fixed ones. Those on Spark take
the longest."""
NONE_TO_RUN = int(pytest.ExitCode.NO_TESTS_COLLECTED)
LIMIT_S = 1200.0  # for one run of tests: a few times what the longest takes, all fixed cases of a room, on a busy machine
LIMIT_FEW_S = 400.0  # with few cases
END_S = 20.0  # what tests get to stop servers that they have started


@dataclass(frozen=True)
class Mutation:
    """`before` is replaced by `after`, in the one place where it stands."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.before.split())[:60]} → {' '.join(self.after.split())[:60] or 'nothing'}"


def of(file: str, tests: str, *changes: tuple[str, str]) -> tuple[Mutation, ...]:
    run = tuple(f"tests/{name}" for name in tests.split())
    return tuple(Mutation(f"anabranch/{file}", before, after, run) for before, after in changes)


JOINS = "engine/test_oracle.py"
SQL = "sql test_docs_sql.py"
COMES = "engine/test_lineage.py engine/test_coming.py drive/test_coming.py"
CONTAINED = "share/test_canonical.py engine/test_contained.py"
SHARED = "engine/test_slices.py engine/test_lineage.py engine/test_shared_joins.py"

DRIVER = (
    "drive/test_driver.py drive/test_checkpoint.py drive/test_delivery.py drive/test_leaving.py drive/test_asking.py "
    "drive/test_publishing.py drive/test_tables.py drive/test_company.py drive/test_coming.py drive/test_departed.py "
    "drive/test_local.py drive/test_protocol.py"
)
LOOKUPS = "drive/test_shipped.py drive/test_lookups.py"
SERVER = "place/test_postgresql.py drive/test_lookup_faults.py"

MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "lookups": (
        *of("place/reading.py", LOOKUPS, ("if spent_s + lookup_s > whole_s else", "if lookup_s > whole_s else"),
            ("Way.WHOLE if lookup_s > whole_s", "Way.WHOLE if lookup_s < whole_s"),
            ("size.bytes > room_bytes", "size.bytes > 10 * room_bytes"), ("if whole_s > LONGEST_S:", "if False:")),
        *of("drive/lookups.py", LOOKUPS,
            ("theirs.read(relation, asked.columns, snapshot)", "theirs.read(relation, asked.columns)"),
            ("theirs.lookup(asked, keys, snapshot)", "theirs.lookup(asked, keys)"),
            ("if known.table is not None:", "if False:"),
            ("known.was_looked_up(keys.num_rows, perf_counter() - began, costs)", "pass"),
            ("(us >= least_us) &", "(us > least_us) &"), ("statistics[name].borders[source.name] = border", "pass")),
        *of("drive/shipped.py", LOOKUPS, ('"right") - begins', '"left") - begins'), ("if not valid.all():", "if False:"),
            ("if taken + bytes <= MOST_BYTES:", "if taken <= MOST_BYTES:"), (" and key[0] != run:", ":")),
        *of("place/databases/postgresql.py", SERVER,
            ("if left <= 0 or not _may_pass(error):", "if True:"), ("if not ours:", "if False:"),
            ('self._execute(f"SET TRANSACTION SNAPSHOT {_literal(snapshot)}")', "pass"),
            ("self._connection = None  # closing it would wait, too", "pass")),
        *of("place/databases/settings.py", "place/test_settings.py",
            ("for form in {secret, _quoted(secret)[1:-1], quote(secret, safe=\"\")}:", "for form in {secret}:"),
            ("ANY_DSN.sub(\"…\", text.replace(self.dsn, \"…\"))", "text")),
    ),
    "optimize": (
        *of("optimize/state_removal.py", "optimize", ("more / size", "more * size"), ("more / size", "more"),
            ("min(views, key=ratio)", "max(views, key=ratio)")),
        *of("optimize/state_selection.py", "optimize", ("-frequencies[edge] / (", "-1.0 / ("),
            ("-frequencies[edge] / (", "-frequencies[edge] * (")),
        *of("optimize/two_layer.py", "optimize", (", state_removal(pricer, cpu, memory, binary)):", ",):"),
            ("(state_selection(pricer, cpu, memory), ", "(")),
        *of("optimize/planner.py", "optimize", ("return Cost(cpu, memory)\n", "return Cost(2 * cpu, memory)\n"),
            ("return Cost(cpu, memory)\n", "return Cost(cpu, 2 * memory)\n")),
        *of("adapt/arbiter.py", "adapt", ("WORTH = 0.9", "WORTH = 0.8"), ("WORTH = 0.9", "WORTH = 1.0"),
            ("self.gain_s(life_s) > cost_s", "self.gain_s(life_s) > 0.0")),
        *of("adapt/loop.py", "adapt", ("LIFE_WINDOWS = 2.0", "LIFE_WINDOWS = 1.0"),
            ("LIFE_WINDOWS = 2.0", "LIFE_WINDOWS = 4.0")),
        *of("migrate/estimate.py", "migrate", ("max(0.0, after - fixed) * 0.75", "max(0.0, after - fixed) * 1.5"),
            ("max(0.0, after - fixed) * 0.75", "after * 0.75"), ("0.0, both, saved * both)", "0.0, both, 0.0)")),
    ),
    "slices": (
        *of("engine/slices.py", "engine/test_slices.py",
            ("if 0 < us < longest_us}), longest_us)", "if 0 < us < longest_us}), longest_us // 2)"),
            ("if told_us is None:", "if not told_us:")),
        *of("engine/store.py", "engine/test_slices.py",
            ("limits_of(windows, told.get(name)) for name", "limits_of(windows, None) for name"),
            ("self.told.get(source.name))\n", "None)\n")),
        *of("engine/log.py", "engine/test_slices.py", ("self._count_slices(before.slices, -1)", "pass")),
        *of("drive/driver.py", "engine/test_slices.py adapt/test_slicing.py drive/test_slices.py",
            ("            self.slices = dict(self.standing.begun.slices)\n", "            pass\n"),
            ("            self.slices = dict(commit.slices)\n", "            pass\n"),
            ("            control.parted, control.slices,", "            control.parted,"),
            ("slices=dict(self.slices),", "")),
        *of("drive/work.py", "engine/test_slices.py", ("boxes.store.cut_as(order.slices)", "pass")),
        *of("share/slice_cost.py", "share/test_ways.py adapt/test_slicing.py",
            ("rate * min(window, limit)", "rate * window"), ("if rows <= 0:", "if rows < 0:"),
            ("rows * (limit_s + units.slack_s)", "rows * limit_s"), ("load.indexes * SLICE_S", "SLICE_S"),
            ("probes * units.lookup_run * units.runs(limit_s)", "0.0")),
        *of("share/source_chain.py", "share/test_ways.py",
            ("costs[found].memory > most_bytes and", "False and"),
            ("wanted[place + 1] += wanted[place]", "pass"),
            ("any(load.wanted_per_s[i:j]) or j", "True or j")),
        *of("share/join_load.py", "share/test_ways.py show/test_chains.py",
            ("if any(other.filters <= each.filters for other in least):", "if False:"),
            ("not each.filters <= other.filters), each]", "True), each]"),
            ("max(0.0, most - reached), max(most, reached)", "most, max(most, reached)")),
        *of("share/ways.py", "share/test_ways.py",
            ("- Cost(again, logs)", "- Cost(again, 0.0)"), ("(len(alone) - 1) * (PIPELINE_S", "0 * (PIPELINE_S"),
            ("- slice_cost(whole, units, 0.0)(0, 1)", "")),
        *of("adapt/slicing.py", "adapt/test_slicing.py",
            ("LOOKS = 2", "LOOKS = 1"), ("if not is_other or not change.is_better:", "if not is_other:"),
            ("chain_of(load, units, known.byte_cores, now.memory + room)", "chain_of(load, units, known.byte_cores)"),
            ("batch.seen_us >= each.ends_us}", "False}")),
    ),
    "share": (
        *of("share/reference/joins.py", "share",
            ("references[0].row.time_s >= end_s:", "references[0].row.time_s > end_s:"),
            ("reference.lineage >= following.first_window:", "reference.lineage > following.first_window:"),
            ("reference.lineage >= following.first_window:", "True:"),
            ("        self._hand_on(reference)\n", ""),
            ("            self._hand_on(expired)\n", "            pass\n"),
            ("meter.probing += len(state)", "meter.probing += 1"),
            ("self.meter.stored_rows -= len(expired)", "self.meter.stored_rows -= bool(expired)")),
        *of("share/reference/outlets.py", "share",
            ("if number <= male.number):", "if True):"),
            ("if number <= male.number):", "if number < male.number):"),
            ("bisect_right(rows, -window_s,", "bisect_right(rows, -window_s - 1e-9,"),
            ("len(partners) * (windows - 1)", "len(partners) * windows"),
            ("return all(self.waiting)", "return any(self.waiting)"),
            ("else max(target.query.window_s for", "else min(target.query.window_s for"),
            ("self.meter.merging += self.unions", "self.meter.merging += 1")),
        *of("share/reference/plans.py", "share",
            ("if 1 < rank <= j]", "if 1 < rank < j]"), ("Target(query, rank < j, unions", "Target(query, rank <= i, unions"),
            ("outlet, meter, i + 1))", "outlet, meter, i))"), ("outlet, meter, i + 1))", "outlet, meter, j))"),
            ("if a & b]", "if a]"), ("if len(joins) > 1\n", "if len(joins) > 2\n")),
        *of("share/window_queries.py", "share", ("return rank, len(failed) + 1", "return rank, len(failed)"),
            ("if len(named) > 1:", "if len(named) > 2:"), ("if rank > start]", "if rank >= start]")),
        *of("share/nested_loop.py", "share", ("(j - i - 1)", "(j - i)"),
            ("min(until_s, bounds[j])", "bounds[j]"), ("*= 0.0 if predicate is None", "*= 0.5 if predicate is None"),
            ("still *= 1.0 -", "still *= 2.0 -"), ("if 1 < rank <= k)", "if rank <= k)"),
            ("reach_s[stream, predicate] = query.window_s", "reach_s.setdefault((stream, predicate), query.window_s)"),
            ("if feeding[n] > 1)", "if feeding[n] > 0)")),
        *of("share/taking_in.py", "share/test_taking_in.py share/test_joint_budget.py",
            ("(member, pricing.byte_cores) <= worth(", "(member, pricing.byte_cores) >= worth("),
            ("is_member = worth(member, pricing.byte_cores) <= worth(alone, pricing.byte_cores)", "is_member = True"),
            ("if part_of(self.plan, set(way.values())) is not None and is_as_narrow(", "if is_as_narrow("),
            ("    facts = _fixed(pricing.facts, joint)\n", "    facts = pricing.facts\n"),
            ("    if member.cpu <= apart.cpu:\n", "    if False:\n")),
        *of("share/common_plan.py", "share/test_taking_in.py share/test_canonical.py",
            ("company = None if own else query.name", "company = None"),
            ("lead = max(own or alike,", "lead = max(alike,"),
            ('"" if decided is None else each.lead.query.name)', '"")'),
            ("return not other.is_pinned or self.join.part_for(", "return True or self.join.part_for("),
            ("plan=plan, company=host.company)", "plan=plan)")),
        *of("share/ways.py", "share/test_ways.py test_planning.py",
            ("    if share >= CHEAPER:\n", "    if share >= 1.0:\n"),
            (" and each.cost.within(most.cpu, most.memory)]", "]"),
            ("- nobodys * units.result", "")),
        *of("share/join_cost.py", "share",
            ("parts[aliases] = max(rate, parts.get(aliases, 0.0))", "parts[aliases] = rate + parts.get(aliases, 0.0)"),
            ("(sum(parts.values()) - nobodys) * model.units.result", "sum(parts.values()) * model.units.result")),
        *of("session_sharing.py", "test_planning.py",
            ("                if sizes.get(lead) == len(names):\n", "                if True:\n"),
            ("plan_beside(queries, alone | found.unshared,", "plan_beside(queries, alone,"),
            ("left = bounds if self.plans is None else self.plans.left_for(lead)", "left = Bounds()"),
            ("company = self.companies.get(name, planned.execution.company)", "company = planned.execution.company")),
        *of("share/cpu_opt.py", "share", ("best[i][1] - 1, i)", "best[i][1] + 1, i)"),
            ("for i in range(j)))", "for i in range(max(0, j - 4), j)))")),
        *of("share/formulas.py", "share", ("3 * rate\n", "2 * rate\n"), ("removed = slices - 1", "removed = slices"),
            ("4 * rate, 2 * rate", "2 * rate, 2 * rate")),
    ),
    "budget": (
        *of("share/joint_budget.py", "share/test_joint_budget.py",
            ("paid[key] = _larger(before, cost)", "paid[key] = before + cost"),
            ("cost = _smaller(cost, other.get(key, NOTHING))", "pass"),
            ("cpu[1:] < least[:-1]", "cpu[1:] > least[:-1]"),
            ("if key not in contested), option.own)", "if False), option.own)"),
            ("found.append(improved)", "found.append(tuple(int(place) for place in picks[order[0]]))"),
            ("is_whole and not contested and", "is_whole and")),
        *of("share/join_cost.py", "share/test_joint_budget.py",
            ("own -= Cost(facts.rate * u.accept, 0.0)", "pass"),
            ("each.memory / len(indexes)", "each.memory"),
            ("max(rows.get(name, 0.0), model.stored_rows(1 << place))", "model.stored_rows(1 << place)")),
        *of("session_budget.py", "test_planning.py",
            ("execution = member.execution if member.is_pinned else _execution(part, chosen, member)",
             "execution = member.execution"),
            ("total.memory - start.alone.memory)", "total.memory)"),
            ("max(left.memory, start.alone.memory)", "left.memory"),
            ("    if part.is_pinned:", "    if False:"),
            ("extra = Cost(cpu - decision.cost.cpu, 0.0)", "extra = Cost(0.0, 0.0)")),
    ),
    "engine": (
        *of("engine/accept.py", f"engine/test_accept.py {JOINS}",
            ("on_time = times_us >= watermark_us", "on_time = times_us > watermark_us"),
            ("largest = int(times_us.max())", "largest = int(times_us[-1])")),
        *of("control/watermark.py", JOINS, ("return min((seen", "return max((seen"),
            ("if not all(s.name in seen for s in counting):", "if not any(s.name in seen for s in counting):")),
        *of("engine/run.py", f"engine/test_run.py engine/test_spine.py engine/kernels/test_runs.py {JOINS}",
            ("start_max + retention_us", "base_start + retention_us"),
            ("< 2**32 and offset_max < 2**32", "<= 2**32 and offset_max <= 2**32"),
            ("(last - first).bit_length() + offset_bits <= 32", "(last - first).bit_length() + offset_bits <= 33"),
            ("base_start + retention_us > watermark_us)", "start_max + retention_us > watermark_us)")),
        *of("engine/spine.py", f"engine/test_spine.py {JOINS} engine/test_migration.py",
            ("run if run.end_max_us > watermark_us else", "run if run.end_max_us > watermark_us + 1 else"),
            (" or any(r.lo < lo and r.hi > hi for r in group)", ""),
            ("if self.gap is not None and _overlap(group, *self.gap):", "if False:"),
            ("covered = max(covered, hi)", "covered = hi"),
            ("if run.lo >= lo:\n", "if run.lo > lo:\n")),
        *of("engine/view.py", f"engine/test_view.py {JOINS}", ("int(before.parts.shape[1]), before.room", "0, before.room"),
            ("max(end_max_us, before.end_max_us)", "end_max_us")),
        *of("engine/box.py", f"engine/test_tables.py {JOINS} engine/test_migration.py engine/test_sharing.py",
            ("self.visible.add(i.alias)", "pass"),
            ("in sorted(ways, key=lambda way: isinstance(way[0].source, Stream)):", "in ways:"),
            ("mask = mask | np.isin(rows.ids[alias] >> 32, list(passed))", "pass"),
            ("if kept_in == batch and by != self.name:", "if False:")),
        *of("engine/arrival.py", f"engine/test_arrival.py {JOINS} engine/test_sharing.py engine/test_tables.py",
            ("wanted = mask if wanted is None else wanted | mask", "wanted = mask if wanted is None else wanted & mask"),
            ("for text, f in i.seen.items() if text not in stored.passed", "for text, f in i.seen.items() if False"),
            ("mask = both(mask, starts >= limit_us)", "pass"),
            ("if any(k.null_count for k in keys):", "if False:"),
            ("frozenset.intersection(*(", "frozenset.union(*("),
            ("late[streams] = limit_us", "pass")),
        *of("engine/reader.py", f"{JOINS} engine/test_sharing.py engine/test_migration.py",
            ("if text not in stored.passed and text not in i.indexed]", "if False]"),
            ("found[places] &= log.times(chosen) >= limits", "pass"),
            ("return batch == self.versions.get(i.source.name, 0)\n", "return True\n")),
        *of("engine/store.py", f"{JOINS} engine/test_sharing.py engine/test_migration.py",
            ("return min(ended, default=FOREVER_US if keepers", "return max(ended, default=FOREVER_US if keepers"),
            ("return min([self.horizons[name] for name", "return max([self.horizons[name] for name")),
        *of("engine/lookup.py", f"{JOINS} engine/test_ranges.py engine/test_sharing.py", ("if not is_exact:", "if False:"),
            ("or delta.positions[-1] == len(delta.positions) - 1:", "or True:"),
            ("if box.arrival.sorted_windows_us[own] != window_us:", "if False:"),
            ("and len(ordered) == len(rows)\n", "and True\n"),
            ("if (valid := keys.valid) is not None:", "if False and (valid := keys.valid) is not None:"),
            ("np.flatnonzero(valid & (lows <= highs))", "np.flatnonzero(valid & (lows < highs))")),
        *of("engine/rebuild.py", "engine/test_migration.py",
            ("limit, found = since << 32, None", "limit, found = (since + 1) << 32, None"),
            ("old = ~self._is_new(rows, migration.since, np.logical_and)",
             "old = ~self._is_new(rows, migration.since, np.logical_or)")),
        *of("engine/slot.py", "engine/test_slot.py",
            ("groups_span_slots or tenant.execution.leaving is not None", "groups_span_slots")),
        *of("engine/accept.py", "engine/test_future.py engine/test_accept.py",
            ("in_time = times_us <= early_after_us", "in_time = times_us < early_after_us")),
        *of("engine/aggregation.py", "engine/test_aggregation.py engine/test_continuous.py engine/test_slot.py",
            ("if after <= instant < NEVER:", "if after < instant < NEVER:"),
            ("& (partials.lasts >= after))", "& (partials.lasts > after))"),
            ("counts = firsts < lasts\n", "counts = firsts <= lasts\n"),
            ("            if value.null_count:\n", "            if False:\n"),
            ("for b, p in self.batches.items() if p.last <= instant]", "for b, p in self.batches.items() if False]"),
            ("max(LEAST_DEAD, 2 * self._known)", "LEAST_DEAD")),
        *of("engine/sums.py", "engine/test_sums.py engine/test_means.py engine/test_aggregation.py",
            ("missing |= self.wraps[groups] != 0", "pass"),
            ("& (low >= np.uint64(above_low)))", "& (low > np.uint64(above_low)))"),
            ("totals[nan | (plus & minus)] = np.nan", "totals[nan] = np.nan"),
            ("mask=counts < 2)", "mask=counts < 1)")),
        *of("engine/checkpoint.py", f"engine/test_pieces.py engine/test_crash.py {JOINS} engine/test_migration.py",
            ("if rows.num_rows != record.rows:", "if False:"),
            ("if data.size != 8 * len(key.inputs) * record.rows:", "if False:"),
            ("if whole and not key.since:", "if whole:"),
            ("if len(self._predicates) > self._most_predicates:", "if False:"),
            ("if (known := self.store.thin.get(key, batch)) >= 0:", "if (known := self.store.thin.get(key, batch)) > 0:"),
            ("named.get((key.digest, run.record.entries))", "run.record")),
        *of("engine/cells.py", "engine/test_cells.py balance/test_partition.py",
            ("if column.null_count:\n        hashes", "if False:\n        hashes"),
            (".to_numpy(zero_copy_only=False) + 0.0", ".to_numpy(zero_copy_only=False).copy()")),
    ),
    "limits": (
        *of("engine/row_hash.py", "engine/test_row_hash.py engine/test_overload.py",
            ("hashing.choose(hashes, np", "hashing.choose(np.arange(len(hashes)).astype(np.uint64), np"),
            ("sorted(range(rows.num_columns), key=lambda place: rows.schema.names[place])", "range(rows.num_columns)"),
            ("np.where(is_null, np.uint64(NULL), words)", "words"),
            ("value_words(column.values.slice(first, last - first))", "value_words(column.values)")),
        *of("engine/limits.py", "engine/test_overload.py",
            ("np.square(stands_for)", "stands_for"),
            ("stands_for = np.bincount(alike, self._found[places])", "stands_for = self._found[places]"),
            ("np.full(len(results), 1 / self._share)", "np.ones(len(results))"),
            ('f"probe {alias} {limits.slot}"', 'f"probe {limits.slot}"'),
            ('f"probe {alias} {limits.slot}"', 'f"probe {alias}"'),
            ("limit.rows.get(self.slot)", "limit.rows.get(0)")),
        *of("engine/shed_fates.py", "engine/test_overload.py",
            ("self._again += float(", "self._again += 0.5 * float("), ("np.where(ids == others, 1.0, shares)", "shares"),
            ("variance += missed *", "variance +="), ("covariance += 2 * missed", "covariance += missed"),
            ("own = np.bincount(alike, sums[places])", "own = np.bincount(alike, np.sqrt(sums[places]))"),
            ("return_inverse=True)", "return_inverse=True)\n            alike = np.arange(len(places))"),
            ("variance + copies * own", "variance + own"), ("if batch in segments}", "if True}"),
            ("before[batch][: len(sums)] if batch in before else 0.0", "0.0")),
        *of("adapt/overload.py", "adapt/test_overload.py",
            ("self._queries.get(name) != query]", "name not in self._queries]"),
            ("queries.keys() - new)", "queries.keys())"),
            ("each.only(queries) for each in state.samples", "state.samples"), ("CATCH_UP = 0.6", "CATCH_UP = 0.85")),
        *of("engine/lookup.py", "engine/test_overload.py",
            ("known = known[probing[known[:, 1].view(np.int64)]]", "known = known[probing[: len(known)]]"),
            ("rows = rows.where(probing)\n", "pass\n")),
        *of("engine/freshness.py", "engine/test_overload.py",
            (">= each.time_us\n", "> each.time_us\n"),
            ("may_be_missed(watermark_us + 1)", "may_be_missed(watermark_us + each.window_us)"),
            ("min(found, default=BEGINNING_US)", "max(found, default=BEGINNING_US)")),
        *of("engine/checkpoint.py", "engine/test_overload.py", (", slices, stored.kept)", ", slices)"),
            (", slices, record.kept)", ", slices)")),
        *of("engine/arrival.py", "engine/test_overload.py",
            ("counts.rows += dropped.rows", "pass"), ("self.limits.kept.get(source.name, 1.0)", "1.0"),
            ("max(times, default=None)", "counts.largest_time_us")),
    ),
    "coming": (
        *of("engine/lineage.py", COMES,
            ("if each.text not in passed and each.members & there]", "if each.text not in passed]"),
            ("            mask_of = there\n", "            mask_of = self._everybody\n"),
            ("if since <= batch)", "if since < batch)"),
            ("if first is not None and batch >= first:", "if False:"),
            ("if before.sets.masks[n] >> old & 1)", ")")),
        *of("engine/reader.py", COMES,
            ("return first <= batch < end", "return first < batch < end"),
            ("found[places] &= (chosen >> 32 >= span[0]) & (chosen >> 32 < span[1])", "pass")),
        *of("engine/rebuild.py", "engine/test_contained.py engine/test_coming.py",
            ("wanted = {each for each in key.wanted if each.since <= store.newest}", "wanted = set(key.wanted)"),
            ("has_all = not before.wanted or (bool(key.wanted) and set(before.wanted) >= wanted)", "has_all = True")),
        *of("engine/slot.py", COMES,
            ("is_since = reader.lineage is not None or reader.since == tenant.since", "is_since = True"),
            ("self.boxes = {n: box for n, box in self.boxes.items() if box.reader.query != name}", "pass")),
        *of("engine/arrival.py", COMES, ("if not reader.is_shown(i, batch):", "if False:")),
        *of("control/watermark.py", "control/test_watermark.py",
            ("if name in alike]", "if name == query.name]")),
        *of("drive/driver.py", COMES,
            ("            come = self._take_in(begun)\n", ""),
            ("each.query.since, each.query.declared, each.query.command = own.since, own.declared, own.command",
             "each.query.declared, each.query.command = own.declared, own.command"),
            ("before.declared or before.text.sql_digest", "before.text.sql_digest")),
        *of("drive/driver.py", "drive/test_tables.py",
            ("own = own if own is not None and own.identity == query.identity else None", "pass")),
        *of("drive/runner.py", COMES,
            ("            write_coming(self.driver.filesystem, note)\n", ""),
            ("        self._forget_notes()\n", ""),
            ("over = self._noted - self._asked.keys() - self.driver.coming.keys()", "over = set(self._noted)")),
        *of("drive/work.py", COMES,
            ("if last is not None and last.identity == own.identity:", "if last is not None:"),
            ("if name not in known or known[name].written is not query:", "if name not in known:")),
        *of("plan/history.py", "plan/test_history.py",
            ("j.window.length_us < i.window.length_us", "False"),
            ("return passed <= asked.keys() and read <= kept", "return read <= kept"),
            ("return passed <= asked.keys() and read <= kept", "return passed <= asked.keys()"),
            ("return way_of(theirs, j.alias) == way_of(grid, i.alias)", "return True")),
        *of("control/spark_streams.py", "control/test_spark_streams.py",
            ("if not (more := self.lacking(names)):", "if not (more := list(names)):"),
            ("return self.fixed or why_fixed(", "return why_fixed("),
            ("why_fixed({**self.names, **{name", "why_fixed({**{name"),
            ("(now := names[name]) != before:", "(now := names[name]) and now != before:"),
            ("if count > 1)", "if count > 2)"),
            ("        if stream not in counted.streams:\n", "        if True:\n"),
            ("SparkStreams(found, fixed=BEFORE_NAMES)", "SparkStreams(found)")),
        *of("drive/coming.py", COMES,
            ("if new := set(steering.streams) - {stream", "if new := set() - {stream")),
        *of("plan/history.py", "plan/test_history.py",
            ("block.inputs if i.source.name not in silent]", "block.inputs]")),
        *of("control/left.py", "drive/test_departed.py",
            ("[-self._most :]", "[: self._most]"),
            ("if back & self.queries.keys():", "if False:"),
            ("self._ledger.prune(number)", "pass")),
        *of("drive/departed.py", "drive/test_departed.py drive/test_departed_sweeps.py drive/test_leaving.py",
            ("if batch < first]", "if batch <= first + 8]"),
            ("            for digest in (text.digest, text.base):\n", "            for digest in ():\n"),
            ("                if text.base:\n", "                if False:\n"),
            ("if not any(commit.staged(name) for commit in kept):", "if True:"),
            ("        named |= {note.text for note in read_coming(folder)}\n", ""),
            ("latest.get(name, -1))[:-most]", "-latest.get(name, -1))[:-most]"),
            ("        if name not in there:\n            forget_sink", "        if False:\n            forget_sink")),
        *of("drive/driver.py", "drive/test_departed.py drive/test_commands.py drive/test_refused.py",
            ("if left.batch <= first and name not in waiting}", "if name not in waiting}"),
            ("if left.batch <= first and name not in waiting}", "if left.batch <= first}"),
            ("                self.refused[name] = str(error)\n", ""),
            ("        self.left.forget(name for name in self.coming if name in self.queries)\n", ""),
            ("for each in {**self.left.queries, **self.ended}.values())", "for each in self.left.queries.values())"),
            ("(commands or {}).get(name) or own.command)", "own.command)"),
            (" and name not in come):", "):")),
        *of("drive/steering.py", "drive/test_failing_arrivals.py",
            ("if own is not None and own.identity == self.identity:  # else", "if own is not None or True:  # else")),
        *of("drive/runner.py", "drive/test_commands.py drive/test_refused.py",
            ("asked = {*self._dropped.values(), *(each.command for each in self._asked.values())}", "asked = set[str]()")),
        *of("drive/work.py", "drive/test_departed.py",
            ("one.forms is other.forms and one.since == other.since", "one.forms is other.forms"),
            ("            del known[name]\n", "            pass\n"), ("        del read[name]\n", "        pass\n")),
        *of("control/commands.py", "control/test_commands.py",
            ("is not None:\n            _delete", "is not None and False:\n            _delete"),
            ("found.append((name, error))", "pass"),
            ("sorted(checkpoint.list(COMMANDS))", "reversed(checkpoint.list(COMMANDS))")),
    ),
    "sharing": (
        *of("engine/lineage.py", SHARED,
            ("if not len(ages.limits_us):", "if True:"),
            ("if own_us > us or not own_us) for us", "if own_us >= us or not own_us) for us"),
            ("if each.text not in passed and each.members & there]", "if each.members & there]"),
            ("mask_of &= left", "pass"),
            ("starts - ends + window_us)", "starts - ends + window_us + 1)"),
            ("if len(self._ages[alias].limits_us):", "if False:"),
            ("return self._known[alias][batch][:count]", "return self._known[alias][batch]"),
            ("            self._stores[alias].known.intersection_update(alive)", "            pass"),
            ("return self.bits(one) & self.bits(other)", "return self.bits(one) | self.bits(other)"),
            ("new = np.array([self.sets.number(before.masks[n]) for n in there.tolist()])", "new = there")),
        *of("engine/shared_box.py", SHARED,
            ("np.minimum(ends, times + i.window.length_us, out=ends)", "np.minimum(ends, times + 1, out=ends)"),
            ("sets = rows.sets = self.lineage.in_time(rows, logs)", "sets = rows.sets"),
            ("super()._run(emit)\n        yield from self._routed()", "super()._run(emit)"),
            ("changes = np.concatenate([in_set, outside]) != np.concatenate([outside, in_set])",
             "changes = np.concatenate([in_set, outside]) > np.concatenate([outside, in_set])")),
        *of("engine/shares.py", f"{SHARED} engine/test_shares.py",
            ("if len(members) == members[-1] - members[0] + 1:", "if True:"),
            ("== len(self) - 1", ">= 0"),
            ("before + bounds.RESULT_ROWS, \"right\"))", "before, \"right\"))"),
            ("found: npt.NDArray[np.bool_] = self.offsets[members + 1] - self.offsets[members] == 1",
             "found: npt.NDArray[np.bool_] = self.offsets[members + 1] - self.offsets[members] >= 1")),
        *of("engine/slices.py", SHARED,
            ("window_us * bounds.SLICE_RATIO <= found[-1]", "window_us <= found[-1] * bounds.SLICE_RATIO"),
            ("np.argsort(-places, kind=\"stable\")", "np.argsort(places, kind=\"stable\")"),
            ("max((us for us in windows_us if us <= retention_us), default=None)", "max(windows_us)"),
            ("inside = (positions >= begin) & (positions < each.end)", "inside = positions < each.end")),
        *of("engine/log.py", SHARED,
            ("while left and left[-1].retention_us in stored.over:", "while left and left[0].retention_us in stored.over:"),
            ("self._counts.set(batch, after.rows.num_rows)", "pass")),
        *of("engine/arrival.py", SHARED,
            ("np.maximum(found, windows if own is None else np.where(own, windows, 0), out=found)", "pass"),
            ("elif own is None and i.window_us >= windows_us[-1]:", "elif own is None:"),
            ("else numbers[places]", "else numbers[: len(places)]"),
            ("mask = both(mask, sets != NOBODY)", "pass")),
        *of("engine/lookup.py", SHARED,
            ("np.minimum(lineage.longest_us(target[0], sets), window_us)",
             "np.minimum(lineage.longest_us(target[0], sets) // 2, window_us)"),
            ("else np.full(len(ordered), window_us)", "else np.full(len(ordered), window_us // 2)"),
            ("= reaches_us[ordered[:, 1].view(np.int64)]", "= reaches_us[: len(ordered)]"),
            ("matches, parts = matches[:, there], {each: ids[there] for each, ids in parts.items()}",
             "log.check(parts[alias])")),
        *of("engine/rebuild.py", SHARED,
            ("has_all = not before.wanted or", "has_all = True or"),
            ("if old.lineage is not None or new.lineage is not None:", "if False:")),
        *of("plan/shared_join.py", SHARED, ("and not any(own) and windows == longest", "and windows == longest"),
            ("for text, predicate in first.items() if all(text", "for text, predicate in first.items() if any(text")),
        *of("share/canonical.py", f"share {SHARED}",
            ("also = () if _is_connected(graph) else query.residuals", "also = ()"),
            ("if execution.grouped_input is not None or execution.leaving is not None or execution.selects or execution.woken:",  # noqa: E501
             "if False:"),
            ("spread = grid.shares, ways, self.distribution.needs_no_exchange", "spread = ()"),
            ("names), going, spread, execution.company", "names), going, spread"),
            ("if self.execution.company == host.execution.company else None", "if True else None")),
        *of("engine/kernels/probing.py", "engine/kernels/test_probing.py",
            ("- newest_us < reaches_us[row])", "- newest_us + 1 < reaches_us[row])"),
            ("                count = _reaching(rows, block,", "                _reaching(rows, block,"),
            ("end = entry_end(entries, low, layout, begun_us, window_us)",
             "end = entry_end(entries, low, layout, begun_us, window_us) + 1"),
            ("end = entry_end(entries, at, layout, begun_us, window_us)",
             "end = entry_end(entries, at, layout, begun_us, window_us) + 1")),
        *of("engine/run.py", f"engine/test_run.py engine/test_spine.py {SHARED}",
            ("            self.start_max_us,\n        ]", "            self.base_start_us,\n        ]"),
            ("max(r.start_max_us for r in runs)", "min(r.start_max_us for r in runs)"),
            ("start_max_us=int(self._starts(entries).max())", "start_max_us=int(self._starts(entries).min())")),
        *of("plan/migration.py", "plan/test_selects.py drive/test_company.py",
            ("return replace(execution, plan=plan, migration=None, grouped_input=grouped_input, leaving=None, selects=())",
             "return Execution(plan, None, grouped_input)")),
        *of("drive/staging.py", "drive/test_delivery.py drive/test_staging.py drive/test_protocol.py",
            ("if query in self.own_files and query not in mixed:", "if query in self.own_files:"),
            ("self._write(self._waiting.rest())", "pass")),
        *of("engine/checkpoint.py", SHARED,
            ("for batch in [b for b in known if not _is_whole(known[b], log.segments.get(b))]:",
             "for batch in known.keys() - log.segments.keys():"),
            ("(not is_cut or _is_whole(mine", "(_is_whole(mine"),
            ("tuple(Slice(*each) for each in record.slices)", "tuple(Slice(*each) for each in record.slices[:1])")),
    ),
    "place": (
        *of("place/statement_of.py", "place/test_placed.py",
            ('    return found.having("count(*) > 0", dialect=DIALECT)', "    return found"),
            ("found = found.where(expression_tree(residual))", "pass"),
            ("return _joined(found, query).where(exp.LT(this=_latest(query), expression=_earliest(query)))",
             "return _joined(found, query)")),
        *of("place/sql_text.py", "place/test_capabilities.py",
            ("        return _wrapped(found)", "        return _cast(found, aggregate.type)"),
            ("        value = exp.Case(ifs=[is_nought], default=value.copy())", "        pass")),
        *of("place/tree.py", "place/test_tree.py place/test_wishes.py",
            ("if self._is_inexact(a) and (self.is_read_exactly or", "if False and (self.is_read_exactly or")),
        *of("engine/mig_box.py", "place/test_placed.py",
            ("(n <= batch if other < place else n < batch)", "n <= batch"),
            ("        groups.take(columns, starts, starts + 1)", "        groups.take(columns, starts, starts)")),
        *of("engine/slot.py", "place/test_placed.py",
            ("            box.aggregator.take(*found)", "            pass"),
            ("            self._fold_rows(box)", "            pass"),
            ("    same = same and reader.is_placed == (block.query.statement is not None)", "")),
        *of("drive/queries.py", "place/test_placed.py",
            ("    query = placed(query, places_kept(query, written.places), failure)", "    pass")),
        *of("adapt/placing.py", "adapt/test_placing.py", ("if self.since < STAYS_BATCHES:", "if False:")),
    ),
    "contained": (
        *of("engine/lineage.py", CONTAINED,
            ("yield self._everybody & ~members, in_time", "yield self._everybody, in_time"),
            ("there = self._there(batch) & self._over[alias]", "there = self._there(batch)"),
            ("has_come or self.tells_late(alias)", "has_come"),
            ("if before.tells_late(alias) == self.tells_late(alias) else ():", "if True else ():"),
            ("is_even and len(longest) == 1", "is_even")),
        *of("engine/arrival.py", CONTAINED, ("least_us if has_late(reader, i) else limits", "limits"),
            ("late[streams] = limit_us", "late[reader.streams] = limit_us")),
        *of("engine/reader.py", CONTAINED, ("if f in self.lineage.shared.asked[alias])", ")"),
            ("        if self.lineage is not None and self.lineage.tells_late(alias):\n", "        if False:\n")),
        *of("engine/lookup.py", CONTAINED,
            ("if is_same and (box.reader.has_keys(route.alias, keys.terms) or keys.valid is None):", "if is_same:")),
        *of("engine/shared_box.py", CONTAINED,
            ("self._wait(rows, lineage.of_members(rows.sets, here, len(rows)))", "self._wait(rows, rows.sets)"),
            ("        if emit:\n            self._wait", "        if True:\n            self._wait"),
            ("everybody & ~here, len(rows))", "everybody, len(rows))"),
            ("self.arrival.batch, self.watermarks[member.name],", "self.arrival.batch, watermark_us,")),
        *of("engine/slot.py", CONTAINED, ("{name: min(members.values())}", "{name: max(members.values())}")),
        *of("engine/box.py", CONTAINED + " engine/test_sharing.py",
            ("found.setdefault(index.key, BoundIndex(index.key, aliases, terms))", "pass")),
        *of("plan/shared_join.py", CONTAINED,
            ("if aliases < set(m.aliases))", "if aliases <= set(m.aliases))"),
            ("graph.decided_in(set(m.aliases))", "self.join.residuals"),
            ("graph.inputs_needed(residual) <= set(m.aliases)]", "len(m.inputs) == len(lead.inputs)]"),
            ("is_one = all(self.streams[place] == self.streams[0] for place in beyond)", "is_one = True")),
        *of("plan/jtree.py", CONTAINED, ("any(not place_of.keys() >= set(first) for first in firsts)", "False")),
        *of("plan/contained.py", CONTAINED, ("if not any(equal <= each for each in classes):", "if False:")),
        *of("plan/grid.py", f"../anabranch/plan/grid.py {CONTAINED}",
            ("all(self.coordinate(cell, place) == 0 for place in fixed)", "True"),
            ("not in (*self.own(alias), *fixed)]", "not in self.own(alias)]")),
        *of("share/canonical.py", CONTAINED, ("mine.grid.fixed == part.fixed and all", "all"),
            ("        return self._lies_with(host, names)\n", "        return True\n")),
    ),
    "sql": (
        *of("plan/predicates.py", f"{SQL} engine/test_rewrites.py plan",
            ("return any(isinstance(node, ResultTime) for node in walk(expr))", "return False")),
        *of("sql/bind.py", SQL,
            ("if longest > MOST_INSTANTS * slide_us:", "if longest >= MOST_INSTANTS * slide_us:"),
            ("inputs[: position + 1])", "inputs)"),
            ("if name.lower() in taken:", "if name in taken:"),
            ("range_window(grouping.slide_us) if grouping", "range_window(2 * grouping.slide_us) if grouping")),
        *of("sql/group_by.py", SQL, ("if named and not is_column:", "if named:"), ("if 1 <= place <=", "if 0 <= place <="),
            ("kind.precision + 10", "kind.precision"),
            ("if key not in keys:", "if True:")),
        *of("sql/durations.py", SQL + " plan", ("not 0 <= exact <= LONGEST_US", "not 0 < exact <= LONGEST_US"),
            ("if total > LONGEST_US:", "if False:"), ("if exact != int(exact):", "if False:")),
        *of("sql/statements.py", SQL,
            ("                if idle_us == 0:\n", "                if False:\n"),
            ("if path is None and on_error.sets_aside:", "if False:"),
            ("                if slide_us == 0:\n", "                if False:\n"),
            ("            if clause in seen:\n                self.fail(SyntaxSqlError, f\"{clause} stands twice\", at)",
             "            if False:\n                self.fail(SyntaxSqlError, f\"{clause} stands twice\", at)"),
            ("and not self._at_refused() and not is_clause", "and not self._at_refused()"),
            ("            if window is not None:\n", "            if False:\n")),
        *of("sql/scope.py", SQL, ("if len(found) > 1:", "if len(found) > 2:")),
        *of("sql/coercion.py", SQL,
            ('if op == "add" and pa.types.is_duration(left.type):', "if pa.types.is_duration(left.type):"),
            ("if parsed.tzinfo is not None:", "if False:"),
            (" and not any(pa.types.is_floating(e.type) for e in exprs)", "")),
        *of("sql/types.py", SQL, ("right.scale) + scale + 1, scale)", "right.scale) + scale, scale)"),
            ("left.precision + right.precision + 1,", "left.precision + right.precision,"),
            ("unsigned.bit_width * 2, signed.bit_width)", "unsigned.bit_width, signed.bit_width)")),
        *of("sql/expressions.py", SQL, ('comparison("ge", value, low)', 'comparison("gt", value, low)'),
            ("(missing[0], missing[1], missing[1], FALSE, equal)", "(missing[0], missing[1], equal)"),
            ("if not -(2**63) <= exact < 2**63:", "if not -(2**63) <= exact <= 2**63:"),
            ("truth if right.this else negation(truth), FALSE)", "truth if right.this else negation(truth), TRUE)")),
    ),
    "spark": (
        *of("spark/pushdown.py", "spark/test_pushdown.py", ('f"NOT coalesce({useless}, FALSE)"', 'f"NOT ({useless})"'),
            ("return all(map(pa.types.is_floating, types))", "return True"),
            ("given.bit_width <= wanted.bit_width", "given.bit_width >= wanted.bit_width"),
            (' and not set(pattern.value) & set("_\\\\")', ""),
            ("self._variables.set(entry, int(bool(texts & self._raised)))", "self._variables.set(entry, 0)"),
            ("/ nullif({args[1]}, 0))", "/ {args[1]})")),
        *of("spark/cells.py", "spark/test_cells.py",
            ("F.when(value == F.lit(0.0), F.lit(0.0)).otherwise(", "("),
            ("F.array_distinct(F.array(*targets.values()))", "F.array(*targets.values())")),
        *of("spark/task.py", "spark/test_reader.py",
            ("int((in_time < watermark_us).sum())", "int((in_time <= watermark_us).sum())"),
            ("max(largest, counts.largest_time_us)", "largest")),
        *of("spark/sinks.py", "drive/test_publishing.py spark/test_session.py",
            ("if files and not self._is_published(target, token):", "if files:"),
            ("        if found != token:\n", "        if False:\n"),
            ("int(owner) <= number:", "int(owner) < number:"),
            ("if not is_mark_of(found, owner):", "if False:")),
        *of("spark/file_list.py", "spark/test_file_list.py", ("if number > len(self._files):", "if False:"),
            ("if began - modified_ns / 1e9 > SETTLE_S and len", "if len"),
            (" and len(self.waiting) == waiting:", ":")),
        *of("spark/file_rows.py", "spark/test_file_rows.py spark/test_on_error.py",
            ("np.flatnonzero(~is_blank) + 1)", "np.flatnonzero(~is_blank))"),
            ("if rows.num_rows != len(some) + 1:", "if False:"),
            ("if rows.num_rows != len(some):", "if False:"),
            ("if not formats.holds(text, b'\"'):", "if True:"),
            ("told = sorted([*bad, *self.torn])", "told = [*bad, *self.torn]"),
            ("if not pc.all(is_object).as_py():", "if False:")),
        *of("spark/file_formats.py", "spark/test_file_rows.py", ("rows.validate(full=True)", "pass")),
        *of("spark/damaged.py", "spark/test_on_error.py",
            ("each.batch >= mark.batch), new))", "each.batch > mark.batch), new))"),
            ("if mark.stream == stream}", "if True}")),
        *of("spark/pack.py", "spark/test_oracle.py spark/test_reader.py",
            ("np.diff(numbers)) + 1)", "np.diff(numbers)))"),),
    ),
    "host": (
        *of("drive/runner.py", DRIVER,
            ("if not self._would_be_final(commit) or not is_done(commit.trigger):", "if not self._would_be_final(commit):"),
            ("if not self._would_be_final(commit) or not is_done(commit.trigger):", "if not is_done(commit.trigger):"),
            ("if self.driver.standing.is_cut_short:", "if False:"),
            ("if self.driver.standing.meaning(trigger) is Meaning.RUN:", "if True:"),
            ("        self.delivery.offer(commit)\n", ""),
            ("self.driver.queries.keys() - failed.keys():", "self.driver.queries.keys():"),
            ("driver.after(base, commit, self.delivery.first_waiting, load, waiting)",
             "driver.after(base, commit, None, load, waiting)")),
        *of("drive/delivery.py", DRIVER,
            ("commit.batch <= arrived.get(name, -1):", "commit.batch < arrived.get(name, -1):"),
            ("            self.require_held()\n", ""),
            ("self.waiting.popleft().bytes)", "self.waiting.pop().bytes)"),
            ("return () if files.readers else self._files.pop", "return self._files.pop"),
            ("        self._delete(over)\n", ""),
            ("                    self.left[name] = str(error)\n", ""),
            ("            if self._stopped:\n                return", "            if False:\n                return")),
        *of("drive/staging.py", "drive/test_staging.py drive/test_delivery.py drive/test_protocol.py",
            ("offset += encoded.size + gap", "offset += encoded.size"),
            ("if size := self.own_files[query](name, spool.read(query)):",
             "if not (size := self.own_files[query](name, spool.read(query))):")),
        *of("drive/queries.py", "drive/test_queries.py drive/test_rewritten.py",
            ("if identity_of(query) != text.identity:", "if False:"),
            ("control.queries[name].layout, slots)", "[*control.queries.values()][0].layout, slots)")),
        *of("balance/together.py", "balance drive/test_queries.py",
            ("if stream not in filtered:", "if stream in filtered:")),
        *of("spark/host.py", "spark/test_remote.py",
            ("lambda trigger: self.spark_log.keep(trigger)", "lambda trigger: None")),
        *of("drive/driver.py", DRIVER,
            ("or is seen now.\n        self.holder.require_held()", "or is seen now."),
            ("runs=begun.runs + 1, ", "runs=begun.runs, "),
            ("self._control(trigger) if begun is None else", "self._control(trigger) if True else"),
            ("            self.ended |= begun.ended\n", ""),
            ("others = {name: own for name, own in control.queries.items() if name in self.queries}",
             "others = control.queries")),
        *of("drive/steering.py", DRIVER,
            ("if begun.runs >= MOST_FAILED_RUNS:", "if begun.runs > MOST_FAILED_RUNS:"),
            ("if isinstance(after, Refusal) and grouped_input == before.grouped_input:", "if False:"),
            ("        if self.is_pinned:\n            return\n", "")),
        *of("drive/driver.py", "drive/test_tables.py",
            ("elif watermark_us >= last_us + table.every_us:", "elif watermark_us > last_us + table.every_us:")),
        *of("drive/driver.py", "drive/test_tables.py spark/test_tables.py",
            ("{**before, **control.tables},", "control.tables,")),
        *of("drive/driver.py", "spark/test_pushdown.py", ("+= source.rows - reached", "+= source.rows")),
        *of("drive/restart.py", "drive/test_rewritten.py test_check.py test_session.py spark/test_restarts.py",
            ("if name in going or (outcome is not None and outcome.fate in (Fate.FRESH, Fate.REFUSED)):",
             "if name in going:"),
            ("            if not going:\n                raise", "            if False:\n                raise"),
            ("if out.takes_files or has_own_files:", "if out.takes_files:"),
            ("if out.takes_files or has_own_files:", "if has_own_files:"),
            ("        if out.held() is not None:\n", "        if False:\n"),
            ("if held is not None and not _alike(held, query.output_schema):", "if False:"),
            ("            if self.slots is not None:\n", "            if False:\n")),
        *of("drive/transition.py", "drive/test_transition.py drive/test_asking.py drive/test_protocol.py",
            ("return replace(execution, migration=None)", "return execution"),
            ("if strategy is Strategy.MOVING_STATE or action.plan == execution.plan:",
             "if strategy is Strategy.MOVING_STATE:"),
            ("if action.strategy is Strategy.PARALLEL_TRACK:\n        instead", "if False:\n        instead"),
            ("if action.strategy is Strategy.PARALLEL_TRACK:\n        return", "if False:\n        return")),
        *of("drive/retain.py", DRIVER,
            ("commit.batch if kept_from is None else kept_from)", "commit.batch)"),
            ("return min(base.batch, commit.batch - self.every,", "return min(base.batch,"),
            ("controls.prune(base.batch)", "controls.prune(commit.batch)"),
            ("named |= files_of((slot.manifest for slot in before", "files_of((slot.manifest for slot in before"),
            ("for slot in base.slots.values() for path", "for slot in commit.slots.values() for path"),
            ("if number < commit.batch - 1}", "if number < commit.batch + 1}")),
        *of("control/manifest.py", f"control/test_manifest.py control/test_sweep.py {JOINS} drive/test_driver.py",
            ("if known not in kept)", "if known in kept)"),
            ("if n not in away)", "if n + 1 not in away)")),
        *of("drive/work.py", DRIVER,
            ("forms, read), last.watermark_us", "forms, read), own.watermark_us"),
            ("        if not is_latest:\n", "        if False:\n"),
            ("if changed or coming or going:", "if changed or coming:"),
            ("known[name][0] != record:", "False:")),
        *of("control/resume.py", f"control/test_resume.py {DRIVER}",
            ("if trigger != self.trigger + 1:", "if trigger <= self.trigger:"),
            ("(found.trigger, found.trigger + 1):", "(found.trigger + 1,):")),
        *of("control/lease.py", f"control/test_lease.py {DRIVER}",
            ("if claim.expires_at_s <= now_s:", "if claim.expires_at_s < now_s - 60:"),
            ("max(claims, default=0) >= self.epoch", "max(claims, default=0) > self.epoch"),
            ("            with contextlib.suppress(OSError):\n", "            if True:\n"),
            ("            if not self._is_released:\n                self._write()", "            self._write()")),
    ),
}  # fmt: skip


def notice(mutation: Mutation, tree: Path, only_few: bool) -> str:
    """What the tests of a room say of a mutation: noticed by some test, stale, or survived."""
    path = tree / mutation.file
    text, times = path.read_text(), os.stat(path)
    if text.count(mutation.before) != 1:
        return f"STALE ({text.count(mutation.before)} places)"
    path.write_text(text.replace(mutation.before, mutation.after))
    try:
        for marks, few in RUNS[:2] if only_few else RUNS:
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "-m",
                       f"not long and not fresh and {marks}", *few, *mutation.tests]  # fmt: skip
            environment = {**os.environ, "PYTHONPATH": str(tree)}
            limit_s = LIMIT_FEW_S if few else LIMIT_S
            done = run_within(limit_s, command, tree, environment)
            if done is None:
                return f"noticed, for the tests did not end within {limit_s:.0f} s"
            if done.returncode == 1 or "ERROR" in done.stdout:
                found = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return f"noticed by {found[-1].split(' - ')[0] if found else '?'}"
            if done.returncode < 0:
                return f"noticed, for the tests end by signal {-done.returncode}"
            if done.returncode not in (0, NONE_TO_RUN):
                return f"NOT RUN: {(done.stdout + done.stderr)[-300:]}"
        return "SURVIVED"
    finally:
        path.write_text(text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # compiled kernels stay good for it


def run_within(
    limit_s: float, command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str] | None:
    """What a command says; None if the time is over before it ends: then it ends, with all that it has begun."""
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as running:  # fmt: skip
        try:
            out, errors = running.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # fixtures end, unless this is what hangs
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.communicate(timeout=END_S)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            return None
    return subprocess.CompletedProcess(command, running.returncode, out, errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="room", help=f"of {', '.join(MUTATIONS)} (default: all)")
    parser.add_argument("--only", default="", help="mutations of whose line this is a part")
    parser.add_argument("--few", action="store_true", help="with few random cases only: what survives may yet be noticed")
    given = parser.parse_args()
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, tree / name)
        for room in given.rooms or MUTATIONS:
            for mutation in MUTATIONS[room]:
                if given.only in str(mutation):
                    began = time.monotonic()
                    said = notice(mutation, tree, given.few)
                    survivors += not said.startswith("noticed")
                    print(f"{time.monotonic() - began:6.0f} s  {mutation}: {said}", flush=True)
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
