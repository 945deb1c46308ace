"""Compiled loops over plain memory: hashing, sorting runs, merging them, probing them, gathering rows.

State lives in memory-mapped files, so kernels take addresses; whoever calls keeps the buffers alive. Each kernel has a
slow twin in `reference.py` that property tests compare it with.
"""
