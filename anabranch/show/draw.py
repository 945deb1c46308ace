"""A plan as a picture: SVG for `anabranch explain --draw`, notebooks and documents, in light and dark.

Results are on top, inputs at the bottom. A box is an input or a join: what it is, what it keeps, what it takes of a core. On
the edge above a box stand the keys by which its rows are looked for, and how many come each second. A box is as wide as its
text, by the widths of DejaVu Sans (`anabranch.show.glyph_widths`). Each text says how long it is (`textLength`), so that a
viewer without that font fits its own into the same place.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import accumulate

from anabranch.show.figures import count_text, percent_text, show_bytes
from anabranch.show.glyph_widths import BOLD, REGULAR
from anabranch.show.nodes import Node

NAME_PX, FACT_PX = 14, 12
LINE_PX, PADDING_PX, GAP_PX, MARGIN_PX = 18, 12, 24, 24
EDGE_PX, BEND_PX = 14, 30
"""How long an edge is below what stands on it, and at least above it."""
LONGEST_PX = 340
"""Longer texts are cut, and shown whole when they are pointed at."""

LIGHT = (
    ".anabranch text{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#1f2933}.anabranch .mono{font-family:'DejaVu Sans "
    "Mono',monospace}.anabranch .name{font-weight:bold}.anabranch .fact{fill:#52606d}.anabranch .ground{fill:#ffffff}"
    ".anabranch .input{fill:#eef4fb;stroke:#7b93b0}.anabranch .join{fill:#fbf7ee;stroke:#b09a6b}"
    ".anabranch .heat{fill:#f0b429}.anabranch .edge{fill:none;stroke:#9aa5b1}"
)
DARK = (
    ".anabranch text{font-family:'DejaVu Sans',Verdana,sans-serif;fill:#e4e7eb}.anabranch .mono{font-family:'DejaVu Sans "
    "Mono',monospace}.anabranch .name{font-weight:bold}.anabranch .fact{fill:#b3bfcc}.anabranch .ground{fill:#0d1117}"
    ".anabranch .input{fill:#17212e;stroke:#4c6584}.anabranch .join{fill:#242016;stroke:#857346}"
    ".anabranch .heat{fill:#b07d12}.anabranch .edge{fill:none;stroke:#616e7c}"
)


@dataclass(frozen=True)
class Text:
    """A line of a picture, cut if it is too long."""

    whole: str
    size: int = FACT_PX
    is_name: bool = False

    @property
    def shown(self) -> str:
        return fitted(self.whole, self.size, self.is_name, LONGEST_PX)

    @property
    def width(self) -> float:
        return text_width(self.shown, self.size, self.is_name)

    def svg(self, middle: float, baseline: float) -> str:
        kind = "name" if self.is_name else "fact"
        hint = f"<title>{escape(self.whole)}</title>" if self.shown != self.whole else ""
        return (
            f'<text class="{kind}" x="{middle - self.width / 2:.1f}" y="{baseline:.1f}" font-size="{self.size}" '
            f'textLength="{self.width:.1f}" lengthAdjust="spacingAndGlyphs">{hint}{escape(self.shown)}</text>'
        )


@dataclass
class Box:
    """A node with its place in the picture."""

    node: Node
    lines: tuple[Text, ...]
    label: tuple[Text, ...]
    """What stands on the edge above it."""
    children: list[Box]
    level: int
    heat: float = 0.0
    x: float = 0.0
    y: float = 0.0
    width: float = field(init=False)
    height: float = field(init=False)

    def __post_init__(self) -> None:
        self.width = max(line.width for line in self.lines) + 2 * PADDING_PX
        self.height = len(self.lines) * LINE_PX + PADDING_PX

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def label_height(self) -> float:
        return len(self.label) * LINE_PX

    @property
    def span(self) -> float:
        """How much of the picture's width it and all below it need."""
        below = sum(child.span for child in self.children) + GAP_PX * max(0, len(self.children) - 1)
        return max(self.width, below, max((line.width for line in self.label), default=0.0))

    def walk(self) -> Iterator[Box]:
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class SharingLines:
    """What a picture tells of what the query shares with others."""

    slices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """For the box of each source whose rows are cut into slices."""
    join: Sequence[str] = ()
    """Of its join, below what the plan costs."""


NOTHING_SHARED = SharingLines()


def draw_plan(
    tree: Node, name: str, summary: str, grouped: str | None = None, shared: SharingLines = NOTHING_SHARED
) -> str:
    """The picture of a plan: `name` stands above it, what it costs below it."""
    boxes, head, feet, width, height = laid_out(tree, name, summary, grouped, shared)
    parts = [f'<rect class="ground" width="{width:.0f}" height="{height:.0f}"/>', head.svg(width / 2, MARGIN_PX + NAME_PX)]
    parts += [foot.svg(width / 2, height - MARGIN_PX - LINE_PX * (len(feet) - n)) for n, foot in enumerate(feet, 1)]
    parts += [_edge(box, child) for box in boxes for child in box.children]
    parts += [_boxed(box) for box in boxes]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="anabranch" role="img" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}"><title>{escape(f"{name}: {summary}")}</title>'
        f"<style>{LIGHT}@media (prefers-color-scheme: dark){{{DARK}}}</style>{''.join(parts)}</svg>\n"
    )


