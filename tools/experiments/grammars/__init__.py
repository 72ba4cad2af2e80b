"""Grammars: JSON schemas to follow, and what following them costs."""
