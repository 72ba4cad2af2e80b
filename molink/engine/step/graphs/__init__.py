"""Decode steps that are recorded once and replayed, without Python."""