def laid_out(
    tree: Node, name: str, summary: str, grouped: str | None = None, shared: SharingLines = NOTHING_SHARED
) -> tuple[list[Box], Text, list[Text], float, float]:
    """All boxes in their places, the line above them, the lines below, and the size of the picture."""
    top = _box(tree, _most_cpu(tree), grouped, shared.slices)
    head, feet = Text(name, NAME_PX, is_name=True), [Text(summary), *map(Text, shared.join)]
    boxes = list(top.walk())
    width = max(top.span, head.width, *(foot.width for foot in feet)) + 2 * MARGIN_PX
    _place(top, (width - top.span) / 2)
    y = float(MARGIN_PX + 2 * LINE_PX)
    for level in range(max(box.level for box in boxes) + 1):
        row = [box for box in boxes if box.level == level]
        y += max(box.label_height for box in row) + EDGE_PX + BEND_PX if level else 0
        for box in row:
            box.y = y
        y += max(box.height for box in row)
    return boxes, head, feet, width, y + (1 + len(feet)) * LINE_PX + MARGIN_PX


def _box(
    node: Node,
    most_cpu: float,
    grouped: str | None,
    slices: Mapping[str, Sequence[str]],
    parent: Node | None = None,
    level: int = 0,
) -> Box:
    title = node.title if node.input is not None or not node.is_root else f"results of {node.name}"
    lines = [Text(title, NAME_PX, is_name=True)]
    lines += [Text(f"[{node.window}]")] if node.window else []
    lines += [Text(grouped)] if grouped else []
    lines += [Text(f"where {text}") for text in node.unknown]
    lines += [Text(" · ".join(facts))] if (facts := _facts(node)) else []
    lines += [Text(line) for line in slices.get(node.input.source.name, ())] if node.input is not None else []
    children = [_box(child, most_cpu, None, slices, node, level + 1) for child in node.children]
    heat = node.cpu / most_cpu if node.cpu is not None and most_cpu else 0.0
    label = [] if parent is None else [*_keys(node, parent), *_rate(node)]
    return Box(node, tuple(lines), tuple(map(Text, label)), children, level, heat)


def _facts(node: Node) -> list[str]:
    """What a node keeps, as it was measured or else predicted; the results of a query are kept by nobody."""
    found: list[str] = []
    known = node.measured if node.measured.kept_rows is not None else node.predicted
    found += _rate(node) if node.is_root else []
    if known.kept_rows is not None and known.kept_bytes is not None:
        found.append(f"{count_text(known.kept_rows)} rows, {show_bytes(known.kept_bytes)} kept")
    return [*found, *([f"{percent_text(node.cpu)} of a core"] if node.cpu is not None else [])]


def _rate(node: Node) -> list[str]:
    """How many rows come each second; nothing for what is stored."""
    known = node.measured if node.measured.rows_per_s is not None else node.predicted
    return [] if known.rows_per_s is None else [f"{count_text(known.rows_per_s)} rows/s"]


def _keys(node: Node, parent: Node) -> list[str]:
    """The terms by which rows of an input of a join are looked for."""
    return [side[1] for key in parent.keys for side in key if side[0] == node.aliases] or ["every row"]


def _most_cpu(tree: Node) -> float:
    return sum(node.cpu or 0.0 for node in tree.walk())


def _place(box: Box, left: float) -> None:
    """Gives a box and all below it their places from left to right, each over the middle of what is below it."""
    below = sum(child.span for child in box.children) + GAP_PX * max(0, len(box.children) - 1)
    at = left + (box.span - below) / 2
    for child in box.children:
        _place(child, at)
        at += child.span + GAP_PX
    box.x = left + (box.span - box.width) / 2


def _boxed(box: Box) -> str:
    kind = "input" if box.node.input is not None else "join"
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="8"'
    heat = f'<rect class="heat" {place} fill-opacity="{0.45 * box.heat:.2f}"/>' if box.heat else ""
    texts = "".join(
        line.svg(box.middle, box.y + PADDING_PX / 2 + LINE_PX * (n + 0.75)) for n, line in enumerate(box.lines)
    )
    return f'<rect class="{kind}" {place}/>{heat}{texts}'


def _edge(upper: Box, lower: Box) -> str:
    """From a box up to what stands on the edge, and from there to the box above."""
    x, top, bottom = lower.middle, upper.y + upper.height, lower.y
    ends = bottom - EDGE_PX - lower.label_height
    bend = ends - top
    path = f"M{x:.1f} {bottom:.1f}V{bottom - EDGE_PX + 4:.1f}M{x:.1f} {ends:.1f}"
    path += f"C{x:.1f} {ends - bend / 2:.1f} {upper.middle:.1f} {top + bend / 2:.1f} {upper.middle:.1f} {top:.1f}"
    label = "".join(line.svg(x, ends + LINE_PX * (n + 0.75)) for n, line in enumerate(lower.label))
    return f'<path class="edge" d="{path}"/>{label}'


# -- how wide text is ------------------------------------------------------------------------------------------------


def text_width(text: str, size: float, is_bold: bool = False) -> float:
    """The width of a text.

    >>> text_width("iii", 10) < text_width("WWW", 10) < text_width("WWW", 10, is_bold=True)
    True
    """
    widths = BOLD if is_bold else REGULAR
    return sum(widths.get(letter) or _unlisted(letter) for letter in text) * size / 1000


def _unlisted(letter: str) -> int:
    """A letter of another alphabet is taken to be as wide as it is high, an accent to take no place of its own."""
    return 0 if unicodedata.combining(letter) else 1000


def fitted(text: str, size: float, is_bold: bool, longest: float) -> str:
    """A text, cut so that it is no longer than allowed.

    >>> fitted("transactions_of_all_customers", 12, False, 120)
    'transactions_of_a…'
    """
    if text_width(text, size, is_bold) <= longest:
        return text
    left = longest - text_width("…", size, is_bold)
    widths = accumulate(text_width(letter, size, is_bold) for letter in text)
    return text[: sum(width <= left for width in widths)] + "…"
