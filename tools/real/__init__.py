"""Checks against what is published: run by hand, with files that are not in this repository."""
