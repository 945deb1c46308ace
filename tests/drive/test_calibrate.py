"""What operations cost on this machine: measured, told, remembered."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from anabranch.cli import main
from anabranch.cost.units import DEFAULT, cache_path, remember, remembered, unit_costs
from anabranch.drive import calibrate
from anabranch.drive.calibrate import CASES, _positive


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_command_measures_tells_and_remembers(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibrate, "CASES", tuple(case for case in CASES if case.rows == 1_000 and case.window == 3))
    monkeypatch.setattr(calibrate.calibrate, "__defaults__", (2,))
    assert remembered() is None
    assert unit_costs() == DEFAULT
    assert main(["calibrate"]) == 0
    told = capsys.readouterr()
    units = remembered()
    assert units is not None
    assert unit_costs() == units
    assert str(cache_path()) in told.err
    assert home in cache_path().parents
    lines = re.findall(r"^(.*?)\s+([\d,.]+) ns$", told.out, re.MULTILINE)
    prices = {name: float(value.replace(",", "")) for name, value in lines}
    assert prices["a pair that matches"] == pytest.approx(units.join * 1e9, abs=0.06)
    assert prices["a row taken in"] == pytest.approx(units.accept * 1e9, abs=0.06)
    numbers = {name: value for name, value in asdict(units).items() if isinstance(value, float)}
    assert all(value >= 0 for value in numbers.values()), numbers
    # What no machine does for nothing, and what is counted, not timed.
    assert units.accept + units.batch > 0
    assert units.lookup + units.lookup_run + units.join + units.rekey + units.step > 0
    assert units.insert + (units.view_insert or 0) + units.upkeep > 0
    assert units.result > 0
    assert units.fold > 0
    assert 16 <= units.index_bytes <= 32, "an entry takes two words, and the directory its share"
    assert 24 <= units.view_index_bytes <= 48, "three, with the end of its validity"
    assert (units.counts_keys, units.keeps_segments) == (True, True)


def test_prices_are_found_again() -> None:
    """What was counted times its price, summed: least squares give the prices back, and none that is negative."""
    rng = np.random.default_rng(3)
    prices = np.array([5e-9, 0.0, 80e-9, 1e-4])
    counts = rng.integers(1, 10_000, (40, 4)).astype(float)
    counts[:, 3] = 1.0
    found = _positive([(*row, float(row @ prices)) for row in counts])
    assert found == pytest.approx(prices.tolist(), rel=1e-6, abs=1e-12)
    noisy = _positive([(*row, float(row @ prices * rng.uniform(0.7, 1.3))) for row in counts])
    assert min(noisy) >= 0
    assert noisy[2] == pytest.approx(80e-9, rel=0.2)


def test_large_batches_do_not_outweigh_small_ones() -> None:
    """A price that shows only in small batches is found beside batches a thousand times as large whose time is uncertain."""
    rng = np.random.default_rng(5)
    rows = [10.0] * 20 + [100_000.0] * 20
    measured = [(n, 1.0, (n * 100e-9 + 1e-4) * rng.uniform(0.95, 1.05)) for n in rows]
    per_row, per_batch = _positive(measured)
    assert per_row == pytest.approx(100e-9, rel=0.1)
    assert per_batch == pytest.approx(1e-4, rel=0.1)


def test_what_is_remembered_comes_back(home: Path) -> None:
    units = replace(DEFAULT, join=1.5e-7, view_insert=None)
    path = remember(units)
    assert remembered() == units
    assert [p.name for p in path.parent.iterdir()] == [path.name], "nothing half-written is left"


@pytest.mark.parametrize("text", ["", "{", '{"format": 3, "host": "x", "units": {}}', '{"format": "4"}', "[]"])
def test_what_cannot_be_read_is_not_used(home: Path, text: str) -> None:
    cache_path().parent.mkdir(parents=True)
    cache_path().write_text(text)
    assert remembered() is None
    assert unit_costs() == DEFAULT
