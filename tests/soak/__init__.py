"""Faults of every kind at random over jobs that train: `python -m tests.soak --minutes 20`."""
