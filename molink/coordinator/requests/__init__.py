"""Requests: the path of each to a ring and of its tokens back, and what is reported of rings."""
