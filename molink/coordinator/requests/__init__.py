"""Requests: which are taken, which ring computes each, and which are audited."""
