"""Benchmarks: each measures a capability beside what a user would pick instead, in one run, and writes bench/out/*.json."""
