"""Cached KV blocks of a stage: in its device's memory, in host memory and in a file."""
