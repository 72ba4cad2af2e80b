"""Experiments on fetching weights."""
