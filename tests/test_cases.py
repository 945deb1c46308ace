"""Which cases a run takes: few, all fixed ones, a part of the long ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.cases import Part

ROOT = Path(__file__).parents[1]

SUITE = """
import pytest
from hypothesis import given, settings, strategies as st

def note(what):
    with open({path!r}, "a") as file:
        file.write(f"{{what}}\\n")

@given(value=st.integers(0, 2**60))
@settings(max_examples=25, database=None, deadline=None)
def test_drawn(value):
    note(f"drawn {{value}}")

@pytest.mark.parametrize("seed", range(5))
def test_seed(seed):
    note(f"seed {{seed}}")

@pytest.mark.few(2)
@pytest.mark.parametrize("kind", "abcdef")
def test_dear(kind):
    note(f"dear {{kind}}")

def test_puts(part):
    for put in part.of(range(9)):
        note(f"put {{put}}")

@pytest.mark.long
@pytest.mark.parametrize("kind", "ab")
@given(value=st.integers(0, 2**60))
@settings(max_examples=25, database=None, deadline=None)
def test_drawn_long(kind, value):
    note(f"drawn {{kind}} {{value}}")

@pytest.mark.long
@pytest.mark.parametrize("seed", range(7))
def test_seed_long(seed):
    note(f"seed {{seed}}")

@pytest.mark.long
def test_part_long(part):
    for case in part.of(range(11)):
        note(f"case {{case}}")
"""


def run(folder: Path, *options: str) -> list[str]:
    """What the tests of a small suite noted."""
    suite, notes = folder / "test_suite.py", folder / "notes"
    suite.write_text(SUITE.format(path=str(notes)))
    notes.write_text("")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull,
               "--rootdir", str(folder), *options, str(suite)]  # fmt: skip
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return notes.read_text().splitlines()


def kinds(noted: list[str]) -> Counter[str]:
    return Counter(line.rpartition(" ")[0] for line in noted)


def test_all_parts_together_are_all_cases(tmp_path: Path) -> None:
    parts = [run(tmp_path, "-m", "long", "--part", f"{number}/3", "--seed", "7") for number in (1, 2, 3)]
    noted = [line for part in parts for line in part]
    assert kinds(noted) == {"drawn a": 25, "drawn b": 25, "seed": 7, "case": 11}
    assert {f"seed {n}" for n in range(7)} | {f"case {n}" for n in range(11)} < set(noted)
    assert all(6 <= kinds(part)["drawn a"] <= 9 and kinds(part)["seed"] in (2, 3) for part in parts), "of about one size"
    assert not set(parts[0]) & set(parts[1]) - {"drawn a 0", "drawn b 0"}, "no part draws what another does"
    assert run(tmp_path, "-m", "long", "--part", "2/3", "--seed", "7") == parts[1]
    assert run(tmp_path, "-m", "long", "--part", "2/3", "--seed", "8") != parts[1]


def test_a_quick_run_takes_the_first_few_of_the_fixed_cases(tmp_path: Path) -> None:
    few, usual = run(tmp_path, "-m", "not long", "--quick"), run(tmp_path, "-m", "not long")
    assert kinds(few) == {"drawn": 2, "seed": 1, "dear": 2, "put": 1}
    assert {"dear a", "dear d"} < set(few), "spread over all of them"
    assert kinds(usual) == {"drawn": 25, "seed": 5, "dear": 6, "put": 9}
    assert set(few) < set(usual)


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b", "1/0"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="is not a part: write 3/12 for the third of twelve"):
        Part.parse(part)
