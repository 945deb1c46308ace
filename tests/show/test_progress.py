"""Progress as blocks of any width, as key=value, and as JSON."""

from __future__ import annotations

import io
import json
import shlex
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from anabranch.control.completeness import Completeness
from anabranch.control.progress import Progress, Waiting
from anabranch.control.records import Border
from anabranch.plan.query import BEGINNING_US
from anabranch.show.progress import block, figures, json_line, logfmt_line

NAMES = {"o": "orders", "p": "payments", "s": "shipments"}


def step(batch: int = 7, **changed: Any) -> Progress:
    """A batch of 600 rows that took a second, half of it Spark's."""
    given: dict[str, Any] = {
        "trigger": batch, "plan": "((o s) p){(o s): p}", "target": None, "rows": {"orders": 100, "payments": 500},
        "late_rows": {"orders": 3}, "early_rows": {"orders": 2}, "untimed_rows": {"payments": 10},
        "skipped_rows": {"payments": 4}, "results": 90, "watermark_us": 1_000_000_000, "state_rows": 12_345,
        "state_bytes": 3 << 20, "budget_bytes": float(1 << 30), "cpu_s": 0.25, "names": NAMES, "at_s": 1_000.0 + 2 * batch,
        "wall_s": {"control": 0.1, "tasks": 0.7, "commit": 0.1, "deliver": 0.1, "wall step": 0.15, "wall save": 0.05},
    }  # fmt: skip
    return Progress(batch=batch, **{**given, **changed})


