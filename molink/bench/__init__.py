"""Measure a running server from outside, the way its users see it.

`plan` says which requests there are and when each may start, `runner` carries a plan out over HTTP,
`report` turns what was recorded into numbers, `table` shows them. A plan is a closed loop, or a
trace (`trace`, `trace_mix`, `trace_fit`). The other modules are experiments, run by hand with
`python -m molink.bench.NAME`, on what `apparatus` holds.
"""

from molink.bench.load import LoadSettings, run_load

__all__ = ["LoadSettings", "run_load"]
