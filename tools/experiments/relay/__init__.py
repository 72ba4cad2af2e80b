"""Experiments on the relay."""
