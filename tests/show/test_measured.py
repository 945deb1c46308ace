"""Measured figures beside predicted ones, from the commits of a query that has run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from anabranch.control.ledger import commits_in
from anabranch.control.progress import ProgressLog, progress_of
from anabranch.control.records import ExecutionRecord, Limit
from anabranch.cost.streams import Basis
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalPipeline
from anabranch.plan.overload import Overload, Policy
from anabranch.planning import Planning
from anabranch.show.explain import reason
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem

NAMES = ("a", "b", "c")
STREAMS = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, ts TIMESTAMP) TIME ts;" for s in NAMES)
QUERY = "SELECT a.k FROM a AS a, b AS b, c AS c WHERE a.k = b.k AND b.j = c.j WINDOW 3 SECONDS"
PER_S, KEYS, BATCHES = 200, 100, 12


def rows_of(batch: int, seed: int) -> pa.Table:
    """Rows of one second."""
    drawn = np.random.default_rng([batch, seed]).integers(0, KEYS, (2, PER_S))
    times = batch * 1_000_000 + np.arange(PER_S) * (1_000_000 // PER_S)
    return pa.table({"k": drawn[0], "j": drawn[1], "ts": pa.array(times, pa.timestamp("us"))})


def has_run(folder: Path, plan: str, pinned: str = "", names: Sequence[str] = NAMES) -> Planning:
    """The planning of a query that has run under a plan. Its streams have other `names` than their aliases."""
    planning = Planning(slots=1, checkpoint=LocalFilesystem(str(folder)))
    script = f"{STREAMS} CREATE QUERY q {f'PLAN {pinned!r}' if pinned else ''} AS {QUERY}"
    for alias, name in zip(NAMES, names, strict=True):
        script = script.replace(f"STREAM {alias} ", f'STREAM "{name}" ').replace(f"{alias} AS", f'"{name}" AS')
    planning.add_script(parse_script(script))
    query = planning.query("q").forms.written
    pipeline = LocalPipeline([query], LocalFilesystem(str(folder / "pipeline-0")), {"q": plan})
    for batch in range(BATCHES):
        pipeline.step(batch, {name: rows_of(batch, seed) for seed, name in enumerate(names)})
    return planning


@pytest.mark.parametrize("names", [NAMES, ("s", "s ordered", "s where it is")], ids=["short", "alike"])
def test_measured_beside_predicted(tmp_path: Path, names: Sequence[str]) -> None:
    """The plan is that of the last commit; rates and keys are measured, so that what they predict is near what is there. A
    stream may be called as another one and a word that the names of indexes have."""
    planning = has_run(tmp_path, "((a b) c)", names=names)
    found = planning.priced("q")
    assert found.plan_text == "((a b) c)"
    assert found.batches is not None
    assert found.basis is Basis.MEASURED
    nodes = {node.aliases: node for node in found.tree.walk()}
    assert set(nodes) == {("a",), ("b",), ("c",), ("a", "b"), ("a", "b", "c")}
    for aliases, node in nodes.items():
        assert node.measured.rows_per_s == pytest.approx(node.predicted.rows_per_s, rel=0.3), aliases
        if not node.is_root:
            assert node.measured.kept_rows == pytest.approx(node.predicted.kept_rows, rel=0.5), aliases
            assert node.measured.kept_bytes == pytest.approx(node.predicted.kept_bytes, rel=0.6), aliases
    assert nodes["a",].measured.rows_per_s == pytest.approx(PER_S)
    kept = sum(node.measured.kept_bytes or 0.0 for node in nodes.values())
    assert kept == pytest.approx(found.batches.state_bytes)
    head = planning.explain("q").split("\n\n")[1].splitlines()[0]
    assert " ".join(head.split()) == "rows/s measured rows kept measured bytes kept measured CPU measured known"
    assert f"by what {found.batches.count} batches measured" in " ".join(planning.explain("q").split())
    values = planning.explain_json("q")
    assert values["measured"]["last_batch"] == BATCHES - 1
    assert values["tree"]["known"] == "measured"
    assert "rows/s" in planning.draw("q")


def test_a_plan_that_is_not_the_one_that_would_be_chosen(tmp_path: Path) -> None:
    """a and c have no key in common."""
    found = has_run(tmp_path, "((a c) b)").priced("q")
    assert found.plan_text == "((a c) b)"
    assert reason(found).startswith("a query that has run goes on with the plan of its last commit. By these figures ")


def test_a_pinned_plan_that_has_not_run(tmp_path: Path) -> None:
    assert has_run(tmp_path / "same", "((a b) c)", "((a b) c)").priced("q").batches is not None
    found = has_run(tmp_path / "other", "((a b) c)", "(a b c)").priced("q")
    assert (found.plan_text, found.batches) == ("(a b c)", None)


def test_another_query_of_the_same_name(tmp_path: Path) -> None:
    """What another query measured says nothing about this one."""
    has_run(tmp_path, "((a b) c)")
    planning = Planning(slots=1, checkpoint=LocalFilesystem(str(tmp_path)))
    planning.add_script(parse_script(f"{STREAMS} CREATE QUERY q AS {QUERY.replace('3 SECONDS', '9 SECONDS')}"))
    assert planning.priced("q").batches is None


def test_batches_of_another_plan_do_not_count(tmp_path: Path) -> None:
    """A query that went over to another plan is told by what it measured since."""
    planning = has_run(tmp_path, "((a b) c)")
    ledger = commits_in(LocalFilesystem(str(tmp_path / "pipeline-0")), 1)
    newest = ledger.read(BATCHES - 1)
    own = newest.queries["q"]
    moved = msgspec.structs.replace(own, execution=ExecutionRecord("(a b c)"))
    ledger.write(BATCHES - 1, msgspec.structs.replace(newest, queries={"q": moved}))
    assert planning.priced("q").batches is None, "one batch of the new plan tells no rate"


def test_results_that_are_missing_are_told(tmp_path: Path) -> None:
    """Since when, how many, with the standard error; rows that did not look up, what was too old, the lag; also that nothing
    is missing, of a query of which something might be."""
    adapts = Overload(Policy.ADAPT_JOINS)
    limiting = Limiting(adapts, draw_salt=lambda: 7)
    planning = Planning(slots=1, checkpoint=LocalFilesystem(str(tmp_path)), overload=adapts)
    planning.add_script(parse_script(f"{STREAMS} CREATE QUERY q AS {QUERY} FRESHNESS 4 SECONDS"))
    query, folder = planning.query("q").forms.written, LocalFilesystem(str(tmp_path / "pipeline-0"))
    pipeline, log = LocalPipeline([query], folder, {"q": "(a b c)"}, limiting=limiting), ProgressLog(folder, 1, lambda: 20.0)

    def step(batch: int) -> str:
        pipeline.step(batch, {name: rows_of(batch, seed) for seed, name in enumerate("abc")})
        assert pipeline.commit is not None
        log.note(batch, {"q": progress_of(query, pipeline.commit, "(a b c)", {})})
        log.flush()
        return " ".join(planning.explain("q").split())

    step(0)
    assert "since batch 0 exact: 0 results too old; 18.0 s behind the clock" in step(1)
    limiting.limits = {"q": dict.fromkeys("abc", Limit(share=0.5))}
    for batch in range(2, 6):
        text = step(batch)
    told = planning.explain_json("q")["overload"]["left_out"]
    assert told["complete_share"] == pytest.approx(0.5, abs=0.1)
    assert 0 < told["complete_error"] < 0.1
    assert told["unprobed_rows"] == pytest.approx(4 * 3 * PER_S / 2, rel=0.1)
    assert (told["is_exact"], told["since"], told["stale_results"]) == (False, 2, 0)
    share, error = (f"{told[f'complete_{what}'] * 100:.2g} %" for what in ("share", "error"))
    assert f"since batch 2 adapted: {share} ± {error} of the results, {told['unprobed_rows']:,} rows not looked up" in text
    limiting.limits = {}
    assert "since batch 6 exact: 0 results too old; 13.0 s behind the clock" in step(6)
    exact = has_run(tmp_path / "exact", "(a b c)")
    assert "since batch" not in exact.explain("q"), "nothing of it may be missing"
