"""Experiments on the simulator itself."""
