"""Homes in network namespaces, joined by slow lines, for experiments over real TCP."""
