"""Checks of each thing that an agent needs, with the remedy for what is missing."""
