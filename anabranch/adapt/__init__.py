"""Loops that decide while queries run: about plans, slices, and what may be lost under overload. Monitoring, analysis,
actuation (001, section 4.4), as functions of what was recorded. No clock, no files, no Spark."""
