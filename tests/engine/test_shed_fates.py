"""What is told of rows of batches that shed others is what all results, reckoned one by one, come to; and a batch goes to
the rows of its own results only."""

from __future__ import annotations

from collections import defaultdict
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalRun
from anabranch.engine import shed_fates
from anabranch.engine.shed_fates import ShedFates
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.losing import fanned, limit, losing, may_lose, random_limits, random_shares
from tests.support.scenarios import properties
from tests.support.small_pieces import small_pieces

Row = tuple[str, int]
"""A row, by its source and id."""
Fate = tuple[str, int, str]
"""Of rows of a source: the batch that they came in, and what is stored of them."""


class Reckoned(ShedFates):
    """Keeps what every result brings to every row in it, for as long as the block runs, and reckons all of it anew."""

    def __init__(self, box: Any) -> None:
        super().__init__(box)
        self.now: dict[Row, float] = defaultdict(float)
        self.before: dict[Row, float] = defaultdict(float)
        self.too_often = 0.0

    def begin(self) -> None:
        super().begin()
        self.now, self.too_often = defaultdict(float), 0.0

    def fate(self, source: str, id: int) -> Fate:
        rows = self._box.store.logs[source].segments[id >> 32].rows
        return source, id >> 32, repr(rows.slice(id & 0xFFFFFFFF, 1).to_pylist())

    def take(self, results: Any, share: float) -> Any:
        found = super().take(results, share)
        for place in range(len(results)):
            kept: dict[Row, float] = {}
            fates: set[Fate] = set()
            for alias, ids in results.ids.items():
                source, id = self._box.log_of(alias).source.name, int(ids[place])
                if (fate := self.fate(source, id)) not in fates:
                    kept[source, id] = self._box.store.logs[source].shed.get(id >> 32, 1.0)
                fates.add(fate)
            likely = share * np.prod([*kept.values()])
            assert (1 / share if found is None else found[place]) == pytest.approx(1 / likely)
            if found is None:
                assert all(each == 1 for each in kept.values())
                continue
            for row, each in kept.items():
                self.now[row] += 1 / likely if each < 1 else 0.0
            factors = sum(1 - each for each in kept.values()) + 1 - share
            self.too_often += (factors - (1 - likely)) / likely**2
        return found

    def end(self) -> tuple[float, float]:
        told = super().end()
        sums: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for (source, id), now in self.now.items():
            alike = self.fate(source, id)
            sums[alike][0] += now
            sums[alike][1] += self.before[source, id]
            self.before[source, id] += now
        variance, covariance = -self.too_often, 0.0
        for (source, batch, _), (now, before) in sums.items():
            missed = 1 - self._box.store.logs[source].shed.get(batch, 1.0)
            variance += self._copies(source) * missed * now**2
            covariance += self._copies(source) * missed * 2 * now * before
        assert told == pytest.approx((max(0.0, variance), covariance), rel=1e-6, abs=1e-6)
        return told


def check_reckoned(seed: int, inputs: int, slots: int, piece: int) -> None:
    """Under shares and allowances, whatever plans there are meanwhile, whoever starts anew, and in whatever pieces results
    are found."""
    scenario, rng = fanned(seed, inputs, 7), np.random.default_rng(seed)
    query, disk = scenario.query, MemoryFilesystem()
    with mock.patch("anabranch.engine.box.ShedFates", Reckoned), small_pieces(piece, 1 << 20):
        run = losing(query, scenario, disk, 0, slots, salts=seed % 1000)
        for batch in range(len(scenario.batches)):
            limit(run, random_limits(query, rng, slots))
            run.driver.limiting.shed = random_shares([s.name for s in query.sources], rng) if rng.random() < 0.7 else {}
            run.step(batch, scenario.feed(batch))
            fate = int(rng.integers(6))
            if fate == 0:
                run = losing(query, scenario, disk, int(rng.integers(3)), slots, salts=seed % 1000 + batch + 1)
            elif fate == 1:
                run.migrate(scenario.plans[int(rng.integers(3))], (Strategy.MOVING_STATE, Strategy.GRADUAL)[batch % 2])


test_reckoned, test_reckoned_long = properties(
    check_reckoned, 12, 300, seed=st.integers(0, 2**32 - 1), inputs=st.sampled_from([2, 3, 4]),
    slots=st.sampled_from([1, 1, 4]), piece=st.sampled_from([3, 1 << 17]),
)  # fmt: skip


def table(columns: dict[str, list[int]]) -> pa.Table:
    return pa.table({**columns, "ts": pa.array(columns["ts"], pa.timestamp("us"))})


def chain() -> LocalRun:
    """Rows of a find those of b for ten minutes."""
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    text = "CREATE QUERY q AS SELECT a.k FROM a [NOW], b [RANGE 10 MINUTES] WHERE a.k = b.k"
    return LocalRun(parse_script(streams + text).queries[0].query, MemoryFilesystem(), limiting=may_lose())


def test_a_batch_goes_to_the_rows_of_its_results() -> None:
    """Each of 40 batches brings 500 rows of b, half of which it sheds; the row of a finds those of key 7, three of a batch
    at most. Arrays are made for new segments and no others, and those alone that were found are asked for their fates."""
    run, asked, arrays, fold = chain(), list[int](), dict[int, Any](), shed_fates.fold_rows
    run.driver.limiting.shed = {"b": 0.5}
    with mock.patch.object(shed_fates, "fold_rows", lambda *given: asked.append(len(given[2])) or fold(*given)):
        for batch in range(40):
            now_us = batch * 1_000_000
            b = table({"k": [*range(100, 597), 7, 7, 7], "ts": [*range(now_us, now_us + 500)]})
            done = run.step(batch, {"b": b, "a": table({"k": [7], "ts": [now_us + 500]})})
            assert run.slot is not None
            assert len(asked) == batch + 1
            assert asked[batch] == done.statistics.results <= 3 * (batch + 1)
            (box,) = run.slot.boxes.values()
            made = box.fates._logs["b"]._brought
            assert all(made[before] is array for before, array in arrays.items())
            assert made.keys() == run.slot.store.logs["b"].segments.keys()
            arrays = dict(made)
    assert sum(map(len, arrays.values())) > 8_000
    assert asked[-1] > 30
