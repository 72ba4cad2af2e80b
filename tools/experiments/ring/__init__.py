"""Experiments on a whole ring: speed, latency, micro-batches."""
