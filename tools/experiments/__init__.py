"""Experiments behind `docs/benchmarks`: `python -m tools.experiments.ROOM.NAME`."""
