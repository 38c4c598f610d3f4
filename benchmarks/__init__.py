"""Measurements beside what a user would pick instead. `python -m benchmarks NAME`; never part of a test's verdict."""
