"""The pictures of the documentation: `python -m bench.pictures [--to docs/pictures]`.

Writes each plan as SVG, as `anabranch explain --draw` draws it, and as PNG in light and dark; and what `anabranch explain`
prints, as PNG. `--widths` writes the table of text widths anew that drawings are laid out by
(`anabranch.show.glyph_widths`), from the metrics of the fonts themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from html import escape
from io import BytesIO
from itertools import groupby
from pathlib import Path

import matplotlib
from fontTools.ttLib import TTFont
from PIL import Image

from anabranch.cost.facts import Given
from anabranch.cost.units import DEFAULT
from anabranch.planning import Planning
from anabranch.settings import Budget
from anabranch.show import glyph_widths
from anabranch.show.draw import DARK, LIGHT
from anabranch.sql import parse_script

ROOT = Path(__file__).parent.parent
FONTS = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
SCALE = 2
"""Pixels of a picture for each of the drawing's."""
COLOURS = 64
"""So many are enough for flat boxes and smooth letters, in a third of the bytes."""

ORDERS = """
CREATE STREAM orders    (id BIGINT, customer BIGINT, amount DOUBLE, ts TIMESTAMP) TIME ts;
CREATE STREAM payments  (order_id BIGINT, method STRING, ts TIMESTAMP) TIME ts;
CREATE STREAM shipments (order_id BIGINT, parcel BIGINT, carrier STRING, ts TIMESTAMP) TIME ts;
CREATE STREAM scans     (parcel BIGINT, place STRING, ts TIMESTAMP) TIME ts;
CREATE TABLE  customers (id BIGINT, country STRING);
"""
QUERIES = {
    "two-streams": """CREATE QUERY paid AS SELECT o.id FROM orders [RANGE 1 MINUTE] o, payments [RANGE 1 MINUTE] p
        WHERE o.id = p.order_id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 5 MINUTES;""",
    "three-streams": """CREATE QUERY on_its_way AS SELECT o.id, s.carrier, c.place
        FROM orders [RANGE 2 HOURS] o, shipments [RANGE 2 HOURS] s, scans [RANGE 30 MINUTES] c
        WHERE o.id = s.order_id AND s.parcel = c.parcel AND o.amount > 100;""",
    "groups": """CREATE QUERY by_country AS SELECT c.country, COUNT(*) AS n, SUM(o.amount) AS amount
        FROM orders [RANGE 1 HOUR] o, payments [RANGE 1 HOUR] p, customers c
        WHERE o.id = p.order_id AND o.customer = c.id GROUP BY c.country SLIDE 1 MINUTE;""",
}
SIX = "".join(f"CREATE STREAM s{n} (k BIGINT, next BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;" for n in range(6)) + (
    "CREATE QUERY chain AS SELECT s0.k FROM s0, s1, s2, s3, s4, s5 WHERE "
    + " AND ".join(f"s{n}.next = s{n + 1}.k" for n in range(5))
    + " WINDOW 30 SECONDS;"
)
LONG = """
CREATE STREAM transactions_of_all_customers_of_the_bank_by_account_and_branch (account_number_of_the_customer BIGINT,
    amount DOUBLE, time_of_booking TIMESTAMP) TIME time_of_booking;
CREATE STREAM x (account_number_of_the_customer BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY suspicious_transactions_of_all_customers AS SELECT x.ts
FROM transactions_of_all_customers_of_the_bank_by_account_and_branch [RANGE 90 SECONDS] outgoing_transactions_to_be_checked,
    x [NOW]
WHERE outgoing_transactions_to_be_checked.account_number_of_the_customer = x.account_number_of_the_customer
    AND outgoing_transactions_to_be_checked.amount > 10000;
"""


def planned(script: str, facts: Given) -> Planning:
    planning = Planning(Budget(2, "4 GiB"), facts, slots=4)
    planning.units = DEFAULT  # pictures are the same on every machine
    planning.add_script(parse_script(script))
    return planning