def shown(width: int, *given: Any, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(block(*given, width=console.width, **more))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_block_fits_its_terminal_and_says_all(width: int) -> None:
    decision = "payments sped up 48 times (1,000 → 48,000 rows/s). Joining orders with shipments first now takes 13 % less."
    text = shown(width, "fulfilled", [step(6), step(7)], decision, waits="its sink takes long")
    lines = text.splitlines()
    assert {cell_len(line) for line in lines} == {min(width, 120)}, "every line is as wide as the block, none is cut"
    inside = " ".join(" ".join(line.strip("│╭╮╰╯─ ") for line in lines).split())
    for part in (
        "fulfilled batch 7", "300 rows/s in, 45 results/s out", "1.00 s per batch, 50 % of it Spark's",
        "1970-01-01 00:16:40 UTC, 14 s behind the clock",
        "6 late, 4 early, 20 without a time, 8 skipped in 2 batches",
        "12,345 rows, 3 MiB of 1 GiB (0 %)", "[orders ⋈ shipments] ⋈ payments", decision, "its sink takes long",
    ):  # fmt: skip
        assert part in inside, (part, inside)


def test_a_plan_that_is_too_wide_is_drawn_with_aliases() -> None:
    names = {alias: f"a_stream_with_a_long_name_{alias}" for alias in "ops"}
    text = shown(60, "q", [step(names=names)])
    assert "[o ⋈ s] ⋈ p" in text
    assert "o a_stream_with_a_long_name_o" in text
    assert "[a_stream_with" in shown(120, "q", [step(names=names)])


def test_a_block_before_the_first_batch_and_after_the_end() -> None:
    assert "no batch has been committed yet" in shown(60, "q", [])
    assert "some stream has brought no row" in " ".join(shown(80, "q", [step(watermark_us=BEGINNING_US)]).split())
    assert "ended: all input" in shown(60, "q", [step()], ended="ended: all input there was is processed")


def test_results_that_are_not_put_together_are_at_most_so_many() -> None:
    assert "at most 90 results/s out" in shown(80, "q", [step(is_counted=False)])
    assert "at most" not in shown(80, "q", [step()])
    assert pairs_of(logfmt_line("q", step(is_counted=False)))["results_at_most"] == "90"


def test_names_are_no_markup() -> None:
    assert "[bold]" in shown(80, "q", [step()], "a [bold] decision")


def test_figures_are_averages_over_the_latest_batches() -> None:
    steps = [step(n, results=0 if n < 20 else 20) for n in range(40)]
    found = figures(steps)
    assert (found.rows_per_s, found.results_per_s, found.seconds) == pytest.approx((300.0, 10.0, 1.0))
    assert found.spark_s == pytest.approx(0.5)
    assert figures(steps[:1]).rows_per_s == pytest.approx(600.0), "of one batch, by the time it took"


def test_what_spark_says_of_its_trigger_is_part_of_the_batch() -> None:
    longer = step(wall_s={**step().wall_s, "trigger": 1.5})
    assert longer.seconds == 1.5
    assert longer.spark_s == pytest.approx(1.0)


def pairs_of(line: str) -> dict[str, str]:
    """As a reader of logfmt would take it apart."""
    return dict(word.split("=", 1) for word in shlex.split(line))


def test_a_line_of_key_value() -> None:
    given = step(target="(o p s)", waiting={"orders": Waiting(2, ["a", "b"])}, undelivered=3)
    found = pairs_of(logfmt_line("my query", given))
    wanted = {
        "query": "my query", "batch": "7", "rows": "600", "results": "90", "seconds": "1.000", "spark_seconds": "0.500",
        "late": "3", "early": "2", "untimed": "10", "skipped": "4", "state_bytes": str(3 << 20), "behind_s": "14.0",
        "watermark": "1970-01-01T00:16:40+00:00", "plan": "((o s) p){(o s): p}", "target": "(o p s)", "files_waiting": "2",
        "undelivered": "3", "budget_bytes": str(1 << 30),
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted
    assert "\n" not in logfmt_line("q", step())
    without = pairs_of(logfmt_line("q", step(watermark_us=BEGINNING_US, budget_bytes=None)))
    assert not {"watermark", "behind_s", "budget_bytes", "target"} & without.keys()


def test_what_went_over_the_border_of_databases() -> None:
    borders = {
        "orders+customers.1a2b3c": Border("shop", 2, 1_000, 8_000, 990, 1 << 20, 0.25),
        "x": Border("duck", 1, 5_000_000, 3 << 20, 7, 56, 0.5),
    }
    given = step(borders=borders)
    inside = " ".join(" ".join(line.strip("│╭╮╰╯─ ") for line in shown(90, "q", [given]).splitlines()).split())
    assert "shop for orders+customers.1a2b3c, last batch: 1,000 rows (7.81 KiB) there, 990 (1 MiB) back, 0.250 s" in inside
    assert "duck for x, last batch: 5,000,000 rows (3 MiB) there" in inside
    found = pairs_of(logfmt_line("q", given))
    assert [found[f"database_{key}"] for key in ("rows_sent", "rows_back", "bytes_back", "seconds")] == [
        "5001000", "997", str((1 << 20) + 56), "0.750"
    ]  # fmt: skip
    made = json.loads(json_line("q", given))["borders"]
    assert made["x"] == {"database": "duck", "calls": 1, "rows_sent": 5_000_000, "bytes_sent": 3 << 20, "rows_back": 7,
                         "bytes_back": 56, "seconds": 0.5, "failed": 0, "instants": 0}  # fmt: skip
    assert "shop</td>" in given._repr_html_()
    assert not any(key.startswith("database") for key in pairs_of(logfmt_line("q", step())))
    assert json.loads(json_line("q", step()))["borders"] == {}
    paces = {"orders+customers, looked up": 2.5}
    assert json.loads(json_line("q", step(paces=paces)))["paces"] == paces
    inside = " ".join(" ".join(line.strip("│╭╮╰╯─ ") for line in shown(90, "q", [step(paces=paces)]).splitlines()).split())
    assert "orders+customers, looked up: 2.5 times as long as calibrated" in inside
    assert "2.5 times as long as calibrated" in step(paces=paces)._repr_html_()


def test_an_object_for_programs_has_all_fields() -> None:
    made = json.loads(json_line("q", step(late_rows={})))
    assert made.keys() >= {field.name for field in msgspec.structs.fields(Progress)}
    assert (made["query"], made["rows"], made["untimed_rows"]) == ("q", {"orders": 100, "payments": 500}, {"payments": 10})
    assert made["seconds"] == pytest.approx(1.0)
    assert made["watermark"] == "1970-01-01T00:16:40+00:00"
    assert made["late_rows"] == {}, "also fields that are as they are by default"
    assert json.loads(json_line("q", step(watermark_us=BEGINNING_US)))["watermark"] is None


def test_progress_is_short_to_look_at() -> None:
    assert repr(step()) == "<batch 7: 600 rows, 90 results, 1.00 s, plan ((o s) p){(o s): p}>"
    assert "<td>10 without a time" not in step()._repr_html_()
    assert "10 without a time" in step()._repr_html_()


ADAPTED = {
    "completeness": Completeness(7, 60, 90.0, 9.0), "since_adapted": Completeness(3, 740, 1_000.0, 400.0),
    "unprobed_rows": {"o": 50, "p": 400}, "stale_results": 5, "stale_rows": {"orders": 2}, "shed_rows": {"payments": 30},
    "seen_us": 1_009_000_000,
}  # fmt: skip


def test_results_that_are_missing_are_told_with_their_standard_error() -> None:
    text = " ".join(shown(100, "q", [step(6, **ADAPTED), step(7, **ADAPTED)]).replace("│", " ").split())
    for part in (
        "adapted 74 % ± 1.5 % of the results since batch 3, 67 % in the last; 900 rows were not looked up in 2 batches",
        "shed 60 rows in 2 batches", "too old 10 results and 4 rows in 2 batches", "lag streams are 5.0 s behind the clock",
    ):  # fmt: skip
        assert part in text, (part, text)
    exact = shown(100, "q", [step(7, seen_us=1_009_000_000)])
    for label in ("adapted", "shed", "too old", "lag"):
        assert label not in exact, "nothing is told where nothing is missing"


def test_what_is_missing_stands_in_lines_and_objects() -> None:
    found = pairs_of(logfmt_line("q", step(7, **ADAPTED)))
    wanted = {
        "complete": "0.7400", "complete_error": "0.0148", "adapted_since": "3", "unprobed": "450", "shed": "30",
        "stale_rows": "2", "stale_results": "5", "lag_s": "5.0",
    }  # fmt: skip
    assert {key: found[key] for key in wanted} == wanted
    assert not {"complete", "adapted_since", "shed", "lag_s"} & pairs_of(logfmt_line("q", step())).keys()
    made = json.loads(json_line("q", step(7, **ADAPTED)))
    assert (made["is_exact"], made["complete_share_since"]) == (False, 0.74)
    assert made["complete_share"] == pytest.approx(2 / 3)
    assert made["complete_error"] == pytest.approx(2 / 3 * 3 / 90)
    exact = json.loads(json_line("q", step()))
    assert (exact["is_exact"], exact["complete_share"], exact["complete_error"], exact["lag_s"]) == (True, 1.0, 0.0, None)
    unknown = step(7, completeness=Completeness(7, is_known=False), since_adapted=Completeness(7, is_known=False))
    assert json.loads(json_line("q", unknown))["complete_share"] is None
    assert pairs_of(logfmt_line("q", unknown))["complete"] == "unknown"
    assert "an unknown share of the results" in " ".join(shown(100, "q", [unknown]).split())


def test_what_is_missing_is_seen_in_a_notebook() -> None:
    html = step(7, **ADAPTED)._repr_html_()
    assert "67 % ± 2.2 % of the results, 450 rows were not looked up" in html
    assert "5 results and 2 rows were too old, 30 rows were shed" in html
    assert "complete" not in step()._repr_html_()
