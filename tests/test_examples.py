"""The examples run as they are, and say what their pages say."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.notebook import executed

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
START_S = 300.0


def copied(name: str, tmp_path: Path) -> Path:
    """An example as it is in the repository, in a folder of its own."""
    listed = subprocess.run(
        ["git", "ls-files", f"examples/{name}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert listed
    for each in listed:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, tmp_path / each)
    return tmp_path / "examples" / name


def commands_of(name: str) -> list[str]:
    """What the page of an example says to type, in its folder."""
    lines = (EXAMPLES / name / "README.md").read_text().splitlines()
    typed = [line.split("#")[0].strip() for line in lines if line.startswith("    ")]
    assert typed[0] == f"cd examples/{name}"
    return typed[1:]


def typed(command: str, folder: Path) -> str:
    """What a command prints to standard output."""
    program = {"anabranch": f"{sys.executable} -m anabranch.cli", "python": sys.executable}
    first, _, rest = command.partition(" ")
    done = subprocess.run(
        f"{program[first]} {rest}", shell=True, cwd=folder, capture_output=True, text=True, timeout=START_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("orders", [r"fulfilled, batch 0: 6 results", r"^ 8  fay +250\.0  transfer  road", r"09:10:00\+00:00  card +1 +33"]),
        ("market", [r"1,716 pairs of a trade and a quote", r"until 09:10:10 BAC: 0\.041, over 1,918 quotes"]),
        ("plugs", [r"10 files in readings/", r"unusual, batch 1: 3 results", r"18:08:00\+00:00 +1 +7 +926\.275"]),
    ],
)  # fmt: skip
def test_example(name: str, told: list[str], tmp_path: Path) -> None:
    folder = copied(name, tmp_path)
    printed = "\n".join(typed(command, folder) for command in commands_of(name))
    for pattern in told:
        assert re.search(pattern, printed, re.MULTILINE), f"{pattern}\n{printed}"


@pytest.mark.spark
def test_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shown = [
        output for cell in executed(str(tmp_path)).cells if cell.cell_type == "code" for output in cell.outputs
    ]
    drawn = [output["data"] for output in shown if "text/html" in output.get("data", {})]
    assert any("<svg" in data["text/html"] for data in drawn), "the plan is drawn"
    assert any("'carrier': 'rail'" in output["data"]["text/plain"] for output in shown if "data" in output)
    assert any("ended" in data["text/html"] for data in drawn)
