"""Experiments on placement."""
