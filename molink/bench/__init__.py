"""Measure a running server from outside, the way its users see it.

`plan` says which requests there are and when each may start, `runner` carries a plan out over HTTP,
`report` turns what was recorded into numbers. A plan is a closed loop (`load`), or a trace
(`trace_load`). `validation` is the real half of `molink sim compare`.
"""
