"""Plans as pictures: all text stays in its place, for any plan and any names."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.cost.facts import Given
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, joins_of
from anabranch.plan.query import Table
from anabranch.show.draw import (
    FACT_PX,
    LINE_PX,
    LONGEST_PX,
    NAME_PX,
    Box,
    SharingLines,
    Text,
    fitted,
    laid_out,
    text_width,
)
from anabranch.show.glyph_widths import BOLD, RANGES, REGULAR
from bench import pictures
from bench.pictures import font_widths, in_scheme, widths_module
from tests.support.plans import priced
from tests.support.queries import planned, stream

NAMES = st.text(st.sampled_from("abyzWMil_0159 -äßŁωЖ漢"), min_size=1, max_size=60)
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


def named(found: JoinGraph, names: list[str]) -> JoinGraph:
    """A graph whose streams have other names."""
    inputs = zip(found.query.inputs, names, strict=False)
    return JoinGraph(replace(found.query, inputs=tuple(replace(i, source=stream(name)) for i, name in inputs)))


def apart(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether two rectangles (left, top, right, bottom) do not overlap."""
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


def rectangle(box: Box) -> tuple[float, ...]:
    return (box.x, box.y, box.x + box.width, box.y + box.height)


def label_of(box: Box) -> tuple[float, ...]:
    """What the keys and the rate on the edge above a box cover."""
    half = max((line.width for line in box.label), default=0.0) / 2
    return (box.middle - half, box.y - box.label_height, box.middle + half, box.y)


@given(
    planned(), st.lists(NAMES, min_size=6, max_size=6), st.sampled_from([1e-9, 1.0, 1e12]), st.lists(NAMES, max_size=9),
    st.lists(NAMES, max_size=3),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_nothing_leaves_its_box_or_covers_another(
    case: tuple[JoinGraph, Plan], names: list[str], rate: float, slices: list[str], join: list[str]
) -> None:
    found, plan = case
    graph = named(found, names)
    shown = priced(plan, graph, Given(dict.fromkeys(names, rate)))
    shared = SharingLines(dict.fromkeys(names[1:], slices), join)
    boxes, head, feet, width, height = laid_out(
        shown.tree, names[0], shown.summary, "groups by all every 1 second", shared
    )
    assert [foot.whole for foot in feet] == [shown.summary, *join]
    assert len(boxes) == len(found.query.aliases) + len(list(joins_of(plan)))
    for box in boxes:
        assert all(line.width <= box.width - 8 for line in box.lines)
        assert box.height >= len(box.lines) * LINE_PX
        assert box.x >= 0
        assert box.x + box.width <= width
        assert box.y + box.height <= height - LINE_PX * len(feet)
    covered = [rectangle(box) for box in boxes] + [label_of(box) for box in boxes if box.label]
    for place, one in enumerate(covered):
        assert all(apart(one, other) for other in covered[place + 1 :])
    assert max(text.width for text in (head, *feet)) <= width
    drawn = ElementTree.fromstring(shown.draw(shared))
    lines = list(drawn.iter(f"{SVG}text"))
    for text in lines:
        left, long = float(text.get("x", "nan")), float(text.get("textLength", "nan"))
        assert left >= 0
        assert left + long <= width + 0.2
    below = max(box.y + box.height for box in boxes)
    places = [y for text in lines if (y := float(text.get("y", "nan"))) > below]
    assert len(places) == len(feet)
    assert all(abs(one - other) >= LINE_PX for one, other in pairwise(sorted(places))), "no line is over another"
    assert min(places) - below >= FACT_PX
    assert max(places) < float(drawn.get("height", "nan"))


@given(NAMES, st.booleans())
@settings(deadline=None)
def test_long_texts_are_cut(text: str, is_name: bool) -> None:
    size = NAME_PX if is_name else FACT_PX
    shown = fitted(text * 5, size, is_name, LONGEST_PX)
    assert text_width(shown, size, is_name) <= LONGEST_PX
    assert shown == text * 5 or shown.endswith("…")
    assert Text(text, size, is_name).width <= LONGEST_PX
    assert ("<title>" in Text(text * 20, size, is_name).svg(0, 0)) == (Text(text * 20, size, is_name).shown != text * 20)


def test_widths_are_those_of_the_font() -> None:
    for table, font in ((REGULAR, "DejaVuSans"), (BOLD, "DejaVuSans-Bold")):
        widths = font_widths(font)
        letters = [chr(code) for start, end in RANGES for code in range(start, end)]
        assert table == {letter: widths.get(ord(letter), 0) for letter in letters}
    assert widths_module().count("_table(") == 3


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_what_a_picture_shows(name: str) -> None:
    """Streams, windows, keys, rates and what is kept; in light and dark; no text outside of the picture's own style."""
    planning = pictures.planned(*pictures.PICTURES[name])
    (query,) = planning.queries
    drawn, tree = planning.draw(query), planning.priced(query).tree
    text = " ".join(ElementTree.fromstring(drawn).itertext())
    for node in tree.walk():
        if node.input is not None:
            assert node.title in text
            assert f"[{node.window}]" in text
            assert ("rows/s" in text) or isinstance(node.input.source, Table)
        assert all(term in text for key in node.keys for _, term in key)
        assert node.is_root or "kept" in text
    assert "@media (prefers-color-scheme: dark)" in drawn
    assert "@media" not in in_scheme(drawn, "")
    style = drawn.partition("<style>")[2].partition("</style>")[0]
    assert all(rule.strip().startswith((".anabranch ", "@media")) for rule in style.replace("{.", "}.").split("}") if rule)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_the_pictures_of_the_documentation_are_as_drawn(name: str) -> None:
    planning = pictures.planned(*pictures.PICTURES[name])
    (query,) = planning.queries
    kept = PICTURES / f"plan-{name}.svg"
    assert kept.read_text(encoding="utf-8") == planning.draw(query), "run python -m bench.pictures, and look at them"
    assert all(kept.with_name(f"plan-{name}-{kind}.png").exists() for kind in ("light", "dark"))
