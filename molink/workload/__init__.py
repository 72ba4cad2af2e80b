"""Traces, loads and scenarios, and what their requests come to.

Benchmarks and the simulator share them, so nothing is imported here: HTTP would come along.
"""
