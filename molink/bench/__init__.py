"""Measure a running server from outside, the way its users see it.

`load` turns the command line's settings into a plan, `runner` carries it out over HTTP, `report`
turns what was recorded into numbers. `stage_profile` measures the stages of a model without a
server; `validation` is the real half of `molink sim compare`.
"""
