"""Under limits, whatever dies, and wherever: nothing arrives that is wrong or repeated, and as much as commits have told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from anabranch.control.lease import Holder
from anabranch.control.records import Commit, Limit
from anabranch.drive.driver import Driver
from anabranch.drive.limiting import Limiting
from anabranch.drive.steering import Steering
from anabranch.plan.migration import Strategy
from anabranch.plan.overload import Overload, Policy
from tests.drive.simulation import Simulation
from tests.drive.test_protocol import FAILS, FAULTS, PAUSES
from tests.support.faulty import Fault
from tests.support.scenarios import Scenario, properties, scenarios

MOVES = st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 3), st.just(Strategy.MOVING_STATE)), max_size=4)


@dataclass
class Told(Simulation):
    """Remembers every commit, whoever made it."""

    told: dict[int, Commit] = field(default_factory=dict)

    def make(self, steerings: Sequence[Steering], files: Mapping[str, str], holder: Holder) -> Driver:
        driver = super().make(steerings, files, holder)
        if (latest := driver.commits.latest()) is not None:
            self.told[latest[1].batch] = latest[1]  # its driver may have died with it
        commit = driver.commit

        def noted(*given: Any) -> Commit:
            made = commit(*given)
            self.told[made.batch] = made
            return made

        driver.commit = noted  # type: ignore[method-assign]
        return driver


def check_losing(
    scenario: Scenario,
    share: float,
    rows: int,
    kept: float,
    slots: int,
    to_files: bool,
    faults: Mapping[int, Fault],
    asks: Mapping[int, tuple[int, Strategy]],
    fails: Mapping[int, str],
    workers: int,
    pauses: frozenset[int],
) -> None:
    aliases = scenario.query.aliases

    def limiting() -> Limiting:
        """Of the first input a share may look up, of the others some rows in the first slot; of each stream some is shed."""
        made = Limiting(Overload(Policy.ADAPT_JOINS))
        made.limits = {"q": {aliases[0]: Limit(share=share)} | {a: Limit(rows={0: rows}) for a in aliases[1:]}}
        made.shed = {stream.name: kept for stream in scenario.streams} if kept < 1 else {}
        return made

    case = Told(
        [scenario.query], scenario.arrow_batches, scenario.arrow_tables, scenario.plans, slots, to_files, faults, asks,
        workers, fails, pauses, limiting=limiting,
    )  # fmt: skip
    found = case.run()["q"]
    assert not found - case.expected()["q"], "nothing is wrong, or there too often"
    told = {batch: commit.queries["q"].statistics for batch, commit in case.told.items()}
    assert found.total() == sum(each.results for each in told.values()), "as much as was told"
    for name in (stream.name for stream in scenario.streams):
        seen = sum(batch[name].num_rows for batch in scenario.arrow_batches if name in batch)
        assert seen == sum(each.sources[name].rows for each in told.values()), "rows that were shed have been seen"
    case.verify()


test_losing, test_losing_long = properties(
    check_losing, 40, 3_000, scenario=scenarios(inputs=(2, 3, 4)), share=st.sampled_from([0.0, 0.3, 0.8]),
    rows=st.integers(0, 5), kept=st.sampled_from([1.0, 0.6]), slots=st.sampled_from([1, 2, 3]), to_files=st.booleans(),
    faults=FAULTS, asks=MOVES, fails=FAILS, workers=st.integers(1, 2), pauses=PAUSES,
)  # fmt: skip
