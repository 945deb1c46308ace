"""Whether a change is worth it."""

from __future__ import annotations

import pytest

from anabranch.adapt.arbiter import WORTH, Change


def test_it_must_be_better_by_enough() -> None:
    assert Change(1.0, WORTH - 0.01, False).is_better
    assert not Change(1.0, WORTH + 0.01, False).is_better
    assert Change(1.0, 1.5, True).is_better, "a query over its budget may need more of what it has enough of"


def test_it_must_pay_for_the_way_there() -> None:
    """Half a core, for ten seconds: five seconds of CPU."""
    change = Change(1.0, 0.5, False)
    assert change.gain_s(10.0) == pytest.approx(5.0)
    assert change.pays(4.9, 10.0)
    assert not change.pays(5.1, 10.0)
    assert change.pays_after_s(5.1) == pytest.approx(10.2)
    assert Change(1.0, 0.5, True).pays(1e9, 10.0)
    assert Change(1.0, 1.0, False).pays_after_s(5.0) is None
