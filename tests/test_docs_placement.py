"""All examples of docs/placement.md, run in a real PostgreSQL."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anabranch as ab
from anabranch.cli import main
from anabranch.drive.local import LocalPipeline
from anabranch.place.databases.registry import close_all, database, describe
from anabranch.place.reading import LookupCosts, lookup_costs_of
from anabranch.plan.query import Enriched
from anabranch.show.lookups import lookups_text
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench.postgres import PASSWORD, Server

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "placement.md").read_text()
START_S = 300.0
RUN = {"postgresql", "sh", "sql", "console"}


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(found)


def test_all_examples_are_run_here() -> None:
    fences = re.findall(r"^```(\w*)$", DOCUMENT, re.MULTILINE)
    assert set(fences) - {""} == RUN
    assert len(fences) == 2 * len(RUN)


@pytest.fixture
def shop(postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """The environment of the document, but for where its server and its passfile are."""
    passes = tmp_path / "passes"
    passes.write_text(f"*:*:shop:looker:{PASSWORD}\n")
    passes.chmod(0o600)
    here = {"HOST": str(postgres.socket), "PASSFILE": str(passes)}
    for name, value in re.findall(r"export (\w+)=(.*)", block("sh")):
        monkeypatch.setenv(name, here.get(name.rpartition("_")[2], value))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    close_all()
    postgres.sql("DROP TABLE IF EXISTS customers;" + block("postgresql") + "ANALYZE customers")
    yield postgres
    close_all()
    postgres.sql("DROP TABLE customers")


def costs_of(source: Enriched) -> LookupCosts | None:
    return lookup_costs_of(source.table.database)


def test_from_nothing_to_a_lookup_join(shop: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    query = parse_script(block("sql"), describe=describe).queries[0].query
    pipeline = LocalPipeline([query], MemoryFilesystem(), slots=2, databases=database)
    at = pa.array([0, 0, 0], pa.timestamp("us"))
    orders = pa.table({"id": [1, 2, 3], "customer": [4, 5, 5000], "amount": pa.array([1, 1, 1], pa.int32()), "ts": at})
    payments = pa.table({"order_id": [1, 2, 3], "paid": pa.array([7, 8, 9], pa.int32()), "ts": at})
    assert pipeline.step(0, {"orders": orders})["paid"].results.num_rows == 0
    shop.sql("UPDATE customers SET name = 'renamed'")
    found = pipeline.step(1, {"payments": payments})["paid"].results
    assert found.to_pylist() == [{"id": 1, "name": "customer 4", "paid": 7}]

    text = " ".join((lookups_text(query, costs_of) or "").split())
    (command,) = re.findall(r"\$ (.*)", block("console"))
    assert f"{command} measures them" in text, "what is to be done is what the document says"
    monkeypatch.setattr("anabranch.place.calibrate.measure_lookups.__defaults__", ((100, 1000), 1))
    assert main(shlex.split(command)[1:]) == 0
    text = " ".join((lookups_text(query, costs_of) or "").split())
    # Which of the two it is depends on how long this machine has taken.
    assert re.search("read whole in a batch where a slot has more keys than|in every batch: a key takes", text)


@pytest.mark.spark
def test_the_command_that_runs_the_script(shop: Server, tmp_path: Path) -> None:
    """Results go to the terminal, as the document leaves it; `--once` has it end."""
    at = pa.array([0, 0], pa.timestamp("us"))
    write(tmp_path / "orders", {"id": [1, 2], "customer": [4, 5], "amount": pa.array([1, 1], pa.int32()), "ts": at})
    write(tmp_path / "payments", {"order_id": [1, 2], "paid": pa.array([7, 8], pa.int32()), "ts": at})
    (tmp_path / "orders.sql").write_text(block("sql"))
    (command,) = re.findall(r"`anabranch (run orders\.sql)` runs it", DOCUMENT)
    done = subprocess.run(
        [sys.executable, "-m", "anabranch.cli", *command.split(), "--once"], cwd=tmp_path, capture_output=True, text=True,
        timeout=START_S, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.search("^ *1 +customer 4 +7$", done.stdout, re.MULTILINE), done.stdout
    assert "customer 5" not in done.stdout, "she lives elsewhere"


def write(folder: Path, columns: dict[str, object]) -> None:
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "0.parquet")


def test_the_table_in_python() -> None:
    (call,) = re.findall(r's\.table\("customers", (ab\..*?)\)`', DOCUMENT)
    made = eval(call, {"ab": ab})
    assert (made.database, made.relation) == ("shop", "public.customers")
