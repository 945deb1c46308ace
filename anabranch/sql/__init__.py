"""SQL, from text to bound queries.

A text passes through the files in this order: `dialect` cuts it into words, `statements` (with `type_syntax`,
`expression_syntax`, `durations`, and `refusals` for what is not in the language) reads them into the values of
`syntax`;
`script` fills a `catalog` from CREATE STREAM and CREATE TABLE; `bind` turns every SELECT into a `plan.query.Query`, for
which `scope` resolves names and `expressions` binds expressions (`functions` is the table of functions, `coercion` and
`types` know which operands go together).

Whatever is wrong with a text raises an `errors.SqlError` with line, column and caret, never anything else.
"""

from anabranch.sql.bind import bind_query
from anabranch.sql.catalog import Catalog, Location
from anabranch.sql.durations import parse_duration
from anabranch.sql.script import BoundQuery, Script, parse_script

__all__ = ["BoundQuery", "Catalog", "Location", "Script", "bind_query", "parse_duration", "parse_script"]
