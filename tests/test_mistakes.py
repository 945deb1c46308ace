"""The table of mistakes (docs/mistakes.md): each is made here, and told as the table says, word for word.

`python -m tests.test_mistakes` writes the table anew.
"""

from __future__ import annotations

import contextlib
import html
import io
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import anabranch as ab
from anabranch.cli import main
from anabranch.errors import AnabranchError

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "mistakes.md"

SCRIPT = """CREATE STREAM trades (k BIGINT, ts TIMESTAMP) TIME ts FROM 'trades/*.parquet';
CREATE STREAM quotes (k BIGINT, ts TIMESTAMP) TIME ts FROM 'quotes/*.parquet';
CREATE QUERY pairs AS SELECT t.k FROM trades t, quotes q WHERE t.k = q.k WINDOW 5 SECONDS;
"""

COLUMNS = {"k": "BIGINT", "ts": "TIMESTAMP"}

BEGINNING = """# Mistakes, and what is said of them

Every row is made and compared by `tests/test_mistakes.py`, which also writes this table: `python -m tests.test_mistakes`.
The script of the commands reads the streams trades and quotes and has the query pairs, over trades t and quotes q.
Commands end with 2 (wrong arguments) or 65 (wrong SQL, file or setting); errors in Python are classes of `anabranch.errors`.
Spark is not started for any of them.
"""


def session() -> ab.Session:
    """Two streams of files that come later, without Spark."""
    made = ab.Session(checkpoint="checkpoint")
    for name in ("trades", "quotes"):
        made.stream(name, f"{name}/*.parquet", "ts", columns=COLUMNS)
    return made


GROUPS = {
    "groups": "(SELECT k, COUNT(*) AS n FROM trades [NOW] GROUP BY k)",
    "spreads": "(SELECT STDDEV(k) AS s FROM trades [NOW])",
    "means": "(SELECT AVG(CAST(k AS DOUBLE)) AS m FROM trades [NOW])",
}


def placed(sql: str) -> None:
    """A query with a hint over blocks with groups."""
    session().query("pairs", sql.format(**GROUPS))


def query(**options: object) -> None:
    sql = "SELECT t.k FROM trades t, quotes q WHERE t.k = q.k WINDOW 5 SECONDS"
    session().query("pairs", sql, **options)  # type: ignore[arg-type]


def stream(**options: object) -> None:
    ab.Session(checkpoint="checkpoint").stream("s", "s/*.csv", "ts", **{"columns": COLUMNS, **options})  # type: ignore[arg-type]


def started(facts: ab.Given | None = None, **options: object) -> None:
    made = ab.Session(checkpoint="checkpoint", facts=facts) if facts else ab.Session(checkpoint="checkpoint")
    made.script(SCRIPT, lambda name: ab.sinks.memory())
    made.start(**options)  # type: ignore[arg-type]


def overload(policy: str = "fall behind", **options: Any) -> ab.Overload:
    return ab.Overload(policy, **options)


def lossy(sql: str) -> None:
    session().query("pairs", sql, overload=overload("adapt joins"))


def save(results: object) -> None:
    """A function that takes too little."""


