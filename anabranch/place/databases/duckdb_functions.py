"""Functions of DuckDB whose result is not one of their arguments alone.

DuckDB's catalogue tells most of them (`stability`). It tells nothing of macros, and takes some functions for stable that are
not: those are here. A test goes through the whole catalogue, so that a function that a new DuckDB brings is looked at.
"""

from __future__ import annotations

CATALOGUED = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"

CLOCKS = frozenset({
    "ago", "current_localtime", "current_localtimestamp", "pg_conf_load_time", "pg_postmaster_start_time", "pg_sleep",
})  # fmt: skip
"""They read the clock, or wait for it."""

SETTINGS = frozenset({"current_catalog", "current_role", "current_user", "session_user", "user", "version"})
"""They tell who asks, whom, and where."""

CATALOGUE = frozenset({
    "format_type", "get_block_size", "index_key", "json_serialize_plan", "pg_get_constraintdef", "pg_get_viewdef",
})  # fmt: skip
"""They read DuckDB's own tables."""

NOT_CATALOGUED = CLOCKS | SETTINGS | CATALOGUE

CLOCKS_ALONE = frozenset({"age"})
"""With one argument they compare it with the clock, with two these with each other."""

WORDS = frozenset({
    "current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp", "current_user",
    "localtime", "localtimestamp", "session_user",
})  # fmt: skip
"""Words that look like columns, and are functions where there is no such column. (`user` is another one. It is the name of
too many columns; where it is none, it gives the same in every DuckDB.)"""
