"""Which columns queries ask of their sources."""

from __future__ import annotations

from anabranch.balance.layout import layout_of
from anabranch.balance.together import choose_together, restored
from anabranch.plan.demand import read_columns
from anabranch.plan.workload import Workload
from anabranch.sql import parse_script

SCRIPT = """
CREATE STREAM a (j BIGINT, x BIGINT, unread BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (j BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY rows AS SELECT a.x FROM a [NOW] AS a;
CREATE QUERY pairs AS SELECT a.x FROM a [RANGE 1 SECOND] AS a, b [RANGE 1 SECOND] AS b WHERE a.j = b.j;
"""


def test_rows_are_spread_by_a_column_that_only_a_query_read_which_has_left() -> None:
    """Rows of a query that needs no exchange go where those of a join go, and stay there when the join has left: the column
    by which they are spread must still be there."""
    rows, pairs = (declared.query for declared in parse_script(SCRIPT).queries)
    both = choose_together(Workload((rows, pairs)), 4, may_skip_exchange=False)
    alone = Workload((rows,))
    spread = restored(alone, {"rows": layout_of(both["rows"])}, 4)
    assert read_columns(alone) == {"a": ("x", "ts")}
    assert read_columns(alone, spread) == {"a": ("j", "x", "ts")}
    assert read_columns(alone, choose_together(alone, 1)) == {"a": ("x", "ts")}, "in one slot nothing is spread"
