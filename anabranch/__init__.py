"""Continuous SQL over several streams: windowed multi-joins under plans that can change while they run."""
