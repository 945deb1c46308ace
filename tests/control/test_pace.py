"""How a database does beside what was calibrated: what counts, and what is chance."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from anabranch.control.pace import FORGOTTEN, MEMORY, MOST, Pace, Took, factors, paces_after


def pace_of(ratios: list[float]) -> Pace:
    pace = Pace()
    for batch, ratio in enumerate(ratios):
        pace = pace.after(Took(ratio * 0.01, 0.01), batch)
    return pace


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("scatter", [0.1, 0.3, 0.6])
def test_what_scatters_about_what_was_calibrated_never_counts(seed: int, scatter: float) -> None:
    rng, pace = np.random.default_rng(seed), Pace()
    for batch, told in enumerate(rng.normal(0.0, scatter, 200)):
        pace = pace.after(Took(math.exp(told), 1.0), batch)
        assert pace.factor == 1.0, batch


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [0.2, 0.5, 2.0, 5.0])
def test_what_is_slower_or_faster_counts_once_enough_batches_tell(seed: int, factor: float) -> None:
    ratios = factor * np.exp(np.random.default_rng(seed).normal(0.0, 0.3, 40))
    assert pace_of([*ratios]).factor == pytest.approx(factor, rel=0.2)


def test_the_fewer_batches_tell_the_more_they_must_differ() -> None:
    assert not pace_of([25.0]).counts
    assert pace_of([27.0]).counts
    assert not pace_of([3.0] * 4).counts
    assert pace_of([3.3] * 4).counts
    assert not pace_of([1.15] * 1000).counts
    assert pace_of([1.25] * 1000).counts


def test_it_follows_what_changes_and_one_batch_is_not_much() -> None:
    steady = pace_of([1.0] * 100)
    assert not steady.after(Took(1e9, 1.0), 100).counts
    assert pace_of([1.0] * 100 + [4.0] * MEMORY).factor > 2
    assert pace_of([4.0] * 100 + [1.0] * 5 * MEMORY).factor == 1.0


def test_ratios_are_bounded_also_where_no_time_passed() -> None:
    assert pace_of([1e12] * 50).factor == pytest.approx(MOST)
    assert pace_of([0.0] * 50).factor == pytest.approx(1 / MOST)


def test_what_was_not_calibrated_has_no_pace_and_what_was_long_ago_is_forgotten() -> None:
    known = paces_after({}, {"q.x": Took(1.0, 0.0), "q.y": Took(30.0, 1.0)}, 5)
    assert known.keys() == {"q.y"}
    assert paces_after(known, {}, 5 + FORGOTTEN - 1) == known
    assert paces_after(known, {}, 5 + FORGOTTEN) == {}
    assert factors(known) == {"q.y": pytest.approx(30.0)}
    assert factors({"q.y": pace_of([2.0])}) == {}


def test_another_calibration_begins_anew() -> None:
    known = paces_after({}, {"q.y": Took(30.0, 1.0, 0.5)}, 5)
    assert paces_after(known, {"q.y": Took(1.0, 1.0, 0.6)}, 6) == {"q.y": Pace(0.0, 0.0, 1, 6, 0.6)}
    assert known["q.y"].beside(0.5) == known["q.y"]
    assert known["q.y"].beside(0.6).factor == 1.0


def test_records_have_all_of_it() -> None:
    pace = pace_of([2.0, 3.0, 0.5])
    assert msgspec.json.decode(msgspec.json.encode(pace), type=Pace) == pace
