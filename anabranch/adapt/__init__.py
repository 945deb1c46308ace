"""The loop that decides about plans while a query runs: monitoring, analysis, actuation (001, section 4.4), as functions of
what was recorded. No clock, no files, no Spark."""
