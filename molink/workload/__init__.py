"""Traces, loads and scenarios, what they come to, and the tables that show it.

Benchmarks and the simulator share them, so nothing is imported here: HTTP would come along.
"""
