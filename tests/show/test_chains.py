"""What a pipeline has measured of how rows are wanted, as `explain` shows it."""

from __future__ import annotations

import pytest

from anabranch.adapt.slicing import length
from anabranch.cost.facts import EMPTY
from anabranch.cost.units import DEFAULT
from anabranch.drive.local import LocalPipeline
from anabranch.share.pipeline_chains import pipeline_joins
from anabranch.show.chains import PipelineShown, known_of, seen_in, sharing_lines, sharing_text
from anabranch.show.figures import count_text, show_bytes
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.two_windows import LIMITS, batch, queries


def test_what_was_measured_is_shown() -> None:
    disk = MemoryFilesystem()
    pipeline = LocalPipeline(queries(), disk, release_every=1_000)
    pipeline.driver.slices = {"a": tuple(LIMITS.values())}
    for number in range(26):
        pipeline.step(number, batch(number, 0.1))
    seen, slices = seen_in(disk)  # type: ignore[arg-type]
    assert slices == {"a": tuple(LIMITS.values())}
    known = known_of(seen)
    assert known is not None
    assert known.passing["short", "a"] == pytest.approx(1.0)
    assert known.rates_per_s["a"] == pytest.approx(600, rel=0.05)
    assert known.wanted_per_s["a"][LIMITS["long"]] == pytest.approx(60, rel=0.25)
    running = [query.running for query in pipeline.driver.queries.values()]
    joins = pipeline_joins(running, lambda _: EMPTY, DEFAULT, known)
    (lead, short) = joins[0].members
    assert (lead.name, lead.wants[0].passing) == ("long", pytest.approx(0.1, rel=0.25))
    assert short.wants[0].passing == 1.0
    shown = PipelineShown(joins, queries(), DEFAULT, 1e-9, known, slices).of(queries()[0])
    assert shown is not None
    (a, b) = sorted(shown.chains, key=lambda chain: chain.source)
    assert [each.limit_us for each in a.slices] == list(LIMITS.values())
    for each in a.slices:
        assert each.measured_rows == pytest.approx(each.kept_rows, rel=0.25), "as predicted"
    drawn = sharing_lines(shown)
    (_, rows, short, more, long) = drawn.slices["a"]
    assert (short, long) == ("read by short", "read by short and long")
    for told, each in ((rows, a.slices[0]), (more, a.slices[1])):
        assert each.measured_rows is not None
        size = show_bytes(each.measured_rows * each.kept_bytes / each.kept_rows)
        assert told == f"{length(each.limit_us)}: {count_text(each.measured_rows)} rows, {size}", "as measured"
    assert drawn.join[0] == "one join for long and short"
    assert [each.limit_us for each in b.slices] == [*LIMITS.values()], "by the rule"
    assert f"by what {len(seen) - 1} batches measured" in sharing_text(shown, verbose=True)
    assert known_of(seen[:1]) is None