PYTHON: dict[str, dict[str, Callable[[], object]]] = {
    "Sinks": {
        'query(…, sink="out")': lambda: query(sink="out"),
        "query(…, sink=5)": lambda: query(sink=5),
        "query(…, sink=ab.sinks.memory)": lambda: query(sink=ab.sinks.memory),
        "query(…, sink=save), def save(results)": lambda: query(sink=save),
        'ab.sinks.parqet("out")': lambda: ab.sinks.parqet("out"),
    },
    "Budgets and facts": {
        'Session(budget="2 GiB")': lambda: ab.Session(budget="2 GiB"),  # type: ignore[arg-type]
        "Budget(cpu=0)": lambda: ab.Budget(cpu=0),
        "Budget(cpu=-1)": lambda: ab.Budget(cpu=-1),
        'Budget(memory="lots")': lambda: ab.Budget(memory="lots"),
        "Budget(memory=-5)": lambda: ab.Budget(memory=-5),
        'Session(facts={"trades": 5000})': lambda: ab.Session(facts={"trades": 5000}),  # type: ignore[arg-type]
        'Given({"trades": -1})': lambda: ab.Given({"trades": -1}),
        'Session(facts=Given({"tradez": 5000})), start()': lambda: started(ab.Given({"tradez": 5000})),
        'Session(facts=Given(distinct={"t.kk": 10})), start()': lambda: started(ab.Given(distinct={"t.kk": 10})),
        "Session(slots=0)": lambda: ab.Session(slots=0),
    },
    "Lengths of time": {
        'stream(…, lateness="5")': lambda: stream(lateness="5"),
        "stream(…, lateness=5)": lambda: stream(lateness=5),
        'stream(…, lateness="-5s")': lambda: stream(lateness="-5s"),
        "stream(…, lateness=timedelta(seconds=-5))": lambda: stream(lateness=timedelta(seconds=-5)),
        'stream(…, lateness="5 secands")': lambda: stream(lateness="5 secands"),
        'stream(…, idle="0s")': lambda: stream(idle="0s"),
        'stream(…, ahead="tomorrow")': lambda: stream(ahead="tomorrow"),
        'Session(idle_close="soon")': lambda: ab.Session(idle_close="soon"),
        'Adapt(pause="half a second")': lambda: ab.Adapt(pause="half a second"),
    },
    "Columns and streams": {
        'stream(…, columns={"k": "BIGNT"})': lambda: stream(columns={"k": "BIGNT"}),
        'stream(…, columns=["k", "ts"])': lambda: stream(columns=["k", "ts"]),
        'stream(…, columns="k BIGINT")': lambda: stream(columns="k BIGINT"),
        'stream(…, columns={"k": pa.uint8()})': lambda: stream(columns={"k": pa.uint8()}),
        'stream(…, columns=[("k", "INT"), ("k", "INT")])': lambda: stream(columns=[("k", "INT"), ("k", "INT")]),
        "a stream that is declared twice": lambda: session().stream("trades", "x/*.csv", "ts", columns=COLUMNS),
        'stream("s", "s/*.orc", "ts")': lambda: ab.Session().stream("s", "s/*.orc", "ts"),
        'stream(…, format="parqet")': lambda: stream(format="parqet"),
    },
    "Queries and starting": {
        'query(…, plan="(t x)")': lambda: query(plan="(t x)"),
        'query(…, on_failure="leaf")': lambda: query(on_failure="leaf"),
        "start(availableNoww=True)": lambda: started(availableNoww=True),
        'start(processingTime="fast")': lambda: started(processingTime="fast"),
        'Adapt("dataa")': lambda: ab.Adapt("dataa"),
    },
    "Overload": {
        'Session(overload="shed")': lambda: ab.Session(overload="shed"),  # type: ignore[arg-type]
        'query(…, overload="shed")': lambda: query(overload="shed"),
        'Overload("adapt join")': lambda: overload("adapt join"),
        'Overload(clock="noon")': lambda: overload(clock="noon"),
        "Overload(cpu=0)": lambda: overload(cpu=0),
        'Overload("adapt joins", pilot=0)': lambda: overload("adapt joins", pilot=0),
        'Overload("adapt joins", allowances={"t": -0.1})': lambda: overload("adapt joins", allowances={"t": -0.1}),
        'Overload("adapt joins", allowances={"t": 1.5})': lambda: overload("adapt joins", allowances={"t": 1.5}),
        'Overload("adapt joins", allowances={"t": nan})': lambda: overload("adapt joins", allowances={"t": math.nan}),
        'Overload("shed", allowances={"t": 0.4})': lambda: overload("shed", allowances={"t": 0.4}),
        'Overload("shed", may_shed=True)': lambda: overload("shed", may_shed=True),
        'query(…, overload=Overload("adapt joins", allowances={"x": 0.4}))': lambda: query(
            overload=overload("adapt joins", allowances={"x": 0.4})
        ),
        'query(…, overload=Overload("adapt joins", allowances={"t": 0, "q": 0}))': lambda: query(
            overload=overload("adapt joins", allowances={"t": 0, "q": 0})
        ),
        'a query with GROUP BY, overload=Overload("adapt joins")': lambda: lossy(
            "SELECT t.k, COUNT(*) AS n FROM trades t, quotes q WHERE t.k = q.k GROUP BY t.k WINDOW 5 SECONDS"
        ),
        'a query over one stream, overload=Overload("adapt joins")': lambda: lossy("SELECT k FROM trades [NOW]"),
        'a query over a subquery with groups, overload=Overload("adapt joins")': lambda: lossy(
            "SELECT x.n FROM (SELECT k, COUNT(*) AS n FROM trades [NOW] GROUP BY k) x, quotes [NOW] q WHERE x.k = q.k"
        ),
        "FRESHNESS with GROUP BY": lambda: lossy(
            "SELECT t.k, COUNT(*) AS n FROM trades t, quotes q WHERE t.k = q.k GROUP BY t.k "
            "WINDOW 5 SECONDS FRESHNESS 6 SECONDS"
        ),
        "FRESHNESS below the window": lambda: lossy(
            "SELECT t.k FROM trades t, quotes q WINDOW 5 SECONDS FRESHNESS 4 SECONDS"
        ),
        "FRESHNESS of an UNBOUNDED window": lambda: lossy("SELECT t.k FROM trades [UNBOUNDED FRESHNESS 4 SECONDS] t"),
    },
    "Blocks in a database": {
        'Session(database_failure="wait")': lambda: ab.Session(checkpoint="checkpoint", database_failure="wait"),
        "PLACE(x, dukc)": lambda: placed("SELECT /*+ PLACE(x, dukc) */ x.n FROM {groups} x"),
        "PLACE(x, duck), STDDEV": lambda: placed("SELECT /*+ PLACE(x, duck) */ x.s FROM {spreads} x"),
        "PLACE(x, duck), a mean in WHERE": lambda: placed("SELECT /*+ PLACE(x, duck) */ x.m FROM {means} x WHERE x.m > 1"),
        "PLACE(x, duck) PLACE(y, duck)": lambda: placed(
            "SELECT /*+ PLACE(x, duck) PLACE(y, duck) */ x.n FROM {groups} x, {groups} y WHERE x.k = y.k"
        ),
        "PLACE(duck), over one stream without groups": lambda: placed("SELECT /*+ PLACE(duck) */ k FROM trades [NOW]"),
    },
}

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Options": {
        "explain --rate tradez=5": ("explain {script} --rate tradez=5", SCRIPT),
        "explain --rate trades=-5": ("explain {script} --rate trades=-5", SCRIPT),
        "explain --rate trades=fast": ("explain {script} --rate trades=fast", SCRIPT),
        "explain --distinct foo=10": ("explain {script} --distinct foo=10", SCRIPT),
        "explain --cpu 0": ("explain {script} --cpu 0", SCRIPT),
        "run --slots 0": ("run {script} --slots 0", SCRIPT),
        "run --files-per-batch -1": ("run {script} --files-per-batch -1", SCRIPT),
        "run --memory lots": ("run {script} --memory lots", SCRIPT),
        "run --pause soon": ("run {script} --pause soon", SCRIPT),
        "run --skip 0.parquet": ("run {script} --skip 0.parquet", SCRIPT),
        "run --overload drop": ("run {script} --overload drop", SCRIPT),
        "run --allow t=2": ("run {script} --overload shed --allow t=2", SCRIPT),
        "run --every 1s --once": ("run {script} --every 1s --once", SCRIPT),
        "explain --overload 'adapt joins' --allow x=0.4": (
            "explain {script} --overload 'adapt joins' --allow x=0.4", SCRIPT
        ),
    },
    "Paths": {
        "run, with a folder that is not there": ("run {script}", SCRIPT.replace("'quotes/", "'nowhere/")),
        "run, of files on a store": ("run {script}", SCRIPT.replace("'quotes/", "'s3://bucket/")),
        "run, with a path of another format": ("run {script}", SCRIPT.replace("quotes/*.parquet", "quotes/*.orc")),
        "run, with a folder of files of another format": ("run {script}", SCRIPT.replace("quotes/*.parquet", "orc/*")),
        "run --output, a file": ("run {script} --output file", SCRIPT),
        "run --checkpoint, below a file": ("run {script} --checkpoint file/checkpoint", SCRIPT),
    },
    "Scripts": {
        "run, with an empty script": ("run {script}", "  \n-- nothing yet\n"),
        "run, with a script without a query": ("run {script}", "\n".join(SCRIPT.splitlines()[:2])),
        "run, with a plan that names what is not there": (
            "run {script}", SCRIPT.replace("QUERY pairs AS", "QUERY pairs PLAN '(t o)' AS"),
        ),
    },
}  # fmt: skip


