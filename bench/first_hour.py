"""What a stranger sees in the first hour: `python -m bench.first_hour` writes docs/first-hour.md.

The commands of the README run in an empty folder outside of the repository, in an environment of their own, with the wheel
that is built from the repository as it is: install, demo, an example, its plan, its journal. Every line that is printed
stands in the document, with the seconds that the command took and the megabytes that the environment has.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "first-hour.md"
HEAD = """# The first hour

What the commands of the README print on an empty environment, every line, as `python -m bench.first_hour` found it. A wheel
is built from the repository, and installed with what it needs into a new environment; nothing else is on its path. Output is
that of a program that is not on a terminal: on one, progress is a block per query, rewritten in place.
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Step:
    """A command that a stranger types."""

    title: str
    command: str
    folder: str = "."


STEPS = (
    Step("Install", "python3 -m venv env && env/bin/pip install -qq anabranch-*.whl"),
    Step("Is it there?", "env/bin/anabranch --version && env/bin/anabranch"),
    Step("The demonstration", "env/bin/anabranch demo"),
    Step("An example: its plans", "../../env/bin/anabranch explain orders.sql", "examples/orders"),
    Step("The example runs", "../../env/bin/anabranch run orders.sql --once", "examples/orders"),
    Step("What was decided about it", "../../env/bin/anabranch journal", "examples/orders"),
    Step("A mistake", '../../env/bin/anabranch run order.sql --once; echo "exit code $?"', "examples/orders"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="leave the folder behind")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="first-hour-"))
    try:
        _prepare(place)
        TARGET.write_text("\n".join([HEAD, *(_told(step, place) for step in STEPS)]), encoding="utf-8")
    finally:
        if not given.keep:
            shutil.rmtree(place, ignore_errors=True)
    print(f"written to {TARGET.relative_to(ROOT)}")
    return 0


def _prepare(place: Path) -> None:
    """Builds the wheel, and puts it and the examples, as they are in the repository, where a stranger has them."""
    print("building the wheel …", flush=True)
    build = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--wheel-dir", str(place), str(ROOT)]
    subprocess.run(build, check=True, cwd=place)
    (place / "tmp").mkdir()
    listed = subprocess.run(["git", "ls-files", "examples"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / name)


def _told(step: Step, place: Path) -> str:
    """Runs a command; the part of the document that tells of it."""
    print(f"{step.title}: {step.command}", flush=True)
    variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    began = time.monotonic()
    done = subprocess.run(
        step.command, shell=True, cwd=place / step.folder,
        env={**variables, "XDG_CACHE_HOME": str(place / "cache"), "TMPDIR": str(place / "tmp")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800, check=False,
    )  # fmt: skip
    seconds, size = time.monotonic() - began, _megabytes(place / "env")
    if done.returncode:
        raise SystemExit(f"{step.command} ended with {done.returncode}:\n{done.stdout}")
    shown = "".join(f"{line}\n" for line in ESCAPES.sub("", done.stdout).replace(str(place), "~").rstrip().splitlines())
    where = f"In `{step.folder}`: " if step.folder != "." else ""
    figures = f"{where}{seconds:.0f} s; the environment has {size:,} MB."
    return f"## {step.title}\n\n{figures}\n\n```console\n$ {step.command}\n{shown}```\n"


def _megabytes(folder: Path) -> int:
    return round(sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_symlink()) / 1e6)


if __name__ == "__main__":
    sys.exit(main())
