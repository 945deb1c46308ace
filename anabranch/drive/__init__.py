"""The batch protocol without Spark: what a batch starts from, what it left behind, what changes."""
