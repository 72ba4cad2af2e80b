"""What the experiments are made with.

`experiment` holds the options that all of them take, `rounds` measures conditions in turn, `ring`
starts a server under one of them. `home_lines` puts its stages into network namespaces joined by
slow lines: `home_network` names and makes them, `delay_lines` carries their packets, `packet_line`
is the arithmetic of one upload. `streams` and `prompts` are the load, `cluster_log` and `traffic`
watch what the ring says of itself and what the kernel says of it. `results` writes JSON and tables,
`plots` pictures, `gap_panels` those of gaps between tokens.
"""
