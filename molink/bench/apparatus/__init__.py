"""What the experiments are made with.

`experiment` holds the options that all of them take, `rounds` measures conditions in turn, `ring`
starts a server under one of them. `streams` and `prompts` are the load, `cluster_log` and
`traffic` watch what the ring says of itself and what the kernel says of it. `results` writes
JSON and tables, `plots` pictures.
"""
