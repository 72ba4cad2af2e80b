"""Measure a running server from outside, the way its users see it.

`plan` says which requests there are and when each may start, `runner` carries a plan out over HTTP,
`report` turns what was recorded into numbers (`spread`), `table` and `markdown` show them. A plan
is a closed loop (`load`), or a trace (`trace_load`; `trace`, `trace_mix`, `trace_fit`). The other
modules are experiments, run by hand with `python -m molink.bench.NAME`, on what `apparatus` holds.
The simulator shares traces, numbers, tables and pictures, so nothing is imported here: HTTP would
come along.
"""
