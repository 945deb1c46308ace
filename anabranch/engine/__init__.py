"""Boxes and their state: the join engine of one slot, with no Spark in it."""
