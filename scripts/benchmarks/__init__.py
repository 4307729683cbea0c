"""Benchmarks: a named case matrix, how a case is built, how it is timed, and the tables."""
