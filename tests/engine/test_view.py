"""Views: row ids of the parts of combined rows, by the id of the combined row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.engine.view import Combined, View

IDS = st.integers(0, 2**62)


def append(view, batch, rows, end_max_us=100):
    """Appends combined rows, given as one tuple of row ids each."""
    return view.append(
        batch, [np.array([r[i] for r in rows], np.int64) for i in range(view.inputs)], end_max_us
    )


def contents(view, model):
    """The combined rows of the model's ids, as the view has them."""
    ids = np.array(list(model), np.int64)
    parts = [view.part(place, ids).tolist() for place in range(view.inputs)]
    return list(zip(*parts, strict=True))


@given(st.integers(2, 4), st.data())
@settings(deadline=None, max_examples=40)
def test_a_view_against_a_dictionary(width, data):
    """Rows come batch by batch, several times in one; segments end; what is left is found under its id."""
    view, model, ends = View(width, "v"), {}, {}
    watermark_us = 0
    for batch in range(data.draw(st.sampled_from([1, 5, 20, 70]))):
        for rows in data.draw(st.lists(st.lists(st.tuples(*[IDS] * width), min_size=1, max_size=3), max_size=2)):
            end_us = batch + data.draw(st.integers(1, 20))
            first = append(view, batch, rows, end_us)
            assert first == sum(b == batch for b in (i >> 32 for i in model))
            model |= {batch << 32 | (first + i): row for i, row in enumerate(rows)}
            ends[batch] = max(end_us, ends.get(batch, 0))
        if data.draw(st.booleans()) and model:
            assert contents(view, model) == list(model.values())
        watermark_us = max(watermark_us, batch - data.draw(st.integers(0, 12)))
        view.purge(watermark_us)
        model = {i: row for i, row in model.items() if ends[i >> 32] > watermark_us}
        assert view.rows == len(model)
        assert view.bytes == 8 * width * len(model)
    if model:
        assert contents(view, model) == list(model.values())


def test_single_rows_that_come_one_by_one():
    view = View(3, "v")
    assert [append(view, 0, [(i, 10 + i, 20 + i)]) for i in range(4)] == [0, 1, 2, 3]
    assert contents(view, range(4)) == [(i, 10 + i, 20 + i) for i in range(4)]


@pytest.mark.parametrize("asked_before", [False, True])
def test_rows_of_one_batch_move_when_more_come(asked_before):
    view = View(2, "v")
    append(view, 3, [(1, 2)])
    if asked_before:
        assert view.part(1, np.array([3 << 32])).tolist() == [2]
    assert append(view, 3, [(3, 4), (5, 6)], end_max_us=7) == 1
    assert view.part(0, np.array([3 << 32 | 2, 3 << 32])).tolist() == [5, 1]
    assert view.segments[3].end_max_us == 100


def test_segments_that_were_read_from_files():
    """Batches come in any order; they are addressed when somebody asks."""
    view = View(2, "v")
    for batch in (7, 5, 9):
        view.add(batch, Combined(np.array([[batch], [10 * batch]]), 100))
    assert contents(view, [b << 32 for b in (5, 7, 9)]) == [(5, 50), (7, 70), (9, 90)]


def test_purge_and_clear():
    view = View(2, "v")
    append(view, 0, [(1, 2)], end_max_us=5)
    append(view, 1, [(3, 4)], end_max_us=6)
    view.purge(5)
    assert list(view.segments) == [1]
    view.clear()
    assert (view.rows, view.bytes) == (0, 0)
    append(view, 2, [(5, 6)])
    assert contents(view, [2 << 32]) == [(5, 6)]


def test_an_empty_view_takes_rows_again_after_all_have_ended():
    view = View(2, "v")
    for batch in (0, 500, 1000):
        append(view, batch, [(batch, batch + 1)], end_max_us=batch + 1)
        assert contents(view, [batch << 32]) == [(batch, batch + 1)]
        view.purge(batch + 1)
        assert view.rows == 0


def test_one_row_that_stays_keeps_its_segment_alone():
    view = View(2, "v")
    append(view, 0, [(1, 2)], end_max_us=10**15)
    for batch in range(1, 5000):
        append(view, batch, [(batch, batch + 1)], end_max_us=batch + 2)
        view.purge(batch)
        assert contents(view, [batch << 32, 0]) == [(batch, batch + 1), (1, 2)]
    assert sorted(view.segments) == [0, 4998, 4999]
    assert view._tables.addresses.shape[1] <= 4096
