"""Checks against what others made: published models, and other projects' own programs."""
