"""Reports of a run, for people and for programs.

`summary` makes numbers of an outcome, `tables`, `curves`, `gantt` and `micro_batches` show them,
`page` binds tables and pictures into one HTML file that needs nothing else. A `Sweep` is many runs
with what each was made with; curves and the heat map read it. Only the pictures need matplotlib.
"""
