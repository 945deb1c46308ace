"""The journal in words."""

from __future__ import annotations

from typing import Any

from anabranch.control.journal import Entry
from anabranch.show.journal import last_decision, stories, words

NAMES = {"o": "orders", "p": "payments", "s": "shipments"}
CHANGE = {
    "target": "((o s) p)", "strategy": "moving-state", "why": "rate of payments went from 1e+03 to 4.8e+04",
    "drifted": {"rate of payments": [1_000.0, 48_000.0]}, "cpu": 0.87, "cpu_before": 1.0, "memory": 102.0,
    "memory_before": 100.0,
}  # fmt: skip


def entry(event: str, batch: int, text: str = "", **details: Any) -> Entry:
    return Entry(float(batch), batch, event, text, details)


def entries() -> list[Entry]:
    return [
        entry("started", -1, plan="(o p s)", names=NAMES),
        entry("migrating", 17, "from … to …", **CHANGE),
        entry("migrated", 18, batches=1, waited_s=0.21),
        entry("kept", 20, "8 batches are measured; no plan is better by enough", why="8 batches are measured"),
        entry("effect", 23, cpu=0.5, cpu_before=1.0, cpu_predicted=0.87, cpu_old_plan=0.59),
        entry("ended", 30, "all input there was is processed"),
    ]


def test_a_change_is_told_with_what_came_of_it() -> None:
    started, change, kept, ended = stories(entries())
    assert change.text == (
        "payments sped up 48 times (1,000 → 48,000 rows/s). Joining orders with shipments first, then payments, now takes "
        "13 % less CPU and 2 % more memory. Went over in batch 18, which waited 0.2 s. Measured since: 50 % less CPU "
        "(0.5 cores instead of 1), 15 % less than the old plan would take by now; 13 % less was predicted."
    )
    assert started.text == "Started on an empty checkpoint, joining orders, payments and shipments at once."
    text = "one join for a and b: 0.1 cores and 2 MiB are expected"
    (shared,) = stories([entry("started", -1, plan="(o p s)", names=NAMES, sharing={"text": text})])
    assert shared.text == f"{started.text} One join for a and b: 0.1 cores and 2 MiB are expected."
    assert kept.text == "8 batches are measured. Kept the plan: no plan is better by enough."
    assert ended.text == "Ended: all input there was is processed."
    assert [story.batch for story in (started, change, kept, ended)] == [-1, 17, 20, 30]
    assert "1970-01-01 00:00:17 UTC  batch     17  payments sped up" in str(change)


def test_the_last_decision_is_no_start_and_no_end() -> None:
    assert last_decision(entries()).startswith("8 batches are measured")
    assert last_decision(entries()[:3]).endswith("which waited 0.2 s.")
    assert last_decision(entries()[:1]) == ""
    assert last_decision(entries()[1:3], NAMES).startswith("payments sped up"), "names may be known from elsewhere"


def test_what_changes_most_is_told_first_and_rates_before_matches() -> None:
    drifted = {"matches of o in p": [1.0, 9.0], "rate of b": [100.0, 70.0], "rate of c": [48_000.0, 1_000.0]}
    text = words(entry("migrating", 1, **{**CHANGE, "drifted": drifted}), NAMES)
    told = "c slowed down 48 times (48,000 → 1,000 rows/s), b slowed down by 30 % (100 → 70 rows/s) (and 1 more change). "
    assert text.startswith(told)
    text = words(entry("migrating", 1, **{**CHANGE, "drifted": {"matches of o in p": [1.0, 9.0]}}), NAMES)
    assert text.startswith("a row of orders finds 9 of payments, 1 before.")


def test_a_change_by_request_a_proposal_and_groups() -> None:
    asked = entry("migrating", 3, "from (o p s) to ((o s) p) by gradual: by request", target="((o s) p)", strategy="gradual")
    assert words(asked, NAMES) == (
        "By request. Joining orders with shipments first, then payments, from now on. The new plan's state is computed "
        "piece by piece, beside the batches."
    )
    proposed = words(entry("proposed", 3, "((o s) p) by gradual, if you approve", **CHANGE), NAMES)
    assert "A change waits for your approval: Joining orders" in proposed
    groups = {"cpu": 0.5, "cpu_before": 1.0, "grouped_input": "p", "target": "(o p), p grouped first"}
    assert "with rows of payments grouped before they are joined, now takes 50 % less CPU" in words(
        entry("migrating", 3, **groups), NAMES
    )


def test_a_change_over_several_batches() -> None:
    assert words(entry("migrated", 20, batches=3, waited_s=0.12)) == (
        "Went over in batches 18 to 20, none of which waited longer than 0.1 s."
    )
    assert words(entry("migrated", 20, batches=1, waited_s=0.0)) == "Went over in batch 20."


def test_an_effect_under_another_load_says_so() -> None:
    measured = {"cpu": 0.5, "cpu_before": 1.0, "cpu_predicted": 0.87}
    told = words(entry("effect", 9, **measured, rows_per_s=2_000.0, rows_per_s_before=1_000.0))
    assert told.endswith("while streams bring 2,000 rows/s instead of 1,000.")
    assert "while" not in words(entry("effect", 9, **measured, rows_per_s=1_100.0, rows_per_s_before=1_000.0))


def test_entries_without_words_of_their_own() -> None:
    """Also those of a release that noted less."""
    for event in ("skipping", "left", "given up", "damaged", "replanned", "migrated", "kept", "started", "cancelled"):
        assert words(entry(event, 2, "so it was")) == f"{event.capitalize()}: so it was."


def test_an_entry_is_short_to_look_at() -> None:
    assert repr(entry("left", 2, "a < b")) == "<left, batch 2: a < b>"
    assert entry("left", 2, "a < b")._repr_html_() == "<p><b>left</b>, batch 2: a &lt; b</p>"


def test_slices_are_told_and_part_no_change_from_what_came_of_it() -> None:
    given = entries()
    given[2:2] = [entry("slicing", 17, "from batch 18 on rows of o are kept for 1 minute", source="o")]
    told = stories(given)
    assert [story.text for story in told if story.is_decision][1] == (
        "Slicing: from batch 18 on rows of o are kept for 1 minute."
    )
    assert "Went over in batch 18" in told[1].text


def test_an_overload_is_told_from_its_beginning_to_its_end() -> None:
    shares = {"o": 0.4, "p": 1.0}
    limits = "streams bring 2.1 times what there is time for: 40 % of rows of o look up their partners"
    told = stories(
        [
            entry("started", -1, plan="(o p)", names=NAMES),
            entry("limiting", 41, limits, shares=shares, completeness=0.74),
            entry("lifted", 60, "streams bring 0.6 of what there is time for: every row looks up its partners again"),
            entry("shedding", 70, "streams bring 3 times what there is time for: 30 % of their rows are kept"),
            entry("cannot help", 80, "streams bring 3 times what there is time for, and so on"),
            entry("too old", 90, "all 7 results of batch 90 are too old by the clock"),
        ]
    )
    assert [story.text.split(":")[0] for story in told[1:]] == [
        "Results are missing from batch 42 on", "Exact again from batch 61 on", "Results are missing from batch 71 on",
        "Limiting lookups does not help", "Nothing is fresh",
    ]  # fmt: skip
    assert "40 % of rows of orders look up" in told[1].text
    assert all(story.is_decision for story in told[1:])
