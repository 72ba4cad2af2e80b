"""What the experiments are made with.

`experiment` makes them commands, measures conditions in turn, and writes JSON and tables. `serving`
starts a ring under a condition, `agents` a coordinator with agents, `processes` anything else.
`loads` are streams and prompts; `traffic` and `tcp_counters` watch what the kernel says of a ring.
"""