MISTAKES: dict[str, dict[str, Any]] = {**PYTHON, **COMMANDS}


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Where the mistakes are made: some folders, and a file."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as name:
        for each in ("trades", "quotes", "orc"):
            os.mkdir(os.path.join(name, each))
        Path(name, "orc", "1.orc").write_bytes(b"ORC")
        Path(name, "file").write_bytes(b"")
        os.chdir(name)
        try:
            yield Path(os.path.realpath(name))
        finally:
            os.chdir(before)


@contextlib.contextmanager
def without_spark() -> Iterator[None]:
    with ExitStack() as patched:
        for name in ("anabranch.session.create_session", "anabranch.spark.create.create_session"):
            patched.enter_context(mock.patch(name, side_effect=AssertionError("Spark was started")))
        yield


def told_in_python(mistake: Callable[[], object]) -> str:
    with folder() as here, without_spark():
        try:
            mistake()
        except (AnabranchError, AttributeError) as error:
            return f"{type(error).__name__}: {error}".replace(f"{here}/", "")
    raise AssertionError("nobody noticed")


def told_by_command(line: str, script: str) -> str:
    with folder() as here, without_spark(), contextlib.redirect_stderr(io.StringIO()) as told:
        Path("queries.sql").write_text(script)
        try:
            code = main(shlex.split(line.format(script="queries.sql")))
        except SystemExit as ended:
            code = int(str(ended.code))
        text = told.getvalue().replace(f"{here}/", "")
    shown = re.sub(r"(?s)^usage:.*?(?=anabranch \w+: error: )", "", text).strip()
    return f"{shown}\n(ends with {code})"


def written() -> str:
    lines = [BEGINNING]
    for title, rows in MISTAKES.items():
        lines += [f"## {title}\n", "| mistake | what is said |", "|---|---|", *(row(title, name) for name in rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def row(title: str, name: str) -> str:
    made = MISTAKES[title][name]
    told = told_by_command(*made) if isinstance(made, tuple) else told_in_python(made)
    return f"| {_code(name)} | {_code(told)} |"


def _code(text: str) -> str:
    """Some lines in a cell of a table, with their spaces."""
    return f"<pre>{html.escape(text, quote=False).replace('|', '&#124;')}</pre>".replace("\n", "<br>")


@pytest.mark.parametrize(("title", "name"), [(title, name) for title, rows in MISTAKES.items() for name in rows])
def test_a_mistake_is_told_as_the_table_says(title: str, name: str) -> None:
    assert row(title, name) in TABLE.read_text().splitlines()


def test_the_table_has_no_other_rows() -> None:
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| <pre>")]
    assert len(rows) == sum(map(len, MISTAKES.values()))


if __name__ == "__main__":
    TABLE.write_text(written())
    sys.exit(0)
