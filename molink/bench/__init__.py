"""Measure a running server from outside, the way its users see it.

`plan` says which requests there are and when each may start, `runner` carries a plan out over HTTP,
`report` turns what was recorded into numbers, `table` shows them. They are apart so that another
kind of load (arrival times and lengths taken from a trace) is one more function that makes a plan.
"""

from molink.bench.load import LoadSettings, run_load

__all__ = ["LoadSettings", "run_load"]