FACTS = Given({"orders": 2_000.0, "payments": 1_900.0, "shipments": 40.0, "scans": 8_000.0}, {"customers": 50_000.0})
SIX_FACTS = Given(
    {f"s{n}": 5_000.0 / (n + 1) for n in range(6)}, {}, {f"s{n}.next": 40_000.0 * (n + 1) for n in range(5)}
)
PICTURES: dict[str, tuple[str, Given]] = {
    **{name: (ORDERS + query, FACTS) for name, query in QUERIES.items()},
    "six-streams": (SIX, SIX_FACTS),
    "long-names": (LONG, Given()),
}
"""The plans that are drawn, by the names of their files: what is declared, and what is known of it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--widths", action="store_true", help="write the table of text widths, and no pictures")
    given = parser.parse_args()
    if given.widths:
        path = Path(glyph_widths.__file__)
        path.write_text(widths_module(), encoding="utf-8")
        print(f"written to {path}")
        return
    given.to.mkdir(parents=True, exist_ok=True)
    for name, declared in PICTURES.items():
        planning = planned(*declared)
        (query,) = planning.queries
        explanation = planning.explain(query)
        write(given.to / f"plan-{name}", explanation.drawing)
        if name in ("two-streams", "three-streams"):
            write(given.to / f"explain-{name}", terminal(f"anabranch explain {query}.sql", explanation.splitlines()))
    print(f"written to {given.to}")


def write(path: Path, drawing: str) -> None:
    """A drawing as SVG, and as PNG in light and dark."""
    path.with_suffix(".svg").write_text(drawing, encoding="utf-8")
    for scheme, kind in ((LIGHT, "light"), (DARK, "dark")):
        path.with_name(f"{path.name}-{kind}.png").write_bytes(rasterised(in_scheme(drawing, scheme)))


def in_scheme(drawing: str, scheme: str) -> str:
    """A drawing that is in one scheme, wherever it is looked at: the renderer knows no media."""
    before, _, rest = drawing.partition("<style>")
    return f"{before}<style>{scheme}</style>{rest.partition('</style>')[2]}"


def rasterised(drawing: str) -> bytes:
    import resvg_py

    fonts = [str(FONTS / f"{name}.ttf") for name in ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSansMono")]
    drawn = bytes(resvg_py.svg_to_bytes(svg_string=drawing, zoom=SCALE, font_files=fonts, skip_system_fonts=True))
    smaller = BytesIO()
    Image.open(BytesIO(drawn)).convert("RGB").quantize(COLOURS).save(smaller, "PNG", optimize=True)
    return smaller.getvalue()


def terminal(command: str, lines: Sequence[str]) -> str:
    """What a command prints, as a drawing."""
    size, advance = 13, 13 * mono_advance()
    shown = [f"$ {command}", "", *lines]
    width, height = max(map(len, shown)) * advance + 40, len(shown) * 18 + 36
    texts = "".join(
        f'<text class="mono" x="{20 + start * advance:.1f}" y="{30 + 18 * place}" font-size="{size}" xml:space="preserve">'
        f"{escape(text)}</text>"
        for place, line in enumerate(shown)
        for start, text in in_one_font(line)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="anabranch" width="{width:.0f}" height="{height:.0f}">'
        f"<style>{LIGHT}@media (prefers-color-scheme: dark){{{DARK}}}</style>"
        f'<rect class="ground" width="100%" height="100%"/>{texts}</svg>\n'
    )


def in_one_font(line: str) -> list[tuple[int, str]]:
    """A line in pieces, with their places: letters that the font lacks by themselves, so that others keep theirs."""
    known = TTFont(FONTS / "DejaVuSansMono.ttf").getBestCmap()
    pieces, place = list[tuple[int, str]](), 0
    for is_known, letters in groupby(line, key=lambda letter: ord(letter) in known):
        text = "".join(letters)
        pieces += [(place, text)] if is_known else [(place + n, letter) for n, letter in enumerate(text)]
        place += len(text)
    return [(start, text) for start, text in pieces if text.strip()]


def mono_advance() -> float:
    font = TTFont(FONTS / "DejaVuSansMono.ttf")
    return float(font["hmtx"]["a"][0]) / float(font["head"].unitsPerEm)


def font_widths(name: str) -> dict[int, int]:
    """The width of each letter of a font, in thousandths of its size."""
    font = TTFont(FONTS / f"{name}.ttf")
    units, metrics = font["head"].unitsPerEm, font["hmtx"]
    return {code: round(metrics[glyph][0] * 1000 / units) for code, glyph in font.getBestCmap().items()}


def widths_module() -> str:
    """The table of widths as the text of its module."""
    first, _, _ = Path(glyph_widths.__file__).read_text(encoding="utf-8").partition("REGULAR: ")
    parts = []
    for name, font in (("REGULAR", "DejaVuSans"), ("BOLD", "DejaVuSans-Bold")):
        widths, lines = font_widths(font), []
        for start, end in glyph_widths.RANGES:
            runs = [(w, len(list(same))) for w, same in groupby(widths.get(code, 0) for code in range(start, end))]
            lines += _wrapped([f"{w}" if n == 1 else f"{w}x{n}" for w, n in runs])
        body = "\n".join(f'    "{line} "' for line in lines)
        parts.append(f"{name}: dict[str, int] = _table(\n{body}\n)\n")
    return first + "".join(parts)


def _wrapped(words: Sequence[str]) -> list[str]:
    lines = [""]
    for word in words:
        if len(lines[-1]) + len(word) > 110:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


if __name__ == "__main__":
    main()
