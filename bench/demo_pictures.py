"""The pictures of the demonstration: `python -m bench.demo_pictures [--to docs/pictures]`, two minutes on two cores.

Runs the queries of `anabranch demo` twice, over the first half of its streams and over all of them, and draws what was
measured: the plan before the streams change and after it (`plan-changes`), and what `anabranch top` shows at the end
(`demo`).
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console, Group

from anabranch.cli.demo import QUERIES, STREAMS
from anabranch.cli.demo_data import write_shop
from anabranch.cli.top import blocks
from anabranch.control.journal import journals_in
from anabranch.planning import Planning
from anabranch.show.draw import DARK, LIGHT
from anabranch.show.journal import stories
from anabranch.sql import parse_script
from anabranch.storage.location import Folder, located
from bench.pictures import ROOT, terminal, write

SECONDS, ORDERS, QUERY, COLUMNS = 36, 4_000, "to_stop", 100
ARROW_PX, TEXT_PX = 70, 36


def ran(folder: str, seconds: int) -> tuple[str, Folder]:
    """Runs the queries over the first seconds of the streams; the script, and where the state is."""
    write_shop(folder, int(time.time()) - SECONDS, SECONDS, ORDERS)
    for stream in ("orders", "payments", "scans"):
        for path in sorted(Path(folder, stream).iterdir())[seconds:]:
            path.unlink()
    script = STREAMS.format(folder=folder) + QUERIES
    Path(folder, "shop.sql").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "anabranch.cli", "run", f"{folder}/shop.sql", "--once", "--files-per-batch", "1"]
    places = ["--checkpoint", f"{folder}/checkpoint", "--output", f"{folder}/results"]
    subprocess.run([*command, *places], check=True, cwd=ROOT, stderr=subprocess.DEVNULL)
    shutil.rmtree(f"{folder}/results")
    return script, located(f"{folder}/checkpoint")


def drawing(script: str, checkpoint: Folder) -> str:
    """The plan that a query has come to, with what was measured."""
    planning = Planning(checkpoint=checkpoint)
    planning.add_script(parse_script(script))
    return planning.draw(QUERY)


def side_by_side(before: str, after: str, why: str) -> str:
    """Two drawings with an arrow between them, and a sentence below."""
    sizes = [[int(found) for found in re.findall(r'(?:width|height)="(\d+)"', each)[:2]] for each in (before, after)]
    (width, height), (other_width, other_height) = sizes
    tallest, whole = max(height, other_height), width + ARROW_PX + other_width
    bodies = [re.sub(r"^<svg[^>]*>|</svg>\s*$|<style>.*?</style>|<title>.*?</title>", "", each) for each in (before, after)]
    bodies = [re.sub(r'<rect class="ground"[^>]*/>', "", body) for body in bodies]
    middle, x = tallest / 2, width + ARROW_PX
    arrow = f'<path class="edge" stroke-width="3" d="M{width + 8} {middle}h{ARROW_PX - 22}m-12 -9l12 9l-12 9"/>'
    lines = _wrapped(why, whole // 8)
    texts = "".join(
        f'<text class="fact" x="{whole / 2}" y="{tallest + 16 + 18 * n}" font-size="13" text-anchor="middle">{line}</text>'
        for n, line in enumerate(lines)
    )
    full = tallest + TEXT_PX + 18 * len(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="anabranch" role="img" width="{whole}" height="{full}" '
        f'viewBox="0 0 {whole} {full}"><title>A plan that changes</title>'
        f"<style>{LIGHT}@media (prefers-color-scheme: dark){{{DARK}}}</style>"
        f'<rect class="ground" width="{whole}" height="{full}"/>'
        f'<g transform="translate(0 {(tallest - height) / 2})">{bodies[0]}</g>{arrow}'
        f'<g transform="translate({x} {(tallest - other_height) / 2})">{bodies[1]}</g>{texts}</svg>\n'
    )


def _wrapped(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > columns:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def shown(checkpoint: Folder) -> list[str]:
    """What `anabranch top` shows."""
    console = Console(file=io.StringIO(), width=COLUMNS)
    console.print(Group(*blocks(checkpoint, journals_in(checkpoint), COLUMNS)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        before = drawing(*ran(first, SECONDS // 2 - 3))
        script, checkpoint = ran(second, SECONDS)
        after = drawing(script, checkpoint)
        entries = journals_in(checkpoint)[QUERY].entries()
        told = [str(story) for story in stories(entries) if "Went over" in str(story)]
        if not told:
            raise SystemExit("the plan did not change in this run: run it again, alone on the machine")
        why = re.sub(r"^.*?batch +\d+\s+", "", told[0])
        write(given.to / "plan-changes", side_by_side(before, after, why))
        write(given.to / "demo", terminal("anabranch top", shown(checkpoint)))
    print(why)
    print(f"written to {given.to}")


if __name__ == "__main__":
    main()
